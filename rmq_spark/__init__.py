"""A message queue that is just files: RocketMQ's semantics on a log of immutable Arrow files."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq_spark.client.producer import Producer, SendResult
    from rmq_spark.client.store import Store, Topic
    from rmq_spark.model.message import Message
    from rmq_spark.model.settings import Flush, LogSettings

__all__ = ["Flush", "LogSettings", "Message", "Producer", "SendResult", "Store", "Topic", "__version__"]

__version__ = "0.1.0"

# Imported at their first use: a command and a Spark task that need one module do not pay for the whole client.
_HOMES = {
    "Flush": "rmq_spark.model.settings",
    "LogSettings": "rmq_spark.model.settings",
    "Message": "rmq_spark.model.message",
    "Producer": "rmq_spark.client.producer",
    "SendResult": "rmq_spark.client.producer",
    "Store": "rmq_spark.client.store",
    "Topic": "rmq_spark.client.store",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
