"""State that is kept as messages: each fold reads its own system topic and nothing else.

`FOLDS` is the one place where they are registered. A service that needs state adds a class here: the topic
it lives in, what one record does to it, and how it is dumped into a snapshot. A record is an ordinary
message whose body is JSON; an unknown field is ignored, so an older reader passes over a newer writer's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from rmq_spark.errors import CorruptDataError, InvalidRequestError
from rmq_spark.log.queues import Queues

_BAD: Final = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""What a body raises that is no JSON, or not what its fold reads."""

MAX_OFFSET: Final = (1 << 63) - 1
MAX_QUEUE: Final = (1 << 31) - 1
"""Offsets have 64 bits and queue ids 32 in files and tables, as in RocketMQ; numbers in JSON have no bounds."""


@dataclass(frozen=True, slots=True)
class Record:
    """One state message, decoded."""

    topic: str
    value: dict[str, Any]
    """The JSON body."""
    commit_offset: int
    store_ms: int


class Fold(Protocol):
    """What you get by reading one system topic in order."""

    name: ClassVar[str]
    """Key in snapshots."""
    topic: ClassVar[str]
    """The system topic it reads."""

    @staticmethod
    def check(value: dict[str, Any]) -> None:
        """Raise KeyError, TypeError or ValueError unless `apply` can take in a record with this value."""

    def apply(self, record: Record, queues: Queues) -> None:
        """Take in the next record. Must depend on nothing but the records so far."""

    def dump(self) -> Any:
        """The state as a JSON value; `load` gives it back."""

    def load(self, value: Any) -> None:
        """Replace the state by what `dump` returned."""


class TopicConfigs:
    """Topics and their queue numbers (RocketMQ's topics.json). Lives in the nameserver log."""

    name: ClassVar[str] = "topics"
    topic: ClassVar[str] = "rmq_sys_topic_config"

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, Any]] = {}
        self.brokers: set[str] = set()
        """Brokers that ever had queues: their logs need upkeep even when their last topic is gone."""

    @staticmethod
    def check(value: dict[str, Any]) -> None:
        _need(value["topic"], str, "topic")
        if not value.get("deleted") or "queues" in value:
            for count in _need(value["queues"], dict, "queues").values():
                _need(count, int, "queues")

    def apply(self, record: Record, queues: Queues) -> None:
        name = record.value["topic"]
        self.brokers.update(record.value.get("queues", ()))
        if record.value.get("deleted"):
            self.configs.pop(name, None)
        else:
            self.configs[name] = {**record.value, "updatedAt": record.store_ms}

    def dump(self) -> Any:
        return {"configs": self.configs, "brokers": sorted(self.brokers)}

    def load(self, value: Any) -> None:
        self.configs = value["configs"]
        self.brokers = set(value["brokers"])


class GroupConfigs:
    """Consumer groups and their settings (RocketMQ's subscriptionGroup.json). Lives in the nameserver log."""

    name: ClassVar[str] = "groups"
    topic: ClassVar[str] = "rmq_sys_group_config"

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, Any]] = {}

    @staticmethod
    def check(value: dict[str, Any]) -> None:
        _need(value["group"], str, "group")

    def apply(self, record: Record, queues: Queues) -> None:
        name = record.value["group"]
        if record.value.get("deleted"):
            self.configs.pop(name, None)
        else:
            self.configs[name] = {**record.value, "updatedAt": record.store_ms}

    def dump(self) -> Any:
        return self.configs

    def load(self, value: Any) -> None:
        self.configs = value


@dataclass(frozen=True, slots=True)
class LastCommit:
    """What is known of a consumer group's last change of offsets in one log."""

    at_ms: int
    """storeTimestamp of the last change, whoever made it."""
    member: str | None
    """Which consumer committed last; None when it gave no name."""
    member_ms: int | None
    """storeTimestamp of that commit; None when only an administrator has set offsets so far."""


class ConsumerOffsets:
    """Committed offsets (next to consume) by group, topic and queue (RocketMQ's consumerOffset.json)."""

    name: ClassVar[str] = "consumer_offsets"
    topic: ClassVar[str] = "rmq_sys_consumer_offset"

    _LAST: ClassVar[str] = ""
    """Where a group's last commit stands among its topics in a dump: no topic has that name, so a reader that does
    not know of it never asks for it."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[str, dict[str, int]]] = {}
        """group -> topic -> queue id as text (JSON has no integer keys) -> offset."""
        self.last: dict[str, LastCommit] = {}
        """By group; a group that is known from an older snapshot only has none."""

    @staticmethod
    def check(value: dict[str, Any]) -> None:
        ConsumerOffsets.check_form(value)
        if value.get("deleted"):
            return
        for queue, offset in value["offsets"].items():
            if not (int(queue) <= MAX_QUEUE and 0 <= offset <= MAX_OFFSET):
                raise ValueError("offsets and queue ids must not be below 0, nor be too large")

    @staticmethod
    def check_form(value: dict[str, Any]) -> None:
        """As `check`, but take numbers of any size: logs of older versions may hold those."""
        _need(value["group"], str, "group")
        if value.get("deleted"):
            return
        if not _need(value["topic"], str, "topic"):
            raise TypeError("topic must not be empty")
        if value.get("member") is not None:
            _need(value["member"], str, "member")
        for queue, offset in _need(value["offsets"], dict, "offsets").items():
            if not (queue.isascii() and queue.isdigit()):
                raise TypeError("offsets must be by queue id")
            _need(offset, int, "offsets")

    def apply(self, record: Record, queues: Queues) -> None:
        value = record.value
        group = value["group"]
        if value.get("deleted"):
            self.offsets.pop(group, None)
            self.last.pop(group, None)
            return
        mine = self.offsets.setdefault(group, {}).setdefault(value["topic"], {})
        mine.update({str(queue): int(offset) for queue, offset in value["offsets"].items()})
        if value.get("admin"):
            # An administrator's change says nothing about the consumers: what was known of them stays.
            before = self.last.get(group, LastCommit(0, None, None))
            self.last[group] = LastCommit(record.store_ms, before.member, before.member_ms)
        else:
            self.last[group] = LastCommit(record.store_ms, value.get("member"), record.store_ms)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Committed offsets of one group on one topic by queue."""
        found = self.offsets.get(group, {}).get(topic, {})
        return {int(queue): offset for queue, offset in found.items()}

    def dump(self) -> Any:
        found: dict[str, dict[str, Any]] = {}
        for group, topics in self.offsets.items():
            last = self.last.get(group)
            known = {"at": last.at_ms, "member": last.member, "memberAt": last.member_ms} if last else None
            found[group] = {**topics, self._LAST: known} if known else topics
        return found

    def load(self, value: Any) -> None:
        self.offsets, self.last = {}, {}
        for group, topics in value.items():
            if last := topics.get(self._LAST):
                self.last[group] = LastCommit(last["at"], last["member"], last["memberAt"])
            self.offsets[group] = {topic: queues for topic, queues in topics.items() if topic != self._LAST}


class Truncations:
    """Topics whose messages so far were deleted: their queues start anew at the offset they had reached."""

    name: ClassVar[str] = "truncations"
    topic: ClassVar[str] = "rmq_sys_truncate"

    @staticmethod
    def check(value: dict[str, Any]) -> None:
        _need(value["topic"], str, "topic")

    def apply(self, record: Record, queues: Queues) -> None:
        queues.truncate(record.value["topic"])

    def dump(self) -> Any:
        return None

    def load(self, value: Any) -> None:
        return None  # the effect is in the queues' own dump


class RowFiles:
    """Row files in `data/`: which ones commits refer to, and which ones the collector has claimed.

    A claimed file may not be referred to any more; a file that is referred to is deleted only after its commit
    was rolled. Both sets forget a file when a record says that it is gone.
    """

    name: ClassVar[str] = "row_files"
    topic: ClassVar[str] = "rmq_sys_collect"

    def __init__(self) -> None:
        self.claimed: set[str] = set()
        self.referenced: dict[str, int] = {}
        """File name -> offset of the commit that refers to it."""

    @staticmethod
    def check(value: dict[str, Any]) -> None:
        for field in ("claim", "gone"):
            for name in _need(value.get(field, []), list, field):
                _need(name, str, field)

    def apply(self, record: Record, queues: Queues) -> None:
        gone = record.value.get("gone", ())
        self.claimed.update(record.value.get("claim", ()))
        self.claimed.difference_update(gone)
        for name in gone:
            self.referenced.pop(name, None)

    def refer(self, names: Iterable[str], offset: int) -> None:
        """A commit at `offset` refers to these files."""
        self.referenced.update(dict.fromkeys(names, offset))

    def dump(self) -> Any:
        return {"claimed": sorted(self.claimed), "referenced": self.referenced}

    def load(self, value: Any) -> None:
        self.claimed = set(value["claimed"])
        self.referenced = value["referenced"]


SinkMark = tuple[str, int] | tuple[str, int, str]
"""What names a sink's batch in its commit: application id, batch number and, since the sink writes one, a fingerprint.

The log keeps a fingerprint and never reads it: what makes two batches the same is the sink's affair."""

FINGERPRINTS_KEPT: Final = 10
"""Of so many last batches of an application the fingerprints are kept."""


class SinkBatches:
    """Last batch of each sink application, and what the last few of them held."""

    name: ClassVar[str] = "sink_batches"
    topic: ClassVar[str] = "rmq_sys_sink_batch"

    _FINGERPRINTS: ClassVar[str] = ""
    """Where fingerprints stand among the applications in a dump: none has that name, so a reader that does not know
    of them never asks for it."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        """Application -> greatest batch."""
        self.fingerprints: dict[str, dict[int, str]] = {}
        """Application -> its last batches that have one -> fingerprint; a commit of an older version has none."""

    @staticmethod
    def check(value: dict[str, Any]) -> None:
        _need(value["app"], str, "app")
        _need(value["batch"], int, "batch")

    def apply(self, record: Record, queues: Queues) -> None:
        self.land(record.value["app"], record.value["batch"])

    def land(self, app: str, batch: int, fingerprint: str | None = None) -> None:
        """Note that `batch` of `app` is in the log."""
        self.last[app] = max(batch, self.last.get(app, -1))
        if fingerprint is not None:
            known = self.fingerprints.setdefault(app, {})
            known[batch] = fingerprint
            for old in sorted(known)[:-FINGERPRINTS_KEPT]:
                del known[old]

    def dump(self) -> Any:
        if not self.fingerprints:
            return self.last
        # Pairs, because JSON has no integer keys.
        return {**self.last, self._FINGERPRINTS: {app: list(of.items()) for app, of in self.fingerprints.items()}}

    def load(self, value: Any) -> None:
        self.last = {app: batch for app, batch in value.items() if app != self._FINGERPRINTS}
        kept = value.get(self._FINGERPRINTS, {})
        self.fingerprints = {app: dict(map(tuple, of)) for app, of in kept.items()}


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may write a table, and until when."""

    holder: str
    epoch: int
    """Rises with every change of hands."""
    until_ms: int
    """0: it was given back."""


class TableLeases:
    """Leases on derived tables: one engine writes a table at a time. Lives in the nameserver log."""

    name: ClassVar[str] = "table_leases"
    topic: ClassVar[str] = "rmq_sys_table_lease"

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        """By table."""

    @staticmethod
    def check(value: dict[str, Any]) -> None:
        _need(value["table"], str, "table")
        _need(value["holder"], str, "holder")
        _need(value["epoch"], int, "epoch")
        _need(value["until"], int, "until")

    def apply(self, record: Record, queues: Queues) -> None:
        value = record.value
        self.leases[value["table"]] = Lease(value["holder"], value["epoch"], value["until"])

    def dump(self) -> Any:
        return {table: [lease.holder, lease.epoch, lease.until_ms] for table, lease in sorted(self.leases.items())}

    def load(self, value: Any) -> None:
        self.leases = {table: Lease(*lease) for table, lease in value.items()}


FOLDS: Final[tuple[type[Fold], ...]] = (
    TopicConfigs,
    GroupConfigs,
    ConsumerOffsets,
    Truncations,
    RowFiles,
    SinkBatches,
    TableLeases,
)
"""Every fold over state messages. Order is the order of records within one commit offset: none depends on it."""

FOLD_TOPICS: Final = frozenset(fold.topic for fold in FOLDS)

LATER_FOLDS: Final = frozenset({TableLeases.name})
"""Folds that the first writers of the format did not have: while one is empty, it has no payload, as with them."""


_BY_TOPIC: Final = {fold.topic: fold for fold in FOLDS}


def check_record(topic: str, body: bytes) -> None:
    """Check a message before it is appended: if its topic has a fold, the body must be a record that the fold can read.

    One that is not would stop every reader of the log at its offset, for ever.

    Raises:
        InvalidRequestError: it is not.
    """
    fold = _BY_TOPIC.get(topic)
    if fold is None:
        return
    try:
        fold.check(_need(json.loads(body), dict, "body"))
    except _BAD as error:
        raise InvalidRequestError(
            "not a state message that can be read back", topic=topic, reason=_why(error)
        ) from error


def decode(topic: str, body: bytes, commit_offset: int, store_ms: int) -> Record:
    """A state message's row as a record.

    Raises:
        CorruptDataError: the body is no JSON object.
    """
    try:
        return Record(topic, _need(json.loads(body), dict, "body"), commit_offset, store_ms)
    except _BAD as error:
        raise _unreadable(topic, commit_offset, error) from error


def apply_record(fold: Fold, record: Record, queues: Queues) -> None:
    """Let `fold` take in `record`.

    Raises:
        CorruptDataError: the record is not what the fold reads.
    """
    try:
        fold.apply(record, queues)
    except _BAD as error:
        raise _unreadable(record.topic, record.commit_offset, error) from error


def _unreadable(topic: str, offset: int, error: Exception) -> CorruptDataError:
    return CorruptDataError("state message cannot be read", topic=topic, offset=offset, reason=_why(error))


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _need(value: Any, kind: type, field: str) -> Any:
    # JSON's true is an int in Python.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{field} must be {kind.__name__}, not {type(value).__name__}")
    return value
