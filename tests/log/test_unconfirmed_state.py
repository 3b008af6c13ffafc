"""A handle whose last look at the log failed half-way, was interrupted, or was forked, must not do harm."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
from faulty import BROKER, ROOT, Wrapped, ids, message, open_log

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.errors import (
    ClosedError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnavailableError,
)
from rmq_spark.log import commit_log
from rmq_spark.log.collect import discard
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Request
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.state import LogState
from rmq_spark.log.verify import verify
from rmq_spark.model.message import Message
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage


class MarksDown(Wrapped):
    """Looks at the marks fail while `down`."""

    down = False

    def exists(self, path: str) -> bool:
        if self.down and "/marks/" in path:
            raise UnavailableError("the marks cannot be seen")
        return bool(super().exists(path))


class Gone(BaseException):
    """The process ends here."""


def test_an_append_after_a_failed_refresh_does_not_build_on_an_orphan() -> None:
    base = MemoryStorage()
    weak = MarksDown(base)
    log = open_log(weak)
    log.append(message("m0"))
    stale = open_log(Wrapped(base))
    other = open_log(base)
    other.append(message("m1"))
    roll(other)  # name 1 is free again

    def die(path: str) -> None:
        raise Gone

    stale.storage.after_create = die
    with pytest.raises(Gone):
        stale.append(message("orphan"))
    weak.down = True
    with pytest.raises(UnavailableError):
        log.refresh()  # folds the orphan, and cannot find out that it is one
    weak.down = False
    log.append(message("x"))
    assert ids(open_log(base)) == ["m0", "m1", "x"]
    assert verify(base, ROOT, BROKER).ok


def test_an_unclear_append_is_not_forgotten_when_another_one_lands_after_a_failed_refresh() -> None:
    base = MemoryStorage()
    weak = MarksDown(base)
    log = open_log(weak, append_timeout_ms=1)
    log.append(message("m0"))
    unclear = message("A")

    def lose(path: str) -> None:
        raise OutcomeUnknownError("no answer")

    weak.after_create = lose
    with pytest.raises(OutcomeUnknownError):
        log.append(unclear)
    weak.after_create = None
    weak.down = True
    with pytest.raises(UnavailableError):
        log.refresh()
    weak.down = False
    log.append(message("B"))
    assert log.append(unclear).repeated
    assert ids(open_log(base)) == ["m0", "A", "B"]


@pytest.mark.parametrize("where", ["queues", "commits"])
@pytest.mark.parametrize("whose", ["keep_trial", "apply"])
def test_an_interrupt_within_the_fold_makes_the_handle_load_anew(monkeypatch: Any, where: str, whose: str) -> None:
    base = MemoryStorage()
    log = open_log(base)
    log.append(message("m0"))
    if whose == "apply":
        open_log(base).append(message("m1"))
    original = getattr(LogState, whose)

    def interrupted(self: LogState, meta: Any, *records: Any) -> None:
        monkeypatch.setattr(LogState, whose, original)
        if where == "queues":
            self.queues.advance((meta[0] if whose == "apply" else meta).runs)
        else:
            original(self, meta, *records)
            del (
                self.commits.firsts[-1:],
                self.commits.times[-1:],
                self.commits.sizes[-1:],
                self.commits.fingerprints[-1:],
            )
        raise KeyboardInterrupt

    monkeypatch.setattr(LogState, whose, interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append(message("m1")) if whose == "keep_trial" else log.refresh()
    log.append(message("m2"))
    log.snapshot()
    assert ids(log) == ids(open_log(base)) == ["m0", "m1", "m2"]
    assert verify(base, ROOT, BROKER).ok


def test_a_batch_whose_append_was_interrupted_lands_once_when_repeated() -> None:
    base = MemoryStorage()
    weak = Wrapped(base)
    log = open_log(weak)

    def interrupt(path: str) -> None:
        weak.after_create = None
        raise KeyboardInterrupt

    batch = message("A")
    weak.after_create = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.append(batch)
    assert log.append(batch).repeated
    assert ids(open_log(base)) == ["A"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12: fork beside threads, on purpose
def test_a_handle_does_not_work_on_the_other_side_of_a_fork(tmp_path: Any) -> None:
    with Store.create(str(tmp_path)) as store:
        log = store.log()
        log.append(message("m0"))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                log.append(message("child"))
                os.write(writer, b"landed")
            except ClosedError:
                os.write(writer, b"refused")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 10) == b"refused"
        os.close(reader)
        os.close(writer)
        log.append(message("m1"))
        assert ids(log) == ["m0", "m1"]


def test_a_log_with_a_missing_commit_is_refused_not_written_over() -> None:
    base = MemoryStorage()
    log = open_log(base)
    for number in range(6):
        log.append(message(f"m{number}"))
    base.delete(paths.commit(ROOT, 3))
    with pytest.raises(CorruptDataError, match="a commit is missing") as caught:
        open_log(base)
    assert caught.value.context["file"] == paths.commit(ROOT, 3)


def test_a_commit_that_arrives_while_a_log_is_opened_is_no_hole() -> None:
    base = MemoryStorage()
    first = open_log(base)
    first.append(message("m0"))

    class Late(Wrapped):
        def list(self, directory: str) -> Any:
            if directory.endswith("commitlog") and len(ids(first)) < 3:
                first.append(message("late"))
            return super().list(directory)

    assert len(ids(open_log(Late(base)))) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_id": -1},
        {"queue_id": 65_536},
        {"topic": "bad topic"},
        {"topic": ""},
        {"body": None},
        {"body": "text"},
        {"body": b"x" * (4 * 1024 * 1024 + 1)},
        {"msg_id": ""},
        {"msg_id": None},
        {"flag": 1 << 40},
        {"reconsume_times": 1 << 31},
        {"born_timestamp_ms": 1 << 63},
        {"properties": [("k", "v" * 40_000)]},
    ],
)
def test_a_row_that_rocketmq_would_refuse_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"topic": "t", "queue_id": 0, "msg_id": "i", "body": b"b", "born_timestamp_ms": 0}
    with pytest.raises(InvalidRequestError):
        MessageBatch.of(**{**good, **wrong})


def test_a_caller_at_fault_does_not_fail_the_others_of_its_group() -> None:
    log = open_log(MemoryStorage())
    broken = Request(MessageBatch([("t", 0, "i", 5, None, b"", 0, 0, 0, None, 0, [])]))  # tags that are no text
    good = Request(message("good"))
    log._commit_group([broken, good])
    assert good.settled
    assert isinstance(broken.error, TypeError | AttributeError)
    assert ids(log) == ["good"]


def test_a_message_sent_again_after_an_unclear_answer_lands_once(tmp_path: Any) -> None:
    with Store.create(str(tmp_path)) as store:
        producer = Producer(store, retries=0)
        sent = Message(topic="t", body=b"b", msg_id="ID1")
        weak = Wrapped(store.storage)
        root = paths.broker_root("broker-0")
        store._logs[root] = CommitLog(weak, root, "broker-0", settings=settings())

        def lose(path: str) -> None:
            raise OutcomeUnknownError("no answer")

        producer.send(Message(topic="t", body=b"first", msg_id="ID0"))
        weak.after_create = lose
        with pytest.raises(OutcomeUnknownError):
            producer.send(sent)
        weak.after_create = None
        assert producer.send(sent).msg_id == "ID1"
        assert ids(store.log()) == ["ID0", "ID1"]


def settings() -> Any:
    return LogSettings(append_timeout_ms=1, delete_grace_ms=0)


def test_an_interrupt_of_the_leader_leaves_the_others_of_its_group_a_way_to_find_out() -> None:
    base = MemoryStorage()
    weak = Wrapped(base)
    log = open_log(weak, linger_ms=2_000)
    log._group._expected, log._group._commit_seconds = 2, 5.0  # the first to come waits for the second

    def interrupt(path: str) -> None:
        weak.after_create = None
        raise KeyboardInterrupt

    weak.after_create = interrupt
    batches = {"one": message("one"), "two": message("two")}
    outcomes: dict[str, BaseException] = {}

    def send(name: str) -> None:
        try:
            log.append(batches[name])
        except (KeyboardInterrupt, OutcomeUnknownError) as error:
            outcomes[name] = error

    threads = [threading.Thread(target=send, args=(name,)) for name in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert sorted(type(error).__name__ for error in outcomes.values()) == ["KeyboardInterrupt", "OutcomeUnknownError"]
    assert all(log.append(batch).repeated for batch in batches.values())
    assert sorted(ids(open_log(base))) == ["one", "two"]


@pytest.mark.parametrize("where", ["folded", "told"])
def test_an_interrupt_after_landing_does_not_make_a_group_land_again(monkeypatch: Any, where: str) -> None:
    base = MemoryStorage()
    log = open_log(base)
    log.append(message("before"))
    requests = [Request(message("one")), Request(message("two"))]
    with monkeypatch.context() as patched:
        if where == "folded":  # the view knows of the commit, and the attempt is about to
            real = log._view.apply_own_commit

            def apply_own_commit(*args: Any) -> None:
                real(*args)
                raise KeyboardInterrupt

            patched.setattr(log._view, "apply_own_commit", apply_own_commit)
        else:  # it is known to have landed, and its callers are about to be told

            def told(*args: Any) -> None:
                raise KeyboardInterrupt

            patched.setattr(log._appender, "_finish", told)
        with pytest.raises(KeyboardInterrupt):
            log._commit_group(requests)
    for request in requests:
        assert isinstance(request.error, OutcomeUnknownError)
        log._note_outcome(request)  # as its caller does
        assert log.append(request.batch).repeated
    log.append(message("after"))
    assert ids(log) == ids(open_log(base)) == ["before", "one", "two", "after"]


def test_memory_of_a_refresh_does_not_hold_the_files_it_read() -> None:
    base = MemoryStorage()
    writer, reader = open_log(base), open_log(base)
    for number in range(50):
        writer.append(message(f"m{number}", body=b"x" * 10_000))
    largest = 0
    original = reader.view._take

    def take(metas: Any) -> None:
        nonlocal largest
        original(metas)
        largest = max(largest, sum(sys.getsizeof(item) for item in reader.view._unconfirmed))

    reader.view._take = take  # type: ignore[method-assign]
    reader.refresh()
    assert 0 < largest < 50 * 1_000


def test_row_files_that_were_collected_between_two_tries_are_not_committed() -> None:
    base = MemoryStorage()
    weak = Wrapped(base)
    log = open_log(weak)
    file = write_row_file(weak, ROOT, message("row"), nonce="n1", block_bytes=1 << 18)

    def lose(path: str) -> None:
        raise OutcomeUnknownError("no answer")

    weak.before_create = lose
    with pytest.raises(OutcomeUnknownError):
        log.append_files([file])
    weak.before_create = None
    assert discard(open_log(base), [file.name])
    with pytest.raises((PreconditionFailedError, NotFoundError)):
        log.append_files([file])
    assert ids(open_log(base)) == []


def test_of_many_unclear_appends_the_one_asked_last_is_forgotten_last(monkeypatch: Any) -> None:
    monkeypatch.setattr(commit_log, "UNCLEAR_REMEMBERED", 3)
    base = MemoryStorage()
    weak = Wrapped(base)
    log = CommitLog(weak, ROOT, BROKER, settings=settings())

    def lose(path: str) -> None:
        raise OutcomeUnknownError("no answer")

    def unclear(batch: MessageBatch) -> None:
        with pytest.raises(OutcomeUnknownError):
            log.append(batch)

    batch = message("A")
    weak.after_create = lose
    unclear(batch)
    weak.after_create, weak.before_create = None, lose
    for name in ("b", "c"):
        unclear(message(name))
    with monkeypatch.context() as patched:
        patched.setattr(log._view, "refresh", lambda: lose(""))
        unclear(batch)
    unclear(message("d"))
    weak.before_create = None
    assert log.append(batch).repeated


def test_a_buffered_append_whose_buffer_cannot_be_written_is_accepted_and_lands_later() -> None:
    base = MemoryStorage()
    weak = Wrapped(base)
    log = open_log(weak, flush="buffered", linger_ms=60_000, group_bytes_max=1024, append_timeout_ms=1)

    def down(path: str) -> None:
        raise UnavailableError("down")

    weak.before_create = down
    log.append(message("A", body=b"x" * 5_000))
    weak.before_create = None
    log.flush()
    assert ids(open_log(base)) == ["A"]
