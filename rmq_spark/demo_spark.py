"""The demonstration that `make demo` runs: orders come in, Spark adds them up into another topic, and looks back.

A producer thread sends orders while a structured-streaming query filters them by tag, adds them up by region and
writes the sums to a topic; beside it a push consumer in this process gets the shipped ones without Spark. Then a
batch read goes back to a span of time in the middle. It uses only what a user would. `python -m rmq_spark.demo` is
the same without Spark.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Row, SparkSession, functions

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.producer import Producer
from rmq_spark.client.push_consumer import PushConsumer
from rmq_spark.client.store import Store
from rmq_spark.demo import say, show_table
from rmq_spark.log.verify import verify
from rmq_spark.model.message import Message
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.model.times import format_ms
from rmq_spark.spark import track

TAGS: Final = ("created", "paid", "shipped", "cancelled")
REGIONS: Final = ("eu", "us", "asia")
ORDERS: Final = 1200
SECONDS: Final = 6.0


def main() -> int:
    """Run the demonstration; the exit code is 1 if something does not add up."""
    # Spark looks for sources with this Python; the one of the PATH may be another.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="rmq-demo-") as directory:
        return run(Path(directory))


def run(directory: Path, *, orders: int = ORDERS, seconds: float = SECONDS, spark: SparkSession | None = None) -> int:
    """Tell the story in `directory`; a session that is given is used and left running."""
    began = time.monotonic()
    uri = str(directory / "store")
    store = Store.create(uri)
    store.create_topic("orders", queues=4)
    store.create_topic("revenue", queues=1)
    say(f"store {uri}: topics orders (4 queues) and revenue (1 queue); nothing else is running")
    session = spark or start_session()
    tracker = track(session)
    try:
        sender = Orders(store, orders, seconds)
        query = start_query(session, uri, directory / "checkpoint")
        say(f"a thread sends {orders} orders within {seconds:g} s while a query adds up those that are paid or shipped")
        while query.isActive and query.lastProgress is None:
            time.sleep(0.1)  # the first batch starts Spark's Python workers: some seconds
        parcels = Parcels(store)
        sender.start()
        sender.join()
        query.processAllAvailable()
        query.stop()
        ok = parcels.end(orders // len(TAGS)) and show(session, store, sender)
        report = verify(store.storage, store.log().root, store.log().broker)
    finally:
        session.streams.removeListener(tracker)
        tracker.close()
        store.close()
        if spark is None:
            session.stop()
    say(f"verify {'OK' if report.ok else 'FAILED'}: {report.commits} commits, {report.messages} messages")
    say(f"all of it in {time.monotonic() - began:.0f} s")
    return 0 if ok and report.ok else 1


class Parcels:
    """A push consumer beside Spark: its listener gets the shipped orders, each a moment after it was sent."""

    def __init__(self, store: Store) -> None:
        self._waits_ms: list[int] = []
        self._got = threading.Semaphore(0)
        self._clock = store.clock
        self._consumer = PushConsumer(store, "parcels", threads=4, consume_from="earliest")
        self._consumer.subscribe("orders", tags="shipped").start(self._handle)

    def _handle(self, message: ReceivedMessage) -> None:
        self._waits_ms.append(self._clock.now_ms() - message.born_ms)
        self._got.release()

    def end(self, expected: int) -> bool:
        """Wait for all of them, and close; whether there were as many as were sent."""
        for _ in range(expected):
            self._got.acquire()
        self._consumer.close()
        waits = sorted(self._waits_ms)
        say(
            f"a push consumer of group parcels got {len(waits)} shipped orders, half of them within "
            f"{waits[len(waits) // 2]} ms, the last one within {waits[-1]} ms"
        )
        return len(waits) == expected


class Orders(threading.Thread):
    """Sends orders at an even pace, one commit for a few of them, and keeps the sums that the query must reach."""

    def __init__(self, store: Store, orders: int, seconds: float) -> None:
        super().__init__(name="orders")
        self._producer = Producer(store)
        self._orders = orders
        self._pause = seconds / max(1, orders // 20)
        self.sums: dict[str, int] = dict.fromkeys(REGIONS, 0)
        self.middle_ms: tuple[int, int] = (0, 0)

    def run(self) -> None:
        times = []
        for first in range(0, self._orders, 20):
            sent = self._producer.send_batch([self._order(number) for number in range(first, first + 20)])
            times.append(sent[0].store_timestamp_ms or 0)
            time.sleep(self._pause)
        self.middle_ms = (times[len(times) // 3], times[2 * len(times) // 3])

    def _order(self, number: int) -> Message:
        tag, region, amount = TAGS[number % 4], REGIONS[number % 3], 5 + number % 40
        if tag in ("paid", "shipped"):
            self.sums[region] += amount
        return Message(
            topic="orders",
            body=json.dumps({"order": number, "region": region, "amount": amount}).encode(),
            tags=tag,
            keys=f"order-{number}",
            sharding_key=f"customer-{number % 17}",
        )


def start_session() -> SparkSession:
    """A local session with two cores, as quiet as Spark gets."""
    session = (
        SparkSession.builder.master("local[2]")
        .appName("rmq-spark demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def start_query(session: SparkSession, uri: str, checkpoint: Path) -> Any:
    """The query: orders in, running sums by region out."""
    paid = (
        session.readStream.format("rocketmq")
        .schema("body string")
        .option("store", uri)
        .option("topic", "orders")
        .option("subExpression", "paid || shipped")
        .option("startingOffsets", "earliest")
        .option("consumerGroup", "revenue")
        .load()
    )
    order = paid.selectExpr("from_json(body, 'order long, region string, amount long') AS o").selectExpr("o.*")
    sums = order.groupBy("region").agg(functions.count("*").alias("orders"), functions.sum("amount").alias("revenue"))
    rows = sums.selectExpr("to_json(struct(region, orders, revenue)) AS body", "region AS keys", "'sum' AS tags")
    return (
        rows.writeStream.format("rocketmq")
        .outputMode("complete")
        .option("store", uri)
        .option("topic", "revenue")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def show(session: SparkSession, store: Store, sender: Orders) -> bool:
    """Print what came of it; whether the query's last sums are those of the orders that were sent."""
    uri = store.storage.uri
    revenue = session.read.format("rocketmq").option("store", uri).option("topic", "revenue").load()
    newest = (
        revenue.selectExpr(
            "queueOffset", "from_json(cast(body AS string), 'region string, orders long, revenue long') AS s"
        )
        .groupBy("s.region")
        .agg(
            functions.max("s.orders").alias("orders"),
            functions.max("s.revenue").alias("revenue"),
            functions.count("*").alias("updates"),
        )
        .orderBy("region")
    )
    sums = newest.collect()
    say("topic revenue, the newest sum of each region (written by the sink, each batch exactly once):")
    show_table(("region", "paid or shipped orders", "revenue", "updates"), _text(sums))
    low, high = sender.middle_ms
    span = (
        session.read.format("rocketmq")
        .schema("tags string, storeTimestamp timestamp")
        .option("store", uri)
        .option("topic", "orders")
        .option("startingTimestamp", low)
        .option("endingTimestamp", high)
        .load()
    )
    say(f"back in time: orders stored between {format_ms(low)} and {format_ms(high)}, the middle third of the run:")
    show_table(("tag", "orders"), _text(span.groupBy("tags").count().orderBy("tags").collect()))
    lag = GroupOffsets(store).lag("revenue")
    say("consumer group revenue, as `rmq group show revenue` prints it:")
    show_table(
        ("topic", "queue", "committed", "end", "lag"),
        [tuple(map(str, (q.topic, q.queue, q.committed, q.end, q.lag))) for q in lag],
    )
    return {row.region: row.revenue for row in sums} == sender.sums


def _text(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [tuple(map(str, row)) for row in rows]


if __name__ == "__main__":
    sys.exit(main())
