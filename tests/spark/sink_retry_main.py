"""A Spark of its own whose tasks may fail and be tried again; run as a process by `test_sink_retry.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf


def main(uri: str, folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(Path(folder) / "local"),
        # Small batches, so that an attempt has come some way when it dies.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }
    spark = SparkSession.builder.master("local[2,4]").config(map=settings).getOrCreate()

    @udf("string", useArrow=False)
    def fragile(number: int) -> str:
        task = TaskContext.get()
        assert task is not None
        # Every task dies twice, each time a bit further on.
        if task.attemptNumber() < 2 and number % 10_000 == 5_000 * (task.attemptNumber() + 1) - 1:
            raise RuntimeError("the executor is gone")
        return f"{number:0200}"

    rows = spark.range(0, 40_000, 1, 4).select(fragile("id").alias("body"))
    rows.write.format("rocketmq").mode("append").option("topic", "t").save(uri)
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20_000).option("numPartitions", 2)
    query = (
        stream.load()
        .select(fragile("value").alias("body"))
        .writeStream.format("rocketmq")
        .option("topic", "s")
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(once=True)
        .start(uri)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
