"""Watching clients at work: what metrics and message traces are told about sends, deliveries and listeners.

A client whose store has no observers, and that has none itself, pays for one check a call. What an observer raises is
logged and goes no further: watching never fails a send, and never makes a message come again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.consume_result import ConsumeOutcome
from rmq_spark.client.send_result import SendHook, SendResult
from rmq_spark.clock import Clock
from rmq_spark.model.message import Message
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.properties import REAL_TOPIC
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.receipt import parse_receipt

Listener = Callable[[Sequence[ReceivedMessage]], ConsumeOutcome]

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Sending:
    """One call that sent messages, or failed to."""

    group: str
    messages: Sequence[Message]
    results: Sequence[SendResult] | None = None
    """None: it failed."""
    began_ms: int
    cost_ms: float = 0.0
    is_transaction: bool = False


@dataclass(slots=True, kw_only=True)
class Consumption:
    """One call of a listener; or what a caller does between a receive and its acknowledgement."""

    group: str
    messages: Sequence[ReceivedMessage]
    request_id: str
    """Joins what is said before and after it."""
    began_ms: int
    cost_ms: float = 0.0
    succeeded: bool = True
    """Whether all of them are consumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransaction:
    """One message of a transaction that was committed or rolled back."""

    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    broker: str
    transaction_id: str
    committed: bool
    from_check: bool
    """Whether the checker said so, and not the one who began it."""


class Observer:
    """Is told what clients do; by their own threads, so it should be quick. Override what is of interest."""

    def sent(self, sending: Sending) -> None:
        """Messages were sent, or could not be."""

    def sent_rows(self, topic: str, rows: int, size: int) -> None:
        """Rows of a table were sent, with so many bytes of bodies."""

    def delivered(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        """Messages were handed to a consumer as values."""

    def delivered_rows(self, group: str, topic: str, rows: int, size: int) -> None:
        """Messages were handed to a consumer as rows of a table."""

    def consuming(self, consumption: Consumption) -> None:
        """A listener is about to be called."""

    def consumed(self, consumption: Consumption) -> None:
        """It has ended, or the messages were acknowledged."""

    def ended(self, messages: Sequence[EndedTransaction]) -> None:
        """A transaction with these messages was committed or rolled back."""

    def recalled(self, group: str, topic: str, msg_id: str, succeeded: bool) -> None:
        """A message that waits for its delivery time was taken back, or could not be."""

    def close(self) -> None:
        """No more calls come from a client that had this observer for itself."""


def tell_ended(
    observers: Sequence[Observer],
    halves: Sequence[MessageRow],
    *,
    group: str,
    broker: str,
    tx_id: str,
    committed: bool,
    from_check: bool = False,
) -> None:
    """Tell every observer how a transaction with these half messages ended."""
    if not observers or not halves:
        return
    told = [
        EndedTransaction(
            group=group,
            topic=dict(half.properties).get(REAL_TOPIC, half.topic),
            msg_id=half.msg_id,
            tags=half.tags,
            keys=half.keys,
            broker=broker,
            transaction_id=tx_id,
            committed=committed,
            from_check=from_check,
        )
        for half in halves
    ]
    tell(observers, lambda each: each.ended(told))


def tell(observers: Sequence[Observer], say: Callable[[Observer], None]) -> None:
    """Tell every observer; what one raises is logged."""
    for each in observers:
        try:
            say(each)
        except Exception:  # noqa: BLE001 - an observer is a bystander
            _log.exception("an observer failed: %s", type(each).__name__)


@contextmanager
def watched_sending(
    observers: Sequence[Observer],
    clock: Clock,
    group: str,
    messages: Sequence[Message],
    *,
    is_transaction: bool = False,
) -> Iterator[Sending]:
    """Tell observers how the block went; it sets `results`."""
    began = clock.elapsed_ns()
    sending = Sending(group=group, messages=messages, began_ms=clock.now_ms(), is_transaction=is_transaction)
    try:
        yield sending
    finally:
        sending.cost_ms = (clock.elapsed_ns() - began) / 1e6
        tell(observers, lambda each: each.sent(sending))


def send_with_hooks(
    hooks: Sequence[SendHook], messages: Sequence[Message], send: Callable[[Sequence[Message]], list[SendResult]]
) -> list[SendResult]:
    """Send, and call the hooks before and after."""
    for hook in hooks:
        hook.before(messages)
    try:
        results = send(messages)
    except BaseException as error:
        for hook in hooks:
            hook.after(messages, None, error)
        raise
    for hook in hooks:
        hook.after(messages, results, None)
    return results


def watched_listener(
    listener: Listener, observers: Callable[[], Sequence[Observer]], clock: Clock, group: str
) -> Listener:
    """A listener that tells observers of each call; `observers` is asked at each, because they come and go."""

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeOutcome:
        watching = observers()
        if not watching:
            return listener(messages)
        began = clock.elapsed_ns()
        call = Consumption(group=group, messages=messages, request_id=clock.token(), began_ms=clock.now_ms())
        tell(watching, lambda each: each.delivered(group, messages))
        tell(watching, lambda each: each.consuming(call))
        outcome = listener(messages)
        call.cost_ms = (clock.elapsed_ns() - began) / 1e6
        call.succeeded = outcome.consumed(len(messages)) == len(messages)
        tell(watching, lambda each: each.consumed(call))
        return outcome

    return listen


def received(observers: Sequence[Observer], clock: Clock, group: str, messages: Sequence[ReceivedMessage]) -> None:
    """Tell observers that a caller has received messages, which it acknowledges by itself."""
    if observers and messages:
        now = clock.now_ms()
        tell(observers, lambda each: each.delivered(group, messages))
        for message in messages:
            call = _held(group, message, now)
            tell(observers, lambda each, call=call: each.consuming(call))  # type: ignore[misc]


def acknowledged(observers: Sequence[Observer], clock: Clock, group: str, messages: Sequence[ReceivedMessage]) -> None:
    """Tell observers that a caller has acknowledged messages; their receipts say since when it had them."""
    now = clock.now_ms()
    for message in messages:
        call = _held(group, message, now)
        call.cost_ms = max(0, now - parse_receipt(message.receipt or "").pop_ms)
        tell(observers, lambda each, call=call: each.consumed(call))  # type: ignore[misc]


def polled(observers: Sequence[Observer], clock: Clock, group: str, messages: Sequence[ReceivedMessage]) -> None:
    """Tell observers that a poll has returned messages; when its caller is done with them, nobody knows."""
    if observers and messages:
        call = Consumption(group=group, messages=messages, request_id=clock.token(), began_ms=clock.now_ms())
        tell(observers, lambda each: each.delivered(group, messages))
        tell(observers, lambda each: each.consuming(call))
        tell(observers, lambda each: each.consumed(call))


def tell_rows(observers: Sequence[Observer], group: str, topic: str, rows: pa.RecordBatch) -> None:
    """Tell observers that a consumer got messages as rows."""
    size = int(pc.sum(pc.binary_length(rows.column("body"))).as_py() or 0)
    tell(observers, lambda each: each.delivered_rows(group, topic, rows.num_rows, size))


def tell_sent_rows(observers: Sequence[Observer], topic: str, rows: pa.Table) -> None:
    """Tell observers that rows were sent as messages."""
    if observers:
        size = int(pc.sum(pc.binary_length(rows["body"])).as_py() or 0)
        tell(observers, lambda each: each.sent_rows(topic, rows.num_rows, size))


def _held(group: str, message: ReceivedMessage, now_ms: int) -> Consumption:
    # The same before and after, with nothing to remember in between.
    request_id = f"{message.msg_id}-{message.delivery_attempt}"
    return Consumption(group=group, messages=(message,), request_id=request_id, began_ms=now_ms)
