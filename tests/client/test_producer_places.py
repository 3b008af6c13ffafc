"""A producer puts messages where the rules say: delayed ones aside, priorities in their queues, keys by their hash."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from rmq_spark import Message, Producer, Store
from rmq_spark.client.compression import decompress
from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import scan
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model import limits
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import delay, routing

NOW = 1_700_000_000_000
NUMBERS = count()


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.create(f"memory://places-{next(NUMBERS)}", clock=ManualClock(NOW)) as made:
        made.create_topic("t", queues=4)
        yield made


def rows(store: Store) -> list[dict[str, object]]:
    log = store.log()
    query = scan.Query()
    planned = log.look(lambda view: scan.plan(view, query))
    return [row for batch in scan.run(log, planned) for row in decompress(batch).to_pylist()]


def places(store: Store) -> list[tuple[object, object, dict[str, str]]]:
    return [(row["topic"], row["queueId"], dict(row["properties"])) for row in rows(store)]  # type: ignore[call-overload]


def test_a_delayed_message_is_parked_and_has_no_offset_yet(store: Store) -> None:
    sent = Producer(store).send(Message("t", b"x", delay_level=3, queue_id=2))
    assert (sent.topic, sent.queue_id, sent.queue_offset) == ("t", 2, None)
    assert sent.commit_offset is not None
    assert places(store) == [("SCHEDULE_TOPIC_XXXX", 2, {"REAL_TOPIC": "t", "REAL_QID": "2", "DELAY": "3"})]


def test_a_delivery_time_is_kept_to_the_millisecond(store: Store) -> None:
    Producer(store).send(Message("t", b"x", delay=0.25, queue_id=1))
    ((topic, queue, properties),) = places(store)
    assert (topic, queue) == ("rmq_sys_wheel_timer", 0)
    assert properties["TIMER_OUT_MS"] == properties["TIMER_DELIVER_MS"] == str(NOW + 250)


def test_rule_14_a_time_that_has_passed_is_delivered_now(store: Store) -> None:
    sent = Producer(store).send(Message("t", b"x", deliver_at=NOW, queue_id=1))
    assert sent.queue_offset == 0
    assert places(store) == [("t", 1, {"TIMER_DELIVER_MS": str(NOW)})]


def test_rule_14_too_far_ahead_is_an_error_when_there_is_a_limit(store: Store) -> None:
    far = Message("t", b"x", deliver_at=NOW + delay.ROCKETMQ_DELAY_MAX_MS + 1)
    limited = Producer(store, delays=delay.DelaySettings(delay_max_ms=delay.ROCKETMQ_DELAY_MAX_MS))
    with pytest.raises(InvalidRequestError, match="too far ahead"):
        limited.send(far)
    assert rows(store) == []
    assert Producer(store).send(far).queue_offset is None


def test_rule_38_delays_in_a_batch_count_one_by_one(store: Store) -> None:
    batch = [Message("t", b"a", queue_id=0), Message("t", b"b", queue_id=0, delay=1), Message("t", b"c", queue_id=0)]
    assert [sent.queue_offset for sent in Producer(store).send_batch(batch)] == [0, None, 1]


def test_a_priority_is_a_queue_of_a_priority_topic(store: Store) -> None:
    store.create_topic("p", queues=4, message_type="PRIORITY")
    producer = Producer(store)
    got = [producer.send(Message("p", b"x", priority=priority)).queue_id for priority in (0, 3, 2, 99)]
    assert got == [0, 3, 2, 3]
    assert {properties["_SYS_MSG_PRIORITY_"] for _, _, properties in places(store)} == {"0", "3", "2", "99"}


def test_rule_23_equal_keys_share_the_queue_that_java_would_choose(store: Store) -> None:
    queues = store.topic("t").message_queues()
    for key in ("a", "b", "customer-1"):
        sent = Producer(store).send(Message("t", b"x", sharding_key=key))
        assert (sent.broker, sent.queue_id) == routing.queue_for_key(key, queues)


def test_a_batch_stays_on_one_broker(store: Store) -> None:
    store.create_topic("wide", queues=1, brokers=("a", "b"))
    producer = Producer(store)
    for _ in range(4):
        assert len({sent.broker for sent in producer.send_batch([Message("wide", b"x")] * 3)}) == 1


def test_a_copy_may_have_more_properties_than_its_sender_gave() -> None:
    full = [("p", "x" * (limits.PROPERTIES_BYTES_MAX - 3))]
    row = MessageRow("t", 0, "id", None, None, b"x", 0, 0, 0, None, 0, full)
    parked = delay.park(row, delay.Delay(level=1), 0)
    assert MessageBatch.from_rows([parked]).num_rows == 1
    more = row._replace(properties=[*full, ("q", "x" * limits.ENGINE_PROPERTIES_BYTES_MAX)])
    with pytest.raises(InvalidRequestError, match="32767"):
        MessageBatch.from_rows([more])
