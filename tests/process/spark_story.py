"""A query from topic to topic whose driver dies again and again, and what has to be true of it in the end.

Everything that a driver starts (the JVM, the planner, Spark's workers, which make process groups of their own) is in
the driver's session, by which it is found and killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_driver import QUERY_FAILED

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store
from rmq_spark.log.collect import collect
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.core_folds import RowFiles
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage import paths
from rmq_spark.testing.history import AckedMessage, LoggedMessage, check_log, read_messages

HERE = Path(__file__).parent
PATIENCE = 600.0
"""Seconds until a driver that does not come to a point, or to its end, is taken for stuck."""
DATASOURCE = HERE.parents[1] / "datasource"
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds."""
GROUP = "bridge"
CHECKPOINT = "checkpoint"
"""The point between the sink's commit and Spark's own."""

Queue = tuple[str, int]
"""Broker and queue id, in the topic `in`."""


def processes(session: int) -> list[int]:
    """The live processes of a session."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, _, _, its_session = stat.rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(entry.name))
    return found


@dataclass
class Driver:
    """A running driver, and the switch that it runs with."""

    process: subprocess.Popen[bytes]
    place: Path

    def wait_for(self, is_there: Callable[[], bool], what: str, pause: float = 0.005) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_there():
            code = self.process.poll()
            assert code is None, f"the driver ended with {code} before {what}\n{self.log()}"
            assert time.monotonic() < deadline, f"the driver does not come to {what}\n{self.log()}"
            time.sleep(pause)

    def reach(self, point: str, nth: int) -> int:
        """Wait until a process is at a point; returns its id."""
        mark = self.place / f"reached.{point}.{nth}"
        self.wait_for(mark.exists, f"{point}, time {nth}")
        return int(mark.read_text())

    def has_reached(self, point: str, nth: int) -> bool:
        return (self.place / f"reached.{point}.{nth}").exists()

    def release(self, point: str, nth: int) -> None:
        (self.place / f"release.{point}.{nth}").touch()

    def calls(self, point: str) -> int:
        """How often a point was passed."""
        counter = self.place / f"count.{point}"
        return counter.stat().st_size if counter.exists() else 0

    def kill(self, spare: int | None = None) -> None:
        """`kill -9` for all of it, but for one process that is to be spared."""
        session = self.process.pid
        while victims := [pid for pid in processes(session) if pid != spare]:
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.poll()
            time.sleep(0.001)
        self._close()

    def is_gone(self) -> bool:
        """Whether not one of its processes is left."""
        return not processes(self.process.pid)

    def end(self, code: int = 0) -> None:
        """Wait until it ends by itself."""
        try:
            got = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end\n{self.log()}") from None
        assert got == code, f"the driver ended with {got}, not {code}\n{self.log()}"
        self.kill()

    def log(self) -> str:
        return (self.place / "log").read_text(errors="replace")[-6000:]

    def _close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


@dataclass
class Story:
    """One store, one checkpoint, one query; any number of drivers, one after the other."""

    place: Path
    seed: int
    trigger: str = "availableNow"
    brokers: int = 1
    queues: int = 3
    starting: str = "earliest"
    limit: int = 40
    """Messages of a batch."""
    as_files: bool = False
    """Whether tasks write row files (several each), or hand their few rows to the driver."""
    java_options: str = ""
    kills: Counter[str] = field(default_factory=Counter)
    """How often the whole driver was killed, by point."""
    deaths: Counter[str] = field(default_factory=Counter)
    """How often one Python process was, by point."""
    expected: dict[Queue, list[bytes]] = field(default_factory=dict)
    """What has to arrive, by queue of origin."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.store = Store.create(str(self.place / "store"), settings=LogSettings(delete_grace_ms=0))
        self.checkpoint = self.place / "checkpoint"
        self.names = tuple(f"broker-{index}" for index in range(self.brokers))
        self.store.create_topic("in", queues=self.queues, brokers=self.names)
        self._acked: dict[str, list[tuple[str, list[AckedMessage]]]] = {}
        self._sent = 0
        self._drivers: list[Driver] = []

    # ------------------------------------------------------------ messages

    def send(self, count: int, rng: random.Random | None = None, *, is_expected: bool = True) -> None:
        """One commit with so many messages, over random queues of one broker."""
        rng = rng or self.rng
        broker = rng.choice(self.names)
        rows = []
        for _ in range(count):
            self._sent += 1
            queue = rng.randrange(self.queues)
            rows.append((queue, f"{broker}/{queue} {self._sent} ".encode() + b"x" * rng.choice((0, 10, 200, 900))))
        parts = [
            MessageBatch.of(topic="in", queue_id=queue, msg_id=body[:24].decode(), body=body, born_timestamp_ms=0)
            for queue, body in rows
        ]
        result = self.store.log(broker).append(MessageBatch.merge(parts))
        assert result.queue_offsets is not None and result.commit_offsets is not None
        places = zip(rows, result.queue_offsets.tolist(), result.commit_offsets.tolist(), strict=True)
        told = [AckedMessage("in", queue, at, offset, body[:24].decode(), body) for (queue, body), at, offset in places]
        self._acked.setdefault(broker, []).append(("producer", told))
        if is_expected:
            for queue, body in rows:
                self.expected.setdefault((broker, queue), []).append(body)

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Send while a driver works: soon a few hundred messages, then slowly more, so that it never runs dry."""
        rng = random.Random(self.rng.randrange(1 << 32))
        enough = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            sent = 0
            try:
                while not enough.wait(rng.uniform(0.02, 0.2) if sent < 6 * self.limit else 1.0):
                    count = rng.choice((1, 2, 5, 20)) if sent < 6 * self.limit else 1
                    self.send(count, rng)
                    sent += count
            except BaseException as error:
                failed.append(error)
                raise

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()
        assert not failed, failed

    # ------------------------------------------------------------ drivers

    def start(self, *armed: tuple[str, int, str], limit: int | None = None) -> Driver:
        """Start a driver that goes on where the last one ended; `armed` are (point, nth, action)."""
        place = self.place / f"driver-{len(self._drivers):03d}"
        place.mkdir()
        (place / "tmp").mkdir()
        points = [{"point": point, "nth": nth, "action": action} for point, nth, action in armed]
        (place / "armed.json").write_text(json.dumps(points))
        (place / "job.json").write_text(json.dumps(self._job(place, limit or self.limit)))
        env = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(HERE / "kill_switch"), str(HERE.parents[1]), str(DATASOURCE)]),
            "RMQ_KILL_SWITCH": str(place),
            "TMPDIR": str(place / "tmp"),
        }
        if self.as_files:
            env["RMQ_KILL_SWITCH_FILE_BYTES"] = "3000"
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "spark_driver.py"), str(place / "job.json")],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        self._drivers.append(Driver(process, place))
        return self._drivers[-1]

    def _job(self, place: Path, limit: int) -> dict[str, Any]:
        store = str(self.place / "store")
        return {
            "source": {
                "store": store,
                "topic": "in",
                "startingOffsets": self.starting,
                "maxOffsetsPerTrigger": str(limit),
                "minPartitions": "2",
                "consumerGroup": GROUP,
            },
            "sink": {"store": store, "topic": "out"},
            "checkpoint": str(self.checkpoint),
            "trigger": self.trigger,
            "started": str(place / "started"),
            "finish": str(place / "finish"),
            "master": "local[2,4]",
            "settings": {
                "spark.driver.extraJavaOptions": f"{JAVA} {self.java_options} -Djava.io.tmpdir={place / 'tmp'}",
                "spark.driver.memory": "600m",
                "spark.local.dir": str(place / "tmp"),
                "spark.sql.execution.arrow.maxRecordsPerBatch": "8",
                "spark.sql.shuffle.partitions": "2",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
            },
        }

    def kill_at(self, point: str, nth: int = 1) -> None:
        """A driver that is killed, with all of its processes, when one of them is at a point."""
        if point == CHECKPOINT:
            self._kill_in_checkpoint(nth)
            return
        with self.feeding():
            driver = self.start((point, nth, "stop"))
            driver.reach(point, nth)
            driver.kill()
        self._note(point, driver)

    def _kill_in_checkpoint(self, nth: int) -> None:
        """Kill when the sink has committed a batch, and Spark begins to write that into its checkpoint."""
        commits = self.checkpoint / "commits"
        with self.feeding():
            driver = self.start(("commit-end", nth, "note"))
            driver.wait_for((driver.place / f"reached.commit-end.{nth}").exists, "commit", pause=0.0005)
            before = set(os.listdir(commits))
            deadline = time.monotonic() + 20
            while set(os.listdir(commits)) == before:  # the file is there for some milliseconds: no time to sleep
                assert time.monotonic() < deadline, f"nothing is written to the checkpoint\n{driver.log()}"
            driver.kill()
        self._note(CHECKPOINT, driver)

    def kill_some_time(self) -> None:
        """A driver that is killed at any time after its query was started."""
        with self.feeding():
            driver = self.start()
            driver.wait_for((driver.place / "started").exists, "its start")
            time.sleep(self.rng.uniform(0.0, 6.0))
            driver.kill()
        self._note("some time", driver)

    def _note(self, point: str, driver: Driver) -> None:
        self.kills[point] += 1
        shutil.rmtree(driver.place / "tmp")

    def die_at(self, *points: tuple[str, int]) -> Driver:
        """A driver whose Python process at a point is killed, and nothing else; returns it when that has happened."""
        driver = self.start(*((point, nth, "die") for point, nth in points))
        for point, nth in points:
            driver.reach(point, nth)
            self.deaths[point] += 1
        return driver

    def fail_at(self, point: str, nth: int = 1) -> Driver:
        """The same at a point where that ends the query."""
        with self.feeding():
            driver = self.die_at((point, nth))
            driver.end(QUERY_FAILED)
        return driver

    def finish(self, driver: Driver | None = None) -> Driver:
        """Let a driver, or one more, take everything over and end by itself."""
        driver = driver or self.start(limit=4 * self.limit)
        (driver.place / "finish").touch()
        driver.end()
        return driver

    def maintain(self) -> None:
        """What a night job does, while no driver runs: roll the log, delete row files that nobody refers to."""
        for broker in self.names:
            roll(self.store.log(broker), min_commits=1)
            collect(self.store.log(broker), orphan_age_ms=0)

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()
        self.store.close()

    # ------------------------------------------------------------ what has to be true

    def check(self) -> None:
        """Each message arrived once, in its queue's order; the logs are sound; the group is at their ends."""
        arrived: dict[Queue, list[bytes]] = {}
        homes: dict[Queue, set[int]] = {}
        for message in sorted(self._out(), key=lambda message: message.commit_offset):
            broker, _, queue = message.body.split(b" ")[0].decode().partition("/")
            arrived.setdefault((broker, int(queue)), []).append(message.body)
            homes.setdefault((broker, int(queue)), set()).add(message.queue)
        spread = {origin: queues for origin, queues in homes.items() if len(queues) > 1}
        assert not spread, f"messages of one queue went to several: {spread}"
        for origin in sorted(arrived.keys() | self.expected.keys()):
            _compare(origin, arrived.get(origin, []), self.expected.get(origin, []))
        for broker in self.names:
            check_log(self.store.storage, paths.broker_root(broker), broker, acked=self._acked.get(broker, []))
        lag = {(one.broker, one.queue): one.lag for one in GroupOffsets(self.store).lag(GROUP) if one.topic == "in"}
        assert lag == {(broker, queue): 0 for broker in self.names for queue in range(self.queues)}, f"lag: {lag}"
        print(
            f"kills={sum(self.kills.values())} {dict(self.kills)} deaths={dict(self.deaths)} "
            f"drivers={len(self._drivers)} messages={sum(map(len, arrived.values()))} seed={self.seed}"
        )

    def check_no_leftovers(self) -> int:
        """After collecting, no row file is left that no commit refers to; returns how many had been left."""
        log = self.store.log("broker-0")
        before = self._row_files()
        collect(log, orphan_age_ms=0)
        after = self._row_files()
        left = after - log.refresh().state.fold(RowFiles).referenced.keys()
        assert not left, f"row files that nobody needs: {left}"
        return len(before - after)

    def _row_files(self) -> set[str]:
        log = self.store.log("broker-0")
        return {info.name for info in log.storage.list(paths.data(log.root))}

    def _out(self) -> list[LoggedMessage]:
        with CommitLog(self.store.storage, paths.broker_root("broker-0"), "broker-0", read_only=True) as log:
            return [message for message in read_messages(log) if message.topic == "out"]


def archive_classes(place: Path) -> Path:
    """What a JVM learns of Spark's classes while a query runs, kept in a file: the next JVM starts in half the time."""
    archive = place / "classes.jsa"
    story = Story(place, 0, java_options=f"-XX:ArchiveClassesAtExit={archive}")
    try:
        driver = story.start()
        (driver.place / "finish").touch()
        assert driver.process.wait(PATIENCE) == 0, driver.log()
        deadline = time.monotonic() + PATIENCE
        while not driver.is_gone():  # the JVM writes the file as the last thing it does
            assert time.monotonic() < deadline, driver.log()
            time.sleep(0.05)
    finally:
        story.close()
    assert archive.exists(), driver.log()
    return archive


def _compare(origin: Queue, arrived: list[bytes], expected: list[bytes]) -> None:
    lost = [body[:24] for body in Counter(expected) - Counter(arrived)]
    too_many = [body[:24] for body in Counter(arrived) - Counter(expected)]
    assert (lost, too_many) == ([], []), f"{origin}: {lost=} {too_many=}"
    assert arrived == expected, f"{origin}: out of order"
