r"""RocketMQ's format of message traces: what clients write to the trace topic, and how it is read back (facts 13.2).

Fields are joined by `\x01`, records end with `\x02`. A record is about one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FIELD: Final = "\x01"
RECORD: Final = "\x02"
REGION: Final = "DefaultRegion"
CODE_SUCCESS: Final = 0
CODE_FAILED: Final = 4
"""RocketMQ's `ConsumeReturnType`: success 0, timeout 1, exception 2, null 3, failed 4."""


class TraceType(StrEnum):
    """What happened."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


MESSAGE_TYPES: Final = ("Normal_Msg", "Trans_Msg_Half", "Trans_msg_Commit", "Delay_Msg", "Order_Msg", "Priority_Msg")
"""By the number that a record has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One record. Which fields it has depends on its type."""

    type: TraceType
    msg_id: str
    ms: int = 0
    """When it happened: of a send and a consumption, when it began."""
    group: str = ""
    topic: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    message_type: int = 0
    """Index into `MESSAGE_TYPES`."""
    offset_id: str = ""
    success: bool = True
    request_id: str = ""
    """Joins the two records of one consumption."""
    retry_times: int = 0
    code: int = 0
    """Of a consumption: 0 is success."""
    transaction_id: str = ""
    transaction_state: str = ""
    from_check: bool = False


def encode(record: TraceRecord) -> str:
    """The record as text, with its end."""
    return FIELD.join(_fields(record)) + RECORD


def _fields(record: TraceRecord) -> list[str]:
    success, ms = str(record.success).lower(), str(record.ms)
    if record.type is TraceType.PUB:
        place = [record.topic, record.msg_id, record.tags, record.keys, record.store_host]
        numbers = [str(record.body_bytes), str(record.cost_ms), str(record.message_type)]
        return [record.type, ms, REGION, record.group, *place, *numbers, record.offset_id, success]
    if record.type is TraceType.SUB_BEFORE:
        about = [record.request_id, record.msg_id, str(record.retry_times), record.keys]
        return [record.type, ms, REGION, record.group, *about]
    if record.type is TraceType.SUB_AFTER:
        about = [record.request_id, record.msg_id, str(record.cost_ms), success, record.keys, str(record.code)]
        return [record.type, *about, ms, record.group]
    if record.type is TraceType.END_TRANSACTION:
        place = [record.topic, record.msg_id, record.tags, record.keys, record.store_host]
        end = [
            str(record.message_type),
            record.transaction_id,
            record.transaction_state,
            str(record.from_check).lower(),
        ]
        return [record.type, ms, REGION, record.group, *place, *end]
    return [record.type, ms, REGION, record.group, record.topic, record.msg_id, success]


def decode(text: str) -> list[TraceRecord]:
    """The records of a trace message.

    Raises:
        ValueError: not the format.
    """
    return [_decode(part.split(FIELD)) for part in text.split(RECORD) if part]


def _decode(fields: Sequence[str]) -> TraceRecord:
    kind = TraceType(fields[0])
    need = {TraceType.PUB: 12, TraceType.SUB_BEFORE: 8, TraceType.SUB_AFTER: 6, TraceType.END_TRANSACTION: 13}.get(
        kind, 7
    )
    if len(fields) < need:
        raise ValueError(f"a {kind} record has {need} fields: {len(fields)}")
    at = (*fields, *[""] * 8)  # older clients leave out the last fields
    if kind is TraceType.PUB:
        # Without the id of the copy, the last field is whether it succeeded.
        success, offset_id = (at[13], at[12]) if len(fields) > 13 else (at[12], "")
        return TraceRecord(
            type=kind, ms=int(at[1]), group=at[3], topic=at[4], msg_id=at[5], tags=at[6], keys=at[7], store_host=at[8],
            body_bytes=int(at[9]), cost_ms=int(at[10]), message_type=int(at[11]), offset_id=offset_id,
            success=success != "false",
        )  # fmt: skip
    if kind is TraceType.SUB_BEFORE:
        return TraceRecord(
            type=kind, ms=int(at[1]), group=at[3], request_id=at[4], msg_id=at[5], retry_times=int(at[6]), keys=at[7]
        )
    if kind is TraceType.SUB_AFTER:
        return TraceRecord(
            type=kind, request_id=at[1], msg_id=at[2], cost_ms=int(at[3]), success=at[4] == "true", keys=at[5],
            code=int(at[6] or 0), ms=int(at[7] or 0), group=at[8],
        )  # fmt: skip
    if kind is TraceType.END_TRANSACTION:
        return TraceRecord(
            type=kind, ms=int(at[1]), group=at[3], topic=at[4], msg_id=at[5], tags=at[6], keys=at[7], store_host=at[8],
            message_type=int(at[9]), transaction_id=at[10], transaction_state=at[11], from_check=at[12] == "true",
        )  # fmt: skip
    return TraceRecord(type=kind, ms=int(at[1]), group=at[3], topic=at[4], msg_id=at[5], success=at[6] == "true")
