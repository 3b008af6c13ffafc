"""The kernel: what messages become rows, and which; whatever way a range is cut."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_messages import Sample, as_rows

from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.java_hash import java_hash
from rmq_spark.tables import engine, kernel, range_rows
from rmq_spark.tables.range_rows import RangeRows
from rmq_spark.tables.schemas import CONSUMEQUEUE, INDEX, TABLES


def rows_of(sample: Sample, cuts: list[int]) -> dict[str, list[tuple[object, ...]]]:
    """Rows of the whole log, made range by range."""
    start, end = sample.bounds()
    maker = RangeRows(sample.store.log())
    edges = sorted({start, end, *(cut for cut in cuts if start < cut < end)})
    found: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
    for low, high in pairwise(edges):
        for name, rows in maker.make(low, high, TABLES).items():
            found[name].append(rows.cast(TABLES[name].schema))
    return {
        name: as_rows(pa.concat_tables([TABLES[name].schema.empty_table(), *parts])) for name, parts in found.items()
    }


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_what_rocketmq_would_dispatch(seed: int) -> None:
    sample = Sample.new(seed).grow(25)
    assert rows_of(sample, []) == sample.expected()
    assert all(sample.expected().values()), "a sample with nothing in it proves nothing"


def test_rows_are_the_same_after_rolling_and_behind_an_expired_part() -> None:
    sample = Sample.new(7).grow(30)
    sample.roll()
    sample.grow(30).roll()
    sample.grow(5)
    assert rows_of(sample, []) == sample.expected()
    assert sample.expire() > 0
    expected = sample.expected()
    found = rows_of(sample, [])
    assert found["consumequeue"] == expected["consumequeue"]
    assert found["index"] == expected["index"]
    # How long messages had waited is not known any more of those that expired.
    for row, wanted in zip(found["consumer_offsets"], expected["consumer_offsets"], strict=True):
        assert row[:7] == wanted[:7]
        assert row[7] in (wanted[7], None)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 50), cuts=st.lists(st.integers(0, 1500), max_size=12), rolled=st.booleans())
def test_any_split_into_ranges_gives_the_same_rows(seed: int, cuts: list[int], rolled: bool) -> None:
    sample = Sample.new(seed).grow(15)
    if rolled:
        sample.roll()
        sample.grow(5)
    assert rows_of(sample, cuts) == sample.expected()


def test_messages_of_a_deleted_topic_give_rows_whenever_they_are_read() -> None:
    sample = Sample.new(3).grow(20)
    before = rows_of(sample, [])
    sample.delete_topic("orders")
    assert rows_of(sample, []) == before


def test_key_hash_is_rocketmqs() -> None:
    # "TopicTest#order-1".hashCode() in Java is negative; the index stores it without its sign.
    assert java_hash("TopicTest#order-1") == -1829193424
    assert kernel.key_hash("TopicTest", "order-1") == 1829193424
    # The one number that has no positive counterpart counts as 0.
    assert java_hash("t#achssxlk") == -(1 << 31)
    assert kernel.key_hash("t", "achssxlk") == 0
    schema = pa.schema([*kernel_input()])
    batch = pa.RecordBatch.from_pylist(
        [{"topic": "t", "keys": "achssxlk", "msgId": "", "brokerName": "b", "sysFlag": 0, "storeTimestamp": 0}],
        schema=schema,
    )
    assert kernel.index_rows(batch).column("keyHash").to_pylist() == [0]


def kernel_input() -> list[pa.Field]:
    from rmq_spark.log import schema

    return [schema.MESSAGE.field(name) for name in kernel.INDEX_COLUMNS]


def test_schemas_are_what_the_kernel_makes() -> None:
    sample = Sample.new(1).grow(10)
    [batch] = pa.Table.from_batches(kernel.read_range(sample.store.log(), 0, 1 << 60)).combine_chunks().to_batches()
    assert kernel.plain(kernel.consumequeue_rows(batch), CONSUMEQUEUE).schema == CONSUMEQUEUE
    assert kernel.plain(kernel.index_rows(batch), INDEX).schema == INDEX
    empty = batch.slice(0, 0)
    assert kernel.plain(kernel.consumequeue_rows(empty), CONSUMEQUEUE).num_rows == 0
    assert kernel.plain(kernel.index_rows(empty), INDEX).num_rows == 0


@pytest.mark.parametrize("counts", [(5, 200), (100, 100), (200, 5)])
def test_many_topics_in_a_range_that_is_made_piece_by_piece(
    counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One piece's topics may fit into small numbers when another's, or those of both, do not.
    sample = Sample.new(3)
    first = 0
    for count in counts:
        topics = [f"t{number:03d}" for number in range(first, first + count)]
        messages = [
            MessageBatch.of(topic=topic, queue_id=0, msg_id=f"{topic}-id", body=b"x", born_timestamp_ms=0, keys="k")
            for topic in topics
        ]
        sample.store.log().append(MessageBatch.merge(messages))
        first += count
    whole = RangeRows(sample.store.log()).make(0, first, TABLES)
    monkeypatch.setattr(range_rows, "_HELD_BYTES", 1)
    pieces = RangeRows(sample.store.log()).make(0, first, TABLES)
    for name, rows in pieces.items():
        assert as_rows(kernel.plain(rows, TABLES[name].schema)) == as_rows(
            kernel.plain(whole[name], TABLES[name].schema)
        )
    assert pieces["index"].num_rows == 2 * first
    assert engine.reput(sample.store).rows["index"] == 2 * first
    assert set(engine.read_table(sample.store, "index")["topic"].to_pylist()) == {f"t{n:03d}" for n in range(first)}
