"""The seeded simulation: writers, rollers, expirers and readers on a faulty storage, then the checks.

    python -m rmq_spark.testing.simulate --seeds 10000          # as many as you like
    python -m rmq_spark.testing.simulate --first 4711 --seeds 1 # replay one

Checked for every seed, over the whole life of the log (expired parts are recorded just before they go):
- every acknowledged message is there exactly once, at the offsets it was given;
- a batch that was not acknowledged is there as a whole or not at all, and once;
- log offsets and queue offsets are dense; storeTimestamp never goes backwards; a writer's batches keep their order;
- every decision was true at the position where it landed, whatever else its commit holds, and its caller was told so;
  a refusal, or an answer without rows, is not older than what the callers knew before they asked;
- every row that any reader ever got is the row that stands at that offset (no orphan was read);
- a consumer that sleeps while others append, roll and expire goes on with every row of each queue, in order;
- the chain verifies without damage, and opens to the same state with and without snapshots; some processes lack some
  folds, and lose nothing of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

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
from rmq_spark.log.collect import collect
from rmq_spark.log.commit_log import AppendResult, CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.files import LogFiles
from rmq_spark.log.fold import Fold
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Request, Rule
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.scan import Query
from rmq_spark.log.verify import verify
from rmq_spark.log.view import LogView
from rmq_spark.model.settings import LogSettings
from rmq_spark.rules.lease import TableLeases
from rmq_spark.storage import paths
from rmq_spark.testing.sim_decisions import Decisions, SimCounters, Tried
from rmq_spark.testing.sim_followers import COLUMNS, QUEUES, TOPICS, Followers
from rmq_spark.testing.sim_world import DAY_MS, Process, SimClock, SimStorage, World

ROOT, BROKER = "brokers/b", "b"
ROW_FILE_AGE_MS = 5_000
FOLDS: tuple[type[Fold], ...] = (SimCounters, TableLeases)

Row = tuple[str, int, int, str, int]
"""topic, queue, queue offset, message id, store time."""


@dataclass
class Batch:
    """One append that a writer tried."""

    writer: str
    ids: list[str]
    places: list[tuple[str, int]]
    acked: list[tuple[int, int]] | None = None
    """(queue offset, commit offset) of each message, once acknowledged."""
    landed: bool = False
    """True when it was acknowledged without its places."""
    refused: bool = False
    """True when the log said that nothing was written."""
    order: int = 0
    late: bool = False
    """True when it was tried again after other batches of its writer; then it may stand before them."""


@dataclass
class History:
    """Everything that was seen from the outside."""

    rows: dict[int, Row] = field(default_factory=dict)
    """Log offset -> row, from readers and from the recorder."""
    batches: list[Batch] = field(default_factory=list)
    acks: int = 0

    def observe(self, seed: int, offset: int, row: Row) -> None:
        """A row was returned to somebody."""
        known = self.rows.setdefault(offset, row)
        assert known == row, f"seed {seed}: offset {offset} was {known}, now {row}: a fork was read"


class Simulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.history = History()
        rng = self.world.rng
        self.settings = LogSettings(
            append_timeout_ms=rng.choice([1, 200, 20_000]),
            snapshot_every_commits=rng.choice([2, 5, 1000]),
            segment_bytes=rng.choice([1, 12_000, 60_000, 10_000_000]),
            delete_grace_ms=0,
            retention_ms=rng.choice([50, 1_000, DAY_MS]),
            clock_ahead_max_ms=rng.choice([1_000, 10 * DAY_MS]),
        )
        self._expires = rng.random() < 0.5
        self._messages = 0
        self._followers = Followers(seed, rng, self._observe, expires=self._expires)
        self.decisions = Decisions(seed)
        self._landed = 0

    def run(self) -> Counter[str]:
        """Run the seed and check it; return what was injected.

        Raises:
            AssertionError: a promise was broken; the message names the seed.
        """
        world, rng = self.world, self.world.rng
        world.before_create = self._record_before_expiry
        for number in range(rng.randint(2, 5)):
            world.add(f"writer-{number}", self._writer)
        for number in range(rng.randint(0, 2)):
            world.add(f"roller-{number}", self._roller)
        for number in range(rng.randint(1, 2)):
            world.add(f"reader-{number}", self._reader)
        for number in range(rng.randint(0, 2)):
            world.add(f"follower-{number}", self._follower)
        world.run()
        self._check()
        counts = Counter(world.injected)
        counts["steps"], counts["acked batches"] = world.step, self.history.acks
        counts["messages"] = len(self.history.rows)
        counts["decisions"] = self._landed
        return counts

    # -------------------------------------------------------- processes

    def _open(self, process: Process) -> CommitLog:
        """A handle; one in four lacks a fold, as a process of an older version."""
        rng = self.world.rng
        folds = rng.choice([FOLDS, FOLDS, FOLDS, rng.choice([(), FOLDS[:1], FOLDS[1:]])])
        while True:
            try:
                return CommitLog(
                    SimStorage(self.world),
                    ROOT,
                    BROKER,
                    settings=self.settings,
                    clock=SimClock(self.world),
                    folds=folds,
                )
            except UnavailableError:
                self.world.sleep(0.01)

    def _writer(self, process: Process) -> None:
        rng = self.world.rng
        log = self._open(process)
        name = f"{process.name}.{process.restarts}"
        unclear: list[tuple[Batch, MessageBatch]] = []
        for _ in range(rng.randint(2, 7)):
            if rng.random() < 0.2:
                self._try_refresh(log)
            if rng.random() < 0.4 and not self._decide(log, name):
                log = self._open(process)
                unclear.clear()
            batch, rows = self._make(name)
            if rng.random() < 0.15:
                self._write_files(log, batch, rows)
                continue
            if unclear and rng.random() < 0.5:
                batch, rows = unclear.pop()  # other appends of this handle have landed since
                batch.late = True
            for _attempt in range(rng.choice([1, 3])):
                try:
                    result = log.append(rows)
                except (OutcomeUnknownError, UnavailableError, LostRaceError):
                    self.world.sleep(0.02)
                except ClockSkewError:
                    # Another handle cannot know whether an unclear attempt of this one landed: give the batches up.
                    log = self._open(process)
                    unclear.clear()
                    break
                else:
                    self._ack(batch, result)
                    break
            else:
                unclear.append((batch, rows))

    def _decide(self, log: CommitLog, name: str) -> bool:
        """Make one decision, or several and an append as one group; False if the handle cannot go on."""
        rng = self.world.rng
        if rng.random() < 0.5:
            self.world.sleep(rng.random() / 10)  # others append meanwhile
        made = [self._make_rule(log, name) for _ in range(rng.choice([1, 1, 3]))]
        wanted = [one for one in made if one is not None]
        batch: tuple[Batch, MessageBatch] | None = None
        if len(made) > 1 and rng.random() < 0.7:
            batch = self._make(name)
            batch[0].late = True  # it may land after others of its writer were given up
        for _attempt in range(rng.choice([1, 2, 4])):
            again = []
            for tried, rule, request in self._submit(log, wanted, batch):
                error = request.error
                if error is None:
                    if tried is not None:
                        self.decisions.answer(tried, request.answer)
                    elif batch is not None:
                        self._ack(batch[0], _result_of(request))
                        batch = None
                elif isinstance(error, PreconditionFailedError) and tried is not None:
                    self.decisions.refuse(tried)
                elif isinstance(error, ClockSkewError):
                    return False
                elif not isinstance(error, (OutcomeUnknownError, UnavailableError, LostRaceError)):
                    raise error
                elif tried is not None and rule is not None:
                    again.append((tried, rule))
            wanted = again
            if not wanted and batch is None:
                break
            self.world.sleep(0.02)
        return True

    def _submit(
        self, log: CommitLog, wanted: list[tuple[Tried, Rule[int]]], batch: tuple[Batch, MessageBatch] | None
    ) -> list[tuple[Tried | None, Rule[int] | None, Request]]:
        """Commit as the leader of a group does: greenlets share a thread, so they cannot wait for each other."""
        requests: list[tuple[Tried | None, Rule[int] | None, Request]]
        requests = [(tried, rule, Request(rule=rule)) for tried, rule in wanted]
        if batch is not None:
            requests.insert(self.world.rng.randint(0, len(requests)), (None, None, Request(batch[1])))
        group = [request for _, _, request in requests]
        for request in group:
            request.earlier = log._unclear.get(request.key)  # as `CommitLog._submit` does
        log._commit_group(group)
        for request in group:
            log._note_outcome(request)
        return requests

    def _make_rule(self, log: CommitLog, name: str) -> tuple[Tried, Rule[int]] | None:
        rng, folds = self.world.rng, log.view.state.folds
        kind = rng.choice(["increment", "increment", "read", "lease"])
        counter = rng.choice("ab")
        if kind == "lease":
            return self.decisions.lease(name, rng.choice([5, 200])) if TableLeases.name in folds else None
        if SimCounters.name not in folds:
            return None
        return (
            self.decisions.increment(counter, limit=rng.choice([3, 1000]))
            if kind == "increment"
            else (self.decisions.read(counter))
        )

    def _try_refresh(self, log: CommitLog) -> None:
        """Read on; a failure half-way leaves the handle with what it could not confirm yet."""
        try:
            log.refresh()
        except UnavailableError:
            self.world.count("refresh failed")

    def _write_files(self, log: CommitLog, batch: Batch, rows: MessageBatch) -> None:
        """As a Spark sink: a row file first, later a commit that names it, replayed until it is clear."""
        clock, storage = SimClock(self.world), SimStorage(self.world)
        app = (f"{batch.writer}-{batch.ids[0]}", 0)
        try:
            file = write_row_file(storage, ROOT, rows, nonce=clock.token(), block_bytes=1000)
        except (OutcomeUnknownError, UnavailableError):
            return
        if self.world.rng.random() < 0.3:
            self.world.sleep(self.world.rng.choice([0.1, 2 * ROW_FILE_AGE_MS / 1000]))
        for _attempt in range(4):
            try:
                result = log.append_files([file], app=app)
            except (OutcomeUnknownError, UnavailableError, LostRaceError):
                self.world.sleep(0.02)
            except (PreconditionFailedError, NotFoundError, ClockSkewError):
                return
            else:
                if result.queue_offsets is not None:
                    order = sorted(range(len(batch.ids)), key=lambda row: batch.places[row])
                    batch.ids = [batch.ids[row] for row in order]
                    batch.places = [batch.places[row] for row in order]
                    self._ack(batch, result)
                return

    def _roller(self, process: Process) -> None:
        rng = self.world.rng
        log = self._open(process)
        for _ in range(rng.randint(2, 6)):
            self.world.sleep(rng.random() / 5)
            try:
                roll(log, min_commits=rng.choice([1, 3]))
                if self._expires and rng.random() < 0.7:
                    expire(log)
                if rng.random() < 0.5:
                    collect(log, orphan_age_ms=ROW_FILE_AGE_MS)
            except (OutcomeUnknownError, UnavailableError, LostRaceError, NotFoundError, DataExpiredError):
                continue
            except InvalidRequestError as error:
                assert error.context["folds"], error
                self.world.count("expiry refused")
            except ClockSkewError:
                log = self._open(process)

    def _reader(self, process: Process) -> None:
        rng = self.world.rng
        log = self._open(process)
        at = 0
        for _ in range(rng.randint(3, 8)):
            self.world.sleep(rng.random() / 10)
            try:
                end = log.refresh().state.offset
                for batch in log.scan(Query(start=at, end=end, columns=COLUMNS)):
                    self._observe(batch)
                at = end
            except (UnavailableError, DataExpiredError):
                continue

    def _follower(self, process: Process) -> None:
        """Consumes every queue from its first message on, and sleeps for shorter or longer in between."""
        rng = self.world.rng
        log = self._open(process)
        positions = self._followers.start()
        for _ in range(rng.randint(2, 6)):
            self.world.sleep(rng.choice([0.001, 0.05, 1.0]))
            try:
                self._followers.read_on(log, positions)
            except UnavailableError:
                self.world.count("follower failed")

    # -------------------------------------------------------- what they did

    def _make(self, writer: str) -> tuple[Batch, MessageBatch]:
        rng = self.world.rng
        parts, ids, places = [], [], []
        for _ in range(rng.choice([1, 1, 2, 4])):
            self._messages += 1
            place = (rng.choice(TOPICS), rng.randrange(QUEUES))
            ids.append(f"{self._messages:08d}")
            places.append(place)
            parts.append(
                MessageBatch.of(
                    topic=place[0], queue_id=place[1], msg_id=ids[-1], body=ids[-1].encode(), born_timestamp_ms=0
                )
            )
        batch = Batch(writer, ids, places)
        self.history.batches.append(batch)
        return batch, MessageBatch.merge(parts)

    def _ack(self, batch: Batch, result: AppendResult) -> None:
        assert batch.acked is None
        if result.queue_offsets is None or result.commit_offsets is None:
            batch.landed = True  # by another writer, in a commit that was rolled before it could be read
            return
        batch.acked = list(zip(result.queue_offsets.tolist(), result.commit_offsets.tolist(), strict=True))
        self.history.acks += 1
        batch.order = self.history.acks

    def _observe(self, batch: object) -> None:
        for row in batch.to_pylist():  # type: ignore[attr-defined]
            stamp = int(row["storeTimestamp"].timestamp() * 1000)
            self.history.observe(
                self.seed, row["commitOffset"], (row["topic"], row["queueId"], row["queueOffset"], row["msgId"], stamp)
            )

    def _record_before_expiry(self, path: str) -> None:
        """An omniscient look at the log before a mark may drop its oldest part."""
        if path.startswith(paths.marks(ROOT)):
            self._record_all()

    def _record_all(self) -> CommitLog:
        log = CommitLog(SimStorage(self.world, calm=True), ROOT, BROKER, clock=SimClock(self.world), folds=FOLDS)
        for batch in log.scan(Query(columns=COLUMNS)):
            self._observe(batch)
        return log

    # -------------------------------------------------------- checks

    def _check(self) -> None:
        seed, rows = self.seed, self.history.rows
        self.world.running = None
        log = self._record_all()
        end = log.view.state.offset
        assert sorted(rows) == list(range(end)), f"seed {seed}: log offsets are not dense up to {end}"
        self._followers.check(log)
        self._check_rows()
        self._check_batches()
        self._landed = self.decisions.check((rows[at][0], rows[at][3], rows[at][4]) for at in sorted(rows))
        storage = SimStorage(self.world, calm=True)
        report = verify(storage, ROOT, BROKER, folds=FOLDS)
        assert report.ok, f"seed {seed}: {[f for f in report.findings if f.damage]}"
        for info in list(storage.list(paths.snapshots(ROOT))):
            storage.delete(f"{paths.snapshots(ROOT)}/{info.name}")
        fresh = LogView(LogFiles(storage, ROOT), BROKER, FOLDS)
        fresh.load()
        folded, opened = (
            {name: json.loads(payload) for name, payload in view.state.dump().items()} for view in (fresh, log.view)
        )
        assert folded == opened, f"seed {seed}: a snapshot's state differs from the fold"

    def _check_rows(self) -> None:
        seed, rows = self.seed, self.history.rows
        expected: dict[tuple[str, int], int] = {}
        last_ms = 0
        for offset in sorted(rows):
            topic, queue, queue_offset, _, store_ms = rows[offset]
            assert queue_offset == expected.get((topic, queue), 0), (
                f"seed {seed}: {topic}/{queue} has {queue_offset} at {offset}, expected {expected.get((topic, queue))}"
            )
            expected[topic, queue] = queue_offset + 1
            assert store_ms >= last_ms, f"seed {seed}: storeTimestamp goes back at {offset}"
            last_ms = store_ms

    def _check_batches(self) -> None:
        seed, rows = self.seed, self.history.rows
        where: dict[str, int] = {}
        for offset, row in rows.items():
            if row[0] in TOPICS:
                assert row[3] not in where, f"seed {seed}: message {row[3]} is in the log twice"
                where[row[3]] = offset
        last: dict[str, int] = {}
        for batch in sorted(self.history.batches, key=lambda batch: batch.order):
            there = [name in where for name in batch.ids]
            assert all(there) or not batch.landed, f"seed {seed}: acknowledged batch is lost: {batch}"
            assert all(there) or not any(there), f"seed {seed}: half of {batch} is visible"
            if batch.acked is None:
                continue
            assert all(there), f"seed {seed}: acknowledged batch is lost: {batch}"
            for name, place, (queue_offset, offset) in zip(batch.ids, batch.places, batch.acked, strict=True):
                assert rows[offset][:4] == (*place, queue_offset, name), (
                    f"seed {seed}: {name} was acknowledged at {offset} as {place}+{queue_offset}, "
                    f"there is {rows[offset]}"
                )
            if batch.late:
                continue
            least = min(offset for _, offset in batch.acked)
            assert least > last.get(batch.writer, -1), f"seed {seed}: order of {batch.writer} is not kept"
            last[batch.writer] = max(offset for _, offset in batch.acked)


def _result_of(request: Request) -> AppendResult:
    landed = request.landed
    assert landed is not None
    return AppendResult(landed.store_ms, request.repeated, landed.offsets, request.first_row, request.rows)


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
            total.update(Simulation(seed).run())
        except BaseException:
            sys.stderr.write(f"failing seed: {seed}\n")
            raise
        if seed % 100 == 99:
            sys.stderr.write(f"\r{seed + 1 - arguments.first} of {arguments.seeds} seeds")
            sys.stderr.flush()
    seconds = time.monotonic() - started
    facts = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    sys.stdout.write(f"{arguments.seeds} seeds in {seconds:.0f} s, all checks hold: {facts}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
