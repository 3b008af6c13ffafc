"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: what becomes of messages that are held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rmq_spark.errors import RmqError
from rmq_spark.proxy import wire
from rmq_spark.proxy.auto_renew import AutoRenew, Kept
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.incoming import duration_ms, group_name, topic_name
from rmq_spark.proxy.pop import Held, Pop
from rmq_spark.proxy.status import OK, Code, RefusedError, checked, status_of
from rmq_spark.proxy.topics import Directory
from rmq_spark.proxy.workers import Batches, Workers
from rmq_spark.rules.pop_decisions import INVISIBLE_MS_MAX, AckStatus
from rmq_spark.rules.receipt import Receipt, parse_receipt

ENTRIES_MAX: Final = 4_096
"""Messages of one AckMessage."""
_PROBLEMS: Final = {
    AckStatus.EXPIRED: "the receipt's time is over and the message was given back; it comes again",
    AckStatus.STALE: "the message has a newer receipt: its time was changed, or it was received again",
    AckStatus.UNKNOWN: "there is no such message",
}


@dataclass(frozen=True, slots=True)
class _Hold:
    """A message that a client means to settle."""

    held: Held
    kept: Kept | None = None
    """If the proxy renewed it until now."""


class Settling:
    """Settles messages that clients hold."""

    def __init__(self, workers: Workers, directory: Directory, pop: Pop, renew: AutoRenew) -> None:
        self._workers = workers
        self._directory = directory
        self._pop = pop
        self._renew = renew
        self._acks: Batches[Held, AckStatus] = Batches(workers, pop.ack)

    async def ack_message(self, call: Call, request: Any, context: Any) -> Any:
        """Acknowledge messages; each entry has a status of its own."""
        topic, group = self._names(call, request)
        if not request.entries or len(request.entries) > ENTRIES_MAX:
            raise RefusedError(Code.BAD_REQUEST, "acknowledge 1 to 4096 messages", entries=len(request.entries))
        holds = [await self._hold(group, topic, entry.receipt_handle) for entry in request.entries]
        waiting = [each if isinstance(each, RefusedError) else self._acks.put(each.held) for each in holds]
        response = wire.AckMessageResponse()
        for entry, hold, future in zip(request.entries, holds, waiting, strict=True):
            status = await self._ack_status(hold, future)
            response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        codes = {each.status.code for each in response.entries}
        first = response.entries[0].status
        several = wire.Status(code=Code.MULTIPLE_RESULTS, message="see the entries")
        response.status.CopyFrom(first if len(codes) == 1 else several)
        return response

    async def change_invisible_duration(self, call: Call, request: Any, context: Any) -> Any:
        """Let a message be visible again after another time; the answer has its new receipt."""
        topic, group = self._names(call, request)
        invisible_ms = duration_ms(request.invisible_duration)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise RefusedError(
                Code.ILLEGAL_INVISIBLE_TIME,
                "invisible time is negative or too long",
                ms=invisible_ms,
                most_ms=INVISIBLE_MS_MAX,
            )
        hold = await self._held(group, topic, request.receipt_handle)
        with self._restoring(hold):
            changed = (await self._workers.run(self._pop.change, [hold.held], invisible_ms, call.client_id))[0]
        if not isinstance(changed, Receipt):
            raise _invalid(changed)
        return wire.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.to_text())

    async def forward_to_dead_letter(self, call: Call, request: Any, context: Any) -> Any:
        """Give up a message: it goes to the group's dead-letter topic."""
        topic, group = self._names(call, request)
        hold = await self._held(group, topic, request.receipt_handle)
        with self._restoring(hold):
            status = await self._workers.run(self._pop.dead_letter, hold.held)
        if status not in (AckStatus.OK, AckStatus.NOT_HELD):
            raise _invalid(status)
        return wire.ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _names(self, call: Call, request: Any) -> tuple[str, str]:
        topic, group = topic_name(request.topic), group_name(request.group)
        call.allow_topic(Right.SUB, topic)
        call.allow_group(group)
        return topic, group

    async def _held(self, group: str, topic: str, handle: str) -> _Hold:
        """What a client means by a receipt: that of the last renewal, if the proxy renews the message.

        Raises:
            RefusedError: it is no receipt of this store.
        """
        kept = await self._renew.take(group, handle)
        if kept is not None:
            return _Hold(kept.held, kept)
        receipt = checked(Code.INVALID_RECEIPT_HANDLE, parse_receipt, handle)
        if not await self._directory.has_broker(receipt.broker):
            raise RefusedError(
                Code.INVALID_RECEIPT_HANDLE, "the receipt names an unknown broker", broker=receipt.broker
            )
        return _Hold((group, receipt.real_topic(group, topic), receipt))

    async def _hold(self, group: str, topic: str, handle: str) -> _Hold | RefusedError:
        """As `_held`; what is wrong with one of several receipts is a value."""
        try:
            return await self._held(group, topic, handle)
        except RefusedError as error:
            return error

    @contextmanager
    def _restoring(self, hold: _Hold) -> Iterator[None]:
        """If the store could not do it, the client will try again by the receipt that it knows."""
        try:
            yield
        except RmqError:
            if hold.kept is not None:
                self._renew.restore(hold.kept)
            raise

    async def _ack_status(self, hold: _Hold | RefusedError, outcome: Any) -> Any:
        if isinstance(hold, RefusedError):
            return status_of(hold)
        try:
            with self._restoring(hold):
                status = await outcome
        except RmqError as error:
            return status_of(error)
        # What nobody holds was acknowledged before: the same again is no error.
        return OK if status in (AckStatus.OK, AckStatus.NOT_HELD) else status_of(_invalid(status))


def _invalid(status: AckStatus) -> RefusedError:
    told = _PROBLEMS.get(status, "nobody holds the message; it was acknowledged before, or the group was reset")
    return RefusedError(Code.INVALID_RECEIPT_HANDLE, told)
