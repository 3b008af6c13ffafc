"""What `QueueConformance` needs of a queue: topics, groups, producers, consumers, and a way to let time pass.

An implementation wraps whatever it tests: the embedded clients (`embedded_queue.py`), or a proxy's clients. Messages
are sent as `Message`; what is received has the fields of `Received`. Errors are those of `rmq_spark.errors`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Protocol

from rmq_spark.model.message import Message

WAIT_SECONDS: Final = 300.0
"""So long a condition is waited for, in the time of the world."""


class Feature(Enum):
    """What not every queue has. A test that needs one that a queue lacks is skipped."""

    MANUAL_TIME = "time that passes only when told to: tests that take hours"
    START_POSITIONS = "a group's start as an argument of the consumer"
    BATCH = "several messages sent by one call"
    BROADCASTING = "consumers that each get every message"
    WIDE_TRANSACTIONS = "several messages in one transaction"
    DELAY_LEVELS = "delays by level"


class MessageKind(Enum):
    """What a topic is made for, where topics have a type."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"


class Received(Protocol):
    """A message as a consumer sees it."""

    @property
    def topic(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def keys(self) -> str | None:
        """Joined by one space."""

    @property
    def properties(self) -> Mapping[str, str]:
        """At least those of the user."""

    @property
    def msg_id(self) -> str: ...
    @property
    def delivery_attempt(self) -> int: ...


class Sent(Protocol):
    """What a send returns."""

    @property
    def msg_id(self) -> str: ...


class OpenTransaction(Protocol):
    """A transaction of a producer."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class QueueProducer(Protocol):
    """As `rmq_spark.Producer`."""

    def send(self, message: Message, *, transaction: Any = None) -> Sent: ...
    def send_batch(self, messages: Sequence[Message]) -> Sequence[Sent]: ...
    def begin_transaction(self) -> OpenTransaction: ...
    def recall(self, sent: Any) -> None: ...


class QueueSimpleConsumer(Protocol):
    """As `rmq_spark.SimpleConsumer`."""

    def receive(
        self, max_messages: int = ..., invisible_duration: float = ..., await_duration: float = ...
    ) -> Sequence[Received]: ...
    def ack(self, message: Any) -> None: ...
    def change_invisible_duration(self, message: Any, duration: float) -> Any:
        """Returns the message with its new receipt."""

    def close(self) -> None: ...


class Closable(Protocol):
    """A push consumer that runs."""

    def close(self) -> None: ...


class QueueWorld(ABC):
    """One queue under test, empty at first. `close` ends everything that it made."""

    lacks: ClassVar[frozenset[Feature]] = frozenset()
    """What it cannot do."""
    invisible_seconds: float = 10.0
    """A time that messages are held for; short where time is real."""
    delay_seconds: float = 10.0
    """A delay; short where time is real."""
    first_retry_seconds: float = 10.0
    """After so long a message comes again whose push listener failed."""

    @abstractmethod
    def create_topic(self, name: str, *, queues: int = 2, kind: MessageKind = MessageKind.NORMAL) -> None:
        """Create a topic."""

    @abstractmethod
    def set_group(self, name: str, *, fifo: bool = False, retry_max_times: int = 16) -> None:
        """Give a consumer group its settings, before it has consumers."""

    @abstractmethod
    def producer(self, *, checker: Callable[[Received], Any] | None = None) -> QueueProducer:
        """A producer. `checker` returns a `TransactionState`; it is asked soon about transactions left open."""

    @abstractmethod
    def simple_consumer(
        self, group: str, topic: str, *, tags: str | None = None, sql: str | None = None, consume_from: Any = "latest"
    ) -> QueueSimpleConsumer:
        """A consumer that receives and acknowledges."""

    @abstractmethod
    def push_consumer(
        self,
        group: str,
        topic: str,
        handle: Callable[[Received], Any],
        *,
        tags: str | None = None,
        sql: str | None = None,
        orderly: bool = False,
        broadcasting: bool = False,
        consume_from: Any = "latest",
    ) -> Closable:
        """A started push consumer. Of several broadcasting ones each keeps offsets of its own."""

    @abstractmethod
    def dead_letters(self, group: str) -> list[Received]:
        """What the group's dead-letter topic holds now."""

    @abstractmethod
    def now(self) -> float:
        """The world's time in seconds, since any moment."""

    def wall_ms(self) -> int:
        """The wall clock; for worlds with start positions."""
        raise NotImplementedError

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Let time pass; what falls due meanwhile happens."""

    @abstractmethod
    def settle(self) -> None:
        """Let everything happen that can happen without time passing; where time is real, wait a moment."""

    @abstractmethod
    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Let time pass until `condition` holds; after minutes, fail with `what` was waited for."""

    @abstractmethod
    def close(self) -> None:
        """End everything."""

    def has(self, feature: Feature) -> bool:
        """Whether it can do this."""
        return feature not in self.lacks


class RealTimeQueue(QueueWorld):
    """A world whose time is the machine's: waiting is sleeping, and delays are short."""

    lacks: ClassVar[frozenset[Feature]] = frozenset({Feature.MANUAL_TIME})
    invisible_seconds = 1.0
    delay_seconds = 1.0
    first_retry_seconds = 1.0

    def now(self) -> float:
        return time.monotonic()

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def settle(self) -> None:
        time.sleep(0.2)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_SECONDS:.0f} s"
            time.sleep(0.02)
