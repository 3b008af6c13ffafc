"""Keeping the tail of each log short: small commits are rolled early and often, and state is snapshotted.

A backlog of single sends is then read at the speed of large files. Segments are merged in tiers, so that a message is
rewritten a few times only. Files of rolled commits stay for the grace period, for readers that hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from rmq_spark.client.store import Store
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.roll import collect_garbage, roll
from rmq_spark.log.view import LogView
from rmq_spark.rules.all_folds import ALL_FOLDS
from rmq_spark.services.parts import BROKERS, Parts
from rmq_spark.services.work_share import is_my_turn
from rmq_spark.storage import paths

T = TypeVar("T")

ROLL_COMMITS: Final = 1000
"""So many commits are rolled at once."""
OLD_COMMITS: Final = 100
OLD_MS: Final = 60_000
"""So many are rolled when the first of them has this age."""
LOOK_SECONDS: Final = 1.0
"""So often a log is looked at."""


class RollService:
    """Rolls the logs of a store; see `Service`.

    Args:
        store: an open store.
        rest: how many times as long as a roll took the service rests after it. The roller of a process that sends
            messages must not slow it down, one in a process of its own may work half of the time.
        roll_commits: roll as soon as there are so many commits.
    """

    name = "roll"

    def __init__(self, store: Store, *, rest: float = 1.0, roll_commits: int = ROLL_COMMITS) -> None:
        self._store = store
        self.parts = Parts(self.name, store.clock)
        self._rest = rest
        self._roll_commits = roll_commits
        self._holder = store.clock.token()
        self._garbage_ms: dict[str, int] = {}
        """By log: when the files that the last roll has made useless may go."""
        self._behind_ms = 0
        self.rolled = 0
        """Commits that this copy has rolled."""

    def run_once(self) -> float:
        clock = self._store.clock
        began_ns = clock.elapsed_ns()
        done = on_each_log(self._store, self.parts, self._keep_short)
        self._behind_ms = max((waits for _, waits in done.values()), default=0)
        seconds = (clock.elapsed_ns() - began_ns) / 1e9
        worked = any(rolled for rolled, _ in done.values())
        return max(LOOK_SECONDS, self._rest * seconds) if worked else LOOK_SECONDS

    def _keep_short(self, log: CommitLog) -> tuple[bool, int]:
        """Roll a log if it is time, and remove what is useless; whether it was rolled, and for how long more waits."""
        rolls = self._is_due(log) and is_my_turn(log, self.name, self._holder)
        if rolls:
            self._roll(log)
        garbage_ms = self._garbage_ms.get(log.root)
        if garbage_ms is not None and garbage_ms <= self._store.clock.now_ms():
            del self._garbage_ms[log.root]
            collect_garbage(log, log.look(lambda view: view.mark))
        return rolls, log.look(self._waiting_ms)

    def behind_ms(self) -> int:
        return self._behind_ms

    def _roll(self, log: CommitLog) -> None:
        log.use(*ALL_FOLDS)
        done = roll(log, min_commits=min(self._roll_commits, OLD_COMMITS), tiered=True, tidy=False)
        self.rolled += done.commits
        if done.commits:
            self._garbage_ms.setdefault(log.root, self._store.clock.now_ms() + log.settings.delete_grace_ms)

    def _is_due(self, log: CommitLog) -> bool:
        now_ms = self._store.clock.now_ms()
        return log.look(lambda view: is_roll_due(view, now_ms, self._roll_commits))

    def _waiting_ms(self, view: LogView) -> int:
        now_ms = self._store.clock.now_ms()
        return roll_waits_ms(view, now_ms, self._roll_commits)


class SnapshotService:
    """Writes a snapshot of a log's state when this process has read many commits since the last one; see `Service`.

    A process that appends does so itself. This is for one that only follows: a log that nobody rolls (its disk is
    full, say) is still opened quickly.
    """

    name = "snapshot"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.parts = Parts(self.name, store.clock)

    def run_once(self) -> float:
        on_each_log(self._store, self.parts, _snapshot)
        return LOOK_SECONDS

    def behind_ms(self) -> int:
        return 0


def _snapshot(log: CommitLog) -> None:
    if log.look(lambda view: view.folded) >= log.settings.snapshot_every_commits:
        log.use(*ALL_FOLDS)
        log.snapshot()


def maintained_logs(store: Store) -> list[CommitLog]:
    """The logs of a store: the cluster-wide one and each broker's."""
    return [store.nameserver, *(store.log(broker) for broker in store.brokers())]


def on_each_log(store: Store, parts: Parts, work: Callable[[CommitLog], T]) -> dict[str, T]:
    """Do the same work on each of the `maintained_logs`; see `Parts.each`. One that cannot be opened holds up no other.

    Raises:
        RmqError: as `work`, when it fails on all of them.
    """
    acts: dict[str, Callable[[], T]] = {paths.NAMESERVER: lambda: work(store.nameserver)}
    for broker in store.brokers():
        acts[broker] = partial(lambda name: work(store.log(name)), broker)
    return parts.each(BROKERS, acts, or_raise=True)


def is_roll_due(view: LogView, now_ms: int, roll_commits: int = ROLL_COMMITS) -> bool:
    """Whether a log has so many commits above its floor that they should be rolled."""
    times = view.state.commits.times
    return len(times) >= roll_commits or (len(times) >= OLD_COMMITS and now_ms - times[0] >= OLD_MS)


def roll_waits_ms(view: LogView, now_ms: int, roll_commits: int = ROLL_COMMITS) -> int:
    """For how long commits have waited to be rolled, since there were enough of them; 0: there are not."""
    times = view.state.commits.times
    if not is_roll_due(view, now_ms, roll_commits):
        return 0
    since = [times[roll_commits - 1]] if len(times) >= roll_commits else []
    if len(times) >= OLD_COMMITS:
        since.append(max(times[0] + OLD_MS, times[OLD_COMMITS - 1]))
    return max(0, now_ms - min(since))
