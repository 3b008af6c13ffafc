"""Doing a step again whenever a store has news: a structured-streaming query that paces, and a sweep in between.

The query's rows are never read. What is done is what the tables' marks say; the checkpoint only remembers which news
were seen. So a lost checkpoint costs one step that finds nothing to do.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from rmq_spark.errors import RmqError
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.spark.table_tasks import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES: Final = ("subscribePattern", ".*")
"""News are messages of users' topics."""
OFFSETS: Final = ("topic", ConsumerOffsets.topics[0])
"""News are offset commits of groups."""
SWEEP_S: Final = 60.0
"""A step is done so often without news, too: what retention deleted has to go, and a step's start can miss news."""


def follow(
    spark: SparkSession,
    place: Place,
    news: Sequence[tuple[str, str]],
    *,
    checkpoint: str,
    interval_s: float,
    step: Callable[[], None],
    stopping: threading.Event,
) -> None:
    """Do `step` now, at news and each `SWEEP_S` seconds, until `stopping` is set or something fails.

    Raises:
        RmqError: what `step` raised.
        StreamingQueryException: the query itself failed.
    """
    one = threading.Lock()
    failed: list[RmqError] = []

    def once(batch: DataFrame, number: int) -> None:
        with one:
            if stopping.is_set() or failed:
                return
            try:
                step()
            except RmqError as error:  # would reach the driver's main thread as text only
                failed.append(error)

    step()
    query = (
        _news(spark, place, news)
        .writeStream.foreachBatch(once)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=f"{int(interval_s * 1000)} milliseconds")
        .start()
    )
    waited = 0.0
    try:
        while not failed and not stopping.wait(0.2):
            if not query.isActive:
                query.awaitTermination(1)  # raises what has ended it
                break
            waited += 0.2
            if waited >= SWEEP_S:
                waited = 0.0
                with one:
                    step()
    finally:
        query.stop()
    if failed:
        raise failed[0]


def _news(spark: SparkSession, place: Place, news: Sequence[tuple[str, str]]) -> DataFrame:
    def stream(option: str, value: str) -> DataFrame:
        reader = spark.readStream.format("rocketmq").schema("commitOffset long").option("store", place.uri)
        reader = reader.option("startingOffsets", "latest").option("failOnDataLoss", "false").option(option, value)
        if place.options:
            reader = reader.option("storageOptions", json.dumps(dict(place.options)))
        return reader.load()

    return reduce(lambda one, other: one.union(other), (stream(option, value) for option, value in news))
