"""A streaming query from topic to topic in a process of its own; run as `python spark_driver.py JOB.json`.

It ends by itself, with code 0, when the file `finish` is there and everything is through; with code 7 when the query
has failed. It ends at once when its input is closed, so that a test that dies leaves nothing running.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_spark.spark import track

QUERY_FAILED = 7


def die_with_parent() -> None:
    def wait() -> None:
        sys.stdin.read()
        os._exit(9)

    threading.Thread(target=wait, daemon=True).start()


def start(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    messages = spark.readStream.format("rocketmq").options(**job["source"]).load()
    rows = messages.selectExpr(
        "body", "concat(brokerName, '/', queueId) AS shardingKey", "concat(brokerName, '/', queueId) AS tags"
    )
    out = rows.writeStream.format("rocketmq").options(**job["sink"]).option("checkpointLocation", job["checkpoint"])
    if job["trigger"] == "availableNow":
        return out.trigger(availableNow=True).start()
    return out.trigger(processingTime=job["trigger"]).start()


def run(spark: SparkSession, job: dict[str, Any]) -> None:
    finish = Path(job["finish"])
    while True:
        is_last = finish.exists()  # looked at before the query fixes its end
        query = start(spark, job)
        Path(job["started"]).touch()
        if job["trigger"] == "availableNow":
            query.awaitTermination()
            if is_last:
                return
            time.sleep(0.05)
            continue
        while not finish.exists():
            if query.awaitTermination(0.1):
                raise RuntimeError("the query has ended")
        query.processAllAvailable()
        query.stop()
        return


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    die_with_parent()
    builder = SparkSession.builder.master(job["master"]).appName("kills").config(map=job["settings"])
    spark = builder.getOrCreate()
    tracker = track(spark)
    code = 0
    try:
        run(spark, job)
    except PySparkException:
        traceback.print_exc()
        code = QUERY_FAILED
    spark.stop()  # hands the listener what is still on its way
    tracker.close()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
