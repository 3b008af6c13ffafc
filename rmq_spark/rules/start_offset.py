"""Where a group starts in a queue that it has no offset of (facts 5.3).

An offset that the group has stored always wins. Otherwise:

| consume_from | ordinary topic | retry topic |
| --- | --- | --- |
| latest | the queue's end; its beginning while the queue is young | beginning |
| earliest | beginning | beginning |
| a time | the first message stored at that time or later; the end when there is none | beginning |

**Young queues.** A RocketMQ broker answers 0 to a new group while message 0 is still in its memory, so users who send
a message and then start a consumer see the message, although the default is "latest" (rule 2); a queue that is added
to a topic later is read from its beginning by the groups that are there. What is in memory cannot be told from a log,
and would differ between readers, so here a queue is young while its first message is not older than `YOUNG_MS` by the
log's own time. An old queue is left out as one expects of "latest".

**Not imitated.** RocketMQ starts a new POP group one message before the end of an old queue, which delivers one old
message, and a time in a retry topic at its end, which loses retries. Here POP starts where every group does, and retry
topics are always read whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rmq_spark.rules.system_topics import is_retry

YOUNG_MS: Final = 3_600_000
"""For an hour after its first message a queue is young."""


class ConsumeFrom(Enum):
    """Where a group without an offset starts; or a time, in milliseconds."""

    LATEST = "latest"
    EARLIEST = "earliest"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnds:
    """What must be known of a queue."""

    topic: str
    first: int
    """Offset of the first message that can be read."""
    end: int
    """Offset behind the last message (rule 1)."""
    first_store_ms: int | None
    """When the message at offset 0 was stored; None when it has expired or never was."""


def is_young(queue: QueueEnds, now_ms: int, young_ms: int = YOUNG_MS) -> bool:
    """Whether a group that starts at the latest message starts at the beginning after all. An empty new queue is."""
    if queue.first > 0:
        return False
    return queue.end == 0 or (queue.first_store_ms is not None and now_ms - queue.first_store_ms <= young_ms)


def start_offset(
    stored: int | None,
    consume_from: ConsumeFrom | int,
    queue: QueueEnds,
    *,
    now_ms: int,
    offset_at: Callable[[int], int],
    young_ms: int = YOUNG_MS,
) -> int:
    """The offset of the first message that a group gets of a queue.

    Args:
        stored: the group's offset of the queue; None when it has none.
        consume_from: where to start without one; a number is a time in milliseconds.
        queue: what is known of the queue.
        now_ms: the log's time.
        offset_at: offset of the first message stored at a time or later, the end when there is none.
        young_ms: see `YOUNG_MS`; negative turns the rule off.
    """
    if stored is not None and stored >= 0:
        return stored
    if consume_from is ConsumeFrom.EARLIEST or is_retry(queue.topic):
        return queue.first
    if isinstance(consume_from, int):
        return max(queue.first, offset_at(consume_from))
    return queue.first if is_young(queue, now_ms, young_ms) else queue.end
