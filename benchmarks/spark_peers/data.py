"""The same messages in a store, in Parquet, in Delta and in Kafka.

The store is filled first, commit by commit, on a clock of its own that moves on with each commit. What it then holds,
all columns, offsets and times included, is written to the peers. Kafka keeps what it has a place for: body, queue, and
as its key the tag and the keys (a tag could also be a header, which its connector reads more slowly). Its times are
those of its own writing. A second topic of Kafka's has headers, too, with what else a message is: its id, and when and
where it was born.
"""

import itertools
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from rmq_spark.client.store import Store
from rmq_spark.clock import SystemClock
from rmq_spark.log import schema
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.scan import Query
from rmq_spark.model.message_id import UniqueIds

TOPIC = "orders"
QUEUES = 8
COMMITS = 40
DELTA_COMMITS = 20
PARQUET_FILES = 8
SMALL_PART = 10_000
"""With few messages there are fewer commits and files: none of them has fewer rows than this."""
COMMIT_APART_MS = 90_000
TAGS = ["created", "paid", "shipped", "closed", "rare"]
TAG_SHARES = [0.25, 0.25, 0.25, 0.24, 0.01]


class PacedClock(SystemClock):
    """A time that moves only when told to; ids and tokens stay real."""

    def __init__(self, now_ms):
        self._now_ms = now_ms

    def now_ms(self):
        return self._now_ms

    def elapsed_ns(self):
        return self._now_ms * 1_000_000

    def advance(self, ms):
        self._now_ms += ms


@dataclass(kw_only=True)
class Data:
    """One set of messages and where it is."""

    label: str
    rows: int
    size: int
    stores: dict = field(default_factory=dict)
    """Layout -> path of a store: `commits` as they were appended, `rolled` into segments."""
    parquet: str = ""
    delta: str = ""
    delta_tuned: str = ""
    """A copy of Delta's table: a session keeps what it made of a table's log, in as many pieces as were set then."""
    topic: str | None = None
    """Kafka's topic; None without Kafka."""
    topic_with_headers: str | None = None
    """The same messages with id, time and host of birth as headers."""
    rare: int = 0
    """How many messages have the tag `rare`."""
    slice_rows: int = 0
    slice_ms: tuple = (0, 0)
    kafka_slice_ms: tuple = (0, 0)


def bodies(draw, rows, size):
    """Letters of four random bits: text that no codec makes much smaller."""
    text = draw.integers(ord("a"), ord("a") + 16, rows * size, np.uint8)
    ends = pa.py_buffer(np.arange(0, (rows + 1) * size, size, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), rows, [None, ends, pa.py_buffer(text)])


def messages(draw, ids, first, rows, size, now_ms):
    number = np.arange(first, first + rows)
    return pa.table(
        {
            "topic": pa.repeat(TOPIC, rows),
            "queueId": pa.array((number % QUEUES).astype(np.int32)),
            "msgId": pa.array(ids.draw(rows), pa.string()),
            "tags": pa.array(TAGS).take(pa.array(draw.choice(len(TAGS), rows, p=TAG_SHARES))),
            "keys": pc.binary_join_element_wise("order-", pa.array(number).cast(pa.string()), ""),
            "body": bodies(draw, rows, size),
            "bornTimestamp": pa.array(now_ms - draw.integers(0, 50, rows)).cast(schema.TIMESTAMP),
            "bornHost": pa.repeat("10.0.0.7:51234", rows),
        }
    )


def edges(rows, parts):
    """Where to cut `rows` into `parts`, or into fewer when there are few."""
    count = max(2, min(parts, rows // SMALL_PART))
    return [rows * part // count for part in range(count + 1)]


def make(world, label, rows, size):
    """Fill the store and every peer; returns where everything is."""
    place = world.place / label.replace(" ", "")
    place.mkdir()
    data = Data(label=label, rows=rows, size=size, parquet=str(place / "parquet"), delta=str(place / "delta"))
    started = time.perf_counter()
    parts = _fill_store(data, place)
    _lap("store, as commits and rolled", started)
    for name, count, frames in (("parquet", PARQUET_FILES, data.parquet), ("delta", DELTA_COMMITS, data.delta)):
        started = time.perf_counter()
        for low, high in _pairs(edges(rows, count)):
            files = [str(part.file) for part in parts if low <= part.first < high]
            # One partition, so that a file is a stretch of the log.
            world.spark.read.parquet(*files).coalesce(1).write.format(name).mode("append").save(frames)
        _lap(name, started)
    data.delta_tuned = shutil.copytree(data.delta, place / "delta-tuned").as_posix()
    if world.kafka is not None:
        started = time.perf_counter()
        _fill_kafka(world, data, parts)
        _lap("kafka", started)
    shutil.rmtree(place / "staged")
    return data


@dataclass(frozen=True)
class Part:
    """One commit of the store, staged as a Parquet file with all columns."""

    first: int
    file: Path
    is_slice: bool


def _fill_store(data, place):
    """Append everything, stage what a scan of it returns, and make a rolled copy.

    The messages from 50 to 51 per cent are a commit of their own: its time is the slice.
    """
    low, high = data.rows // 2, data.rows // 2 + data.rows // 100
    cuts = sorted({*edges(data.rows, COMMITS), low, high})
    clock = PacedClock(SystemClock().now_ms() - (len(cuts) + 10) * COMMIT_APART_MS)
    draw, ids = np.random.default_rng(7), UniqueIds(clock)
    data.stores = {layout: str(place / layout) for layout in ("commits", "rolled")}
    (place / "staged").mkdir()
    parts = []
    with Store.create(data.stores["commits"], clock=clock) as store:
        store.create_topic(TOPIC, queues=QUEUES)
        log = store.log()
        for first, end in _pairs(cuts):
            clock.advance(COMMIT_APART_MS)
            made = messages(draw, ids, first, end - first, data.size, clock.now_ms())
            log.append(MessageBatch.from_arrow(made))
            data.rare += pc.sum(pc.equal(made["tags"], "rare")).as_py()
            if first == low:
                data.slice_ms, data.slice_rows = (clock.now_ms(), clock.now_ms() + 1), end - first
            file = place / "staged" / f"{first:012d}.parquet"
            held = pa.Table.from_batches(log.scan(Query(start=first, end=end)), schema.MESSAGE)
            # As Spark gets them from the store: without properties there is no map, not an empty one.
            none = pa.nulls(len(held), schema.PROPERTIES)
            pq.write_table(held.set_column(len(held.column_names) - 1, "properties", none), file)
            parts.append(Part(first, file, first == low))
    shutil.copytree(data.stores["commits"], data.stores["rolled"])
    with Store.open(data.stores["rolled"]) as store:
        roll(store.log())
    return parts


def as_kafka(frame, *more):
    """The columns of Kafka's sink."""
    return frame.select(F.concat_ws(" ", "tags", "keys").alias("key"), F.col("body").alias("value"), *more)


def headers():
    """What Kafka has no column for, as it would be kept there."""
    born = {"msgId": F.col("msgId"), "bornHost": F.col("bornHost"), "bornTimestamp": F.unix_millis("bornTimestamp")}
    pairs = [
        F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in born.items()
    ]
    return F.array(*pairs).alias("headers")


def _fill_kafka(world, data, parts):
    data.topic, data.topic_with_headers = f"read-{data.size}", f"read-{data.size}-headers"
    for topic in (data.topic, data.topic_with_headers):
        world.kafka.create_topic(topic, QUEUES)
    for part in parts:
        held = world.spark.read.parquet(str(part.file))
        queue = F.col("queueId").alias("partition")
        time.sleep(0.01)  # so that no two parts share a millisecond
        begun = SystemClock().now_ms()
        _send(world, as_kafka(held, queue), data.topic)
        time.sleep(0.01)
        if part.is_slice:
            data.kafka_slice_ms = (begun, SystemClock().now_ms())
        _send(world, as_kafka(held, queue, headers()), data.topic_with_headers)


def _send(world, frame, topic):
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", world.kafka.address)
    writer.option("topic", topic).save()


def _pairs(cuts):
    return list(itertools.pairwise(cuts))


def _lap(what, started):
    print(f"  {what}: {time.perf_counter() - started:.1f} s", flush=True)
