"""A story that reads, streams and writes through `format("rocketmq")`, for a classic session or one of Spark Connect.

A process can hold one kind of session only, so Connect has a process of its own: `python spark_modes.py STORE FOLDER`
prints the story's answer as one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

ORDER = ("brokerName", "queueId", "queueOffset")


def rows(frame: DataFrame) -> list[list[Any]]:
    """Rows in a fixed order, as JSON can hold them."""
    texts = frame.selectExpr(
        *(f"CAST({name} AS STRING) AS {name}" if name == "body" else name for name in frame.columns)
    )
    return [[str(value) for value in row] for row in texts.orderBy(*ORDER).collect()]


def story(spark: SparkSession, store: str, folder: Path) -> dict[str, Any]:
    """Everything that both modes must answer alike."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    def load(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").options(store=store, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    found: dict[str, Any] = {"kind": type(spark).__module__}
    found["schema"] = load(topic="t").schema.simpleString()
    found["all"] = rows(load(topic="t"))
    narrow = "brokerName string, queueId int, queueOffset long, body string"
    found["narrow"] = rows(load(narrow, topic="t", subExpression="a", filter="n > 1"))
    frame = load(topic="t")
    found["counts"] = [frame.where("queueId = 1").count(), frame.count()]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING rocketmq OPTIONS (store '{store}', topic 't')")
    found["view"] = [
        list(row) for row in spark.sql("SELECT tags, count(*) FROM v GROUP BY tags ORDER BY tags").collect()
    ]
    try:
        load(topic="tt").collect()
        found["mistake"] = None
    except PySparkException as error:
        found["mistake"] = "no such topic (topic='tt', nearest='t')" in str(error)
    stream = spark.readStream.format("rocketmq").options(
        store=store, topic="t", startingOffsets="earliest", maxOffsetsPerTrigger="5"
    )
    out = str(folder / "out")
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(folder / "c1"))
    query = writer.trigger(availableNow=True).start(out)
    query.awaitTermination()
    found["streamed"] = rows(spark.read.parquet(out))
    found["batches"] = sum(1 for one in query.recentProgress if one["numInputRows"])
    load(topic="t").selectExpr("body", "tags", "queueId").write.format("rocketmq").options(
        store=store, topic="written"
    ).mode("append").save()
    sink = stream.load().selectExpr("body", "tags", "queueId").writeStream.format("rocketmq")
    query = (
        sink.options(store=store, topic="streamed", checkpointLocation=str(folder / "c2"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def main() -> None:
    store, folder = sys.argv[1:]
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").remote("local[2]").getOrCreate()
    try:
        print(json.dumps(story(spark, store, Path(folder))))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
