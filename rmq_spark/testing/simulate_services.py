"""The seeded simulation of the services: delayed messages, transactions and POP on a faulty storage, then the checks.

    python -m rmq_spark.testing.simulate_services --seeds 1000
    python -m rmq_spark.testing.simulate_services --first 4711 --seeds 1 # replay one

Producers, several copies of each service, rollers and retention run at once; every storage call can fail or be a
process's last, and clocks jump. Checked for every seed, over the whole life of the log:
- each delayed message whose send was acknowledged is delivered once; one that was not, at most once;
- none is delivered before it is due, by the log's time; one that was recalled in time is never delivered;
- messages of a transaction are visible together and once, or never: always after an acknowledged commit, never after a
  rollback, and only if the producer's own record says that it was to be committed;
- no message is held twice within its invisible time, by the log's time; one that is not acknowledged comes back, with
  one more attempt, until it is dead exactly after the maximum; one that was acknowledged does not; none vanishes.
A seed has one of these parts, or all of them at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from rmq_spark.client.check_answers import CheckAnswers
from rmq_spark.client.store import Store
from rmq_spark.client.transaction import Transaction
from rmq_spark.errors import (
    ClockSkewError,
    DataExpiredError,
    InvalidRequestError,
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnavailableError,
)
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.fold import Fold
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.scan import Query
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.settings import LogSettings
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import delay, timer
from rmq_spark.rules.all_folds import BROKER_FOLDS
from rmq_spark.rules.timer import Recalled, TimerProgress
from rmq_spark.rules.transaction import CheckSettings, Transactions, TransactionState
from rmq_spark.services.parts import Parts
from rmq_spark.services.retention import retention_hold
from rmq_spark.services.revive import ReviveService
from rmq_spark.services.timer import BrokerTimers
from rmq_spark.services.transaction_check import BrokerChecks
from rmq_spark.storage import paths
from rmq_spark.testing.sim_pop import PopPart, Row
from rmq_spark.testing.sim_world import DAY_MS, Process, SimClock, SimStorage, World

ROOT, BROKER = "brokers/b", "b"
REAL = ("orders", "pay")
GROUP = "shop"
CHECKS = CheckSettings(interval_ms=40, checks_max=3)
PARTS = ("delays", "transactions", "pop")
COLUMNS = ("commitOffset", "topic", "msgId", "queueId", "queueOffset", "reconsumeTimes", "body", "storeTimestamp")
LATER = (OutcomeUnknownError, UnavailableError, LostRaceError, NotFoundError, DataExpiredError)


@dataclass
class Sent:
    """One delayed message."""

    level: int = 0
    due_ms: int | None = None
    """None for a level until it is known when its commit landed."""
    acked: bool = False
    recalled: bool = False


@dataclass
class Deal:
    """One transaction, and what its producer's own database says of it."""

    ids: list[str] = field(default_factory=list)
    decided: TransactionState = TransactionState.UNKNOWN
    ended: bool = False
    """Whether commit or rollback was acknowledged."""


class GroupNames:
    """A nameserver that knows one thing: the settings of every group."""

    def __init__(self, settings: dict[str, int]) -> None:
        self._settings = settings

    def look(self, ask: object) -> dict[str, int]:
        """The settings, whatever is asked."""
        return self._settings


class SimStore:
    """As much of a store as clients and services need here: one log, and the groups' maximum of retries."""

    def __init__(self, log: CommitLog, retry_max: int = 16) -> None:
        self._log = log
        self.clock = log.clock
        self.nameserver = GroupNames({"retryMaxTimes": retry_max})

    def ensure_queues(self, topic: str, broker: str, *, queues: int) -> None:
        """Nothing to do: the log takes every topic."""

    def log(self, broker: str, *folds: type[Fold]) -> CommitLog:
        """The only log."""
        self._log.use(*folds)
        return self._log

    def brokers(self) -> list[str]:
        """Its name."""
        return [BROKER]


class ServiceSimulation:
    """One seed; `parts` are drawn unless they are given."""

    def __init__(self, seed: int, parts: Sequence[str] | None = None) -> None:
        self.seed = seed
        self.world = World(seed)
        rng = self.world.rng
        drawn = PARTS if rng.random() < 0.05 else (rng.choice([*PARTS, "pop"]),)  # all at once costs far more
        self.parts = tuple(drawn if parts is None else parts)
        self.settings = LogSettings(
            append_timeout_ms=rng.choice([1, 200, 20_000]),
            snapshot_every_commits=rng.choice([2, 5, 1000]),
            segment_bytes=rng.choice([1, 12_000, 10_000_000]),
            delete_grace_ms=0,
            retention_ms=rng.choice([50, 500, DAY_MS]),
            clock_ahead_max_ms=rng.choice([1_000, 10 * DAY_MS]),
        )
        self.rows: dict[int, Row] = {}
        """By log offset; from looks before retention and at the end."""
        self.pop = PopPart(
            seed,
            self.world,
            self._open,
            lambda log: SimStore(log, self.pop.retry_max),
            self._faults,
            fifo=rng.random() < 0.3,
            retry_max=rng.choice([0, 1, 2]),
        )
        self.sent: dict[str, Sent] = {}
        self.deals: dict[str, Deal] = {}
        self._ids = 0

    def run(self) -> Counter[str]:
        """Run the seed and check it; return what was injected.

        Raises:
            AssertionError: a promise was broken; the message names the seed.
        """
        world, rng = self.world, self.world.rng
        world.before_create = self._record_before_expiry
        makers = {"delays": [self._delayer], "transactions": [self._dealer]}
        makers["pop"] = [self.pop.producer, self.pop.consumer, self.pop.consumer]
        for part in self.parts:
            for body in makers[part]:
                world.add(f"{body.__name__.strip('_')}-{len(world.processes)}", body)
        for _ in range(rng.randint(0, 1)):
            body = rng.choice(makers[rng.choice(self.parts)])
            world.add(f"{body.__name__.strip('_')}-{len(world.processes)}", body)
        for number in range(rng.choice([1, 2, 2])):
            world.add(f"service-{number}", self._services)
        for number in range(rng.randint(0, 1)):
            world.add(f"roller-{number}", self._roller)
        world.run()
        log = self._finish()
        self._check_delays()
        self._check_deals()
        self.pop.check(self.rows, log.view.state.queues.bounds)
        injected = Counter(world.injected)
        injected["steps"], injected["delayed"], injected["transactions"] = world.step, len(self.sent), len(self.deals)
        injected["recalled"] = sum(sent.recalled for sent in self.sent.values())
        injected["committed"] = sum(
            deal.ended and deal.decided is TransactionState.COMMIT for deal in self.deals.values()
        )  # fmt: skip
        injected.update(self.pop.injected)
        return injected

    # -------------------------------------------------------- processes

    def _open(self) -> CommitLog:
        while True:
            try:
                return CommitLog(
                    SimStorage(self.world),
                    ROOT,
                    BROKER,
                    settings=self.settings,
                    clock=SimClock(self.world),
                    folds=BROKER_FOLDS,
                )
            except (UnavailableError, NotFoundError):  # not found: a snapshot went while the log was opened
                self.world.sleep(0.01)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """What a process survives: it goes on with the next thing."""
        try:
            yield
        except (*LATER, ClockSkewError):
            self.world.sleep(0.02)

    def _row(self) -> MessageRow:
        rng = self.world.rng
        self._ids += 1
        name = f"{self._ids:08d}"
        return MessageRow(rng.choice(REAL), rng.randrange(2), name, None, None, name.encode(), 0, 0, 0, None, 0, [])

    def _delayer(self, process: Process) -> None:
        rng = self.world.rng
        log = self._open()
        for _ in range(rng.randint(1, 3)):
            now = log.clock.now_ms()
            rows = []
            for _ in range(rng.choice([1, 1, 3])):
                row = self._row()
                sent = self.sent[row.msg_id] = Sent()
                if rng.random() < 0.3:
                    sent.level = rng.choice([1, 1, 2])
                    rows.append(delay.park(row, delay.Delay(level=sent.level), now))
                else:
                    sent.due_ms = now + rng.choice([1, 20, 100, 100, 700])
                    rows.append(delay.park(row, delay.Delay(deliver_ms=sent.due_ms), now))
            with self._faults():
                log.append(MessageBatch.from_rows(rows))
                for row in rows:
                    self.sent[row.msg_id].acked = True
            last = rows[-1]
            if self.sent[last.msg_id].due_ms is not None and rng.random() < 0.4:
                self._recall(log, last)
            self.world.sleep(rng.random() / 20)

    def _recall(self, log: CommitLog, row: MessageRow) -> None:
        sent = self.sent[row.msg_id]
        if not sent.acked or sent.due_ms is None:
            return
        topic = dict(row.properties)["REAL_TOPIC"]
        rule = timer.recall(Recalled(sent.due_ms, topic, row.msg_id))
        sent.acked = False  # while it is not known whether the recall landed, both are right
        try:
            with self._faults():
                log.decide(rule)
                sent.recalled = True
        except PreconditionFailedError:
            sent.acked = True

    def _dealer(self, process: Process) -> None:
        rng = self.world.rng
        log = self._open()
        for _ in range(rng.randint(1, 3)):
            self._ids += 1
            deal = self.deals[f"t{self._ids}"] = Deal()
            transaction = Transaction(cast("Store", SimStore(log)), GROUP, f"t{self._ids}", 50)
            try:
                with self._faults():
                    self._deal(log, deal, transaction)
            except (PreconditionFailedError, InvalidRequestError):
                self.world.count("settled by a check")
            self.world.sleep(rng.random() / 10)

    def _deal(self, log: CommitLog, deal: Deal, transaction: Transaction) -> None:
        rng = self.world.rng
        for _ in range(rng.randint(1, 3)):
            row = self._row()
            deal.ids.append(row.msg_id)
            transaction.add(BROKER, row, None)
        if rng.random() < 0.2:
            return  # its producer forgets it
        deal.decided = rng.choice([TransactionState.COMMIT, TransactionState.COMMIT, TransactionState.ROLLBACK])
        if rng.random() < 0.3:
            return  # decided, and never said
        if rng.random() < 0.3:
            self.world.sleep(0.3)
        if deal.decided is TransactionState.COMMIT:
            transaction.commit()
        else:
            transaction.rollback()
        deal.ended = True

    def _checker(self, message: StoredMessage) -> TransactionState:
        if self.world.running is not None and self.world.rng.random() < 0.2:
            return TransactionState.UNKNOWN
        return self.deals[message.properties["__transactionId__"]].decided

    def _services(self, process: Process) -> None:
        rng = self.world.rng
        log = self._open()
        work = self._copies(log, log.clock.token())
        for _ in range(rng.randint(2, 4)):
            self.world.sleep(rng.random() / 5)
            for run_once in work:
                with self._faults():
                    run_once()

    def _copies(self, log: CommitLog, token: str) -> list[Callable[[], object]]:
        """A copy of each service that the parts need: what it does when it runs."""
        store = cast("Store", SimStore(log, self.pop.retry_max))
        work: list[Callable[[], object]] = []
        if "delays" in self.parts:
            work.append(BrokerTimers(log, token).run_once)
        if "transactions" in self.parts:
            checks = BrokerChecks(log, token, CHECKS)
            work.append(partial(_run_and_raise, checks.run_once, checks.parts))
            work.append(CheckAnswers(store, GROUP, self._checker).run_once)
        if "pop" in self.parts:
            revive = ReviveService(store)
            work.append(partial(_run_and_raise, revive.run_once, revive.parts))
        return work

    def _roller(self, process: Process) -> None:
        rng = self.world.rng
        log = self._open()
        hold = retention_hold(log)
        for _ in range(rng.randint(1, 3)):
            self.world.sleep(rng.random() / 4)
            with self._faults():
                roll(log, min_commits=rng.choice([1, 3]))
                expire(log, hold=hold)

    # -------------------------------------------------------- looks

    def _record_before_expiry(self, path: str) -> None:
        if path.startswith(paths.marks(ROOT)):
            self._record(self._calm_log())

    def _calm_log(self) -> CommitLog:
        clock = SimClock(self.world)
        return CommitLog(SimStorage(self.world, calm=True), ROOT, BROKER, clock=clock, folds=BROKER_FOLDS)

    def _record(self, log: CommitLog) -> None:
        for batch in log.scan(Query(columns=COLUMNS)):
            offsets = batch.column("commitOffset").to_pylist()
            stamps = batch.column("storeTimestamp").cast("int64").to_pylist()
            topics, names, *others = (batch.column(name).to_pylist() for name in COLUMNS[1:-1])
            for offset, *values in zip(offsets, topics, names, stamps, *others, strict=True):
                row = Row(*values)
                known = self.rows.setdefault(offset, row)
                assert known == row, f"seed {self.seed}: offset {offset} changed"

    def _finish(self) -> CommitLog:
        """Calm services do what is left, while time passes."""
        world = self.world
        world.running = None
        log = self._calm_log()
        timers = BrokerTimers(log, "last")
        work = [timers.run_once, *self._copies(log, "last")]
        world.now_ms = max(world.now_ms, log.view.state.store_ms)
        if "pop" in self.parts:
            self.pop.finish(log)
        for _ in range(2 * CHECKS.checks_max + 4 if "transactions" in self.parts else 3):
            world.now_ms += 3_600_000  # a due time may come from a clock that was an hour ahead
            for run_once in work:
                run_once()
        assert timers.index.count == 0, f"seed {self.seed}: {timers.index.count} messages are left"
        assert not log.view.state.fold(Transactions).open, f"seed {self.seed}: transactions are left open"
        assert log.view.state.fold(TimerProgress).progress.position <= log.view.state.offset
        self._record(log)
        return log

    # -------------------------------------------------------- checks

    def _visible(self) -> dict[str, list[int]]:
        """Message id -> store times of its copies in real topics."""
        visible: dict[str, list[int]] = {}
        for row in self.rows.values():
            if row.topic in REAL:
                visible.setdefault(row.msg_id, []).append(row.store_ms)
        return visible

    def _check_delays(self) -> None:
        seed, visible = self.seed, self._visible()
        parked: dict[str, int] = {}
        for _, row in sorted(self.rows.items()):
            if row.topic not in REAL:
                parked.setdefault(row.msg_id, row.store_ms)
        for name, sent in self.sent.items():
            copies = visible.get(name, [])
            assert len(copies) <= 1, f"seed {seed}: {name} was delivered {len(copies)} times"
            assert copies or not sent.acked, f"seed {seed}: {name} was never delivered: {sent}"
            assert not (sent.recalled and copies), f"seed {seed}: {name} was delivered though it was recalled"
            due = sent.due_ms if sent.due_ms is not None else parked.get(name, 0) + delay.DEFAULT.level_ms(sent.level)
            assert not copies or copies[0] >= due, f"seed {seed}: {name} is early: due {due}, at {copies[0]}"

    def _check_deals(self) -> None:
        seed, visible = self.seed, self._visible()
        for tx_id, deal in self.deals.items():
            copies = [len(visible.get(name, [])) for name in deal.ids]
            assert set(copies) in ({0}, {1}, set()) or self._half_landed(deal, copies), (
                f"seed {seed}: {tx_id} is visible in part, or twice: {copies}, {deal}"
            )
            shown = any(copies)
            assert not shown or deal.decided is TransactionState.COMMIT, f"seed {seed}: {tx_id} shows: {deal}"
            if deal.ended and deal.decided is TransactionState.COMMIT:
                assert copies and all(count == 1 for count in copies), f"seed {seed}: {tx_id} is lost: {deal}"

    def _half_landed(self, deal: Deal, copies: list[int]) -> bool:
        """A deal whose last send failed for certain has one message less than its producer tried."""
        return not deal.ended and deal.decided is TransactionState.UNKNOWN and not any(copies)


def _run_and_raise(run_once: Callable[[], object], parts: Parts) -> None:
    """Let a service run, and raise what it only tells: a failure of one group."""
    run_once()
    for failure in parts.failures().values():
        raise failure.error


def main() -> int:
    """Run seeds and print what was injected; a failing seed is named and ends the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds to run (default 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            total.update(ServiceSimulation(seed).run())
        except BaseException:
            sys.stderr.write(f"failing seed: {seed}\n")
            raise
    seconds = time.monotonic() - started
    facts = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    sys.stdout.write(f"{arguments.seeds} seeds in {seconds:.0f} s, all checks hold: {facts}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
