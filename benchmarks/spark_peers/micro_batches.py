"""How long a micro-batch takes when 100 messages a second come in and go out again."""

import contextlib
import itertools
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rmq_spark.client.store import Store
from spark_peers.data import QUEUES

RATE = 100
SIZE = 100
LIMIT_S = 300
SHOWN = ("triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")

_numbers = itertools.count()


def run(world, batches, warm):
    """Print the medians of both; returns the line of the aim, if there is Kafka to compare with."""
    queries = {"rocketmq": _ours(world)}
    if world.kafka is not None:
        queries["kafka"] = _kafka(world)
    seen = {peer: [] for peer in queries}
    for _ in range(2):
        # Not side by side: two queries on two cores would measure each other.
        for peer, start in queries.items():
            seen[peer] += _durations(start, max(1, batches // 2), warm)
    print(f"\nmicro-batches at {RATE} messages/s, source to sink: median ms of {batches} batches")
    print(f"  {'':<12}" + "".join(f"{name:>18}" for name in SHOWN))
    medians = {}
    for peer, durations in seen.items():
        medians[peer] = statistics.median(each["triggerExecution"] for each in durations)
        shown = [statistics.median(each.get(name, 0) for each in durations) for name in SHOWN]
        print(f"  {peer:<12}" + "".join(f"{value:>18.0f}" for value in shown), flush=True)
    if "kafka" not in medians:
        return []
    ratio = medians["kafka"] / medians["rocketmq"]
    verdict = "reached" if ratio >= 1 else "MISSED"
    return [f"{'micro-batch at 100 messages/s':<42}{'rocketmq / kafka':<34}{ratio:>7.2f}  >= {1:<5}{verdict}"]


def _durations(start, batches, warm):
    """What `batches` batches with messages took, after `warm` more that are not counted."""
    with start() as query:
        deadline = time.monotonic() + LIMIT_S
        while True:
            full = [progress for progress in query.recentProgress if progress.numInputRows]
            if len(full) >= batches + warm:
                return [progress.durationMs for progress in full[warm : warm + batches]]
            if not query.isActive:
                raise query.exception() or RuntimeError("the query stopped")
            assert time.monotonic() < deadline, f"{len(full)} batches with messages in {LIMIT_S} s"
            time.sleep(0.2)


def _ours(world):
    place = str(world.place / "micro")
    with Store.create(place) as store:
        store.create_topic("in", queues=QUEUES)
        store.create_topic("out", queues=QUEUES)

    @contextlib.contextmanager
    def start():
        source = world.spark.readStream.format("rocketmq").option("store", place).option("topic", "in")
        sink = source.load().select("keys", "body").writeStream.format("rocketmq").option("store", place)
        with _started(world, sink.option("topic", "out")) as query, _fed(place):
            yield query

    return start


@contextlib.contextmanager
def _fed(place):
    command = [sys.executable, str(Path(__file__).with_name("feeder.py")), place, "in", str(RATE), str(SIZE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            yield
            assert child.poll() is None, "the feeder ended"
        finally:
            child.stdin.close()


def _kafka(world):
    server = {"kafka.bootstrap.servers": world.kafka.address}
    for topic in ("micro-in", "micro-out"):
        world.kafka.create_topic(topic, QUEUES)

    @contextlib.contextmanager
    def start():
        source = world.spark.readStream.format("kafka").options(**server).option("subscribe", "micro-in")
        sink = source.load().select("key", "value").writeStream.format("kafka").options(**server)
        feed = world.kafka.feed("micro-in", rate=RATE, size=SIZE)
        with _started(world, sink.option("topic", "micro-out")) as query, feed:
            yield query

    return start


@contextlib.contextmanager
def _started(world, sink):
    place = str(world.place / "checkpoints" / f"micro-{next(_numbers)}")
    query = sink.option("checkpointLocation", place).start()
    try:
        yield query
        query.processAllAvailable()  # nothing is fed any more: a batch that is cut off would fill the screen
    finally:
        query.stop()
