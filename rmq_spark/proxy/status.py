"""Status codes of the protocol, and which error becomes which: the only place that knows both."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, TypeVar

from rmq_spark import errors
from rmq_spark.proxy import wire

Checked = TypeVar("Checked")


class Code(IntEnum):
    """`Code` of the protocol (facts 12.3)."""

    CODE_UNSPECIFIED = 0
    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    UNAUTHORIZED = 40100
    PAYMENT_REQUIRED = 40200
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    REQUEST_TIMEOUT = 40800
    PAYLOAD_TOO_LARGE = 41300
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    REQUEST_HEADER_FIELDS_TOO_LARGE = 43100
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_ERROR = 50000
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500
    VERSION_UNSUPPORTED = 50501
    VERIFY_FIFO_MESSAGE_UNSUPPORTED = 50502
    FAILED_TO_CONSUME_MESSAGE = 60000


class RefusedError(Exception):
    """A call is answered with a status other than OK; nothing was changed."""

    def __init__(self, code: Code, problem: str, /, **context: object) -> None:
        facts = ", ".join(f"{key}={value!r}" for key, value in context.items())
        super().__init__(f"{problem} ({facts})" if facts else problem)
        self.code = code


# The first match counts, so a class stands before its bases. What a handler knows better it says by RefusedError.
_BY_ERROR: Final[tuple[tuple[type[errors.RmqError], Code], ...]] = (
    (errors.InvalidRequestError, Code.BAD_REQUEST),
    (errors.NotFoundError, Code.NOT_FOUND),
    (errors.ExistsError, Code.PRECONDITION_FAILED),
    (errors.PreconditionFailedError, Code.PRECONDITION_FAILED),
    (errors.DataExpiredError, Code.ILLEGAL_OFFSET),
    (errors.BackPressureError, Code.TOO_MANY_REQUESTS),
    (errors.LostRaceError, Code.TOO_MANY_REQUESTS),
    (errors.StorageFullError, Code.TOO_MANY_REQUESTS),
    (errors.OutcomeUnknownError, Code.MASTER_PERSISTENCE_TIMEOUT),
    (errors.UnavailableError, Code.HA_NOT_AVAILABLE),
    (errors.ReadOnlyError, Code.FORBIDDEN),
    (errors.ClosedError, Code.HA_NOT_AVAILABLE),
    (errors.RmqError, Code.INTERNAL_SERVER_ERROR),
)


def code_of(error: BaseException) -> Code:
    """The code that a call which ended with `error` answers."""
    if isinstance(error, RefusedError):
        return error.code
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Code.INTERNAL_SERVER_ERROR)


def status_of(error: BaseException) -> Any:
    """The status that a call which ended with `error` answers; a bug tells its kind only."""
    known = isinstance(error, RefusedError | errors.RmqError)
    told = str(error) if known else f"internal error: {type(error).__name__}; see the proxy's log"
    return wire.Status(code=code_of(error), message=told.encode("utf-8", "replace").decode())


def checked(code: Code, check: Callable[..., Checked], *arguments: Any) -> Checked:
    """What `check` returns; what it refuses is refused with `code`.

    Raises:
        RefusedError: as `check` says.
    """
    try:
        return check(*arguments)
    except errors.InvalidRequestError as error:
        raise RefusedError(code, str(error)) from error


OK: Final = wire.Status(code=Code.OK, message="OK")
