"""Real handles, threads and processes racing for one log."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from worker import BROKER, ROOT
from worker_pool import Workers

from rmq_spark.log import scan
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage import paths
from rmq_spark.storage.local import FileOps, LocalStorage
from rmq_spark.testing.history import AckedMessage, check_log, read_messages


def open_log(store: Path, **settings: Any) -> CommitLog:
    return CommitLog(LocalStorage(store), ROOT, BROKER, settings=LogSettings(**{"delete_grace_ms": 0, **settings}))


def message(msg_id: str, topic: str = "t", queue: int = 0) -> MessageBatch:
    return MessageBatch.of(topic=topic, queue_id=queue, msg_id=msg_id, body=msg_id.encode(), born_timestamp_ms=0)


def send(log: CommitLog, msg_id: str) -> AckedMessage:
    result = log.append(message(msg_id))
    assert result.queue_offsets is not None and result.commit_offsets is not None
    return AckedMessage("t", 0, int(result.queue_offsets[0]), int(result.commit_offsets[0]), msg_id, msg_id.encode())


class TestTwoHandles:
    def test_loser_renumbers(self, quick_path: Path) -> None:
        with open_log(quick_path) as one, open_log(quick_path) as two:
            first = send(one, "a")
            second = send(two, "b")  # two has not seen a: it tries a's slot first
            third = send(one, "c")
        assert [m.commit_offset for m in (first, second, third)] == [0, 1, 2]
        acked = [("one", [first]), ("two", [second]), ("one", [third])]
        check_log(LocalStorage(quick_path), ROOT, BROKER, acked=acked)

    def test_race_in_threads(self, tmp_path: Path) -> None:
        """Each thread has a handle of its own, so only the storage decides."""
        acked: list[tuple[str, list[AckedMessage]]] = []

        def run(name: str) -> None:
            with open_log(tmp_path) as log:
                for number in range(12):
                    acked.append((name, [send(log, f"{name}-{number}")]))

        threads = [threading.Thread(target=run, args=(f"w{index}",)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = check_log(LocalStorage(tmp_path), ROOT, BROKER, acked=acked)
        assert done.messages == 48 and done.unacked == 0

    def test_race_in_processes(self, workers: Workers, tmp_path: Path) -> None:
        store = tmp_path / "store"
        pids = [
            workers.start("write", store=str(store), name=f"w{index}", seed=index, appends=12, threads=2)
            for index in range(4)
        ]
        for pid in pids:
            workers.wait(pid)
        acked, attempted = [], {}
        for report in workers.reports():
            assert report[-1] == ["done"], report[-1]
            for kind, *values in report:
                if kind == "ack":
                    acked.append((values[0], [(*m[:5], m[5].encode()) for m in values[1]]))
                if kind == "try":
                    attempted[values[0]] = values[1]
        done = check_log(LocalStorage(store), ROOT, BROKER, acked=acked, attempted=attempted)
        assert len(acked) == 96 and done.unacked == 0


class TestFairness:
    def count(self, workers: Workers, store: Path, names: list[str], seconds: float, **settings: Any) -> dict[str, Any]:
        # A busy machine takes its time to start processes, and to let each of them append.
        start = time.time() + 2 + 0.5 * len(names)
        settings = {"append_timeout_ms": 300_000, **settings}
        job = {"store": str(store), "start": start, "stop": start + seconds, "settings": settings}
        pids = [workers.start("count", name=name, **job) for name in names]
        return {"pids": pids, "stop": start + seconds}

    def shares(self, workers: Workers, pids: list[int]) -> dict[str, int]:
        found = {}
        for pid in pids:
            workers.wait(pid)
            report = workers.report(pid)
            assert report[-1] == ["done"], report[-1]
            line = next(line for line in report if line[0] == "count")
            found[line[1]] = line[2]
            print(f"{line[1]}: {line[2]} appends, longest {line[3] * 1000:.0f} ms")
        return found

    def test_eight_processes_share_fairly(self, workers: Workers, tmp_path: Path) -> None:
        store = tmp_path / "store"
        run = self.count(workers, store, [f"p{index}" for index in range(8)], 4)
        shares = self.shares(workers, run["pids"])
        mean = statistics.mean(shares.values())
        print(f"total={sum(shares.values())} min/mean={min(shares.values()) / mean:.2f}")
        assert min(shares.values()) > 0, f"a process starved: {shares}"
        with open_log(store) as log:
            assert log.view.state.offset == sum(shares.values())

    def test_a_stopped_process_does_not_stop_the_others(self, workers: Workers, tmp_path: Path) -> None:
        """It may hold the turn, for a turn is only a courtesy."""
        store = tmp_path / "store"
        run = self.count(workers, store, ["a", "b", "c"], 2.5)
        time.sleep(max(0.0, run["stop"] - 2.2 - time.time()))
        frozen = run["pids"][0]
        for _ in range(8):  # somewhere among these stops it holds the turn
            os.kill(frozen, signal.SIGSTOP)
            time.sleep(0.15)
            os.kill(frozen, signal.SIGCONT)
            time.sleep(0.01)
        os.kill(frozen, signal.SIGSTOP)
        with open_log(store, append_timeout_ms=300_000) as log:
            began = time.monotonic()
            send(log, "mine")
            waited = time.monotonic() - began
        shares = self.shares(workers, run["pids"][1:])
        os.kill(frozen, signal.SIGCONT)
        shares |= self.shares(workers, [frozen])
        print(f"waited {waited * 1000:.0f} ms beside a stopped process")
        assert min(shares["b"], shares["c"]) > 0, shares
        with open_log(store) as log:
            assert log.view.state.offset == sum(shares.values()) + 1

    def test_a_process_stopped_with_the_turn(self, tmp_path: Path) -> None:
        """The lock is held for certain, and never given back."""
        storage = LocalStorage(tmp_path)
        with open_log(tmp_path) as log:
            send(log, "a")
            with storage.turn(paths.commitlog(ROOT), 1.0) as held:
                assert held
                for number in range(5):
                    send(log, f"b{number}")  # each would wait for ever if it waited for the turn
        check_log(storage, ROOT, BROKER, acked=[])


class TestFreedNames:
    """Trap 1: rolling deletes a commit file, and a handle that slept takes its name for a free one."""

    def busy_log(self, store: Path) -> CommitLog:
        """A second handle appends and rolls until the first one's next slot is a deleted name."""
        log = open_log(store)
        for number in range(6):
            send(log, f"b{number}")
        assert roll(log).deleted > 0
        return log

    def test_stale_writer_lands_once_at_the_real_end(self, quick_path: Path) -> None:
        with open_log(quick_path) as stale:
            acked = [("a", [send(stale, "a0")])]
            with self.busy_log(quick_path) as busy:
                assert not stale.storage.exists(paths.commit(ROOT, 1))
                late = send(stale, "late")
                assert late.commit_offset == 7 and late.queue_offset == 7
                after = send(busy, "after")
                assert after.commit_offset == 8
                acked += [("a", [late]), ("b", [after])]
        done = check_log(LocalStorage(quick_path), ROOT, BROKER, acked=acked)
        assert done.messages == 9

    def test_stale_writer_after_new_commits(self, quick_path: Path) -> None:
        with open_log(quick_path) as stale:
            send(stale, "a0")
            with self.busy_log(quick_path) as busy:
                send(busy, "x")
                late = send(stale, "late")
                assert late.commit_offset == 8
                roll(busy)
                again = send(stale, "later")
                assert again.commit_offset == 9
        check_log(LocalStorage(quick_path), ROOT, BROKER, acked=[("a", [late]), ("a", [again])])

    def hasty_log(self, store: Path) -> CommitLog:
        """A handle that does not look what others did before it writes, as where writers take no turns."""
        storage = LocalStorage(store)
        storage.turn = lambda directory, timeout: nullcontext(False)  # type: ignore[method-assign]
        return CommitLog(storage, ROOT, BROKER)

    def test_stale_reader_sees_everything_and_no_orphan(self, quick_path: Path) -> None:
        with open_log(quick_path) as stale_reader, self.hasty_log(quick_path) as stale_writer:
            send(stale_writer, "a0")
            stale_reader.refresh()
            with self.busy_log(quick_path):
                send(stale_writer, "late")  # leaves an orphan in the freed name 1
                assert stale_reader.storage.exists(paths.commit(ROOT, 1))
                seen = [m.msg_id for m in read_messages(stale_reader)]
        assert seen == ["a0", "b0", "b1", "b2", "b3", "b4", "b5", "late"]

    def test_a_scan_in_progress_never_returns_an_orphan(self, quick_path: Path) -> None:
        """The scan was planned before the roll; the orphan has the same name and place as the commit it wants."""
        with open_log(quick_path) as reader, self.hasty_log(quick_path) as stale, open_log(quick_path) as busy:
            send(busy, "a0")
            stale.refresh()
            for number in range(6):
                send(busy, f"b{number}")
            batches = reader.scan(scan.Query(columns=("msgId",)))
            seen = next(batches).column(0).to_pylist()
            roll(busy)
            send(stale, "zz")
            assert reader.storage.exists(paths.commit(ROOT, 1))
            seen += [msg_id for batch in batches for msg_id in batch.column(0).to_pylist()]
        assert seen == ["a0", "b0", "b1", "b2", "b3", "b4", "b5"]

    def test_a_name_that_was_taken_and_freed_again(self, quick_path: Path) -> None:
        """`link` says that the name is taken; before the loser looks who has it, a roll has deleted it."""

        class Slow(FileOps):
            def link(self, source: str, target: str) -> None:
                try:
                    super().link(source, target)
                except FileExistsError:
                    roll(busy)
                    assert not Path(target).exists()
                    raise

        with open_log(quick_path) as busy:
            send(busy, "a0")
            storage = LocalStorage(quick_path, ops=Slow())
            storage.turn = lambda directory, timeout: nullcontext(False)  # type: ignore[method-assign]
            with CommitLog(storage, ROOT, BROKER) as slow:
                send(busy, "a1")
                landed = send(slow, "s")
        assert landed.commit_offset == 2
        check_log(LocalStorage(quick_path), ROOT, BROKER, acked=[("s", [landed])])

    def test_stale_writer_and_the_roll_of_an_async_tail(self, quick_path: Path) -> None:
        """A `sync` append flushes its predecessors first; they may have been rolled since."""
        with open_log(quick_path, flush="async") as lax, open_log(quick_path) as strict:
            for number in range(4):
                send(lax, f"a{number}")
            strict.refresh()
            roll(lax)
            landed = send(strict, "s")
            assert landed.commit_offset == 4
        check_log(LocalStorage(quick_path), ROOT, BROKER, acked=[("s", [landed])])

    def test_background_flush_of_files_that_were_rolled(self, quick_path: Path) -> None:
        with open_log(quick_path, flush="async", flush_interval_ms=60_000) as lax:
            for number in range(4):
                send(lax, f"a{number}")
            roll(lax)
            send(lax, "b")
            lax.flush()


@pytest.mark.slow
def test_eight_processes_for_longer(workers: Workers, tmp_path: Path) -> None:
    fairness = TestFairness()
    run = fairness.count(workers, tmp_path / "store", [f"p{index}" for index in range(8)], 20)
    shares = fairness.shares(workers, run["pids"])
    mean = statistics.mean(shares.values())
    print(f"total={sum(shares.values())} min/mean={min(shares.values()) / mean:.2f}")
    assert min(shares.values()) >= 0.25 * mean, shares
