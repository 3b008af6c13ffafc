"""Retention that takes nothing that is still needed: delayed messages are carried forward, old halves given up."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from rmq_spark.client.store import Store
from rmq_spark.errors import OutcomeUnknownError, PreconditionFailedError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import ExpireResult, Hold, expire
from rmq_spark.log.view import LogView
from rmq_spark.rules.all_folds import ALL_FOLDS
from rmq_spark.rules.transaction import OpenTransaction, Transactions
from rmq_spark.services.parts import Parts
from rmq_spark.services.rolling import on_each_log
from rmq_spark.services.timer import BrokerTimers
from rmq_spark.services.transaction_check import BrokerChecks
from rmq_spark.services.work_share import is_my_turn
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage
from rmq_spark.storage.upkeep import with_reserve

LOOK_SECONDS: Final = 10.0
"""So often is looked whether messages have to go, as RocketMQ's cleaner does."""


def retention_hold(log: CommitLog) -> Hold:
    """What `expire` asks before it drops segments of a broker's log.

    Delayed messages below the new start are appended again with the same due time. Transactions that are still open
    with half messages there are given up, as RocketMQ does with those older than its files.
    """
    holder = log.clock.token()
    timers, checks = BrokerTimers(log, holder), BrokerChecks(log, holder)

    def hold(start: int) -> int:
        _give_up_old(log, checks, start)
        return timers.carry_forward(start)

    return hold


def expire_safely(log: CommitLog, *, scheduled: bool = False, before_ms: int | None = None) -> ExpireResult:
    """`expire` of any log of a store, with everything that is pending kept. On a full disk it uses the reserve.

    Raises:
        as `expire`.
    """
    log.check_writable()
    if _use(log.storage) > log.settings.disk_full_ratio:
        # What is pending must be appended again before its segment can go: the limit would keep the disk full for ever.
        settings = replace(log.settings, disk_full_ratio=1.0)
        with CommitLog(log.storage, log.root, log.broker, settings=settings, clock=log.clock) as freeing:
            return _expire(freeing, scheduled=scheduled, before_ms=before_ms)
    return _expire(log, scheduled=scheduled, before_ms=before_ms)


def _expire(log: CommitLog, *, scheduled: bool, before_ms: int | None) -> ExpireResult:
    log.use(*ALL_FOLDS)
    hold = None if log.root == paths.NAMESERVER else retention_hold(log)
    return with_reserve(log.storage, partial(expire, log, scheduled=scheduled, before_ms=before_ms, hold=hold))


class RetentionService:
    """Deletes old messages of a store, as its settings say; see `Service`.

    By age at the hours of `delete_when`, or at any hour above `disk_reclaim_ratio`; above `disk_force_ratio` the oldest
    whatever their age. What is pending (delayed messages, open transactions) is kept or given up as `retention_hold`
    says. On a full disk it uses the reserve.
    """

    name = "retention"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.parts = Parts(self.name, store.clock)
        self._holder = store.clock.token()
        self._behind_ms = 0
        self.segments = 0
        """Segments that this copy has dropped."""

    def run_once(self) -> float:
        may_delete = is_deletion_time(self._store)
        waits = on_each_log(self._store, self.parts, partial(self._retain, may_delete=may_delete))
        self._behind_ms = max(waits.values(), default=0)
        return LOOK_SECONDS

    def _retain(self, log: CommitLog, *, may_delete: bool) -> int:
        """Drop what is old, and return for how long the oldest that is left has been too old."""
        # On a disk that is nearly full nothing is written for a lease: its record would take a message's place.
        if may_delete and self._has_work(log) and (self._is_forced() or is_my_turn(log, self.name, self._holder)):
            self.segments += len(expire_safely(log, scheduled=True).segments)
        now_ms, retention_ms = self._store.clock.now_ms(), self._store.settings.retention_ms
        return log.look(partial(expiry_waits_ms, now_ms=now_ms, retention_ms=retention_ms))

    def behind_ms(self) -> int:
        return self._behind_ms

    def _has_work(self, log: CommitLog) -> bool:
        """Whether anything is old enough, or the disk so full that age does not count."""
        limit = self._store.clock.now_ms() - log.settings.retention_ms
        forced = self._is_forced()
        return log.look(lambda view: _has_droppable(view, limit, forced))

    def _is_forced(self) -> bool:
        return disk_use(self._store) > self._store.settings.disk_force_ratio


def is_deletion_time(store: Store) -> bool:
    """Whether messages may be deleted now: by the hour, or because the disk fills."""
    if store.clock.local_hour() in store.settings.deletion_hours:
        return True
    return disk_use(store) > store.settings.disk_reclaim_ratio


def disk_use(store: Store) -> float:
    """The used part of the store's disk; 0 where that is not known, as on object stores."""
    return _use(store.storage)


def _use(storage: Storage) -> float:
    usage = storage.disk_usage()
    return usage[0] / usage[1] if usage and usage[1] else 0.0


def expiry_waits_ms(view: LogView, now_ms: int, retention_ms: int) -> int:
    """For how long the oldest segment has been older than the retention; it stays until an hour of `delete_when`."""
    segments = view.mark.segments[:-1]
    return max(0, now_ms - segments[0].max_ms - retention_ms) if segments else 0


def _has_droppable(view: LogView, limit_ms: int, forced: bool) -> bool:
    segments, times = view.mark.segments, view.state.commits.times
    if forced:
        return len(segments) > 1 or bool(times)
    return any(segment.max_ms < limit_ms for segment in segments[:1]) or bool(times and times[0] < limit_ms)


def _give_up_old(log: CommitLog, checks: BrokerChecks, start: int) -> None:
    def old(view: LogView) -> dict[str, OpenTransaction]:
        open_ = view.state.fold(Transactions).open
        if not open_:
            return {}
        # What has its first half before the new start began before the first commit that stays.
        limit = next((segment.max_ms for segment in reversed(view.mark.segments) if segment.end <= start), 0)
        commits = view.state.commits  # they go only where there is no room to roll them
        limit = max(
            (ms for first, ms in zip(commits.firsts, commits.times, strict=True) if first < start), default=limit
        )
        return {tx_id: each for tx_id, each in open_.items() if each.began_ms <= limit}

    while found := log.look(old):
        for tx_id, transaction in found.items():
            with suppress(PreconditionFailedError, OutcomeUnknownError):  # the next look tells what has become of it
                checks.give_up(tx_id, transaction)
