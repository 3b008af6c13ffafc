"""Columns for Spark: any of them in any order, with exactly the Arrow schema that Spark would build itself."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches
from pyspark_rocketmq import DefaultSource
from store_world import World, batch_tasks, read_rows

from rmq_spark.client.compression import compress
from rmq_spark.errors import CorruptDataError, InvalidRequestError
from rmq_spark.log import schema as log_schema
from rmq_spark.log.scan import Query
from rmq_spark.spark.schema import READ_SCHEMA, join_small, shape_of

TYPES: dict[str, list[DataType]] = {
    field.name: [
        field.dataType,
        *({"body": [StringType()], "bornTimestamp": [LongType()], "storeTimestamp": [LongType()]}.get(field.name, [])),
        *([LongType()] if isinstance(field.dataType, IntegerType) else []),
    ]
    for field in READ_SCHEMA
}
MAY_BE_NULL = {"tags", "keys", "bornTimestamp", "bornHost", "properties"}
NEVER_NULL = {*READ_SCHEMA.names} - MAY_BE_NULL
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COLUMNS = st.permutations(READ_SCHEMA.names).flatmap(
    lambda names: st.integers(1, len(names)).map(lambda count: names[:count])
)


@st.composite
def schemas(draw: st.DrawFn) -> StructType:
    fields = []
    for name in draw(COLUMNS):
        may_be_null = name not in NEVER_NULL or draw(st.booleans())
        fields.append(StructField(name, draw(st.sampled_from(TYPES[name])), may_be_null))
    return StructType(fields)


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"body": TEXT.map(str.encode)},
        optional={
            "tags": TEXT,
            "keys": TEXT,
            "born_host": TEXT,
            "flag": st.integers(-(2**31), 2**31 - 1),
            "reconsume_times": st.integers(0, 20),
            "born_timestamp_ms": st.integers(0, 4_102_444_800_000),
            "properties": st.dictionaries(TEXT.filter(bool), TEXT, max_size=3).map(dict.items),
        },
    ),
    min_size=1,
    max_size=6,
)


def expected_value(row: dict[str, Any], field: StructField) -> Any:
    value = row[field.name]
    if isinstance(field.dataType, LongType) and isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    if field.name == "properties":
        return value or None  # decision 0009
    return value.decode() if field.name == "body" and isinstance(field.dataType, StringType) else value


@given(messages=MESSAGES, wanted=schemas(), rolled=st.booleans(), files=st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
def test_any_columns_of_any_messages_from_any_file(
    messages: list[dict[str, Any]], wanted: StructType, rolled: bool, files: bool
) -> None:
    world = World.create()
    world.store.create_topic("t", queues=3)
    made = [world.message("t", number % 3, **values) for number, values in enumerate(messages)]
    if files:
        world.append_files([made[:1], made[1:]] if len(made) > 1 else [made])
    else:
        world.append(made)
    if rolled:
        world.roll()
    plain = [row for batch in world.log().scan(Query(topics=frozenset({"t"}))) for row in batch.to_pylist()]
    source = DefaultSource(world.options(topic="t"))
    found: list[dict[str, Any]] = []
    for task in batch_tasks(world.options(topic="t"), wanted):
        # Spark's own check, as it stands in its workers.
        for batch in records_to_arrow_batches(task, 10_000, wanted, source):
            assert batch.schema.equals(to_arrow_schema(wanted, timezone="UTC"), check_metadata=True)
            batch.validate(full=True)
            found += batch.to_pylist()
    assert found == [{field.name: expected_value(row, field) for field in wanted} for row in plain]


def test_messages_without_properties_have_null_and_not_an_empty_map() -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    given = [[], [("a", "1")], [], [("b", "2"), ("c", "3")], []]
    world.append([world.message("t", 0, properties=pairs) for pairs in given])
    (batch,) = world.log().scan(Query(topics=frozenset({"t"}), columns=("properties",)))
    shape = shape_of(StructType([field for field in READ_SCHEMA if field.name == "properties"]), decompress=False)
    nulls = pa.concat_arrays([pa.nulls(2, batch.schema.types[0]), batch.column(0)])
    for maps in (batch.column(0), nulls, nulls.slice(3)):
        some = pa.RecordBatch.from_arrays([maps], schema=batch.schema)
        for low in range(len(maps) + 1):
            for high in range(low, len(maps) + 1):
                found = shape.to_spark_batch(some.slice(low, high - low))
                found.validate(full=True)
                assert found.column(0).to_pylist() == [pairs or None for pairs in maps.to_pylist()[low:high]]


def test_every_batch_has_the_same_schema_not_only_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark looks at the first one only; a second that differs ends in the middle of a stream."""
    monkeypatch.setattr("rmq_spark.spark.task_reader.BATCH_ROWS", 1)
    world = World.create()
    world.store.create_topic("t", queues=1)
    world.send("t", tags="a", keys="k", properties=[("p", "v")])
    world.send("t")
    world.roll(segment_bytes=1)
    world.append_files([[world.message("t", 0)], [world.message("t", 0, tags="b")]])
    world.send("t", 0, 0, 0)
    batches = [batch for task in batch_tasks(world.options(topic="t")) for batch in task]
    assert len(batches) >= 4
    assert all(batch.schema.equals(to_arrow_schema(READ_SCHEMA, timezone="UTC")) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 7


def test_small_batches_are_joined_and_large_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_spark.log.scan.SMALL_COMMIT_BYTES", 0)  # the scan returns a batch for each commit
    world = World.create()
    world.store.create_topic("t", queues=1)
    for _ in range(9):
        world.send("t", body=b"x" * 1000)
    assert [batch.num_rows for task in batch_tasks(world.options(topic="t")) for batch in task] == [9]
    monkeypatch.setattr("rmq_spark.spark.task_reader.BATCH_ROWS", 4)
    assert [batch.num_rows for task in batch_tasks(world.options(topic="t")) for batch in task] == [4, 4, 1]
    monkeypatch.setattr("rmq_spark.spark.task_reader.BATCH_BYTES", 3_000)
    assert [batch.num_rows for task in batch_tasks(world.options(topic="t")) for batch in task] == [2, 2, 2, 2, 1]


def test_large_batches_are_split_evenly_and_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_spark.log.scan.SMALL_COMMIT_BYTES", 0)  # the scan returns a batch for each commit
    world = World.create()
    world.store.create_topic("t", queues=1)
    world.send("t", body=b"first")
    world.append([world.message("t", 0, body=f"{number}".encode()) for number in range(10)])
    world.send("t", body=b"last")
    monkeypatch.setattr("rmq_spark.spark.task_reader.BATCH_ROWS", 4)
    batches = [batch for task in batch_tasks(world.options(topic="t")) for batch in task]
    assert [batch.num_rows for batch in batches] == [1, 3, 3, 4, 1]
    bodies = [body.decode() for batch in batches for body in batch.column("body").to_pylist()]
    assert bodies == ["first", *(str(number) for number in range(10)), "last"]


def test_joining_keeps_rows_and_schema() -> None:
    parts = [pa.record_batch({"a": pa.array([number, None], pa.int32())}) for number in range(3)]
    joined = join_small(parts)
    assert joined.to_pylist() == [row for part in parts for row in part.to_pylist()]
    assert joined.schema == parts[0].schema
    assert join_small(parts[:1]) is parts[0]


def test_the_default_is_every_column_of_a_message() -> None:
    assert READ_SCHEMA.names == log_schema.MESSAGE.names
    assert {field.name for field in READ_SCHEMA if field.nullable} == MAY_BE_NULL
    assert DefaultSource({}).schema() == READ_SCHEMA


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("queueOffset long, tag string", r"unknown column in the schema \(column='tag', nearest='tags'\)"),
        ("value binary", r"\(column='value', nearest='body'\)"),
        ("key binary", r"\(column='key', nearest='keys'\)"),
        ("partition int", r"\(column='partition', nearest='queueId'\)"),
        ("offset long", r"\(column='offset', nearest='queueOffset'\)"),
        ("timestamp timestamp", r"\(column='timestamp', nearest='storeTimestamp'\)"),
        ("body int", r"column='body', type='int', allowed=\['binary', 'string'\]"),
        ("queueOffset int", r"column='queueOffset', type='int', allowed=\['bigint'\]"),
        ("bornTimestamp date", r"type='date', allowed=\['bigint', 'timestamp'\]"),
        ("properties map<string,int>", r"type='map<string,int>'"),
        ("tags string, TAGS string", "named twice"),
    ],
)
def test_columns_that_cannot_be_read_are_named(wanted: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        shape_of(parsed(wanted), decompress=True)


def test_names_of_columns_are_compared_without_regard_to_case_and_returned_as_asked() -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    world.send("t", body=b"x")
    wanted = parsed("BODY string, queueid int, Properties map, FLAG long, STORETIMESTAMP long")
    wanted.fields[2].dataType = MapType(StringType(), StringType())
    (row,) = read_rows(world.options(topic="t"), wanted)
    assert list(row) == wanted.names
    assert (row["BODY"], row["queueid"], row["Properties"], row["FLAG"]) == ("x", 0, None, 0)


def parsed(text: str) -> StructType:
    """A schema text without a JVM, which Spark's own parser needs."""
    kinds: dict[str, DataType] = {
        "int": IntegerType(),
        "long": LongType(),
        "string": StringType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "map<string,int>": MapType(StringType(), IntegerType()),
    }
    from pyspark.sql.types import DateType

    fields = [part.split() for part in text.split(", ")]
    return StructType([StructField(name, kinds.get(kind, DateType())) for name, kind in fields])


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="names no column"):
        shape_of(StructType([]), decompress=True)


def test_only_columns_that_are_never_null_may_be_called_so() -> None:
    """Spark's generated code would end in a NullPointerException."""
    may = {field.name for field in READ_SCHEMA if is_accepted(StructField(field.name, field.dataType, False))}
    assert may == NEVER_NULL


def scanned_with_null(column: str) -> pa.RecordBatch:
    world = World.create()
    world.store.create_topic("t", queues=1)
    world.append([world.message("t", 0), world.message("t", 0, flag=7, reconsume_times=7)])
    (batch,) = world.log().scan(Query(topics=frozenset({"t"})))
    at = batch.schema.get_field_index(column)
    values = pa.concat_arrays([pa.nulls(1, batch.schema.field(at).type), batch.column(at)[1:]])
    return batch.set_column(at, batch.schema.field(at), values)


@pytest.mark.parametrize("column", ["flag", "reconsumeTimes", "sysFlag"])
def test_numbers_that_a_writer_left_out_are_zero(column: str) -> None:
    batch = shape_of(READ_SCHEMA, decompress=False).to_spark_batch(scanned_with_null(column))
    assert batch.column(column).to_pylist() == [0, 0 if column == "sysFlag" else 7]
    nullable = StructType([StructField(column, IntegerType())])
    assert shape_of(nullable, decompress=False).to_spark_batch(scanned_with_null(column))[0].null_count == 1


@pytest.mark.parametrize("column", sorted(NEVER_NULL - {"flag", "reconsumeTimes", "sysFlag"}))
def test_a_null_where_spark_was_told_of_none_is_an_error_and_not_a_value(column: str) -> None:
    with pytest.raises(CorruptDataError, match=f"never null .column='{column}'"):
        shape_of(READ_SCHEMA, decompress=False).to_spark_batch(scanned_with_null(column))


def is_accepted(field: StructField) -> bool:
    try:
        shape_of(StructType([field]), decompress=True)
    except InvalidRequestError as error:
        assert "leave NOT NULL out of the schema" in str(error)
        return False
    return True


def test_a_body_that_is_no_text_is_told() -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    world.send("t", body=b"\xff\xfe")
    with pytest.raises(InvalidRequestError, match=r"as binary by a schema.*column='body'"):
        read_rows(world.options(topic="t"), parsed("body string"))


def test_a_time_beyond_sparks_range_is_told_and_can_be_read_as_a_number() -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    world.send("t", born_timestamp_ms=2**62)
    with pytest.raises(InvalidRequestError, match=r"as bigint by a schema.*column='bornTimestamp'"):
        read_rows(world.options(topic="t"))
    assert read_rows(world.options(topic="t"), parsed("bornTimestamp long")) == [{"bornTimestamp": 2**62}]


# ------------------------------------------------------------ bodies


@pytest.mark.parametrize("rolled", [False, True])
def test_bodies_from_nothing_to_four_megabytes(rolled: bool) -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    bodies = [b"", b"x", bytes(range(256)) * 64, b"\x00" * (4 * 1024 * 1024)]
    world.append([world.message("t", 0, body=body) for body in bodies])
    if rolled:
        world.roll()
    assert [row["body"] for row in read_rows(world.options(topic="t"), parsed("body binary"))] == bodies


def compressed(world: World, body: bytes) -> None:
    stored, flag = compress(body, 1)
    world.append([world.message("t", 0, body=stored, sys_flag=flag)])


@pytest.mark.parametrize("wanted", ["body binary", "body string", "sysFlag int, body binary", "queueOffset long"])
def test_compressed_bodies_are_given_plain(wanted: str) -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    compressed(world, b"hello " * 100)
    world.send("t", body=b"plain")
    rows = read_rows(world.options(topic="t"), parsed(wanted))
    assert [list(row) for row in rows] == [[name.split()[0] for name in wanted.split(", ")]] * 2
    if "body" in wanted:
        bodies = [row["body"] if isinstance(row["body"], bytes) else row["body"].encode() for row in rows]
        assert bodies == [b"hello " * 100, b"plain"]


def test_compressed_bodies_can_be_had_as_they_are_stored() -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    compressed(world, b"hello " * 100)
    row = read_rows(world.options(topic="t", decompress=False), parsed("body binary, sysFlag int"))[0]
    assert (row["body"], row["sysFlag"]) == compress(b"hello " * 100, 1)


def test_a_body_that_only_claims_to_be_compressed_is_told() -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    world.send("t", body=b"not zlib", sys_flag=1)
    with pytest.raises(CorruptDataError, match="cannot be decompressed"):
        read_rows(world.options(topic="t"))


def test_only_the_flag_is_read_in_addition_and_only_for_bodies() -> None:
    assert shape_of(parsed("body binary"), decompress=True).columns == ("body", "sysFlag")
    assert shape_of(parsed("body binary"), decompress=False).columns == ("body",)
    assert shape_of(parsed("tags string"), decompress=True).columns == ("tags",)
    shape = shape_of(READ_SCHEMA, decompress=True)
    assert shape.columns == tuple(READ_SCHEMA.names)
    assert dataclasses.replace(shape, decompress=False).columns == shape.columns
