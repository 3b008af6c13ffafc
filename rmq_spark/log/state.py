"""The folded state of one log: everything that reading its commits in order tells.

Nothing in here is stored as the truth; snapshots carry copies that the chain vouches for.

Decisions are tried on this state: `open_trial`, then `admit` the rows of one caller after the other, then `keep_trial`
when the commit that carries them has landed, or `undo_trial`. Whoever is interrupted in between must load it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rmq_spark.errors import InvalidRequestError, UnsupportedVersionError
from rmq_spark.log import schema
from rmq_spark.log.core_folds import CORE_FOLDS, FoldList, RowFiles, SinkBatches, SinkMark, Truncations
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.fold import UNREADABLE, Fold, Records, describe, unreadable
from rmq_spark.log.marks import GENESIS
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.queues import Queues
from rmq_spark.log.run_index import queue_offsets
from rmq_spark.log.schema import Row
from rmq_spark.log.tail_index import TailIndex
from rmq_spark.log.undo import Journal, UndoDict
from rmq_spark.model import names

I64 = npt.NDArray[np.int64]

WRITER_TTL_MS: Final = 7 * 24 * 3_600_000
"""How long the last append of a writer is remembered after it; later retries raise `OutcomeUnknownError`."""

HELPED_REMEMBERED_MS: Final = 10_000
"""How long the state knows which offers have landed; several times as long as they may be landed."""
HELPED_MIN: Final = 1_000

AnyFold = TypeVar("AnyFold", bound=Fold)

_COLUMN: Final = {name: schema.ROWS.get_field_index(name) for name in schema.ROWS.names}
_TOPIC, _QUEUE = _COLUMN["topic"], _COLUMN["queueId"]


class LastAppend(NamedTuple):
    """The newest commit of one handle."""

    seq: int
    store_ms: int


class HelpedRows(NamedTuple):
    """Where an offer was landed by another writer (see `offers`)."""

    announced_ms: int
    slot: int
    store_ms: int
    rows: list[int]
    """The commit's row of each of its messages."""
    queue_offsets: list[int] | None = None
    """Queue offset of each of its messages; older versions did not note them."""


def helped_rows(meta: FileMeta) -> dict[str, HelpedRows]:
    """By token: the offers of other writers that a commit has landed."""
    doc = meta.doc
    if "helped" not in doc:
        return {}
    if any(row >= meta.rows for _, _, rows in doc["helped"] for row in rows):
        raise meta.corrupt("an offer has rows that the commit does not have")
    offsets = queue_offsets(meta.runs.rows, meta.bases)
    return {
        token: HelpedRows(announced_ms, doc["first"], doc["ts"], rows, offsets[rows].tolist())
        for token, announced_ms, rows in doc["helped"]
    }


class LogState:
    """State before the message at `offset`. Owned by one handle; not safe to share between threads.

    Args:
        folds: those that are folded beside the log's own.
    """

    def __init__(self, folds: Iterable[type[Fold]] = ()) -> None:
        self.offset = 0
        """The next commit's first offset: the log's exclusive end."""
        self.digest = GENESIS
        """Digest of the last commit."""
        self.store_ms = 0
        """storeTimestamp of the last commit."""
        self.now_ms = 0
        """While rules are asked: the storeTimestamp that the commit will have. What a rule judges by time, it judges by
        this."""
        self.durable = 0
        """Everything below is known to survive power loss."""
        self.queues = Queues()
        self.writers: dict[str, LastAppend] = {}
        """By handle."""
        self.commits = TailIndex()
        self.helped: dict[str, HelpedRows] = {}
        """By token: offers that have landed lately, and some older ones."""
        self._helped_max = HELPED_MIN
        """With more of them, older ones are looked for."""
        self.journal = Journal()
        self.folds: dict[str, Fold] = {}
        """By name."""
        self._by_topic: dict[str, Fold] = {}
        self._added: UndoDict[tuple[str, int], int] = UndoDict(self.journal)
        """Messages of each queue that are on trial, as far as folds ask for their offsets."""
        self._truncated: UndoDict[str, None] = UndoDict(self.journal)
        """Topics whose truncation is on trial."""
        self._state_topics: frozenset[str] = frozenset()
        """Topics whose messages are records, whether or not a fold of this handle reads them; known during a trial."""
        self.touched: UndoDict[str, None] = UndoDict(self.journal)
        """Names of the folds that have records on trial."""
        for kind in (*CORE_FOLDS, *folds):
            self.add_fold(kind)

    # ------------------------------------------------------------ folds

    def add_fold(self, kind: type[Fold]) -> Fold:
        """Declare one more fold; it starts empty."""
        known = self.folds.get(kind.name)
        if known is not None:
            return known
        fold = self.folds[kind.name] = kind(self.journal)
        for topic in kind.topics:
            self._by_topic[topic] = fold
        return fold

    def drop_fold(self, kind: type[Fold]) -> None:
        """Forget a fold whose state could not be learned."""
        self.folds.pop(kind.name, None)
        for topic in kind.topics:
            self._by_topic.pop(topic, None)

    def fold(self, kind: type[AnyFold]) -> AnyFold:
        """The fold of class `kind`.

        Raises:
            InvalidRequestError: the log was opened without it.
        """
        known = self.folds.get(kind.name)
        if not isinstance(known, kind):
            raise InvalidRequestError("the log was opened without this fold; declare it with `use`", fold=kind.name)
        return known

    def fold_topics(self, topics: Iterable[str]) -> list[str]:
        """Those of a commit's topics that a declared fold reads."""
        return [topic for topic in topics if topic in self._by_topic]

    def fold_of(self, topic: str) -> Fold:
        """The fold that reads `topic`."""
        return self._by_topic[topic]

    def has_records(self, kind: type[Fold]) -> bool:
        """Whether any message of the fold's topics was ever in this log."""
        return any(map(self._has_messages, kind.topics))

    def _has_messages(self, topic: str) -> bool:
        return next(iter(self.queues.of_topic(topic)), None) is not None

    def folds_in_use(self) -> dict[str, tuple[str, ...]]:
        """Name -> topics of every fold that has records here: as the log's list says, and those this handle knows.

        A log of format version 1 may have records of a fold that is not listed yet; then its topic stands for its name.
        """
        used = dict(self.fold(FoldList).topics_of)
        for name, fold in self.folds.items():
            if self.has_records(type(fold)):
                used[name] = fold.topics
        told = {topic for topics in used.values() for topic in topics}
        used.update({topic: (topic,) for topic in names.STATE_TOPICS - told if self._has_messages(topic)})
        return used

    # ------------------------------------------------------------ commits

    def apply(self, metas: Sequence[FileMeta], records: Iterable[Records]) -> None:
        """Take in the next commits; `records` are the rows of those of their topics that a declared fold reads.

        Several commits only if they say nothing to the log's own folds.
        """
        truncated: list[str] = []
        for each in records:
            try:
                self._by_topic[each.topic].apply(each)
                if each.topic in Truncations.topics:
                    truncated += Truncations.names(each)
            except UNREADABLE as error:
                raise unreadable(each.topic, metas[0].doc["first"], error) from error
        for meta in metas:
            doc = meta.doc
            for app in apps_of(doc):
                self.fold(SinkBatches).land(*app[:3])
            if files := doc.get("files"):
                self.fold(RowFiles).refer([file[0] for file in files], doc["first"])
            self._advance(meta, truncated)

    def _advance(self, meta: FileMeta, truncated: Iterable[str]) -> None:
        doc, helped = meta.doc, helped_rows(meta)
        for topic in truncated:
            self.queues.truncate(topic)
        self.queues.advance(meta.runs)
        self.offset = doc["first"] + meta.rows
        self.digest = meta.digest
        self.store_ms = self.now_ms = doc["ts"]
        if doc["flush"] == "sync":
            self.durable = self.offset
        if doc["writer"] == doc["handle"]:  # others, of older versions, had a name; they ask for nothing any more
            self.writers[doc["handle"]] = LastAppend(doc["seq"], doc["ts"])
        self.commits.add(meta)
        self._note_help(helped)

    def _note_help(self, helped: dict[str, HelpedRows]) -> None:
        self.helped.update(helped)
        if len(self.helped) > self._helped_max:
            self.helped = self._remembered_help()
            self._helped_max = max(HELPED_MIN, 2 * len(self.helped))

    def _remembered_help(self) -> dict[str, HelpedRows]:
        """The offers that have landed lately, by token; how many older ones are still here depends on chance."""
        oldest = self.store_ms - HELPED_REMEMBERED_MS
        return {token: each for token, each in sorted(self.helped.items()) if each.announced_ms >= oldest}

    # ------------------------------------------------------------ trials

    def open_trial(self, now_ms: int) -> None:
        """Begin to ask rules for a commit that will have this time."""
        self.now_ms = now_ms
        tables: tuple[dict[Any, Any], ...] = (self._added, self._truncated, self.touched)
        for table in tables:
            dict.clear(table)  # of the trial before; there is nothing to undo
        self._state_topics = names.STATE_TOPICS.union(self._by_topic, *self.fold(FoldList).topics_of.values())
        self.journal.open()

    def admit(self, batch: MessageBatch | None, app: SinkMark | None = None) -> None:
        """Take the rows of one caller in, on trial.

        Raises:
            InvalidRequestError: a state message that its fold cannot read, or that no declared fold reads; the state is
                as it was before the call.
        """
        position = self.journal.position()
        try:
            if app is not None:
                self.fold(SinkBatches).land(*app)
            if batch is not None and batch.rows is not None:
                self._admit_rows(batch.rows)
            elif batch is not None:
                self._refuse_state_rows(batch.topics())
        except BaseException:
            self.journal.undo(position)
            raise

    def _refuse_state_rows(self, topics: Sequence[str]) -> None:
        if kept := [topic for topic in topics if topic in self._state_topics]:
            raise InvalidRequestError("state messages are appended one by one, not as a table", topics=kept)

    def _admit_rows(self, rows: Sequence[Row]) -> None:
        if not any(row[_TOPIC] in self._state_topics for row in rows):
            return
        for topic, members in groupby(rows, key=lambda row: row[_TOPIC]):
            fold = self._by_topic.get(topic)
            if fold is None:
                if topic in self._state_topics:
                    raise InvalidRequestError(
                        "no fold of this handle reads the topic; declare it with `use`", topic=topic
                    )
                continue
            records = self._trial_records(fold, topic, list(members))
            try:
                self.touched[fold.name] = None
                fold.apply(records)
                if topic in Truncations.topics:
                    for name in Truncations.names(records):
                        self._truncated[name] = None
            except UNREADABLE as error:
                raise InvalidRequestError(
                    "not a state message that can be read back", topic=topic, reason=describe(error)
                ) from error

    def _trial_records(self, fold: Fold, topic: str, rows: Sequence[Row]) -> Records:
        def values(name: str) -> list[Any]:
            if name != "queueOffset":
                return [row[_COLUMN[name]] for row in rows]
            return [self._next_offset((topic, row[_QUEUE])) for row in rows]

        return Records.of_columns(topic, [self.now_ms] * len(rows), fold.columns, values)

    def _next_offset(self, queue: tuple[str, int]) -> int:
        """The queue offset that the next message on trial gets."""
        at = self._added.get(queue, 0)
        self._added[queue] = at + 1
        return self.queues.bounds(*queue)[1] + at

    def undo_trial(self) -> None:
        """The commit did not land: everything is as before `open_trial`."""
        self.journal.undo()
        self.journal.close()
        self.now_ms = self.store_ms

    def keep_trial(self, meta: FileMeta) -> None:
        """The commit has landed: what was tried is the state, and the log goes on behind it."""
        self.journal.close()
        if files := meta.doc.get("files"):
            self.fold(RowFiles).refer([file[0] for file in files], meta.doc["first"])
        self._advance(meta, self._truncated)

    # ------------------------------------------------------------ copies

    def last_append(self, handle: str) -> LastAppend | None:
        """The newest commit of `handle`, if it is still remembered."""
        last = self.writers.get(handle)
        if last is None or last.store_ms < self.store_ms - WRITER_TTL_MS:
            return None
        return last

    def dump(self) -> dict[str, bytes]:
        """The state as named payloads, for snapshots."""
        self.writers = {handle: last for handle in self.writers if (last := self.last_append(handle)) is not None}
        core = {
            "offset": self.offset,
            "digest": self.digest,
            "ts": self.store_ms,
            "durable": self.durable,
            "helped": {token: list(each) for token, each in self._remembered_help().items()},
            "writers": {handle: [0, last.seq, handle, last.store_ms] for handle, last in sorted(self.writers.items())},
        }
        payloads: dict[str, Any] = {"core": core, "queues": self.queues.dump(), "commits": self.commits.dump()}
        for name, fold in sorted(self.folds.items()):
            payloads[f"fold/{name}"] = {"version": fold.version, "state": fold.dump()}
        return {name: json.dumps(value, separators=(",", ":")).encode() for name, value in payloads.items()}

    @classmethod
    def load(cls, payloads: Mapping[str, bytes], folds: Iterable[type[Fold]] = ()) -> tuple[LogState, list[type[Fold]]]:
        """The inverse of `dump`, and which of `folds` it does not tell: a payload that is absent means unknown.

        A fold that no record was ever written for is empty, whoever made the copy.
        """
        self = cls()
        core = json.loads(payloads["core"])
        self.offset, self.digest, self.store_ms = core["offset"], core["digest"], core["ts"]
        self.now_ms, self.durable = self.store_ms, core["durable"]
        self.writers = {
            handle: LastAppend(seq, ms) for name, (_, seq, handle, ms) in core["writers"].items() if name == handle
        }
        self.helped = {token: HelpedRows(*each) for token, each in core.get("helped", {}).items()}
        self.queues = Queues.load(json.loads(payloads["queues"]))
        self.commits = TailIndex.load(json.loads(payloads["commits"]))
        unknown = []
        for kind in (*CORE_FOLDS, *folds):
            fold = self.add_fold(kind)
            if not load_fold(fold, payloads) and self.has_records(kind) and kind is not FoldList:
                self.drop_fold(kind)
                unknown.append(kind)
        return self, unknown


def load_fold(fold: Fold, payloads: Mapping[str, bytes]) -> bool:
    """Let `fold` take its state out of a snapshot's payloads; False if it is not there.

    Raises:
        UnsupportedVersionError: a newer version wrote it.
    """
    text = payloads.get(f"fold/{fold.name}")
    if text is not None:
        value = json.loads(text)
        if value["version"] > fold.version:
            raise UnsupportedVersionError(
                "a newer version of rmq-spark wrote this state; upgrade", fold=fold.name, version=value["version"]
            )
        fold.load(value["state"], value["version"])
        return True
    return False


def apps_of(doc: Mapping[str, Any]) -> list[list[Any]]:
    """The sink batches that a commit carries; format version 1 had one at most."""
    one = doc.get("app")
    return [one] if one else doc.get("apps", [])
