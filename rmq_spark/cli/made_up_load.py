"""Made-up messages for load tests: whole Arrow columns at a time, so that a million takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.cli.message_lines import Defaults
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import repeated
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.java_hash import java_hash
from rmq_spark.model.message_id import UniqueIds, own_address

if TYPE_CHECKING:
    from rmq_spark.client.store import Topic
    from rmq_spark.clock import Clock

BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""A batch holds no more body bytes than this, however many messages a commit were to have."""
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much of what to make up."""

    count: int
    size: int
    """Bytes of a body: the message's number, then random letters."""
    batch: int
    """Messages a commit."""
    defaults: Defaults
    """What each message has; its only key is a prefix to the message's number."""

    def __post_init__(self) -> None:
        if len(self.defaults.keys) > 1:
            raise InvalidRequestError("with --count, --keys is one prefix", keys=list(self.defaults.keys))
        self.defaults.message(b"0" * self.size)  # refuses what Message refuses: tags, properties, sizes


def batches(load: Load, topic: Topic, clock: Clock) -> Iterator[tuple[str, MessageBatch]]:
    """Yield (broker, messages of one commit); queues take turns, brokers take turns by commit.

    Raises:
        InvalidRequestError: the topic has no queue of the number asked for.
    """
    queues = _queues(load.defaults, topic)
    brokers = sorted(queues)
    ids, letters = UniqueIds(clock), np.random.default_rng()
    rows = min(load.batch, max(1, BATCH_BYTES_MAX // load.size))
    for turn, first in enumerate(range(0, load.count, rows)):
        broker = brokers[turn % len(brokers)]
        numbers = np.arange(first, min(first + rows, load.count), dtype=np.int64)
        count = len(numbers)
        keys = load.defaults.keys
        table = pa.table(
            {
                "topic": repeated(topic.name, count),
                "queueId": pa.array(queues[broker][numbers % len(queues[broker])]),
                "msgId": pa.array(ids.draw(count), pa.string()),
                "tags": pa.repeat(pa.scalar(load.defaults.tags, pa.string()), count),
                "keys": _numbered(keys[0], numbers) if keys else pa.nulls(count, pa.string()),
                "body": _bodies(numbers, load.size, letters),
                "bornTimestamp": pa.repeat(pa.scalar(clock.now_ms(), pa.int64()), count).cast(schema.TIMESTAMP),
                "bornHost": repeated(own_address(), count),
                "properties": _properties(load.defaults, count),
            }
        )
        yield broker, MessageBatch.from_arrow(table)


def _queues(defaults: Defaults, topic: Topic) -> dict[str, np.ndarray]:
    """Queue ids to send to, by broker, chosen as the producer does."""
    places = topic.message_queues()
    if defaults.queue_id is not None:
        places = [place for place in places if place[1] == defaults.queue_id]
        if not places:
            raise InvalidRequestError("no such queue", topic=topic.name, queue=defaults.queue_id)
    elif defaults.sharding_key is not None:
        places = [places[abs(java_hash(defaults.sharding_key)) % len(places)]]
    queues: dict[str, list[int]] = {}
    for broker, queue in places:
        queues.setdefault(broker, []).append(queue)
    return {broker: np.array(ids, np.int32) for broker, ids in queues.items()}


def _bodies(numbers: np.ndarray, size: int, letters: np.random.Generator) -> pa.BinaryArray:
    count = len(numbers)
    text = letters.integers(ord("a"), ord("z") + 1, (count, size), np.uint8)
    digits = min(size, _DIGITS)
    for place in range(digits):
        text[:, digits - 1 - place] = ord("0") + numbers // 10**place % 10
    ends = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(text)])


def _numbered(prefix: str, numbers: np.ndarray) -> pa.StringArray:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _properties(defaults: Defaults, count: int) -> pa.MapArray:
    pairs = list(defaults.message(b"-").stored_properties().items())
    ends = pa.array(np.arange(count + 1, dtype=np.int32) * len(pairs))
    names = pa.array([name for name, _ in pairs] * count, pa.string())
    values = pa.array([value for _, value in pairs] * count, pa.string())
    return pa.MapArray.from_arrays(ends, names, values)
