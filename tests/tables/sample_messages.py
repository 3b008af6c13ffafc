"""A log with everything in it that tables have to cope with, and what the tables must hold: worked out row by row.

The expected rows are made from what appends returned, by loops over Python values; nothing of the kernel, of scans or
of the engine is used for them.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import PreconditionFailedError
from rmq_spark.log.core_folds import Truncations
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.model.java_hash import java_hash
from rmq_spark.model.settings import LogSettings
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.tables.lease import LEASE_MS

HOUR_MS = 3_600_000
SETTINGS = LogSettings(
    block_bytes=2 * 1024,
    segment_bytes=30_000,
    segment_span_ms=HOUR_MS,
    delete_grace_ms=0,
    retention_ms=4 * HOUR_MS,
    snapshot_every_commits=10**9,
    disk_reclaim_ratio=1.0,
    disk_force_ratio=1.0,
    disk_full_ratio=1.0,
)
TOPICS = ("orders", "payments", "%RETRY%group", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "t" * 127)
LEVELS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
Row = tuple[Any, ...]


class RealClock(SystemClock):
    """For stores that other processes use, too: its time goes by itself."""

    def advance(self, seconds: float) -> None:
        return None


@dataclass(frozen=True)
class Sent:
    """One message, with the places that the append gave it."""

    topic: str
    queue: int
    msg_id: str
    tags: str | None
    keys: str | None
    body: bytes
    sys_flag: int
    properties: tuple[tuple[str, str], ...]
    broker: str = ""
    queue_offset: int = -1
    commit_offset: int = -1
    store_ms: int = -1

    @property
    def single_keys(self) -> list[str]:
        return list(dict.fromkeys(piece for piece in (self.keys or "").split(" ") if piece))

    @property
    def kind(self) -> int:
        return self.sys_flag & 0xC


@dataclass
class Sample:
    """A store that grows, and a record of what went in."""

    store: Store
    clock: ManualClock | RealClock
    draw: random.Random
    sent: list[Sent] = field(default_factory=list)
    offsets: list[tuple[str, int, int, dict[str, Any]]] = field(default_factory=list)
    """Offset commits: broker, log offset, time, body."""
    deleted: dict[tuple[str, str], int] = field(default_factory=dict)
    """(broker, topic) -> log offset before which its messages are hidden."""
    _number: int = 0

    @classmethod
    def new(
        cls,
        seed: int,
        uri: str = "memory://",
        *,
        clock: ManualClock | RealClock | None = None,
        options: dict[str, str] | None = None,
    ) -> Sample:
        clock = clock or ManualClock()
        store = Store.create(uri, settings=SETTINGS, clock=clock, options=options)
        return cls(store, clock, random.Random(seed))

    def outlast(self, work: Callable[[], object]) -> None:
        """Do `work` once the lease of whoever sleeps has run out; its other thread may still renew it once or twice."""
        for _ in range(20):
            self.clock.advance(LEASE_MS / 1000 + 1)
            try:
                work()
            except PreconditionFailedError:
                continue
            return
        raise AssertionError("the lease never ran out")

    # ------------------------------------------------------------ growing

    def grow(self, commits: int, brokers: tuple[str, ...] = ("broker-0",)) -> Sample:
        """Append commits of all kinds."""
        for _ in range(commits):
            broker = self.draw.choice(brokers)
            action = self.draw.choice(("rows",) * 5 + ("table", "table", "files", "offsets", "offsets"))
            getattr(self, f"_append_{action}")(broker)
            self.clock.advance(self.draw.choice((0, 0.001, 1, 60)))
        return self

    def _messages(self, count: int) -> list[Sent]:
        draw = self.draw
        found = []
        for _ in range(count):
            self._number += 1
            keys = draw.choice(
                (
                    None,
                    f"k-{draw.randrange(40)}",
                    f"k-{self._number}",
                    f"a{draw.randrange(9)} b{self._number}",
                    "x  x y",
                )
            )
            pairs = tuple((name, draw.choice(("1", "é中🙂", "v" * 30))) for name in draw.sample(("p", "qq", "中"), 2))
            topic = draw.choice(TOPICS)
            if topic == "SCHEDULE_TOPIC_XXXX":
                pairs = (*pairs, ("DELAY", draw.choice(("3", "18", "99", "0", "-1", "no"))))
            found.append(
                Sent(
                    topic=topic,
                    queue=draw.randrange(3),
                    msg_id=f"{draw.randrange(4):08X}{self._number:024X}",
                    tags=draw.choice((None, "TagA", "TagB", "标签")),
                    keys=keys if draw.random() < 0.9 else "Schlüssel-🙂",
                    body=draw.randbytes(draw.choice((1, 20, 300))),
                    sys_flag=draw.choice((0, 0, 0, 0, 0x8, 0x4, 0xC, 0x10, 0x30)),
                    properties=pairs[: draw.randrange(4)],
                )
            )
        return found

    def _append_rows(self, broker: str) -> None:
        messages = self._messages(self.draw.randrange(1, 6))
        batch = MessageBatch.merge(
            [
                MessageBatch.of(
                    topic=one.topic,
                    queue_id=one.queue,
                    msg_id=one.msg_id,
                    body=one.body,
                    born_timestamp_ms=self.clock.now_ms(),
                    tags=one.tags,
                    keys=one.keys,
                    sys_flag=one.sys_flag,
                    properties=one.properties,
                )
                for one in messages
            ]
        )
        self._note(broker, messages, self.store.log(broker).append(batch))

    def _append_table(self, broker: str) -> None:
        messages = self._messages(self.draw.randrange(20, 80))
        self._note(broker, messages, self.store.log(broker).append(MessageBatch.from_arrow(_table(messages))))

    def _append_files(self, broker: str) -> None:
        log, files, messages = self.store.log(broker), [], []
        for _ in range(self.draw.randrange(1, 4)):
            part = sorted(self._messages(self.draw.randrange(5, 30)), key=lambda one: (one.topic, one.queue))
            batch = MessageBatch.from_arrow(_table(part))
            nonce = self.clock.token()
            files.append(write_row_file(log.storage, log.root, batch, nonce=nonce, block_bytes=1024))
            messages += part
        self._note(broker, messages, log.append_files(files))

    def _append_offsets(self, broker: str) -> None:
        """A group commits offsets: sensible ones, stale ones, of queues that have no message, and a deletion."""
        group = self.draw.choice(("g1", "g2"))
        value: dict[str, Any] = {"group": group, "deleted": True}
        if self.draw.random() < 0.9:
            topic = self.draw.choice(TOPICS[:3])
            queues = self.draw.sample(range(4), 2)
            ends = {
                queue: sum(1 for one in self.of(broker) if (one.topic, one.queue) == (topic, queue)) for queue in queues
            }
            offsets = {str(queue): max(0, ends[queue] - self.draw.choice((0, 0, 1, 5, 50))) for queue in queues}
            value = {"group": group, "topic": topic, "offsets": offsets}
        done = self._state(broker, ConsumerOffsets.topics[0], value)
        self.offsets.append((broker, int(done.commit_offsets[0]), done.store_ms, value))

    def _state(self, broker: str, topic: str, value: dict[str, Any]) -> Any:
        batch = MessageBatch.of(
            topic=topic,
            queue_id=0,
            msg_id=self.clock.token().upper(),
            body=json.dumps(value).encode(),
            born_timestamp_ms=self.clock.now_ms(),
        )
        return self.store.log(broker, ConsumerOffsets).append(batch)

    def delete_topic(self, topic: str, broker: str = "broker-0") -> None:
        done = self._state(broker, Truncations.topics[0], {"topic": topic})
        self.deleted[broker, topic] = int(done.commit_offsets[0])

    def roll(self, broker: str = "broker-0") -> None:
        roll(self.store.log(broker), min_commits=1)

    def expire(self, broker: str = "broker-0") -> int:
        """Let half of the log's time go by retention; returns the new log start."""
        times = [one.store_ms for one in self.of(broker)]
        middle = (times[0] + times[-1]) // 2 if times else 0
        return expire(self.store.log(broker), before_ms=middle).log_start

    def _note(self, broker: str, messages: list[Sent], done: Any) -> None:
        for at, one in enumerate(messages):
            values = {**one.__dict__, "broker": broker, "store_ms": done.store_ms}
            values["queue_offset"] = int(done.queue_offsets[at])
            values["commit_offset"] = int(done.commit_offsets[at])
            self.sent.append(Sent(**values))

    # ------------------------------------------------------------ what must be there

    def of(self, broker: str) -> list[Sent]:
        return [one for one in self.sent if one.broker == broker]

    def bounds(self, broker: str = "broker-0") -> tuple[int, int]:
        """Log start and end."""
        return self.store.log(broker).look(lambda view: (view.mark.log_start, view.state.offset))

    def held(self, brokers: tuple[str, ...] = ("broker-0",), mark: int | None = None) -> list[Sent]:
        """Messages from the log's start to `mark`, hidden ones included."""
        found = []
        for broker in brokers:
            start, end = self.bounds(broker)
            stop = end if mark is None else mark
            found += [one for one in self.of(broker) if start <= one.commit_offset < stop]
        return found

    def visible(self, brokers: tuple[str, ...] = ("broker-0",)) -> list[Sent]:
        """Messages that a reader may see, newest first."""
        found = [one for one in self.held(brokers) if one.commit_offset >= self.deleted.get((one.broker, one.topic), 0)]
        return sorted(found, key=lambda one: (-one.store_ms, one.broker, -one.commit_offset))

    def consumequeue(self, brokers: tuple[str, ...] = ("broker-0",), mark: int | None = None) -> list[Row]:
        rows = []
        for one in self.held(brokers, mark):
            if one.kind in (0, 8):
                place = (one.topic, one.broker, one.queue, one.queue_offset, one.commit_offset)
                rows.append((*place, record_size(one), tags_code(one), one.store_ms))
        return sorted(rows)

    def index(self, brokers: tuple[str, ...] = ("broker-0",), mark: int | None = None) -> list[Row]:
        rows = []
        for one in self.held(brokers, mark):
            if one.kind == 0xC:
                continue
            for key, kind in [(key, "KEYS") for key in one.single_keys] + [(one.msg_id, "UNIQ_KEY")]:
                value = abs(java_hash(f"{one.topic}#{key}"))
                place = (one.commit_offset, one.queue, one.queue_offset, one.store_ms, one.broker)
                rows.append((one.topic, key, 0 if value >= 1 << 31 else value, kind, *place))
        return sorted(rows)

    def consumer_offsets(self, brokers: tuple[str, ...] = ("broker-0",), mark: int | None = None) -> list[Row]:
        rows: list[Row] = []
        for broker, place, at_ms, value in self.offsets:
            start, end = self.bounds(broker) if broker in brokers else (0, 0)
            if not start <= place < (end if mark is None else mark):
                continue
            if value.get("deleted"):
                rows.append((value["group"], None, broker, None, None, None, None, None, place, at_ms))
                continue
            for queue, committed in value["offsets"].items():
                mine = [one for one in self.of(broker) if (one.topic, one.queue) == (value["topic"], int(queue))]
                before = [one for one in mine if one.commit_offset < place]
                lag = max(0, len(before) - committed)
                waiting = at_ms - before[committed].store_ms if lag else 0
                place_of = (value["group"], value["topic"], broker, int(queue))
                rows.append((*place_of, committed, len(before), lag, waiting, place, at_ms))
        return sorted(rows, key=_sortable)

    def expected(self, brokers: tuple[str, ...] = ("broker-0",), mark: int | None = None) -> dict[str, list[Row]]:
        return {
            "consumequeue": self.consumequeue(brokers, mark),
            "index": self.index(brokers, mark),
            "consumer_offsets": self.consumer_offsets(brokers, mark),
        }


def as_rows(table: pa.Table) -> list[Row]:
    """A table's rows as sorted tuples, times in ms."""
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            assert all(value % 1000 == 0 for value in column.cast(pa.int64()).to_pylist())
            columns.append([value // 1000 for value in column.cast(pa.int64()).to_pylist()])
        else:
            columns.append(column.to_pylist())
    return sorted(zip(*columns, strict=True), key=_sortable)


def _sortable(row: Row) -> list[Any]:
    return [(value is not None, value) for value in row]


def record_size(one: Sent) -> int:
    """Length of the message as RocketMQ's broker would write it: the record itself, built field by field."""
    pairs = dict(one.properties)
    for name, value in (("TAGS", one.tags), ("KEYS", one.keys), ("UNIQ_KEY", one.msg_id)):
        if value is not None:
            pairs[name] = value
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
    topic = one.topic.encode()
    hosts = [b"h" * (20 if one.sys_flag & bit else 8) for bit in (0x10, 0x20)]
    record = struct.pack(">iiiiiqqiq", 0, 0, 0, 0, 0, 0, 0, 0, 0) + hosts[0] + struct.pack(">q", 0) + hosts[1]
    record += struct.pack(">iqi", 0, 0, len(one.body)) + one.body
    record += struct.pack(">h" if len(topic) > 127 else ">b", len(topic)) + topic
    record += struct.pack(">h", len(text)) + text
    return len(record)


def tags_code(one: Sent) -> int:
    level = dict(one.properties).get("DELAY") if one.topic == "SCHEDULE_TOPIC_XXXX" else None
    if level is not None and level.isdigit() and int(level) > 0:
        return one.store_ms + 1000 * LEVELS[min(int(level), 18) - 1]
    return java_hash(one.tags or "")


def _table(messages: list[Sent]) -> pa.Table:
    return pa.table(
        {
            "topic": [one.topic for one in messages],
            "queueId": pa.array([one.queue for one in messages], pa.int32()),
            "msgId": [one.msg_id for one in messages],
            "tags": pa.array([one.tags for one in messages], pa.string()),
            "keys": pa.array([one.keys for one in messages], pa.string()),
            "body": pa.array([one.body for one in messages], pa.binary()),
            "bornTimestamp": pa.array([0] * len(messages), pa.timestamp("ms", tz="UTC")),
            "sysFlag": pa.array([one.sys_flag for one in messages], pa.int32()),
            "properties": pa.array([list(one.properties) for one in messages], pa.map_(pa.string(), pa.string())),
        }
    )
