"""Building the tables by Spark: messages a second into all of them, by both writers, beside the in-process engine.

    python benchmarks/tables_spark.py                  # 4 million messages, some 1 GB in a temporary directory
    python benchmarks/tables_spark.py 1000000 files    # fewer, and one writer only

Messages of 100 bytes with a key each, in 8 queues, in rolled segments; local[cores] for 1 core and for all. Each run
builds all tables from nothing. The session has done a little before, so its start is not measured; a job of its own
adds that, some 5 s. The writer `delta` needs the jars of `python -m rmq_spark.testing.jars delta`.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from _made import QUEUES, TOPIC, table
from pyspark.sql import SparkSession

from rmq_spark.client.store import Store
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.spark import table_engine
from rmq_spark.tables import engine
from rmq_spark.tables.schemas import TABLES
from rmq_spark.testing.jars import ensure_jars

BATCH = 50_000
SETTINGS = LogSettings(flush=Flush.ASYNC, delete_grace_ms=0, snapshot_every_commits=10**9)


def fill(place, messages):
    with Store.create(place, settings=SETTINGS) as store:
        store.create_topic(TOPIC, queues=QUEUES)
        for first in range(0, messages, BATCH):
            store.log().append(MessageBatch.from_arrow(table(first, BATCH)))
        roll(store.log())


def session(cores):
    settings = {
        **table_engine.DELTA_SETTINGS,
        "spark.jars": ",".join(map(str, ensure_jars("delta"))),
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    return SparkSession.builder.master(f"local[{cores}]").config(map=settings).getOrCreate()


def measure(name, store, build, wanted):
    engine.drop(store)
    start = time.perf_counter()
    done = build()
    seconds = time.perf_counter() - start
    size = sum(one.bytes for one in engine.status(store)) / max(1, done.messages)
    rate = done.messages / seconds
    print(f"  {name:<40} {rate:>12,.0f} messages/s   {size:>6.1f} bytes/message   {wanted}", flush=True)


def main():
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000
    writers = sys.argv[2].split(",") if len(sys.argv) > 2 else list(table_engine.WRITERS)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    place = tempfile.mkdtemp(prefix="rmq-bench-")
    try:
        uri = str(Path(place) / "store")
        fill(uri, messages)
        print(f"{messages:,} messages into {', '.join(TABLES)}; {os.cpu_count()} cores")
        with Store.open(uri, settings=SETTINGS) as store:
            measure("in-process", store, lambda: engine.reput(store), "wanted 500,000 messages/s")
            for cores in sorted({1, os.cpu_count()}):
                spark = session(cores)
                spark.sparkContext.parallelize(range(cores), cores).map(lambda one: one + 1).collect()
                for writer in writers:
                    wanted = "wanted 300,000 messages/s on two cores" if cores > 1 else ""
                    name = f"Spark, {cores} core{'s' * (cores > 1)}, writer {writer}"
                    measure(name, store, lambda w=writer, s=spark: table_engine.reput(s, store, writer=w), wanted)
                spark.stop()
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
