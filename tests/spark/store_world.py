"""A store under test, and beside it a plain list of every message that was put in."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from pyspark_rocketmq import DefaultSource

from rmq_spark.client.store import DEFAULT_BROKER, Store
from rmq_spark.clock import Clock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import RowFile, write_row_file
from rmq_spark.model.settings import LogSettings
from rmq_spark.rules.all_folds import BROKER_FOLDS
from rmq_spark.spark.schema import READ_SCHEMA

_names = itertools.count()

TINY_SEGMENTS = LogSettings(segment_bytes=1, delete_grace_ms=0)
"""Every commit becomes a segment of its own when it is rolled, so that retention can drop any of them."""


@dataclass(frozen=True)
class Sent:
    """One message of the model."""

    topic: str
    broker: str
    queue: int
    queue_offset: int
    commit_offset: int
    ms: int
    body: bytes

    @property
    def place(self) -> tuple[str, str, int]:
        return self.topic, self.broker, self.queue


@dataclass
class World:
    """A store and the list of what is in it."""

    uri: str
    store: Store
    sent: list[Sent] = field(default_factory=list)
    count: int = 0

    @classmethod
    def create(
        cls, uri: str | None = None, *, clock: Clock | None = None, settings: LogSettings | None = None
    ) -> World:
        uri = uri or f"memory://world-{next(_names)}"
        return cls(uri, Store.create(uri, clock=clock, settings=settings or TINY_SEGMENTS))

    def log(self, broker: str = DEFAULT_BROKER) -> CommitLog:
        return self.store.log(broker)

    def options(self, **options: object) -> dict[str, str]:
        """Options for the source, as Spark would hand them over."""
        return {"store": self.uri, **{name: str(value) for name, value in options.items()}}

    # ------------------------------------------------------------ changing the store

    def message(self, topic: str, queue: int, *, body: bytes | None = None, **values: Any) -> MessageBatch:
        self.count += 1
        columns = {"msg_id": f"{self.count:032X}", "born_timestamp_ms": 1_600_000_000_000 + self.count, **values}
        content = f"m{self.count}".encode() if body is None else body
        return MessageBatch.of(topic=topic, queue_id=queue, body=content, **columns)

    def send(self, topic: str, *queues: int, broker: str = DEFAULT_BROKER, **values: Any) -> list[Sent]:
        """One commit with a message for each of the queues."""
        return self.append([self.message(topic, queue, **values) for queue in queues or (0,)], broker)

    def append(self, messages: Sequence[MessageBatch], broker: str = DEFAULT_BROKER) -> list[Sent]:
        """One commit with these messages."""
        batch = MessageBatch.merge(messages)
        done = self.log(broker).append(batch)
        assert batch.rows is not None
        return self._note(broker, [(row[0], row[1], row[5]) for row in batch.rows], done)

    def append_files(self, files: Iterable[Sequence[MessageBatch]], broker: str = DEFAULT_BROKER) -> list[Sent]:
        """One commit that refers to row files, as Spark's sink makes them."""
        log = self.log(broker)
        written: list[RowFile] = []
        rows: list[tuple[str, int, bytes]] = []
        for messages in files:
            batch = MessageBatch.merge(messages)
            assert batch.rows is not None
            written.append(
                write_row_file(
                    log.storage, log.root, batch, nonce=log.clock.token(), block_bytes=log.settings.block_bytes
                )
            )
            # A row file is sorted by topic and queue.
            rows += sorted(((row[0], row[1], row[5]) for row in batch.rows), key=lambda row: row[:2])
        return self._note(broker, rows, log.append_files(written))

    def _note(self, broker: str, rows: list[tuple[str, int, bytes]], done: Any) -> list[Sent]:
        new = [
            Sent(topic, broker, queue, queue_offset, commit_offset, done.store_ms, body)
            for (topic, queue, body), queue_offset, commit_offset in zip(
                rows, done.queue_offsets.tolist(), done.commit_offsets.tolist(), strict=True
            )
        ]
        self.sent += new
        return new

    def roll(self, broker: str = DEFAULT_BROKER, **settings: Any) -> None:
        """Roll; settings of the log may differ for this once."""
        if not settings:
            roll(self.log(broker), min_commits=1)
            return
        changed = LogSettings(**{"delete_grace_ms": 0, **settings})
        log = self.log(broker)
        with CommitLog(log.storage, log.root, broker, settings=changed, clock=log.clock) as other:
            roll(other, min_commits=1)

    def expire_below(self, offset: int, broker: str = DEFAULT_BROKER) -> int:
        """Let retention take segments that lie below `offset`, as if their age told; returns the log's new start."""
        log = self.store.log(broker, *BROKER_FOLDS)
        roll(log, min_commits=1)
        segments = log.refresh().mark.segments
        # Retention goes by time, and several segments may have the same; then all or none of them go.
        latest = max((one.max_ms for one in segments if one.end <= offset), default=None)
        if latest is None or any(one.min_ms <= latest for one in segments if one.end > offset):
            return log.view.mark.log_start
        start = expire(log, before_ms=latest + 1).log_start
        self.sent = [one for one in self.sent if one.broker != broker or one.commit_offset >= start]
        return start

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; its messages are not to be seen any more."""
        self.store.delete_topic(topic)
        self.sent = [one for one in self.sent if one.topic != topic]

    # ------------------------------------------------------------ what is expected

    def of(self, *topics: str, broker: str | None = None) -> list[Sent]:
        return [one for one in self.sent if one.topic in topics and (broker is None or one.broker == broker)]


def in_queues(messages: Iterable[Sent]) -> dict[tuple[str, str, int], list[tuple[int, bytes]]]:
    """Per queue, in order: (queue offset, body)."""
    queues: dict[tuple[str, str, int], list[tuple[int, bytes]]] = {}
    for one in messages:
        queues.setdefault(one.place, []).append((one.queue_offset, one.body))
    return {place: sorted(rows) for place, rows in queues.items()}


def rows_in_queues(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, int], list[tuple[int, bytes]]]:
    """The same of rows that were read, in the order in which they came: nothing is sorted here."""
    queues: dict[tuple[str, str, int], list[tuple[int, bytes]]] = {}
    for row in rows:
        place = (row["topic"], row["brokerName"], row["queueId"])
        queues.setdefault(place, []).append((row["queueOffset"], row["body"]))
    return queues


def shipped(partition: InputPartition) -> InputPartition:
    """A partition as a task gets it."""
    copy: InputPartition = pickle.loads(pickle.dumps(partition))
    return copy


def batch_tasks(options: Mapping[str, str], schema: StructType = READ_SCHEMA) -> list[Iterator[pa.RecordBatch]]:
    """What each task of a batch read yields, planned and read as Spark does it but in this process."""
    reader = DefaultSource(dict(options)).reader(schema)
    partitions = reader.partitions()
    return [pickle.loads(pickle.dumps(reader)).read(shipped(part)) for part in partitions]


def read_rows(options: Mapping[str, str], schema: StructType = READ_SCHEMA) -> list[dict[str, Any]]:
    """Every row of a batch read, task by task."""
    return [row for task in batch_tasks(options, schema) for batch in task for row in batch.to_pylist()]
