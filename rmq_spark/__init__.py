"""A message queue that is just files: RocketMQ's semantics on a log of immutable Arrow files."""

from typing import TYPE_CHECKING

from rmq_spark.errors import (
    BackPressureError,
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
    from rmq_spark.client.admin import Admin
    from rmq_spark.client.consume_result import ConsumeOutcome, ConsumeResult
    from rmq_spark.client.consumer_settings import ConsumerSettings
    from rmq_spark.client.lite_pull_consumer import LitePullConsumer
    from rmq_spark.client.producer import Producer
    from rmq_spark.client.push_consumer import PushConsumer
    from rmq_spark.client.send_result import SendHook, SendResult, SendStatus
    from rmq_spark.client.simple_consumer import SimpleConsumer
    from rmq_spark.client.store import Store
    from rmq_spark.model.message import Message
    from rmq_spark.model.message_queue import MessageQueue
    from rmq_spark.model.settings import Flush, LogSettings
    from rmq_spark.model.stored_message import ReceivedMessage
    from rmq_spark.rules.message_type import MessageType
    from rmq_spark.rules.topics import Topic
    from rmq_spark.rules.transaction import TransactionState

__all__ = [
    "Admin",
    "BackPressureError",
    "ClockSkewError",
    "ClosedError",
    "ConsumeOutcome",
    "ConsumeResult",
    "ConsumerSettings",
    "CorruptDataError",
    "DataExpiredError",
    "ExistsError",
    "FencedError",
    "Flush",
    "InvalidRequestError",
    "LitePullConsumer",
    "LogSettings",
    "LostRaceError",
    "Message",
    "MessageQueue",
    "MessageType",
    "MissingExtraError",
    "NotFoundError",
    "OutcomeUnknownError",
    "PreconditionFailedError",
    "Producer",
    "PushConsumer",
    "ReadOnlyError",
    "ReceivedMessage",
    "RmqError",
    "SendHook",
    "SendResult",
    "SendStatus",
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
        "Admin": "rmq_spark.client.admin",
        "ConsumeOutcome": "rmq_spark.client.consume_result",
        "ConsumeResult": "rmq_spark.client.consume_result",
        "ConsumerSettings": "rmq_spark.client.consumer_settings",
        "Flush": "rmq_spark.model.settings",
        "LitePullConsumer": "rmq_spark.client.lite_pull_consumer",
        "LogSettings": "rmq_spark.model.settings",
        "Message": "rmq_spark.model.message",
        "MessageQueue": "rmq_spark.model.message_queue",
        "MessageType": "rmq_spark.rules.message_type",
        "Producer": "rmq_spark.client.producer",
        "PushConsumer": "rmq_spark.client.push_consumer",
        "ReceivedMessage": "rmq_spark.model.stored_message",
        "SendHook": "rmq_spark.client.send_result",
        "SendResult": "rmq_spark.client.send_result",
        "SendStatus": "rmq_spark.client.send_result",
        "SimpleConsumer": "rmq_spark.client.simple_consumer",
        "Store": "rmq_spark.client.store",
        "Topic": "rmq_spark.rules.topics",
        "TransactionState": "rmq_spark.rules.transaction",
    },
)
__dir__ = listed_names(__name__, __all__)
