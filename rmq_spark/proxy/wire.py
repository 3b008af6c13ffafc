"""The protocol's messages as classes, and its numbers as enums.

The classes come from `protocol/messaging.binpb`, the compiled form of `protocol/messaging.proto`, in a descriptor pool
of their own: a process may hold Apache's client, which registers the same names, beside the proxy.
"""

from __future__ import annotations

from enum import IntEnum
from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"


def _load() -> DescriptorPool:
    pool = DescriptorPool()
    compiled = files("rmq_spark.proxy").joinpath("protocol", "messaging.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL: Final = _load()
SERVICE_DESCRIPTOR: Final = POOL.FindServiceByName(SERVICE)


def message_class(name: str) -> Any:
    """The class of a message of the protocol."""
    return GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


AckMessageResponse: Final = message_class("AckMessageResponse")
AckMessageResultEntry: Final = message_class("AckMessageResultEntry")
ChangeInvisibleDurationResponse: Final = message_class("ChangeInvisibleDurationResponse")
EndTransactionResponse: Final = message_class("EndTransactionResponse")
ForwardMessageToDeadLetterQueueResponse: Final = message_class("ForwardMessageToDeadLetterQueueResponse")
GetOffsetResponse: Final = message_class("GetOffsetResponse")
HeartbeatResponse: Final = message_class("HeartbeatResponse")
Message: Final = message_class("Message")
NotifyClientTerminationResponse: Final = message_class("NotifyClientTerminationResponse")
PullMessageResponse: Final = message_class("PullMessageResponse")
QueryAssignmentResponse: Final = message_class("QueryAssignmentResponse")
QueryOffsetResponse: Final = message_class("QueryOffsetResponse")
QueryRouteResponse: Final = message_class("QueryRouteResponse")
RecallMessageResponse: Final = message_class("RecallMessageResponse")
ReceiveMessageResponse: Final = message_class("ReceiveMessageResponse")
SendMessageResponse: Final = message_class("SendMessageResponse")
SendResultEntry: Final = message_class("SendResultEntry")
Settings: Final = message_class("Settings")
Status: Final = message_class("Status")
TelemetryCommand: Final = message_class("TelemetryCommand")
UpdateOffsetResponse: Final = message_class("UpdateOffsetResponse")


class WireType(IntEnum):
    """`MessageType`."""

    UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class ClientType(IntEnum):
    """`ClientType`."""

    UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class Encoding(IntEnum):
    """`Encoding`: how a body is packed."""

    UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class DigestType(IntEnum):
    """`DigestType`: how a body's checksum is made."""

    UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class FilterType(IntEnum):
    """`FilterType`: the language of a filter."""

    UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class AddressScheme(IntEnum):
    """`AddressScheme`: what kind of host an endpoint names."""

    UNSPECIFIED = 0
    IPV4 = 1
    IPV6 = 2
    DOMAIN_NAME = 3


class Permission(IntEnum):
    """`Permission`: what clients may do with a queue."""

    UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class Resolution(IntEnum):
    """`TransactionResolution`: what a producer says of a transaction."""

    UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class OffsetPolicy(IntEnum):
    """`QueryOffsetPolicy`: which offset of a queue is asked for."""

    BEGINNING = 0
    END = 1
    TIMESTAMP = 2
