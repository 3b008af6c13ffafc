"""The Spark source and sink against Kafka's connector, Parquet and Delta: same messages, same session, ratios.

    python benchmarks/spark.py                                  # everything; half an hour
    python benchmarks/spark.py --only read --only stream        # some of it
    python benchmarks/spark.py --rows 20000 --big-rows 5000 --rounds 1 --batches 4    # a quick look that it runs

Every peer is called in turn, each round, so that the machine's moods meet all of them; a figure is the median. Every
run checks what it read or wrote: a quick wrong answer ends the benchmark. RMQ_BENCH_DIR says where the data goes.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from spark_peers import data, measure, micro_batches, reads, writes

from rmq_spark.testing.jars import ensure_jars
from rmq_spark.testing.kafka_server import KafkaServer, kafka_server

SCENARIOS = {
    "read": (reads.read, True),
    "columns": (reads.columns, True),
    "stream": (reads.stream, True),
    "stream-same": (reads.stream_same, True),
    "write": (writes.write, True),
    "tag": (reads.tag, False),
    "time": (reads.time_slice, False),
}
"""Name -> (what makes it, whether it is run with large messages too)."""
MICRO = "micro"
DEFAULTS = Path(__file__).parents[1] / "conf" / "spark-defaults.conf"


@dataclass(kw_only=True)
class World:
    """What every scenario needs."""

    spark: SparkSession
    place: Path
    kafka: KafkaServer | None


def session(place, jar_sets):
    """One session for all: this project's recommended settings, and the peers' jars."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = [str(path) for name in jar_sets for path in ensure_jars(name)]
    settings = dict(
        line.split(maxsplit=1)
        for line in DEFAULTS.read_text().splitlines()
        if line.strip() and not line.startswith("#")
    )
    settings |= {
        "spark.driver.memory": "6g",
        "spark.jars": ",".join(jars),
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "500",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    return SparkSession.builder.master("local[2]").appName("benchmark").config(map=settings).getOrCreate()


def measured(world, options):
    chosen = options.only or [*SCENARIOS, MICRO]
    lines = []
    for label, rows, size in (("100 B", options.rows, 100), ("1 KB", options.big_rows, 1_000)):
        names = [name for name in SCENARIOS if name in chosen and (size == 100 or SCENARIOS[name][1])]
        if not names or not rows:
            continue
        print(f"{rows:,} messages of {label}", flush=True)
        made = data.make(world, label, rows, size)
        reads.check_equal(world, made)
        for name in names:
            scenario = SCENARIOS[name][0](world, made)
            lines += measure.show(scenario, measure.interleave(scenario, options.rounds))
            scenario.close()
    if MICRO in chosen:
        lines += micro_batches.run(world, options.batches, warm=min(10, options.batches))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000, help="messages of 100 bytes (default 4,000,000)")
    parser.add_argument("--big-rows", type=int, default=500_000, help="messages of 1,000 bytes (default 500,000)")
    parser.add_argument("--rounds", type=int, default=5, help=f"rounds after the first {measure.WARM} (default 5)")
    parser.add_argument("--batches", type=int, default=40, help="micro-batches to measure (default 40)")
    parser.add_argument("--only", action="append", choices=[*SCENARIOS, MICRO], help="only this; may be repeated")
    parser.add_argument("--skip-kafka", action="store_true", help="leave Kafka out; nothing of it is fetched")
    options = parser.parse_args()
    jar_sets = ["delta"] if options.skip_kafka else ["delta", "spark-kafka"]
    with contextlib.ExitStack() as stack:
        place = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("RMQ_BENCH_DIR"), prefix="rmq-"))
        )
        kafka = None if options.skip_kafka else stack.enter_context(kafka_server())
        spark = session(place, jar_sets)
        stack.callback(spark.stop)
        lines = measured(World(spark=spark, place=place, kafka=kafka), options)
    print(f"\n{'scenario':<42}{'times as quick':<34}{'seen':>7}  aim")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
