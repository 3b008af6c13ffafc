"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: what becomes of messages that are held."""

from __future__ import annotations

from typing import Any, Final

from rmq_spark.errors import RmqError
from rmq_spark.proxy import wire
from rmq_spark.proxy.auto_renew import AutoRenew
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.incoming import duration_ms, group_name, topic_name
from rmq_spark.proxy.metrics import Metrics
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


class Settling:
    """Settles messages that clients hold."""

    def __init__(self, workers: Workers, directory: Directory, pop: Pop, renew: AutoRenew, metrics: Metrics) -> None:
        self._workers = workers
        self._directory = directory
        self._pop = pop
        self._renew = renew
        self._metrics = metrics
        self._acks: Batches[Held, AckStatus] = Batches(workers, pop.ack)

    async def ack_message(self, call: Call, request: Any, context: Any) -> Any:
        """Acknowledge messages; each entry has a status of its own."""
        topic, group = self._names(call, request)
        if not request.entries or len(request.entries) > ENTRIES_MAX:
            raise RefusedError(Code.BAD_REQUEST, "acknowledge 1 to 4096 messages", entries=len(request.entries))
        waiting: list[tuple[Any, Any]] = []
        for entry in request.entries:
            try:
                receipt = await self._receipt(group, entry.receipt_handle)
            except RefusedError as error:
                waiting.append((entry, error))
            else:
                waiting.append((entry, self._acks.put((group, receipt.real_topic(group, topic), receipt))))
        response = wire.AckMessageResponse()
        codes: set[int] = set()
        for entry, future in waiting:
            status = await _ack_status(future)
            codes.add(status.code)
            response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
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
        receipt = await self._receipt(group, request.receipt_handle)
        held = [(group, receipt.real_topic(group, topic), receipt)]
        changed = (await self._workers.run(self._pop.change, held, invisible_ms, call.client_id))[0]
        if not isinstance(changed, Receipt):
            raise _invalid(changed)
        return wire.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.to_text())

    async def forward_to_dead_letter(self, call: Call, request: Any, context: Any) -> Any:
        """Give up a message: it goes to the group's dead-letter topic."""
        topic, group = self._names(call, request)
        receipt = await self._receipt(group, request.receipt_handle)
        held = (group, receipt.real_topic(group, topic), receipt)
        status = await self._workers.run(self._pop.dead_letter, held)
        if status not in (AckStatus.OK, AckStatus.NOT_HELD):
            raise _invalid(status)
        self._metrics.note_dead(topic, group)
        return wire.ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _names(self, call: Call, request: Any) -> tuple[str, str]:
        topic, group = topic_name(request.topic), group_name(request.group)
        call.allow_topic(Right.SUB, topic)
        call.allow_group(group)
        return topic, group

    async def _receipt(self, group: str, handle: str) -> Receipt:
        """The receipt that counts for a message: that of the last renewal, if the proxy renews it."""
        kept = await self._renew.take(group, handle)
        if kept is not None:
            return kept
        receipt = checked(Code.INVALID_RECEIPT_HANDLE, parse_receipt, handle)
        if not await self._directory.has_broker(receipt.broker):
            raise RefusedError(
                Code.INVALID_RECEIPT_HANDLE, "the receipt names an unknown broker", broker=receipt.broker
            )
        return receipt


async def _ack_status(outcome: Any) -> Any:
    if isinstance(outcome, RefusedError):
        return status_of(outcome)
    try:
        status = await outcome
    except RmqError as error:
        return status_of(error)
    # What nobody holds was acknowledged before: the same again is no error.
    return OK if status in (AckStatus.OK, AckStatus.NOT_HELD) else status_of(_invalid(status))


def _invalid(status: AckStatus) -> RefusedError:
    told = _PROBLEMS.get(status, "nobody holds the message; it was acknowledged before, or the group was reset")
    return RefusedError(Code.INVALID_RECEIPT_HANDLE, told)
