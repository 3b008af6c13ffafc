"""A message queue that is just files: RocketMQ's semantics on a log of immutable Arrow files."""

from typing import TYPE_CHECKING

from rmq_spark.errors import (
    ClockSkewError,
    ClosedError,
    CorruptDataError,
    DataExpiredError,
    ExistsError,
    FencedError,
    InvalidRequestError,
    LostRaceError,
    MissingExtraError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    ReadOnlyError,
    RmqError,
    StorageFullError,
    UnavailableError,
    UnsafeStorageError,
    UnsupportedVersionError,
)
from rmq_spark.lazy_names import lazy_names, listed_names

if TYPE_CHECKING:
    from rmq_spark.client.producer import Producer, SendResult
    from rmq_spark.client.simple_consumer import SimpleConsumer
    from rmq_spark.client.store import Store, Topic
    from rmq_spark.model.message import Message
    from rmq_spark.model.settings import Flush, LogSettings
    from rmq_spark.rules.transaction import TransactionState

__all__ = [
    "ClockSkewError",
    "ClosedError",
    "CorruptDataError",
    "DataExpiredError",
    "ExistsError",
    "FencedError",
    "Flush",
    "InvalidRequestError",
    "LogSettings",
    "LostRaceError",
    "Message",
    "MissingExtraError",
    "NotFoundError",
    "OutcomeUnknownError",
    "PreconditionFailedError",
    "Producer",
    "ReadOnlyError",
    "RmqError",
    "SendResult",
    "SimpleConsumer",
    "StorageFullError",
    "Store",
    "Topic",
    "TransactionState",
    "UnavailableError",
    "UnsafeStorageError",
    "UnsupportedVersionError",
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
        "SimpleConsumer": "rmq_spark.client.simple_consumer",
        "Store": "rmq_spark.client.store",
        "Topic": "rmq_spark.client.store",
        "TransactionState": "rmq_spark.rules.transaction",
    },
)
__dir__ = listed_names(__name__, __all__)
