"""Answers equal a brute-force look at every message, with tables absent, half built and complete."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_messages import TOPICS, Sample, Sent

from rmq_spark.client.compression import compress
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message_id import offset_id
from rmq_spark.query.messages import LIMIT, Answer, MessageQuery
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.tables import data_files, engine, kernel
from rmq_spark.tables.delta_actions import describe
from rmq_spark.tables.delta_log import DeltaLog
from rmq_spark.tables.schemas import TABLES

BUILDS = ("absent", "half", "complete")


def build(sample: Sample, how: str) -> None:
    if how == "half":
        start, end = sample.bounds()
        engine.reput(sample.store, end=(start + end) // 2, range_messages=100)
    elif how == "complete":
        engine.reput(sample.store, range_messages=150)


def places(answer: Answer) -> list[tuple[str, int, str, bytes]]:
    table = answer.messages
    return list(
        zip(*(table[name].to_pylist() for name in ("brokerName", "commitOffset", "msgId", "body")), strict=True)
    )


def expected(messages: Iterable[Sent], limit: int) -> list[tuple[str, int, str, bytes]]:
    return [(one.broker, one.commit_offset, one.msg_id, one.body) for one in messages][:limit]


def check(
    sample: Sample, query: MessageQuery, draw: random.Random, count: int, brokers: tuple[str, ...] = ("broker-0",)
) -> None:
    """Ask questions of all kinds and compare with every message that was ever sent."""
    seen = sample.visible(brokers)
    if not seen:
        return
    for _ in range(count):
        one = draw.choice(sample.sent)
        topic = one.topic if draw.random() < 0.9 else draw.choice(TOPICS)
        limit = draw.choice((LIMIT, LIMIT, 1, 3, 1000))
        low, high = (draw.choice(sample.sent).store_ms + draw.choice((-1, 0, 1)) for _ in range(2))
        window = draw.choice(({}, {}, {"from_ms": low}, {"to_ms": high}, {"from_ms": low, "to_ms": high}))
        inside = [m for m in seen if window.get("from_ms", 0) <= m.store_ms < window.get("to_ms", 1 << 60)]
        if all(other.topic != topic for other in seen):
            with pytest.raises(NotFoundError):
                query.by_key(topic, "k-1")
            continue
        key = draw.choice([*one.single_keys, "k-1", "x", "no-such-key"])
        wanted = [m for m in inside if m.topic == topic and key in m.single_keys and m.kind != 0xC]
        assert places(query.by_key(topic, key, limit=limit, **window)) == expected(wanted, limit), (topic, key, window)
        in_topic = draw.choice((topic, None))
        wanted = [m for m in seen if in_topic in (None, m.topic) and m.msg_id == one.msg_id and m.kind != 0xC]
        assert places(query.by_id(one.msg_id, topic=in_topic, limit=limit)) == expected(wanted, limit)
        wanted = [m for m in inside if m.topic == topic and m.kind in (0, 8)]
        assert places(query.by_time(topic, **window, limit=limit)) == expected(wanted, limit), (topic, window)
        first = one.queue_offset - draw.randrange(4)
        last = one.queue_offset + draw.randrange(1, 60)
        wanted = [
            m
            for m in seen
            if (m.broker, m.topic, m.queue) == (one.broker, topic, one.queue)
            and first <= m.queue_offset < last
            and m.kind in (0, 8)
        ]
        wanted.sort(key=lambda m: -m.queue_offset)
        found = query.by_queue(topic, one.queue, first, last, broker=one.broker, limit=limit)
        assert places(found) == expected(wanted, limit)


@pytest.mark.parametrize("how", BUILDS)
@pytest.mark.parametrize("seed", range(2))
def test_answers_equal_a_look_at_every_message(seed: int, how: str) -> None:
    draw = random.Random(seed)
    sample = Sample.new(seed).grow(30)
    query = MessageQuery(sample.store)  # one that lives through all of it
    build(sample, how)
    check(sample, query, draw, 6)
    sample.grow(10)
    check(sample, query, draw, 6)
    sample.roll()
    check(sample, query, draw, 6)
    sample.grow(20)
    sample.delete_topic("orders")
    sample.grow(3)
    check(sample, query, draw, 6)
    sample.roll()
    assert sample.expire() > 0
    check(sample, query, draw, 6)
    check(sample, MessageQuery(sample.store), draw, 6)
    engine.reput(sample.store)
    check(sample, query, draw, 6)


def test_several_brokers_are_asked() -> None:
    brokers = ("broker-0", "broker-1")
    sample = Sample.new(4)
    for topic in ("orders", "payments"):
        sample.store.create_topic(topic, brokers=brokers)
    sample.grow(40, brokers)
    query = MessageQuery(sample.store)
    check(sample, query, random.Random(1), 20, brokers)
    engine.reput(sample.store, brokers=["broker-1"])
    check(sample, query, random.Random(2), 20, brokers)
    engine.reput(sample.store)
    check(sample, query, random.Random(3), 20, brokers)
    one = next(one for one in sample.visible(brokers) if one.topic == "orders" and one.single_keys and one.kind == 0)
    other = "broker-0" if one.broker == "broker-1" else "broker-1"
    assert places(query.by_id(one.msg_id, broker=other)) == []
    assert places(query.by_id(one.msg_id, broker=one.broker)) == expected([one], 1)


def test_tables_may_vanish_and_come_back_under_an_open_query() -> None:
    sample = Sample.new(5).grow(30)
    query = MessageQuery(sample.store)
    draw = random.Random(5)
    for _ in range(3):
        engine.reput(sample.store, range_messages=60)
        check(sample, query, draw, 6)
        engine.drop(sample.store)
        check(sample, query, draw, 6)
        sample.grow(3)
    engine.rebuild(sample.store)
    check(sample, query, draw, 6)


def test_asking_while_messages_are_appended_and_tables_built() -> None:
    """Everything sent before the question is in the answer, and nothing that was not sent before it ended."""
    sample = Sample.new(6).grow(10)
    stop = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set() and len(sample.sent) < 4000:
                sample.grow(2)
                if sample.draw.random() < 0.2:
                    engine.reput(sample.store, range_messages=100)
                if sample.draw.random() < 0.05:
                    sample.roll()
        except BaseException as error:  # shown below
            failed.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    query = MessageQuery(sample.store)
    draw = random.Random(6)
    try:
        for _ in range(60):
            key = f"k-{draw.randrange(40)}"
            before = {
                one.commit_offset for one in list(sample.sent) if one.topic == "orders" and key in one.single_keys
            }
            found = [place[1] for place in places(query.by_key("orders", key, limit=10_000))]
            after = {one.commit_offset: one for one in list(sample.sent)}
            wanted = {offset for offset in before if after[offset].kind != 0xC}
            assert wanted <= set(found)
            assert found == sorted(set(found), reverse=True)
            for offset in set(found) & after.keys():
                assert after[offset].topic == "orders" and key in after[offset].single_keys
    finally:
        stop.set()
        worker.join()
    assert not failed


def test_offset_ids_name_a_place() -> None:
    sample = Sample.new(7).grow(20)
    query = MessageQuery(sample.store)
    for rolled in (False, True):
        if rolled:
            sample.roll()
        for one in sample.sent[::17]:
            assert places(query.by_id(offset_id("10.0.0.1", 10911, one.commit_offset))) == expected([one], 1)
            other = "payments" if one.topic == "orders" else "orders"
            assert places(query.by_id(offset_id("10.0.0.1", 1, one.commit_offset), topic=other)) == []
            assert places(query.by_id(f"FF{one.commit_offset:030X}")) == [], "a port of 0 is none"
    assert places(query.by_id(offset_id("10.0.0.1", 10911, 10**9))) == []


def test_state_messages_of_the_engine_are_not_found_by_place_or_id() -> None:
    sample = Sample.new(8).grow(30)
    broker, offset, _, _ = sample.offsets[0]
    assert broker == "broker-0"
    assert places(MessageQuery(sample.store).by_id(offset_id("10.0.0.1", 10911, offset))) == []


@pytest.mark.parametrize("how", BUILDS)
def test_state_messages_are_found_in_their_own_topic(how: str) -> None:
    """No table has rows of them, so tables must not change the answer."""
    sample = Sample.new(8).grow(30)
    build(sample, how)
    topic, offset = ConsumerOffsets.topics[0], sample.offsets[0][1]
    query = MessageQuery(sample.store)
    [(_, place, msg_id, body)] = places(query.by_id(offset_id("10.0.0.1", 10911, offset), topic=topic))
    assert place == offset
    assert places(query.by_id(msg_id, topic=topic)) == [("broker-0", offset, msg_id, body)]
    assert topic not in query.by_id(msg_id).messages["topic"].to_pylist(), "only where it is asked for"
    assert places(query.by_key(topic, "k-1")) == []


def test_a_broker_that_does_not_hold_the_topic_has_no_messages() -> None:
    sample = Sample.new(18)
    sample.store.create_topic("orders", queues=1, brokers=["broker-0"])
    sample.store.create_topic("payments", queues=1, brokers=["broker-1"])
    sample.grow(10)
    query = MessageQuery(sample.store)
    assert places(query.by_queue("orders", 0, 0, 100, broker="broker-1")) == []
    assert places(query.by_key("orders", "k-1", broker="broker-1")) == []
    assert places(query.by_time("orders", broker="broker-1")) == []


@pytest.mark.parametrize("how", BUILDS)
def test_messages_without_flags_are_found(how: str) -> None:
    sample = Sample.new(19)
    table = pa.table(
        {
            "topic": ["orders"],
            "queueId": pa.array([0], pa.int32()),
            "msgId": ["A"],
            "keys": ["k"],
            "body": pa.array([b"x"], pa.binary()),
            "bornTimestamp": pa.array([0], pa.timestamp("ms", tz="UTC")),
            "sysFlag": pa.nulls(1, pa.int32()),
        }
    )
    sample.store.log().append(MessageBatch.from_arrow(table))
    build(sample, how)
    query = MessageQuery(sample.store)
    for answer in (query.by_id("A"), query.by_key("orders", "k"), query.by_queue("orders", 0, 0, 1)):
        assert places(answer) == [("broker-0", 0, "A", b"x")]


def test_bodies_are_plain_again() -> None:
    sample = Sample.new(9)
    text = b"compress me " * 1000
    body, flag = compress(text, 100)
    batch = MessageBatch.of(
        topic="orders", queue_id=0, msg_id="A", body=body, born_timestamp_ms=0, keys="k", sys_flag=flag
    )
    sample.store.log().append(batch)
    assert MessageQuery(sample.store).by_key("orders", "k").messages["body"].to_pylist() == [text]


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda query: query.by_key("orders", "a b"), "has no space"),
        (lambda query: query.by_key("orders", ""), "not empty"),
        (lambda query: query.by_key("or ders", "a"), "illegal character"),
        (lambda query: query.by_key("orders", "a", limit=0), "at least 1"),
        (lambda query: query.by_key("orders", "a", limit=1 << 63), "at most"),
        (lambda query: query.by_key("orders", "a\udcff"), "UTF-8"),
        (lambda query: query.by_id("\ud800"), "UTF-8"),
        (lambda query: query.by_id("A", limit=1 << 63), "at most"),
        (lambda query: query.by_id(""), "not empty"),
        (lambda query: query.by_time("orders", limit=-1), "at least 1"),
    ],
)
def test_bad_questions(ask: object, problem: str) -> None:
    sample = Sample.new(10).grow(5)
    with pytest.raises(InvalidRequestError, match=problem):
        ask(MessageQuery(sample.store))  # type: ignore[operator]


def test_unknown_topics_and_brokers() -> None:
    query = MessageQuery(Sample.new(11).grow(5).store)
    with pytest.raises(NotFoundError, match="no such topic"):
        query.by_key("nope", "a")
    with pytest.raises(NotFoundError, match="no such broker"):
        query.by_id("A", broker="nope")


# ------------------------------------------------------------ files of the index


def replace_index(sample: Sample, **layout: object) -> None:
    """Write every file of the index anew, as another engine would."""
    spec, storage = TABLES["index"], sample.store.storage
    delta = DeltaLog(storage, spec)
    snapshot = delta.refresh()
    assert snapshot is not None
    actions = []
    for file in list(snapshot.files.values()):
        rows = data_files.read(storage, spec, file)
        order = list(range(rows.num_rows))
        random.Random(1).shuffle(order)
        rows = rows.take(pa.array(order))
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, row_group_size=50, **layout)
        path = f"part-00000-{sample.clock.token()}.snappy.parquet"
        storage.create_if_absent(f"{spec.root}/{path}", [sink.getvalue()])
        added = describe(path, sink.getvalue().size, 0, rows, spec)
        actions += [file.remove(data_change=False, now_ms=0), added.add(data_change=False)]
    delta.commit(actions, "OPTIMIZE", 0, sample.clock.token())


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"use_dictionary": False, "compression": "none"},
        {"use_dictionary": False, "compression": "none", "data_page_version": "2.0"},
        {"use_dictionary": False, "compression": "none", "data_page_size": 40, "write_batch_size": 10},
        {"use_dictionary": False, "compression": "none", "write_statistics": False},
    ],
    ids=["snappy", "plain", "pages of version 2", "many pages", "no statistics"],
)
def test_an_index_that_another_engine_wrote_gives_the_same_answers(layout: dict[str, object]) -> None:
    sample = Sample.new(12).grow(25)
    engine.reput(sample.store, range_messages=200)
    replace_index(sample, **layout)
    check(sample, MessageQuery(sample.store), random.Random(12), 25)


def compact_index(sample: Sample) -> None:
    """Put the rows of all brokers into one file, in no order, as another engine's compaction does."""
    spec, storage = TABLES["index"], sample.store.storage
    delta = DeltaLog(storage, spec)
    snapshot = delta.refresh()
    assert snapshot is not None
    files = list(snapshot.files.values())
    rows = pa.concat_tables([data_files.read(storage, spec, file) for file in files])
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=500)
    path = f"part-00001-{sample.clock.token()}.snappy.parquet"
    storage.create_if_absent(f"{spec.root}/{path}", [sink.getvalue()])
    added = describe(path, sink.getvalue().size, 0, rows, spec)
    assert added.broker is None
    actions = [file.remove(data_change=False, now_ms=0) for file in files]
    delta.commit([*actions, added.add(data_change=False)], "OPTIMIZE", 0, sample.clock.token())


def test_a_file_of_several_brokers_gives_each_its_own_messages() -> None:
    brokers = ("broker-0", "broker-1")
    sample = Sample.new(16)
    for topic in ("orders", "payments"):
        sample.store.create_topic(topic, brokers=brokers)
    sample.grow(40, brokers)
    for broker in brokers:
        sample.roll(broker)  # in a segment, a place of the other broker's log is damage
    engine.reput(sample.store)
    compact_index(sample)
    query = MessageQuery(sample.store)
    check(sample, query, random.Random(1), 25, brokers)
    sample.grow(10, brokers)
    engine.reput(sample.store)
    check(sample, query, random.Random(2), 25, brokers)


def test_brokers_with_long_names_are_told_apart() -> None:
    brokers = ("b" * 126 + "1", "b" * 126 + "2")
    sample = Sample.new(17)
    sample.store.create_topic("orders", brokers=brokers)
    sample.grow(30, brokers)
    engine.reput(sample.store)
    snapshot = DeltaLog(sample.store.storage, TABLES["index"]).refresh()
    assert snapshot is not None
    assert {file.broker for file in snapshot.files.values()} == set(brokers)
    keys = {key for one in sample.sent if one.topic == "orders" for key in one.single_keys}
    query = MessageQuery(sample.store)
    for key in sorted(keys):
        wanted = [m for m in sample.visible(brokers) if m.topic == "orders" and key in m.single_keys and m.kind != 0xC]
        assert places(query.by_key("orders", key)) == expected(wanted, LIMIT)


def test_a_key_is_found_in_one_row_group_without_reading_the_others() -> None:
    sample = Sample.new(13)
    rows = 40_000
    table = pa.table(
        {
            "topic": pa.repeat("orders", rows),
            "queueId": pa.array([row % 4 for row in range(rows)], pa.int32()),
            "msgId": [f"{row:032X}" for row in range(rows)],
            "keys": [f"key-{row}" for row in range(rows)],
            "body": pa.array([b"0123456789" * 10] * rows, pa.binary()),
            "bornTimestamp": pa.array([0] * rows, pa.timestamp("ms", tz="UTC")),
        }
    )
    sample.store.log().append(MessageBatch.from_arrow(table))
    sample.roll()
    engine.reput(sample.store)
    query = MessageQuery(sample.store)
    query.by_key("orders", "key-1")  # reads footers and metadata once
    answer = query.by_key("orders", "key-31234")
    assert answer.messages["msgId"].to_pylist() == [f"{31234:032X}"]
    assert (answer.stats.index.files, answer.stats.index.row_groups, answer.stats.fetched) == (1, 1, 1)
    assert answer.stats.scan.rows_read == 0
    assert answer.stats.bytes_read < 200_000


def test_keys_of_one_hash_are_told_apart() -> None:
    """Java's hash is the same for "Aa" and "BB", and for any mixture of them."""
    sample = Sample.new(14)
    keys = ["AaAa", "AaBB", "BBAa", "BBBB"]
    for number, key in enumerate(keys):
        batch = MessageBatch.of(
            topic="orders", queue_id=number, msg_id=f"M{number}", body=b"x", born_timestamp_ms=0, keys=key
        )
        sample.store.log().append(batch)
    assert len({kernel.key_hash("orders", key) for key in keys}) == 1
    engine.reput(sample.store)
    query = MessageQuery(sample.store)
    for number, key in enumerate(keys):
        assert query.by_key("orders", key).messages["msgId"].to_pylist() == [f"M{number}"]
        assert query.by_key("orders", key, limit=1).messages["msgId"].to_pylist() == [f"M{number}"]
    assert query.by_key("orders", "BBBBB").messages.num_rows == 0


def test_a_damaged_index_is_told_of_and_changes_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    sample = Sample.new(15).grow(10)
    engine.reput(sample.store)
    storage = sample.store.storage
    [name] = [info.name for info in storage.list("tables/index") if info.name.endswith(".parquet")]
    whole = storage.read(f"tables/index/{name}")
    key = next(key for one in sample.visible() for key in one.single_keys if one.topic == "orders")
    right = places(MessageQuery(sample.store).by_key("orders", key))
    assert right
    for damaged in (b"", whole[:-10], whole[:-4] + b"PAR2", b"\0" * len(whole)):
        storage.delete(f"tables/index/{name}")
        storage.create_if_absent(f"tables/index/{name}", [damaged])
        caplog.clear()
        assert places(MessageQuery(sample.store).by_key("orders", key)) == right
        assert "rmq tables drop" in caplog.text
    storage.delete(f"tables/index/{name}")
    caplog.clear()
    assert places(MessageQuery(sample.store).by_key("orders", key)) == right
    assert "rmq tables drop" in caplog.text


def test_answers_while_somebody_deletes_the_tables_file_by_file() -> None:
    sample = Sample.new(21).grow(12)
    engine.reput(sample.store, range_messages=40)
    storage = sample.store.storage
    one = next(one for one in sample.visible() if one.single_keys and one.topic == "orders")
    kept = MessageQuery(sample.store)
    right = places(kept.by_key("orders", one.single_keys[0]))
    assert right
    files = [f"tables/index/{info.name}" for info in storage.list("tables/index") if info.name.endswith(".parquet")]
    files += [f"tables/index/_delta_log/{info.name}" for info in storage.list("tables/index/_delta_log")]
    random.Random(5).shuffle(files)
    for path in files:
        storage.delete(path)
        for query in (kept, MessageQuery(sample.store)):
            assert places(query.by_key("orders", one.single_keys[0])) == right
