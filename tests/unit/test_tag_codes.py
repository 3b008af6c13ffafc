"""Tag codes of runs: they are what a look at each row finds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.log.run_index import TAGS_PER_RUN_MAX, tag_codes
from rmq_spark.model.java_hash import java_hash

TEXTS = (
    st.lists(st.sampled_from([f"t{number:03}" for number in range(19)]), min_size=1, max_size=60)
    | st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=30)
    | st.lists(st.sampled_from(["long-tag", "others!!", "Aa", "BB", None, ""]), min_size=1, max_size=30)
)


def looked_at(tags: list[str | None], rows: list[int]) -> tuple[list[int], list[int]]:
    """Counts and codes of sorted rows."""
    counts, codes, at = [], [], 0
    for count in rows:
        mine = sorted({java_hash(tag or "") for tag in tags[at : at + count]})
        at += count
        crowded = len(mine) > TAGS_PER_RUN_MAX
        counts.append(-1 if crowded else len(mine))
        codes += [] if crowded else mine
    return counts, codes


@given(TEXTS, st.data())
def test_codes_are_those_of_the_rows(given_tags: list[str | None], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 4), min_size=len(given_tags), max_size=len(given_tags)))
    order = np.argsort(places, kind="stable")
    rows = np.unique(places, return_counts=True)[1].astype(np.int32)
    in_order = [given_tags[index] for index in order]
    counts, codes = tag_codes(pa.array(given_tags, pa.string()), order.astype(np.int64), rows)
    assert counts.dtype == codes.dtype == np.int32
    assert (counts.tolist(), codes.tolist()) == looked_at(in_order, rows.tolist())
    sorted_column = pa.array(in_order, pa.string())
    assert [part.tolist() for part in tag_codes(sorted_column, None, rows)] == [counts.tolist(), codes.tolist()]


def test_many_runs_of_many_tags_have_theirs() -> None:
    tags = [f"tag-{number}" for number in range(200)]
    counts, codes = tag_codes(pa.array(tags), None, np.ones(200, np.int32))
    assert (counts.tolist(), codes.tolist()) == looked_at(tags, [1] * 200)


def test_a_part_of_a_column_is_a_column() -> None:
    column = pa.array(["xxxx", "paid", "open", "paid", "xxxx"]).slice(1, 3)
    counts, codes = tag_codes(column, None, np.array([1, 2], np.int32))
    assert (counts.tolist(), codes.tolist()) == looked_at(["paid", "open", "paid"], [1, 2])


def test_no_rows_have_no_tags() -> None:
    none = np.empty(0, np.int32)
    counts, codes = tag_codes(pa.array([], pa.string()), None, none)
    assert len(counts) == len(codes) == 0


def test_a_run_with_too_many_tags_names_none_and_the_others_theirs() -> None:
    many = [f"tag-{number}" for number in range(TAGS_PER_RUN_MAX + 1)]
    counts, codes = tag_codes(pa.array([*many, "paid"]), None, np.array([len(many), 1], np.int32))
    assert (counts.tolist(), codes.tolist()) == ([-1, 1], [java_hash("paid")])
