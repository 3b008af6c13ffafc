"""One message as the log stores it: a tuple in the order of `log.schema.ROWS`, with names for its values."""

from __future__ import annotations

from typing import NamedTuple


class MessageRow(NamedTuple):
    """What rules decide to write. The log adds offsets and the store time when the commit lands."""

    topic: str
    queue_id: int
    msg_id: str
    tags: str | None
    keys: str | None
    body: bytes
    flag: int
    sys_flag: int
    born_ms: int
    born_host: str | None
    reconsume_times: int
    properties: list[tuple[str, str]]
