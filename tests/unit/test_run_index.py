"""Sorting rows into runs: the version for Arrow columns and the one for a few Python rows agree."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.log.message_batch import to_record_batch
from rmq_spark.log.run_index import TAGS_PER_RUN_MAX, Runs, sort_into_runs, sort_rows
from rmq_spark.model.java_hash import java_hash

tags = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "B", "%RETRY%g", "z"]), st.integers(0, 4), tags, st.integers(0, 99)),
    min_size=1,
    max_size=40,
).map(lambda drawn: [make(*each) for each in drawn])


def make(topic: str, queue: int, tag: str | None, number: int) -> tuple[Any, ...]:
    return (topic, queue, f"{number:032X}", tag, None, b"x", 0, 0, number, None, 0, [])


def tag_sets(runs: Runs) -> list[set[int] | None]:
    """The codes of each run as a set: their order within a run is free."""
    found: list[set[int] | None] = []
    at = 0
    for count in runs.tag_counts.tolist():
        found.append(None if count < 0 else set(runs.tag_codes[at : at + count].tolist()))
        at += max(count, 0)
    assert at == len(runs.tag_codes)
    return found


@settings(deadline=None)
@given(rows)
def test_both_ways_of_sorting_agree(given_rows: list[tuple[Any, ...]]) -> None:
    batch, runs, order = sort_into_runs(to_record_batch(given_rows))
    few, few_runs, few_order = sort_rows(given_rows)
    assert to_record_batch(few).equals(batch)
    assert runs.topics == few_runs.topics
    for name in ("topic", "queue", "rows", "tag_counts"):
        assert getattr(runs, name).tolist() == getattr(few_runs, name).tolist(), name
        assert getattr(runs, name).dtype == getattr(few_runs, name).dtype == np.int32
    assert tag_sets(runs) == tag_sets(few_runs)
    plain = np.arange(len(given_rows))
    assert (plain if order is None else order).tolist() == (plain if few_order is None else few_order).tolist()


@settings(deadline=None)
@given(rows)
def test_runs_are_contiguous_sorted_and_keep_the_order_within_a_queue(given_rows: list[tuple[Any, ...]]) -> None:
    batch, runs, order = sort_into_runs(to_record_batch(given_rows))
    places = list(zip(batch.column("topic").to_pylist(), batch.column("queueId").to_pylist(), strict=True))
    assert places == sorted(places)
    heads = [(runs.topics[topic], queue) for topic, queue in zip(runs.topic.tolist(), runs.queue.tolist(), strict=True)]
    assert heads == sorted(set(places))
    assert runs.rows.tolist() == [places.count(head) for head in heads]
    assert runs.first_rows().tolist() == [places.index(head) for head in heads]
    moved = np.arange(len(given_rows)) if order is None else order
    for head in heads:
        mine = [moved[index] for index, place in enumerate(places) if place == head]
        assert mine == sorted(mine)
        codes = {java_hash(given_rows[index][3] or "") for index in mine}
        assert tag_sets(runs)[heads.index(head)] == codes


def test_a_run_with_too_many_tags_lists_none() -> None:
    crowded = [make("a", 0, f"tag-{number}", number) for number in range(TAGS_PER_RUN_MAX + 1)]
    full = [make("a", 1, f"tag-{number}", number) for number in range(TAGS_PER_RUN_MAX)]
    for runs in (sort_into_runs(to_record_batch(crowded + full))[1], sort_rows(crowded + full)[1]):
        assert runs.tag_counts.tolist() == [-1, TAGS_PER_RUN_MAX]
        assert len(runs.tag_codes) == TAGS_PER_RUN_MAX


def test_many_queues_are_sorted_by_number_not_by_text() -> None:
    drawn = [make("a", queue, None, queue) for queue in (10, 9, 65_535, 0, 100)]
    assert sort_into_runs(to_record_batch(drawn))[1].queue.tolist() == [0, 9, 10, 100, 65_535]
    assert sort_rows(drawn)[1].queue.tolist() == [0, 9, 10, 100, 65_535]


@settings(deadline=None)
@given(rows, st.lists(st.binary(min_size=3, max_size=3) | st.binary(max_size=5), min_size=1, max_size=5), st.data())
def test_part_of_a_batch_is_sorted_like_a_batch_of_its_own(
    given_rows: list[tuple[Any, ...]], bodies: list[bytes], data: st.DataObject
) -> None:
    varied = [(*row[:5], bodies[index % len(bodies)], *row[6:]) for index, row in enumerate(given_rows)]
    start = data.draw(st.integers(0, len(varied) - 1))
    part, runs, order = sort_into_runs(to_record_batch(varied).slice(start))
    part.validate(full=True)
    alone, alone_runs, alone_order = sort_into_runs(to_record_batch(varied[start:]))
    assert part.equals(alone)
    assert runs.rows.tolist() == alone_runs.rows.tolist()
    assert (order is None) == (alone_order is None)
    if order is not None:
        assert part.equals(to_record_batch([varied[start:][index] for index in order.tolist()]))
