"""Checks of a log against what its writers were told: every promise about appends, in one call.

The checker opens the log from nothing, as a process would that starts after a crash, and trusts no state of the
writers. Simulations, tests with real processes and power-loss replays all end with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from rmq_spark.log import scan
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.files import LogFiles
from rmq_spark.log.queues import Queues
from rmq_spark.log.state import LogState
from rmq_spark.log.verify import verify
from rmq_spark.log.view import LogView
from rmq_spark.rules import system_topics
from rmq_spark.storage.base import Storage


class AckedMessage(NamedTuple):
    """One message of an acknowledged append, as the append's result placed it."""

    topic: str
    queue: int
    queue_offset: int | None
    """None when the acknowledgement named no offsets (a repeated sink batch, a buffered append)."""
    commit_offset: int | None
    msg_id: str
    body: bytes


Acked: TypeAlias = Sequence[
    tuple[Hashable, Sequence[AckedMessage | tuple[str, int, int | None, int | None, str, bytes]]]
]
"""(writer, messages) for each acknowledged append, in the order in which each writer got its acknowledgements."""

Attempted: TypeAlias = Mapping[Hashable, Collection[str]]
"""Batch id -> message ids, for each append that was ever started, acknowledged or not."""


class LoggedMessage(NamedTuple):
    """One message as it stands in the log."""

    commit_offset: int
    topic: str
    queue: int
    queue_offset: int
    store_ms: int
    msg_id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check has looked at."""

    messages: int
    """Messages that the log holds, system topics not counted."""
    commits: int
    """Commits that are not rolled yet."""
    segments: int
    log_start: int
    log_end: int
    acked: int
    """Acknowledged messages that were found."""
    expired: int
    """Acknowledged messages that retention has dropped."""
    unacked: int
    """Messages that are there without an acknowledgement (their writer died between landing and hearing of it)."""


def check_log(storage: Storage, root: str, broker: str, *, acked: Acked, attempted: Attempted | None = None) -> Checked:
    """Open the log from nothing and check everything that is promised about appends.

    Checked are: `verify` finds no damage; log offsets are dense; queue offsets are dense; storeTimestamp never goes
    back; a message id is there at most once; every acknowledged message is there, at the offsets it was given, with
    its body; each writer's messages stand in the order of its acknowledgements; a batch is there wholly, in one
    commit, or not at all; nothing is there that nobody sent; the state is the same with and without snapshots.

    Messages below the log's start may be gone: retention took them.

    Args:
        storage: where the log is.
        root: its directory in there.
        broker: its name.
        acked: what the writers were told; see `Acked`.
        attempted: what was tried; without it, atomicity and strangers are not checked.

    Raises:
        AssertionError: a promise is broken; the text says which, and shows examples.
    """
    report = verify(storage, root, broker)
    damage = [f"{finding.path}: {finding.problem}" for finding in report.findings if finding.damage]
    _demand(not damage, "verify found damage", damage)
    with CommitLog(storage, root, broker, read_only=True) as log:
        view = log.view
        rows = _read_all(log)
        _check_offsets(rows, view)
        _check_same_state(view)
        users = {row.msg_id: row for row in rows if not system_topics.is_system(row.topic)}
        expired = _check_acked(users, view, acked)
        _check_order(acked)
        if attempted is not None:
            _check_batches(users, attempted)
        told = {message[4] for _, messages in acked for message in messages}
        return Checked(
            messages=len(users),
            commits=len(view.state.commits.firsts),
            segments=len(view.mark.segments),
            log_start=view.mark.log_start,
            log_end=view.state.offset,
            acked=len(told) - expired,
            expired=expired,
            unacked=sum(msg_id not in told for msg_id in users),
        )


def read_messages(log: CommitLog) -> list[LoggedMessage]:
    """Every visible message of the log, by log offset."""
    return _rows(log.scan())


def _read_all(log: CommitLog) -> list[LoggedMessage]:
    """Every message from the log's start on, those of deleted topics included."""
    plan = scan.plan(log.view, scan.Query())
    plan.bounds = {}
    return _rows(scan.run(log, plan))


def _rows(batches: Iterable[pa.RecordBatch]) -> list[LoggedMessage]:
    messages: list[LoggedMessage] = []
    for batch in batches:
        names = ("commitOffset", "topic", "queueId", "queueOffset")
        columns = [batch.column(name).to_pylist() for name in names]
        columns.append(batch.column("storeTimestamp").cast(pa.int64()).to_pylist())
        columns += [batch.column(name).to_pylist() for name in ("msgId", "body")]
        messages += [LoggedMessage(*row) for row in zip(*columns, strict=True)]
    messages.sort()
    return messages


def _check_offsets(rows: list[LoggedMessage], view: LogView) -> None:
    """Log offsets, queue offsets and times: dense, dense, monotone; every id once."""
    begin, end = view.mark.log_start, view.state.offset
    offsets = [row.commit_offset for row in rows]
    if offsets != list(range(begin, end)):
        wrong = sorted(set(range(begin, end)) ^ set(offsets)) or [o for o, n in Counter(offsets).items() if n > 1]
        _demand(False, f"log offsets are not each there once in [{begin}, {end})", wrong)
    back = [(one, two) for one, two in pairwise(rows) if two.store_ms < one.store_ms]
    _demand(not back, "storeTimestamp goes backwards", back)
    before = Queues.load(view.mark.starts)
    following: dict[tuple[str, int], int] = {}
    for row in rows:
        place = (row.topic, row.queue)
        expected = following.get(place)
        if expected is None:
            expected = before.bounds(*place)[1]
        _demand(row.queue_offset == expected, f"queue offsets of {place} are not dense, expected {expected}", [row])
        following[place] = expected + 1
    ends = {place: view.state.queues.bounds(*place)[1] for place in following}
    _demand(ends == following, "the folded queue ends differ from the rows", sorted(ends.items() ^ following.items()))
    twice = [msg_id for msg_id, count in Counter(row.msg_id for row in rows).items() if count > 1]
    _demand(not twice, "messages are there more than once", [row for row in rows if row.msg_id in twice])


def _check_same_state(view: LogView) -> None:
    """The state that a snapshot shortened is the one that the whole tail gives."""
    slow = LogView(LogFiles(view.storage, view.root), view.broker, view.declared)
    slow.load_floor()
    slow.walk()
    one, two = _essence(view.state, slow.mark.starts), _essence(slow.state, slow.mark.starts)
    differing = [name for name in one if one[name] != two[name]]
    _demand(not differing, "state differs with and without snapshots", differing)


def _essence(state: LogState, starts: dict[str, object]) -> dict[str, object]:
    """What must not depend on how the state was come by."""
    state.queues.raise_starts(Queues.load(starts))
    queues = state.queues
    return {
        "offset": state.offset,
        "digest": state.digest,
        "time": state.store_ms,
        "queues": {topic: list(queues.of_topic(topic)) for topic in queues.topics() if any(queues.of_topic(topic))},
        "writers": {name: state.last_append(name) for name in state.writers if state.last_append(name)},
        **{fold.name: fold.dump() for fold in state.folds.values()},
    }


def _check_acked(users: dict[str, LoggedMessage], view: LogView, acked: Acked) -> int:
    """Every acknowledged message is where it was said to be; return how many retention has taken."""
    missing, moved, expired = [], [], 0
    begin = view.mark.log_start
    for writer, messages in acked:
        for message in messages:
            topic, queue, queue_offset, commit_offset, msg_id, body = message
            row = users.get(msg_id)
            if row is None:
                if commit_offset is not None and commit_offset < begin:
                    expired += 1
                else:
                    missing.append((writer, message))
                continue
            same = (row.topic, row.queue, row.body) == (topic, queue, body)
            same &= queue_offset is None or row.queue_offset == queue_offset
            same &= commit_offset is None or row.commit_offset == commit_offset
            if not same:
                moved.append((writer, message, row))
    _demand(not missing, "acknowledged messages are missing", missing)
    _demand(not moved, "acknowledged messages are not where or what they were said to be", moved)
    return expired


def _check_order(acked: Acked) -> None:
    """A writer that was told of one append before it began the next finds them in that order."""
    last: dict[Hashable, int] = {}
    within: list[object] = []
    wrong: list[object] = []
    for writer, messages in acked:
        queues: dict[tuple[str, int], int] = {}
        offsets = []
        for message in messages:
            topic, queue, _, commit_offset, _, _ = message
            if commit_offset is None:
                continue
            if commit_offset <= queues.get((topic, queue), -1):
                within.append((writer, message))
            queues[topic, queue] = commit_offset
            offsets.append(commit_offset)
        if not offsets:
            continue
        if min(offsets) <= last.get(writer, -1):
            wrong.append((writer, "after", last[writer], "came", sorted(offsets)))
        last[writer] = max(offsets)
    _demand(not within, "messages of a batch are out of order within their queue", within)
    _demand(not wrong, "a writer's appends are out of order", wrong)


def _check_batches(users: dict[str, LoggedMessage], attempted: Attempted) -> None:
    """All or nothing, in one commit; and nobody else's messages."""
    known: set[str] = set()
    half, spread = [], []
    for batch, ids in attempted.items():
        known.update(ids)
        there = [users[msg_id] for msg_id in ids if msg_id in users]
        if there and len(there) != len(ids):
            half.append((batch, f"{len(there)} of {len(ids)}", there[0]))
        if len({row.store_ms for row in there}) > 1:
            spread.append((batch, there))
    _demand(not half, "batches are there in part", half)
    _demand(not spread, "batches are spread over several commits", spread)
    strangers = [row for msg_id, row in users.items() if msg_id not in known]
    _demand(not strangers, "messages are there that nobody sent", strangers)


def _demand(holds: bool, problem: str, examples: Sequence[object]) -> None:
    if not holds:
        shown = "; ".join(str(example) for example in examples[:5])
        raise AssertionError(f"{problem} ({len(examples)}): {shown}")
