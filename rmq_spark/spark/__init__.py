"""Spark's data source: `format("rocketmq")` for batch and streams, read and write."""

from typing import TYPE_CHECKING

from rmq_spark.lazy_names import lazy_names, listed_names

if TYPE_CHECKING:
    from rmq_spark.spark.active_session import activate
    from rmq_spark.spark.listener import track

__all__ = ["activate", "track"]

__getattr__ = lazy_names(__name__, {"activate": "rmq_spark.spark.active_session", "track": "rmq_spark.spark.listener"})
__dir__ = listed_names(__name__, __all__)
