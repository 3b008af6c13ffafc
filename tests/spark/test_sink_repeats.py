"""A repeated batch is written once, and another batch under the same number is never taken for a repetition."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sink_tasks import Write, batch_of, bodies, row_files, stored, write

from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.core_folds import FINGERPRINTS_KEPT, SinkBatches
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.state import LogState, apps_of
from rmq_spark.log.undo import Journal
from rmq_spark.model.settings import LogSettings
from rmq_spark.spark import sink_commit, writer
from rmq_spark.spark.batch_content import BatchContent, SparkPlan, read_plan
from rmq_spark.spark.options import WriteOptions
from rmq_spark.spark.stream_offset import Position, StreamOffset

_names = itertools.count()
QUERY = "11111111-2222-3333-4444-555555555555"
CHANGED = "another batch is in the log under this number"


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.create(f"memory://repeats-{next(_names)}", settings=LogSettings(delete_grace_ms=0)) as made:
        yield made


def options_of(store: Store, **more: object) -> dict[str, str]:
    return {"store": store.storage.uri, "topic": "t", **{name: str(value) for name, value in more.items()}}


def texts(store: Store, *topics: str) -> list[str]:
    return sorted(row["body"].decode() for row in stored(store, *topics))


def plan_batch(checkpoint: Path, batch: int, end: object, planned_ms: int) -> None:
    """An entry of Spark's offset log."""
    (checkpoint / "offsets").mkdir(exist_ok=True)
    lines = ("v1", json.dumps({"batchTimestampMs": planned_ms}), json.dumps(end))
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))


def land_as_older_version(store: Store, app: str, batch: int, text: str) -> None:
    row = MessageBatch.of(topic="t", queue_id=0, msg_id="m" * 32, body=text.encode(), born_timestamp_ms=0)
    store.log().append(row, app=(app, batch))


# ------------------------------------------------------------ what the checkpoint says


def test_a_batch_that_spark_repeats_may_have_other_rows(store: Store, tmp_path: Path) -> None:
    """A join with a table that has changed since, say: whatever comes out, it is the batch that has landed."""
    options = options_of(store, checkpointLocation=tmp_path)
    plan_batch(tmp_path, 0, {"end": 5}, 1_000)
    write(options, bodies("a", "b"), query_id=QUERY)
    write(options, bodies("b"), query_id=QUERY)
    write(options | {"topic": "t"}, batch_of(body=["c"], topic=["u"]), query_id=QUERY)
    assert texts(store) == ["a", "b"]


def test_a_batch_that_was_planned_anew_with_another_end_is_refused(store: Store, tmp_path: Path) -> None:
    """An aggregation has as many rows, however many messages went into it."""
    options = options_of(store, checkpointLocation=tmp_path)
    plan_batch(tmp_path, 0, {"end": 5}, 1_000)
    write(options, bodies("sum 5"), query_id=QUERY)
    plan_batch(tmp_path, 0, {"end": 9}, 2_000)
    with pytest.raises(InvalidRequestError, match=f"{CHANGED}.*txnAppId.*changedBatch=skip"):
        write(options, bodies("sum 9"), query_id=QUERY)
    assert texts(store) == ["sum 5"]


def test_a_batch_that_was_planned_anew_with_the_same_end_and_rows_is_a_repetition(store: Store, tmp_path: Path) -> None:
    options = options_of(store, checkpointLocation=tmp_path.as_uri())
    plan_batch(tmp_path, 0, {"end": 5}, 1_000)
    write(options, bodies("a", "b"), query_id=QUERY)
    plan_batch(tmp_path, 0, {"end": 5}, 2_000)
    write(options, bodies("a", "b"), query_id=QUERY)
    assert texts(store) == ["a", "b"]
    with pytest.raises(InvalidRequestError, match=CHANGED):  # a file source's offset only counts its entries
        write(options, bodies("a", "b", "c"), query_id=QUERY)


def test_an_end_of_this_source_counts_the_messages_and_not_the_log(store: Store, tmp_path: Path) -> None:
    """The sink's own rows make the log longer, so that a batch planned anew ends further on with the same messages."""
    options = options_of(store, checkpointLocation=tmp_path)
    for planned, position in enumerate(([10, 7, 1], [20, 7, 2])):
        plan_batch(tmp_path, 0, StreamOffset({"b": Position(*position)}, {"topics": ["in"]}).to_json(), planned)
        write(options, bodies("a"), query_id=QUERY)
    plan_batch(tmp_path, 0, StreamOffset({"b": Position(20, 8, 2)}, {"topics": ["in"]}).to_json(), 2)
    with pytest.raises(InvalidRequestError, match=CHANGED):
        write(options, bodies("a"), query_id=QUERY)


def test_a_checkpoint_is_read_where_the_store_or_a_local_disk_is(tmp_path: Path) -> None:
    plan_batch(tmp_path, 3, {"end": 5}, 1_000)
    local = WriteOptions(store="s3://bucket/store", storage_options={"region": "x"}, checkpoint=str(tmp_path))
    found = read_plan(local, 3)
    assert found is not None
    hadoop = WriteOptions(store="s3://bucket/store", checkpoint=f"file:{tmp_path}")
    assert read_plan(hadoop, 3) == found
    assert read_plan(local, 4) is None
    for elsewhere in (None, "s3a://other/checkpoint", "hdfs://name/checkpoint"):
        assert read_plan(WriteOptions(store="s3://bucket/store", checkpoint=elsewhere), 3) is None


def test_a_content_comes_back_from_its_text() -> None:
    plan = SparkPlan(entry="0123456789abcdef", ends="fedcba9876543210")
    for content in (BatchContent.of(7, ["t", "a b"], plan), BatchContent.of(0, [], None)):
        assert BatchContent.from_text(content.to_text()) == content
    assert BatchContent.of(7, ["t", "u"], None) == BatchContent.of(7, ["u", "t"], None)


# ------------------------------------------------------------ without a checkpoint


@pytest.mark.parametrize("files", [False, True])
def test_a_batch_with_another_number_of_rows_is_refused_and_leaves_nothing(
    store: Store, files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if files:
        monkeypatch.setattr(writer, "INLINE_TASK_BYTES", -1)
    write(options_of(store), bodies("a"), query_id=QUERY)
    kept = row_files(store)
    job = Write(options_of(store), bodies().schema, QUERY)
    messages = job.tasks([[bodies("b")], [bodies("c")]])
    with pytest.raises(InvalidRequestError, match=CHANGED) as caught:
        job.commit(messages)
    assert caught.value.context == {"app": f"{QUERY} -> t", "batch": 0, "last": 0, "rows": 2, "landed_rows": 1}
    job.abort(messages)
    assert (texts(store), row_files(store)) == (["a"], kept)
    write(options_of(store, txnAppId="anew"), bodies("b", "c"), query_id=QUERY)
    assert texts(store) == ["a", "b", "c"], "the way out that the error names"


def test_a_changed_batch_is_left_out_when_told_so(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    write(options_of(store), bodies("a"), query_id=QUERY)
    with caplog.at_level(logging.WARNING):
        write(options_of(store, changedBatch="skip"), bodies("b", "c"), query_id=QUERY)
    assert f"left out, as changedBatch=skip says: {CHANGED}" in caplog.text
    assert texts(store) == ["a"]


def test_two_writes_of_one_version_with_topics_by_row_do_not_swallow_each_other(store: Store) -> None:
    """As in `foreachBatch`: without the option topic both have the same name."""
    options = {"store": store.storage.uri, "txnAppId": "app", "txnVersion": "7"}
    write(options, batch_of(body=["a"], topic=["one"]))
    write(options, batch_of(body=["a"], topic=["one"]))
    with pytest.raises(InvalidRequestError, match=CHANGED):
        write(options, batch_of(body=["b"], topic=["two"]))
    write(options | {"txnAppId": "other"}, batch_of(body=["b"], topic=["two"]))
    assert texts(store) == ["a", "b"]


def test_a_number_below_the_last_is_refused_unless_it_is_remembered(store: Store) -> None:
    for batch in range(FINGERPRINTS_KEPT + 2):
        write(options_of(store), bodies(f"{batch:02}"), query_id=QUERY, batch=batch)
    written = texts(store)
    write(options_of(store), bodies("02"), query_id=QUERY, batch=2)
    for forgotten in (0, 1):
        with pytest.raises(InvalidRequestError, match=rf"{CHANGED}.*last=11, rows=1, landed_rows='unknown'"):
            write(options_of(store), bodies("?"), query_id=QUERY, batch=forgotten)
    assert texts(store) == written


def test_a_number_that_was_left_out_is_not_taken_for_written(store: Store) -> None:
    """The job of the 30th failed, that of the 31st did not: the 30th is not written behind anybody's back."""
    write(options_of(store, txnAppId="nightly", txnVersion=31), bodies("31"))
    with pytest.raises(InvalidRequestError, match=CHANGED):
        write(options_of(store, txnAppId="nightly", txnVersion=30), bodies("30"))
    assert texts(store) == ["31"]


def test_a_query_id_counts_for_each_topic(store: Store) -> None:
    """A copied checkpoint has the query id of its original."""
    for batch in range(3):
        write(options_of(store), bodies(f"{batch}"), query_id=QUERY, batch=batch)
        write(options_of(store, topic="copy"), bodies(f"copy {batch}"), query_id=QUERY, batch=batch)
    assert (texts(store, "t"), texts(store, "copy")) == (["0", "1", "2"], ["copy 0", "copy 1", "copy 2"])


def test_somebody_who_was_faster_with_another_batch_is_noticed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("t", queues=1)
    real, rivals = sink_commit._ensure_topic, [bodies("rival", "rows")]

    def overtaken(*args: object) -> None:
        if rivals:
            write(options_of(store), rivals.pop(), query_id=QUERY)
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(sink_commit, "_ensure_topic", overtaken)
    with pytest.raises(InvalidRequestError, match=CHANGED):
        write(options_of(store), bodies("late"), query_id=QUERY)
    assert texts(store) == ["rival", "rows"]


# ------------------------------------------------------------ logs of older versions


@pytest.mark.parametrize("topic", ["t", None])
def test_the_last_batch_of_an_older_version_is_repeated_without_a_fingerprint(store: Store, topic: str | None) -> None:
    land_as_older_version(store, QUERY, 5, "old")
    options = {name: value for name, value in options_of(store).items() if name != "topic" or topic is not None}
    rows = batch_of(body=["again", "more"], topic=["t", "t"])
    write(options, rows, query_id=QUERY, batch=5)
    with pytest.raises(InvalidRequestError, match=CHANGED):
        write(options, rows, query_id=QUERY, batch=4)
    write(options, rows, query_id=QUERY, batch=6)
    assert texts(store) == ["again", "more", "old"]


def test_a_query_without_a_topic_does_not_stand_in_the_way_of_its_copy_with_one(store: Store) -> None:
    without = {"store": store.storage.uri}
    for batch in range(2):
        write(without, batch_of(body=[f"{batch}"], topic=["t"]), query_id=QUERY, batch=batch)
    write(options_of(store, topic="copy"), bodies("copy"), query_id=QUERY, batch=1)
    assert texts(store, "copy") == ["copy"]


@pytest.mark.parametrize("rolled", [False, True])
def test_fingerprints_survive_rolls_and_reopening(store: Store, rolled: bool) -> None:
    for batch in range(3):
        write(options_of(store), bodies(f"{batch}"), query_id=QUERY, batch=batch)
    if rolled:
        roll(store.log(), min_commits=1)
    with Store.open(store.storage.uri) as other:
        kept = other.log().refresh().state.fold(SinkBatches)
        assert [batch for batch, _ in kept.fingerprints[f"{QUERY} -> t"]] == [0, 1, 2]
        again = LogState.load(other.log().refresh().state.dump())[0].fold(SinkBatches)
        assert (again.last, again.fingerprints) == (kept.last, kept.fingerprints)


@pytest.mark.parametrize("version", [0, 1])
def test_a_dump_of_an_older_version_is_read_and_has_no_fingerprints(version: int) -> None:
    batches = SinkBatches(Journal())
    batches.load({"app": 7}, version)
    assert (batches.last, batches.fingerprints) == ({"app": 7}, {})
    batches.land("app", 8, "print")
    again = SinkBatches(Journal())
    again.load(json.loads(json.dumps(batches.dump())), SinkBatches.version)
    assert (again.last, again.fingerprints) == ({"app": 8}, {"app": ((8, "print"),)})


def test_a_commit_names_its_batch_with_the_fingerprint_and_one_of_format_version_1_without() -> None:
    assert apps_of({"apps": [["query", 3, "print"], ["other", 4]]}) == [["query", 3, "print"], ["other", 4]]
    assert apps_of({"app": ["query", 3]}) == [["query", 3]]
    assert apps_of({}) == []


def test_a_commit_that_did_not_land_leaves_no_fingerprint() -> None:
    state = LogState()
    batches = state.fold(SinkBatches)
    batches.land("app", 1, "one")
    state.open_trial(0)
    state.admit(None, ("app", 2, "two"))
    assert dict(batches.fingerprints["app"]) == {1: "one", 2: "two"}
    state.undo_trial()
    assert (batches.last, batches.fingerprints) == ({"app": 1}, {"app": ((1, "one"),)})


def test_no_more_fingerprints_are_kept_than_a_restart_can_ask_for() -> None:
    batches = SinkBatches(Journal())
    for number in range(100):
        batches.land("app", number, f"{number}")
    assert [batch for batch, _ in batches.fingerprints["app"]] == list(range(100 - FINGERPRINTS_KEPT, 100))


def test_a_batch_write_without_a_name_is_neither_numbered_nor_compared(store: Store) -> None:
    for _ in range(2):
        write(options_of(store), bodies("a"))
    assert texts(store) == ["a", "a"]
    assert store.log().refresh().state.fold(SinkBatches).last == {}
