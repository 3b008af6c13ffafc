"""A message queue that is just files: RocketMQ's semantics on a log of immutable Arrow files."""

from typing import TYPE_CHECKING

from rmq_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from rmq_spark.client.producer import Producer, SendResult
    from rmq_spark.client.store import Store, Topic
    from rmq_spark.model.message import Message
    from rmq_spark.model.settings import Flush, LogSettings
    from rmq_spark.rules.transaction import TransactionState

__all__ = [
    "Flush",
    "LogSettings",
    "Message",
    "Producer",
    "SendResult",
    "Store",
    "Topic",
    "TransactionState",
    "__version__",
]

__version__ = "0.1.0"

__getattr__ = lazy_names(
    __name__,
    {
        "Flush": "rmq_spark.model.settings",
        "LogSettings": "rmq_spark.model.settings",
        "Message": "rmq_spark.model.message",
        "Producer": "rmq_spark.client.producer",
        "SendResult": "rmq_spark.client.producer",
        "Store": "rmq_spark.client.store",
        "Topic": "rmq_spark.client.store",
        "TransactionState": "rmq_spark.rules.transaction",
    },
)
