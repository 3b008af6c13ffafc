"""A write lands once and whole, whatever is repeated, dies or is aborted on the way."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sink_tasks import MAP, Write, batch_of, bodies, row_files, stored, write

from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock
from rmq_spark.errors import (
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnavailableError,
)
from rmq_spark.log.collect import collect, discard
from rmq_spark.log.core_folds import SinkBatches
from rmq_spark.log.roll import roll
from rmq_spark.log.verify import verify
from rmq_spark.model.settings import LogSettings
from rmq_spark.services.timer import set_delay_levels
from rmq_spark.spark import open_stores, sink_commit, writer
from rmq_spark.spark.options import WriteOptions
from rmq_spark.spark.sink_commit import BatchName
from rmq_spark.storage.open import open_storage

_names = itertools.count()
QUERY = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.create(f"memory://sink-{next(_names)}", settings=LogSettings(delete_grace_ms=0)) as made:
        yield made


@pytest.fixture
def with_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks write files however few rows they have."""
    monkeypatch.setattr(writer, "INLINE_TASK_BYTES", -1)


def options_of(store: Store, **more: object) -> dict[str, str]:
    return {"store": store.storage.uri, "topic": "t", **{name: str(value) for name, value in more.items()}}


def texts(store: Store, *topics: str) -> list[str]:
    return [row["body"].decode() for row in stored(store, *topics)]


def is_sound(store: Store) -> bool:
    return verify(store.storage, "brokers/broker-0", "broker-0").ok


def last_batch(store: Store, app: str) -> int | None:
    return store.log().refresh().state.fold(SinkBatches).last.get(app)


def commits(store: Store) -> int:
    return sum(1 for _ in store.storage.list("brokers/broker-0/commitlog"))


# ------------------------------------------------------------ a write


def test_rows_of_all_tasks_land_in_one_commit_in_the_order_of_the_tasks(store: Store) -> None:
    store.create_topic("t", queues=1)
    write(options_of(store), bodies("a", "b"), bodies(), bodies("c"))
    assert texts(store) == ["a", "b", "c"]
    assert commits(store) == 1
    assert row_files(store) == [], "so few rows stand in the commit itself"


@pytest.mark.usefixtures("with_files")
def test_the_same_with_row_files(store: Store) -> None:
    store.create_topic("t", queues=1)
    job = Write(options_of(store), bodies().schema)
    messages = job.tasks([[bodies("a", "b")], [bodies()], [bodies("c")]])
    assert len(row_files(store)) == 2
    assert texts(store) == []
    job.commit(messages[::-1])
    assert texts(store) == ["a", "b", "c"]
    assert commits(store) == 1
    assert is_sound(store)


def test_few_rows_beside_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "INLINE_TASK_BYTES", 1_000)
    store.create_topic("t", queues=1)
    many = bodies(*[f"{number:05}" for number in range(500)])
    write(options_of(store), bodies("a"), many, bodies("b"))
    assert texts(store) == ["a", *[f"{number:05}" for number in range(500)], "b"]
    assert (commits(store), len(row_files(store))) == (1, 3)


def test_few_rows_of_very_many_tasks_go_into_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_commit, "INLINE_BYTES_MAX", 1)
    store.create_topic("t", queues=1)
    write(options_of(store), bodies("a"), bodies("b"))
    assert texts(store) == ["a", "b"]
    assert (commits(store), len(row_files(store))) == (1, 2)


def test_a_large_task_writes_several_files_and_keeps_its_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FILE_BYTES", 20_000)
    store.create_topic("t", queues=1)
    job = Write(options_of(store), bodies().schema)
    wanted = [f"{number:06}" for number in range(2_000)]
    (message,) = job.tasks([[bodies(*wanted[at : at + 100]) for at in range(0, 2_000, 100)]])
    assert len(message.written.files) > 5
    job.commit([message])
    assert texts(store) == wanted


def test_files_grow_with_what_a_task_has_written() -> None:
    rows = batch_of(body=pa.array([b"x" * (2 << 20)], pa.binary()))
    groups = [len(group) for group, _ in writer._gathered(iter([rows] * 400))]
    assert groups[:4] == [7, 7, 7, 7], "16 MB: a short task waits for the flush of little"
    assert max(groups) == 31, "64 MB: a long one does not leave thousands of files"
    assert groups[:-1] == sorted(groups[:-1])
    assert sum(groups) == 400


def test_a_write_without_rows_does_nothing(store: Store) -> None:
    before = store.nameserver.refresh().state.offset
    write(options_of(store), bodies(), bodies())
    write(options_of(store), bodies(), query_id=QUERY)
    job = Write(options_of(store), bodies().schema, QUERY)
    job.commit([], 3)
    assert (commits(store), store.nameserver.refresh().state.offset) == (0, before)
    assert last_batch(store, f"{QUERY} -> t") is None


def test_every_column_comes_back(store: Store) -> None:
    batch = batch_of(
        flag=[7],
        body=["héllo"],
        topic=["u"],
        properties=pa.array([[("p", "1")]], MAP),
        tags=["A"],
        keys=[["k1", "k2"]],
        queueId=[3],
        shardingKey=["s"],
        bornTimestamp=pa.array([1_600_000_000_000_000], pa.timestamp("us", "UTC")),
    )
    write(options_of(store), batch)
    (row,) = stored(store)
    assert (row["topic"], row["queueId"], row["tags"], row["keys"]) == ("u", 3, "A", "k1 k2")
    assert dict(row["properties"]) == {"p": "1", "__SHARDINGKEY": "s"}
    assert (row["body"], row["flag"]) == ("héllo".encode(), 7)
    assert row["bornTimestamp"].timestamp() == 1_600_000_000


def test_delayed_rows_are_parked_as_a_broker_does_it(store: Store) -> None:
    soon = store.clock.now_ms() + 3_600_000
    batch = batch_of(
        body=["level", "time", "past", "both"],
        delayTimeLevel=pa.array([3, None, 0, 18], pa.int32()),
        deliverTimestamp=pa.array([None, soon, 1_000, soon], pa.int64()),
    )
    write(options_of(store, autoCreateQueues=1), batch)
    found = {row["body"].decode(): row for row in stored(store, "t", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")}
    place = {name: (row["topic"], row["queueId"]) for name, row in found.items()}
    assert place == {
        "level": ("SCHEDULE_TOPIC_XXXX", 2),
        "both": ("SCHEDULE_TOPIC_XXXX", 17),
        "time": ("rmq_sys_wheel_timer", 0),
        "past": ("t", 0),
    }
    real = {"REAL_TOPIC": "t", "REAL_QID": "0"}
    assert dict(found["level"]["properties"]) == {"DELAY": "3", **real}
    assert dict(found["time"]["properties"]) == {"TIMER_DELIVER_MS": str(soon), "TIMER_OUT_MS": str(soon), **real}
    assert dict(found["past"]["properties"]) == {"TIMER_DELIVER_MS": "1000"}
    assert store.topic("t").queues == {"broker-0": 1}, "the topic that they are for exists"


@pytest.mark.parametrize(("levels", "highest"), [(20, 20), (2, 2)])
def test_delay_levels_are_those_of_the_store(store: Store, levels: int, highest: int) -> None:
    set_delay_levels(store, " ".join(["1s"] * levels))
    column = pa.array([highest, highest + 1], pa.int32())
    write(options_of(store, badRecordsTopic="bad"), batch_of(body=["last", "none"], delayTimeLevel=column))
    parked, bad = stored(store, "SCHEDULE_TOPIC_XXXX", "bad")
    assert (parked["body"], parked["queueId"], dict(parked["properties"])["DELAY"]) == (
        b"last",
        highest - 1,
        str(highest),
    )
    assert dict(bad["properties"])["BAD_REASON"] == f"its delayTimeLevel is not 0 (no delay) to {highest}"


def test_only_appending_is_offered(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="mode append"):
        Write(options_of(store), bodies().schema, overwrite=True).new_writer()
    Write(options_of(store), bodies().schema, QUERY, overwrite=True).new_writer()  # output mode complete
    with pytest.raises(InvalidRequestError, match="unknown column text; did you mean"):
        Write(options_of(store), batch_of(body=["x"], text=["y"]).schema).new_writer()
    with pytest.raises(InvalidRequestError, match="rows have no topic"):
        Write({"store": store.storage.uri}, bodies().schema).new_writer()


@pytest.mark.parametrize("query_id", [None, QUERY])
def test_a_store_that_is_not_there_is_named_before_a_writer_is_pickled(query_id: str | None) -> None:
    """Spark reports a PicklingError in place of what is raised by then."""
    with pytest.raises(NotFoundError, match="no store here"):
        Write({"store": "memory://nowhere", "topic": "t"}, bodies().schema, query_id).new_writer()


# ------------------------------------------------------------ topics


def test_unknown_topics_are_created_by_the_commit_and_not_before(store: Store) -> None:
    job = Write(options_of(store, autoCreateQueues=6), batch_of(body=["x"], topic=["u"]).schema)
    messages = job.tasks([[batch_of(body=["a", "b"], topic=["u", None])]])
    assert store.topics() == []
    job.commit(messages)
    assert {topic.name: dict(topic.queues) for topic in store.topics()} == {"t": {"broker-0": 6}, "u": {"broker-0": 6}}


def test_topics_are_not_created_when_told_so(store: Store) -> None:
    job = Write(options_of(store, autoCreateTopic="false"), bodies().schema)
    with pytest.raises(NotFoundError, match="autoCreateTopic is false"):
        job.tasks([[bodies("a")]])
    store.create_topic("t", queues=1)
    job = Write(options_of(store, autoCreateTopic="false"), batch_of(body=["a"], topic=["u"]).schema)
    with pytest.raises(InvalidRequestError, match="no such topic, and autoCreateTopic is false"):
        job.tasks([[batch_of(body=["a"], topic=["u"])]])
    messages = job.tasks([[batch_of(body=["a"], topic=["t"])]])
    store.delete_topic("t")
    with pytest.raises(NotFoundError, match="deleted during the write"):
        job.commit(messages)
    assert stored(store) == []


def test_a_topic_that_was_created_meanwhile(store: Store) -> None:
    job = Write(options_of(store), bodies().schema)
    messages = job.tasks([[bodies("a", "b", "c", "d")]])
    store.create_topic("t", queues=2)
    with pytest.raises(InvalidRequestError, match="fewer queues than rows were put in"):
        job.commit(messages)
    assert stored(store) == []
    job.commit(job.tasks([[bodies("a", "b", "c", "d")]]))
    assert len(stored(store)) == 4
    other = Write(options_of(store, topic="u"), bodies().schema)
    messages = other.tasks([[bodies("a", "b", "c", "d")]])
    store.create_topic("u", queues=9)
    other.commit(messages)
    assert len(stored(store, "u")) == 4


def test_the_broker_of_a_write(store: Store) -> None:
    store.create_topic("t", queues=2, brokers=("broker-2", "broker-1"))
    store.create_topic("u", queues=2)
    write(options_of(store), bodies("a"))
    write(options_of(store, brokerName="broker-2"), bodies("b"))
    write(options_of(store, brokerName="broker-9", topic="new"), bodies("c"))
    assert [row["body"] for row in stored(store, broker="broker-1")] == [b"a"]
    assert [row["body"] for row in stored(store, broker="broker-2")] == [b"b"]
    assert store.topic("new").queues == {"broker-9": 4}
    with pytest.raises(InvalidRequestError, match="option brokerName") as caught:
        write(options_of(store, brokerName="broker-0"), bodies("x"))
    assert caught.value.context == {"topic": "t", "brokerName": "broker-0", "brokers": ["broker-1", "broker-2"]}
    with pytest.raises(InvalidRequestError, match="has no queues on broker-1; name another broker by the option brok"):
        write(options_of(store), batch_of(body=["x"], topic=["u"]))


def test_a_topic_that_moved_to_another_broker_meanwhile(store: Store) -> None:
    job = Write(options_of(store), bodies().schema)
    messages = job.tasks([[bodies("a")]])
    store.create_topic("t", queues=4, brokers=("broker-7",))
    with pytest.raises(InvalidRequestError, match="option brokerName"):
        job.commit(messages)


# ------------------------------------------------------------ exactly once


@pytest.mark.parametrize("files", [False, True])
def test_a_replayed_batch_is_written_once(
    store: Store, files: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if files:
        monkeypatch.setattr(writer, "INLINE_TASK_BYTES", -1)
    for batch, text in enumerate(["a", "b", "c"]):
        write(options_of(store), bodies(text), query_id=QUERY, batch=batch)
    assert last_batch(store, f"{QUERY} -> t") == 2
    kept = row_files(store)
    with caplog.at_level(logging.WARNING):
        write(options_of(store), bodies("c"), query_id=QUERY, batch=2)
        write(options_of(store), bodies("b"), query_id=QUERY, batch=1)
    assert "is in the log already" in caplog.text
    assert sorted(texts(store)) == ["a", "b", "c"]
    assert row_files(store) == kept, "what the replay wrote is thrown away, what the log refers to stays"
    write(options_of(store), bodies("d"), query_id=QUERY, batch=3)
    assert sorted(texts(store)) == ["a", "b", "c", "d"]
    assert is_sound(store)


@pytest.mark.usefixtures("with_files")
def test_the_same_messages_committed_twice(store: Store) -> None:
    job = Write(options_of(store), bodies().schema, QUERY)
    messages = job.tasks([[bodies("a")]])
    job.commit(messages, 0)
    job.commit(messages, 0)
    assert texts(store) == ["a"]
    assert len(row_files(store)) == 1
    roll(store.log(), min_commits=1)
    collect(store.log())
    assert row_files(store) == []
    job.commit(messages, 0)
    assert texts(store) == ["a"], "also when the files are gone"


def test_queries_and_applications_are_told_apart(store: Store) -> None:
    other = QUERY.replace("1", "9")
    write(options_of(store), bodies("a"), query_id=QUERY)
    write(options_of(store), bodies("b"), query_id=other)
    write(options_of(store, txnAppId="app"), bodies("c"), query_id=QUERY)
    write(options_of(store, txnAppId="app"), bodies("x"), query_id=other)
    assert sorted(texts(store)) == ["a", "b", "c"]


def test_a_numbered_batch_write_is_written_once(store: Store) -> None:
    numbered = options_of(store, txnAppId="nightly", txnVersion=7)
    write(numbered, bodies("a"))
    write(numbered, bodies("x"))
    write(options_of(store, txnAppId="nightly", txnVersion=8), bodies("b"))
    write(options_of(store), bodies("c"))
    write(options_of(store), bodies("c"))
    assert sorted(texts(store)) == ["a", "b", "c", "c"]


@pytest.mark.usefixtures("with_files")
def test_an_attempt_that_died_leaves_orphans_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FILE_BYTES", 1_000)
    job = Write(options_of(store), bodies().schema)
    job.tasks([])

    def dying() -> Iterator[pa.RecordBatch]:
        for number in range(30):
            yield bodies(f"{number}")
        raise RuntimeError("the machine is gone")

    with pytest.raises(RuntimeError, match="gone"):
        job.task(0, dying())
    orphans = set(row_files(store))
    assert orphans
    job.commit([job.task(0, [bodies(f"{number}") for number in range(30)])])
    assert sorted(texts(store), key=int) == [f"{number}" for number in range(30)]
    assert orphans < set(row_files(store))
    collect(store.log())
    assert orphans < set(row_files(store)), "they may belong to a slow job"
    collect(store.log(), orphan_age_ms=-1)
    assert not orphans & set(row_files(store))
    assert len(texts(store)) == 30


@pytest.mark.usefixtures("with_files")
def test_a_job_that_is_slower_than_the_collector_fails_and_can_be_repeated(store: Store) -> None:
    job = Write(options_of(store), bodies().schema, QUERY)
    messages = job.tasks([[bodies("a")]])
    collect(store.log(), orphan_age_ms=-1)
    with pytest.raises((PreconditionFailedError, NotFoundError)):
        job.commit(messages)
    assert stored(store) == []
    job.commit(job.tasks([[bodies("a")]]))
    assert texts(store) == ["a"]


# ------------------------------------------------------------ aborting


@pytest.mark.usefixtures("with_files")
@pytest.mark.parametrize("query_id", [None, QUERY])
def test_an_aborted_write_leaves_nothing(store: Store, query_id: str | None) -> None:
    job = Write(options_of(store), bodies().schema, query_id)
    messages = job.tasks([[bodies("a")], [bodies("b")]])
    assert len(row_files(store)) == 2
    job.abort([messages[0], None, messages[1]])
    assert row_files(store) == []
    assert (stored(store), store.topics()) == ([], [])
    with pytest.raises((PreconditionFailedError, NotFoundError)):
        job.commit(messages)
    job.abort([None, None])


@pytest.mark.usefixtures("with_files")
def test_aborting_a_write_whose_commit_landed_after_all_loses_nothing(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    job = Write(options_of(store), bodies().schema)
    messages = job.tasks([[bodies("a")]])
    job.commit(messages)
    with caplog.at_level(logging.WARNING):
        job.abort(messages)
    assert "its commit is in the log" in caplog.text
    assert texts(store) == ["a"]
    assert is_sound(store)


@pytest.mark.usefixtures("with_files")
def test_what_cannot_be_deleted_is_said(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Write(options_of(store), bodies().schema)
    messages = job.tasks([[bodies("a")]])

    def fail(*args: object) -> bool:
        raise UnavailableError("the disk is away")

    monkeypatch.setattr(sink_commit, "discard", fail)
    with caplog.at_level(logging.WARNING):
        job.abort(messages)
    assert "1 row files of an aborted write were not deleted: the disk is away" in caplog.text


@pytest.mark.parametrize("landed_first", [False, True])
def test_a_claim_and_a_commit_exclude_each_other(
    store: Store, landed_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "INLINE_TASK_BYTES", -1)
    job = Write(options_of(store), bodies().schema)
    (message,) = job.tasks([[bodies("a")]])
    names = [file.name for file in message.written.files]
    with Store.open(store.storage.uri) as other:
        if landed_first:
            other.log().append_files(message.written.files)
            assert not discard(store.log(), names)
            assert texts(store) == ["a"]
        else:
            assert discard(store.log(), names)
            with pytest.raises((PreconditionFailedError, NotFoundError)):
                other.log().append_files(message.written.files)


# ------------------------------------------------------------ storage that does not answer


class Silent:
    """A storage whose creates in a commit log end without an answer a few times."""

    def __init__(self, inner: Any, error: Exception, times: int, *, lands: bool) -> None:
        self._inner, self._error, self._times, self._lands = inner, error, times, lands

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_if_absent(self, path: str, data: Any, *, durable: bool = True) -> None:
        fails = "brokers/broker-0/commitlog" in path and self._times > 0
        if not fails or self._lands:
            self._inner.create_if_absent(path, data, durable=durable)
        if fails:
            self._times -= 1
            raise self._error


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("name", [None, BatchName(app="app", number=4)])
@pytest.mark.parametrize(
    ("error", "lands"),
    [
        (OutcomeUnknownError("no answer"), True),
        (OutcomeUnknownError("no answer"), False),
        (UnavailableError("away"), False),
    ],
)
def test_an_unclear_commit_is_repeated_until_it_is_clear(
    store: Store,
    files: bool,
    name: BatchName | None,
    error: Exception,
    lands: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if files:
        monkeypatch.setattr(writer, "INLINE_TASK_BYTES", -1)
    store.create_topic("t", queues=1)
    job = Write(options_of(store), bodies().schema)
    written = [message.written for message in job.tasks([[bodies("a")], [bodies("b")]])]
    silent = Silent(store.storage, error, 2, lands=lands)
    quick = LogSettings(append_timeout_ms=0)
    with Store(silent, quick, store.clock, read_only=False) as unsure:  # type: ignore[arg-type]
        monkeypatch.setattr(sink_commit, "kept_store", lambda *_args, **_named: unsure)
        sink_commit.commit(WriteOptions(store="x", topic="t"), written, name)
    assert texts(store) == ["a", "b"]
    assert is_sound(store)


def test_a_storage_that_never_answers_ends_the_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("t", queues=1)
    job = Write(options_of(store), bodies().schema)
    written = [message.written for message in job.tasks([[bodies("a")]])]
    silent = Silent(store.storage, UnavailableError("away"), 100, lands=False)
    with Store(silent, LogSettings(append_timeout_ms=0), store.clock, read_only=False) as unsure:  # type: ignore[arg-type]
        monkeypatch.setattr(sink_commit, "kept_store", lambda *_args, **_named: unsure)
        with pytest.raises(UnavailableError, match="away"):
            sink_commit.commit(WriteOptions(store="x", topic="t"), written, None)
    assert texts(store) == []


# ------------------------------------------------------------ stores that stay open


def test_a_store_that_was_made_anew_is_opened_anew(tmp_path: Path) -> None:
    place = tmp_path / "store"
    options = {"store": str(place), "topic": "t"}
    Store.create(str(place)).close()
    write(options, bodies("a", "b"))
    first = open_stores.kept_store(str(place), {}, read_only=False)
    assert open_stores.kept_store(str(place), {}, read_only=False) is first
    place.rename(tmp_path / "old")
    Store.create(str(place)).close()
    write(options, bodies("c"))
    with Store.open(str(place), read_only=True) as store:
        assert texts(store) == ["c"]
        assert is_sound(store)
    (tmp_path / "old").rename(tmp_path / "older")
    with pytest.raises(NotFoundError):
        open_stores.kept_store(str(tmp_path / "old"), {}, read_only=True)


def test_a_failed_commit_does_not_leave_a_kept_handle(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = store.storage.uri
    write(options_of(store), bodies("a"))
    kept = open_stores.kept_store(uri, {}, read_only=False)
    job = Write(options_of(store), bodies().schema)
    messages = job.tasks([[bodies("a")]])
    monkeypatch.setattr(sink_commit, "_append", lambda *_: (_ for _ in ()).throw(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        job.commit(messages)
    assert open_stores.kept_store(uri, {}, read_only=False) is not kept


def test_ages_of_orphans_are_those_of_the_storage() -> None:
    clock = ManualClock()
    with Store.create(f"memory://sink-{next(_names)}", clock=clock) as store:
        storage = open_storage(store.storage.uri, clock=clock)
        log = store.log()
        for name in ("old", "new"):
            storage.create_if_absent(f"brokers/broker-0/data/{name}.arrow", [b"x"])
            clock.advance(20 * 3_600)
        assert collect(log) == 1
        assert row_files(store) == ["new.arrow"]


@pytest.mark.server
@pytest.mark.usefixtures("with_files")
def test_a_store_in_a_bucket(s3_uri: str, s3_options: dict[str, str]) -> None:
    place = f"{s3_uri}/sink-{next(_names)}"
    options = {f"storage.{name}": value for name, value in s3_options.items()}
    with Store.create(place, options=s3_options) as store:
        for batch in (0, 0, 1):
            write({"store": place, "topic": "t", **options}, bodies("a"), bodies("b"), query_id=QUERY, batch=batch)
        assert sorted(texts(store)) == ["a", "a", "b", "b"]
        assert len(row_files(store)) == 4
        assert is_sound(store)


def test_one_application_and_version_for_two_topics_writes_both(tmp_path: Path) -> None:
    """As with Delta, whose users write a batch to several tables under one name and number."""
    with Store.create(str(tmp_path)) as store:
        for topic in ("one", "two"):
            options = {"store": str(tmp_path), "topic": topic, "txnAppId": "a", "txnVersion": "7"}
            for _ in range(2):
                write(options, bodies(topic))
        for topic in ("one", "two"):
            for _ in range(2):
                write({"store": str(tmp_path), "topic": topic, "txnAppId": "s"}, bodies(f"{topic} s"), query_id="q")
        assert [row["body"] for row in stored(store, "one", "two")] == [b"one", b"two", b"one s", b"two s"]
