"""Spark's data source: `format("rocketmq")` for batch and streams, read and write."""

from rmq_spark.spark.listener import track

__all__ = ["track"]
