"""A message queue that is just files: RocketMQ's semantics on a log of immutable Arrow files."""

from rmq_spark.client.producer import Producer, SendResult
from rmq_spark.client.store import Store, Topic
from rmq_spark.model.message import Message
from rmq_spark.model.settings import Flush, LogSettings

__all__ = ["Flush", "LogSettings", "Message", "Producer", "SendResult", "Store", "Topic", "__version__"]

__version__ = "0.1.0"
