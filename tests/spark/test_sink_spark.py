"""The sink through a real Spark: batches and streams, replays, failures, many topics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from sink_tasks import row_files, stored

from rmq_spark.client.store import Store
from rmq_spark.log.collect import collect
from rmq_spark.log.verify import verify
from rmq_spark.model import limits
from rmq_spark.spark import activate

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(str(tmp_path / "store")) as made:
        yield made
        for broker in made.brokers():
            assert verify(made.storage, f"brokers/{broker}", broker).ok


def save(df: DataFrame, store: Store, **options: object) -> None:
    written = df.write.format("rocketmq").mode("append").option("store", store.storage.uri)
    written.options(**{name: str(value) for name, value in options.items()}).save()


def load(spark: SparkSession, store: Store, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").option("store", store.storage.uri).option("topic", topic).load()


def texts(store: Store, *topics: str) -> list[str]:
    return [row["body"].decode() for row in stored(store, *topics)]


class Pipe:
    """A query from topic to topic, run to its end each time; its checkpoint can be tampered with."""

    def __init__(self, spark: SparkSession, store: Store, folder: Path) -> None:
        self.spark, self.store, self.checkpoint = spark, store, folder

    def run(self, transform: Any = None, **options: object) -> None:
        reader = self.spark.readStream.format("rocketmq").option("store", self.store.storage.uri)
        read = reader.option("topic", "in").option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 4)
        df = read.load().selectExpr("body", "tags", "keys", "properties")
        query = (
            (transform(df) if transform else df)
            .writeStream.format("rocketmq")
            .option("store", self.store.storage.uri)
            .option("checkpointLocation", str(self.checkpoint))
            .options(**{"topic": "out", **{name: str(value) for name, value in options.items()}})
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def batches(self) -> int:
        return len([path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()])

    def forget_commit(self, batch: int) -> None:
        """As if the driver had died between the sink's commit and the checkpoint's."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()

    def forget_batch(self, batch: int) -> None:
        """As if the checkpoint's last files had been lost."""
        self.forget_commit(batch)
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "offsets" / name).unlink()

    def query_id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])


def send(store: Store, *texts_: str, topic: str = "in") -> None:
    from rmq_spark.client.producer import Producer
    from rmq_spark.model.message import Message

    producer = Producer(store)
    for text in texts_:
        producer.send_batch([Message(topic=topic, body=text.encode(), keys=text, tags="T", queue_id=0)])


# ------------------------------------------------------------ batch writes


def test_every_column_there_and_back(spark: SparkSession, store: Store) -> None:
    born = datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)
    rows = [
        ("grüße", "t1", "A", ["k1", "k2"], 2, "s", {"p": "1", "ключ": "знач"}, 7, born),
        ("", "t2", None, None, None, None, None, None, None),
        ("😀", None, "中文", ["k3"], None, "s", {}, 0, None),
    ]
    df = spark.createDataFrame(
        rows,
        "body string, topic string, tags string, keys array<string>, queueId int, shardingKey string, "
        "properties map<string,string>, flag int, bornTimestamp timestamp",
    )
    save(df, store, topic="other")
    got = {row["body"].decode(): row for topic in ("t1", "t2", "other") for row in load(spark, store, topic).collect()}
    first = got["grüße"]
    assert (first.topic, first.tags, first["keys"], first.queueId, first.flag) == ("t1", "A", "k1 k2", 2, 7)
    assert first.properties == {"p": "1", "ключ": "знач", "__SHARDINGKEY": "s"}
    assert first.bornTimestamp.astimezone(UTC) == born
    assert (got[""].topic, got[""].properties, got[""].tags) == ("t2", None, None)
    assert (got["😀"].topic, got["😀"].tags) == ("other", "中文")
    assert len({row.msgId for row in got.values()}) == 3


def test_what_was_read_can_be_written(spark: SparkSession, store: Store) -> None:
    spark.range(100).selectExpr(
        "cast(id as string) body", "concat('k', id % 5) shardingKey", "'A' tags"
    ).createOrReplaceTempView("v")
    save(spark.table("v"), store, topic="a", autoCreateQueues=8)
    columns = ["topic", "body", "tags", "keys", "properties", "flag", "bornTimestamp"]
    copied = load(spark, store, "a").select(*columns).drop("topic")
    save(copied, store, topic="b", autoCreateQueues=8)
    one, other = ({r["body"]: r for r in stored(store, topic)} for topic in "ab")
    assert one.keys() == other.keys()
    assert len(one) == 100
    for body, row in one.items():
        same = ("queueId", "tags", "keys", "flag", "bornTimestamp", "properties")
        assert [row[name] for name in same] == [other[body][name] for name in same], "sharding keys still route"
    save(load(spark, store, "a").selectExpr("body", "queueId", "'c' topic").limit(10), store)
    assert len(stored(store, "c")) == 10


def test_rows_of_a_task_keep_their_order(spark: SparkSession, store: Store) -> None:
    save(
        spark.range(0, 30_000, 1, 3).selectExpr("cast(id as string) body", "cast(id % 7 as int) queueId"),
        store,
        topic="t",
        autoCreateQueues=7,
    )
    queues: dict[int, list[int]] = {}
    for row in stored(store):
        queues.setdefault(row["queueId"], []).append(int(row["body"]))
    assert {queue: len(numbers) for queue, numbers in queues.items()} == dict.fromkeys(range(7), 4286) | {
        5: 4285,
        6: 4285,
    }
    assert all(numbers == sorted(numbers) for numbers in queues.values())


def test_ten_thousand_queues(spark: SparkSession, store: Store) -> None:
    save(
        spark.range(20_000).selectExpr("cast(id as string) body", "cast(id % 10000 as int) queueId"),
        store,
        topic="wide",
        autoCreateQueues=10_000,
    )
    assert load(spark, store, "wide").groupBy("queueId").count().where("count = 2").count() == 10_000


def test_bodies_from_nothing_to_four_megabytes(spark: SparkSession, store: Store) -> None:
    sizes = [0, 1, limits.BODY_BYTES_MAX]
    df = spark.createDataFrame([(size,) for size in sizes], "n int").selectExpr("cast(repeat('x', n) as binary) body")
    save(df, store, topic="t")
    assert sorted(len(row["body"]) for row in stored(store)) == sizes
    with pytest.raises(PySparkException, match="its body is over 4 MiB"):
        save(spark.sql(f"select repeat('x', {limits.BODY_BYTES_MAX + 1}) body"), store, topic="t")


def test_no_rows_and_no_partitions(spark: SparkSession, store: Store) -> None:
    save(spark.range(0).selectExpr("cast(id as string) body"), store, topic="t")
    save(spark.createDataFrame([], "body string"), store, topic="t")
    assert store.topics() == []


@pytest.mark.parametrize("kind", ["null", "illegal", "reserved"])
def test_a_bad_row_fails_the_write_and_nothing_of_it_is_visible(spark: SparkSession, store: Store, kind: str) -> None:
    topic = {"null": "null", "illegal": "'a b'", "reserved": "'rmq_sys_x'"}[kind]
    df = spark.range(0, 2_000, 1, 4).selectExpr(
        "cast(id as string) body", f"if(id = 1999, {topic}, 't') topic", "concat('key-', id) keys"
    )
    with pytest.raises(PySparkException, match=r"a row cannot be sent.*key-1999"):
        save(df, store)
    assert (stored(store), store.topics()) == ([], [])
    collect(store.log(), orphan_age_ms=-1)
    assert row_files(store) == []


def test_bad_rows_go_to_their_topic_in_the_same_commit(spark: SparkSession, store: Store) -> None:
    df = spark.range(1_000).selectExpr(
        "cast(id as string) body", "if(id % 10 = 0, 'a b', 't') topic", "cast(null as string) tags"
    )
    save(df, store, badRecordsTopic="bad")
    assert (len(stored(store, "t")), len(stored(store, "bad"))) == (900, 100)
    (row,) = load(spark, store, "bad").where("body = '990'").collect()
    assert row.properties["BAD_TOPIC"] == "a b"
    assert "illegal character" in row.properties["BAD_REASON"]
    assert len({row["storeTimestamp"] for row in stored(store)}) == 1
    assert store.log().refresh().state.offset == 1_000


def test_a_task_that_fails_leaves_nothing_visible(spark: SparkSession, store: Store) -> None:
    df = spark.range(0, 4_000, 1, 4).selectExpr("if(id = 3999, raise_error('poison'), lpad(id, 200, '0')) body")
    with pytest.raises(PySparkException, match="poison"):
        save(df, store, topic="t")
    assert (stored(store), store.topics()) == ([], [])


def test_errors_before_anything_runs(spark: SparkSession, store: Store) -> None:
    df = spark.range(1).selectExpr("cast(id as string) body", "1 colour")
    with pytest.raises(PySparkException, match="unknown column colour; did you mean"):
        save(df, store, topic="t")
    with pytest.raises(PySparkException, match="write with mode append"):
        df.drop("colour").write.format("rocketmq").mode("overwrite").save(store.storage.uri, topic="t")
    with pytest.raises(AnalysisException, match="ErrorIfExists"):
        df.drop("colour").write.format("rocketmq").save(store.storage.uri, topic="t")
    with pytest.raises(PySparkException, match="unknown option tpoic for a batch write; did you mean topic"):
        save(df, store, tpoic="t")
    with pytest.raises(PySparkException, match="no store here"):
        df.drop("colour").write.format("rocketmq").mode("append").save(f"{store.storage.uri}-not", topic="t")


def test_errors_are_reported_with_their_cause_and_not_with_what_spark_made_of_them(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.create_topic("in", queues=1)
    send(store, "a")

    def stream(read: dict[str, str], write: dict[str, str], schema: str = "body string") -> None:
        reader = spark.readStream.format("rocketmq").schema(schema).options(topic="in", startingOffsets="earliest")
        writer = reader.options(store=store.storage.uri, **read).load().writeStream.format("rocketmq")
        sink = {"store": store.storage.uri, "topic": "out", "checkpointLocation": str(tmp_path / "checkpoint"), **write}
        writer.options(**sink).trigger(availableNow=True).start().awaitTermination()

    nowhere = str(tmp_path / "nowhere")
    cases: dict[str, Any] = {
        "unknown option tpoic for a stream read; did you mean topic": lambda: stream({"tpoic": "t"}, {}),
        "unknown column in the schema": lambda: stream({}, {}, "bodyy string"),
        "no store here; create one": lambda: stream({}, {"store": nowhere}),
        "no such topic, and autoCreateTopic is false": lambda: stream({}, {"autoCreateTopic": "false"}),
        "no store here": lambda: (
            spark.sql("select 'x' body").write.format("rocketmq").mode("append").save(nowhere, topic="t")
        ),
        "no such topic": lambda: save(spark.sql("select 'x' body"), store, topic="t", autoCreateTopic="false"),
    }
    for cause, run in cases.items():
        with pytest.raises(PySparkException) as caught:
            run()
        text = str(caught.value)
        assert cause in text
        assert "UnboundLocalError" not in text and "PicklingError" not in text, text


def test_a_thread_that_activates_the_session_can_write(spark: SparkSession, store: Store) -> None:
    with ThreadPoolExecutor(1, initializer=activate, initargs=(spark,)) as threads:
        threads.submit(save, spark.sql("select 'x' body"), store, topic="t").result()
    assert texts(store) == ["x"]


def test_rows_for_the_topics_of_consumer_groups_are_bad_rows(spark: SparkSession, store: Store) -> None:
    rows = spark.createDataFrame([("a", "%RETRY%g"), ("b", "%DLQ%g"), ("c", "t")], "body string, topic string")
    with pytest.raises(PySparkException, match="belongs to a consumer group"):
        save(rows, store)
    save(rows, store, badRecordsTopic="bad")
    with pytest.raises(PySparkException, match="belongs to a consumer group"):
        save(rows.drop("topic"), store, topic="%RETRY%g")
    assert (sorted(texts(store, "bad")), texts(store, "t")) == (["a", "b"], ["c"])
    assert sorted(topic.name for topic in store.topics()) == ["bad", "t"]


def test_a_numbered_batch_is_written_once(spark: SparkSession, store: Store) -> None:
    df = spark.range(5).selectExpr("cast(id as string) body")
    for version in (1, 1, 2):
        save(df, store, topic="t", txnAppId="nightly", txnVersion=version)
    assert len(stored(store)) == 10


# ------------------------------------------------------------ streams


def test_a_replayed_batch_is_written_once(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.create_topic("in", queues=1)
    send(store, *"abcdefghij")
    pipe = Pipe(spark, store, tmp_path / "checkpoint")
    pipe.run()
    last = pipe.batches() - 1
    assert last == 2
    assert sorted(texts(store, "out")) == list("abcdefghij")
    pipe.forget_commit(last)
    send(store, "k")
    pipe.run()
    assert sorted(texts(store, "out")) == list("abcdefghijk")
    assert pipe.batches() == last + 2
    row = next(row for row in stored(store, "out") if row["body"] == b"a")
    assert (row["tags"], row["keys"]) == ("T", "a")


def test_a_rewound_checkpoint_is_noticed_unless_it_plans_the_same_batch(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """A power cut may take the checkpoint's last files; the log still has their batch."""
    store.create_topic("in", queues=1)
    send(store, *"abcdefghij")
    pipe = Pipe(spark, store, tmp_path / "checkpoint")
    pipe.run()
    pipe.forget_batch(2)
    pipe.run()
    assert sorted(texts(store, "out")) == list("abcdefghij"), "the same two messages: a repetition"
    pipe.forget_batch(2)
    send(store, *"klm")
    with pytest.raises(StreamingQueryException, match="another batch is in the log under this number") as caught:
        pipe.run()
    assert "rows=4, landed_rows=2" in str(caught.value)
    assert sorted(texts(store, "out")) == list("abcdefghij")
    pipe.run(txnAppId="anew")
    assert sorted(texts(store, "out")) == list("abcdefghiijjklm"), "nothing is lost, and what is twice was announced"


def test_a_batch_that_spark_repeats_with_other_rows_is_a_repetition(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.create_topic("in", queues=1)
    send(store, *"abc")
    pipe = Pipe(spark, store, tmp_path / "checkpoint")
    pipe.run()
    pipe.forget_commit(0)
    send(store, "d")
    pipe.run(lambda df: df.where("keys <> 'a'"))  # as if a table that it is joined with had changed meanwhile
    assert sorted(texts(store, "out")) == list("abcd")


def test_a_copied_checkpoint_with_another_topic_takes_nothing_from_its_original(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.create_topic("in", queues=1)
    send(store, *"abcd")
    pipe = Pipe(spark, store, tmp_path / "checkpoint")
    pipe.run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    send(store, *"efghij")
    Pipe(spark, store, tmp_path / "copy").run(topic="other")
    pipe.run()
    assert sorted(texts(store, "out")) == list("abcdefghij")
    assert sorted(texts(store, "other")) == list("efghij")


def test_a_new_checkpoint_is_a_new_application_unless_it_is_named(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.create_topic("in", queues=1)
    send(store, "a", "b")
    for name in ("one", "two"):
        Pipe(spark, store, tmp_path / name).run()
    assert sorted(texts(store, "out")) == list("aabb")
    for name in ("three", "four"):
        Pipe(spark, store, tmp_path / name).run(txnAppId="app", topic="named")
    assert sorted(texts(store, "named")) == list("ab")


def test_two_queries_write_one_topic_and_one_query_many(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.create_topic("in", queues=1)
    send(store, *[f"m{number:02}" for number in range(12)])

    def spread(df: DataFrame) -> DataFrame:
        return df.selectExpr("body", "concat('out_', right(cast(body as string), 1)) topic")

    first, second = Pipe(spark, store, tmp_path / "one"), Pipe(spark, store, tmp_path / "two")
    first.run()
    second.run(lambda df: df.selectExpr("upper(cast(body as string)) body"))
    wanted = sorted([f"m{number:02}" for number in range(12)] + [f"M{number:02}" for number in range(12)])
    assert sorted(texts(store, "out")) == wanted
    Pipe(spark, store, tmp_path / "three").run(spread)
    assert {topic.name for topic in store.topics()} == {"in", "out", *(f"out_{digit}" for digit in range(10))}
    assert sorted(texts(store, "out_0", "out_1")) == ["m00", "m01", "m10", "m11"]
    assert first.query_id() != second.query_id()


def test_a_batch_that_fails_is_written_once_when_it_succeeds(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.create_topic("in", queues=1)
    send(store, *"abcdef")
    poison = tmp_path / "poison"
    poison.touch()

    @udf("binary", useArrow=False)
    def maybe(body: bytearray) -> bytearray:
        if poison.exists() and body == b"e":
            raise RuntimeError("poison")
        return body

    pipe = Pipe(spark, store, tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="poison"):
        pipe.run(lambda df: df.select(maybe("body").alias("body")))
    assert sorted(texts(store, "out")) == list("abcd")
    poison.unlink()
    pipe.run(lambda df: df.select(maybe("body").alias("body")))
    assert sorted(texts(store, "out")) == list("abcdef")


def test_complete_results_are_appended_each_time(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.create_topic("in", queues=1)
    send(store, *"aabbb")
    reader = spark.readStream.format("rocketmq").option("store", store.storage.uri).option("topic", "in")
    counts = reader.option("startingOffsets", "earliest").load().groupBy("body").count()
    query = (
        counts.selectExpr("concat(cast(body as string), count) body")
        .writeStream.format("rocketmq")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("topic", "out")
        .queryName("counts")
        .trigger(availableNow=True)
        .start(store.storage.uri)
    )
    query.awaitTermination()
    assert sorted(texts(store, "out")) == ["a2", "b3"]
    shutil.rmtree(tmp_path / "checkpoint")
