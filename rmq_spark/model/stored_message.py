"""A message that the log holds, with its place and times: what rules judge and what listeners receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.model.message_row import MessageRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One message of a queue. Consumers hand it to listeners."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    """Number of the message in its queue; the first is 0."""
    commit_offset: int
    """Its place in the broker's log."""
    msg_id: str
    """The UNIQ_KEY: drawn by the producer, and the same for every copy of the message."""
    tags: str | None = None
    keys: str | None = None
    """Keys joined by one space."""
    body: bytes
    """As stored; consumers hand it over decompressed, with `sys_flag` saying so."""
    flag: int = 0
    sys_flag: int = 0
    """Bits of `rules/sys_flag.py`."""
    born_ms: int
    """When the producer made it."""
    born_host: str | None = None
    store_ms: int
    """When it was committed: the log's own time."""
    reconsume_times: int = 0
    """How often a consumer of the group failed on it before."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """User's and engine's properties; tag, keys and id are fields of their own."""
    receipt: str | None = None
    """What `ack` needs, for messages that were received by POP."""

    @property
    def delivery_attempt(self) -> int:
        """Which delivery this is; the first is 1."""
        return self.reconsume_times + 1

    def to_row(self) -> MessageRow:
        """The row that a copy of this message has: the same id, times of birth, body and properties."""
        return MessageRow(
            self.topic,
            self.queue_id,
            self.msg_id,
            self.tags,
            self.keys,
            self.body,
            self.flag,
            self.sys_flag,
            self.born_ms,
            self.born_host,
            self.reconsume_times,
            list(self.properties.items()),
        )


ReceivedMessage = StoredMessage
"""The name that listeners know it by."""
