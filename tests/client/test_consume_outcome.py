"""What a listener may say beside yes and no: how far it came in a batch, and when the rest comes again (facts 5.6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from group_store import memory_store
from push_steps import Steps, leaving

from rmq_spark import Admin, ConsumeOutcome, ConsumeResult, Message, Producer, PushConsumer, Store
from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.message_queue import MessageQueue
from rmq_spark.rules.assignment import own_room, strategy_of
from rmq_spark.services.timer import set_delay_levels


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(1_700_000_000_000), retention_ms=10**9) as made:
        made.create_topic("t", queues=1)
        for body in (b"a", b"b", b"c"):
            Producer(made).send(Message("t", body))
        yield made


def consume(store: Store, outcome: object, **options: Any) -> list[list[bytes]]:
    seen: list[list[bytes]] = []

    def listen(argument: Any) -> Any:
        messages = argument if isinstance(argument, list) else [argument]
        seen.append([message.body for message in messages])
        return outcome

    consumer = Steps(store, listen, consume_from="earliest", **{"batch_size": 3, **options})
    with leaving(consumer):
        consumer.run()
    return seen


def rows(store: Store, topic: str) -> list[tuple[bytes, int]]:
    return [(row["body"], row["queueId"]) for row in store.read(topic).to_pylist()]


@pytest.mark.parametrize(("index", "failed"), [(-1, b"abc"), (0, b"bc"), (1, b"c"), (2, b""), (99, b""), (None, b"")])
def test_messages_behind_the_ack_index_fail(store: Store, index: int | None, failed: bytes) -> None:
    consume(store, ConsumeOutcome(ack_index=index))
    assert [body for body, _ in rows(store, "SCHEDULE_TOPIC_XXXX")] == [bytes([one]) for one in failed]


def test_a_failure_fails_the_whole_batch_whatever_the_index(store: Store) -> None:
    consume(store, ConsumeOutcome(result=ConsumeResult.FAILURE, ack_index=1))
    assert len(rows(store, "SCHEDULE_TOPIC_XXXX")) == 3


@pytest.mark.parametrize(("level", "queue"), [(0, 2), (1, 0), (5, 4)])
def test_the_listener_says_at_which_delay_level_they_come_again(store: Store, level: int, queue: int) -> None:
    consume(store, ConsumeOutcome(ack_index=1, delay_level=level))
    assert rows(store, "SCHEDULE_TOPIC_XXXX") == [(b"c", queue)]


def test_a_level_above_18_counts_if_the_store_has_so_many(store: Store) -> None:
    set_delay_levels(store, " ".join(["1s"] * 20))
    consume(store, ConsumeOutcome(ack_index=1, delay_level=21))
    assert rows(store, "SCHEDULE_TOPIC_XXXX") == [(b"c", 19)]


@pytest.mark.parametrize("options", [{}, {"pop": True}, {"orderly": True}])
def test_a_negative_level_is_the_dead_letter_topic_now(store: Store, options: dict[str, bool]) -> None:
    consume(store, ConsumeOutcome(ack_index=1, delay_level=-1), **options)
    assert rows(store, "%DLQ%g") == [(b"c", 0)]


def test_pop_acknowledges_the_first_part_and_holds_the_rest_as_long_as_the_level_says(store: Store) -> None:
    consume(store, ConsumeOutcome(ack_index=0, delay_level=2), pop=True)
    state = Admin(store).brokers.drained("broker-0")
    assert state.left == {"g": 2}


def test_an_orderly_listener_goes_on_behind_the_ack_index(store: Store) -> None:
    seen = consume(store, ConsumeOutcome(ack_index=0), orderly=True)
    assert seen[0] == [b"a", b"b", b"c"]
    assert Admin(store).offsets.committed("g")["t", "broker-0", 0] == 1


class TestRetryMaximum:
    """Rule 8: orderly consumers never give up by default, concurrent ones give up at 16."""

    def retry_max(self, store: Store, **options: Any) -> int:
        consumer = Steps(store, print, **options)
        with leaving(consumer):
            maximum: int = consumer.engine._retry_max  # type: ignore[attr-defined]
        return maximum

    def test_the_default_is_16_and_endless_in_order(self, store: Store) -> None:
        assert PushConsumer.__init__.__kwdefaults__["max_reconsume_times"] == 16
        assert self.retry_max(store) == self.retry_max(store, max_reconsume_times=-1) == 16
        assert self.retry_max(store, orderly=True) == 2**31 - 1

    def test_a_number_that_is_given_counts_also_if_it_is_16(self, store: Store) -> None:
        Admin(store).update_group("g", retry_max_times=5)
        assert self.retry_max(store) == 5
        assert self.retry_max(store, max_reconsume_times=16) == 16
        assert self.retry_max(store, orderly=True, max_reconsume_times=16) == 16


class TestStrategiesByName:
    QUEUES = tuple(MessageQueue("t", broker, queue) for broker in ("eu@a", "us@b") for queue in range(2))

    def test_machine_rooms(self) -> None:
        near = strategy_of("MACHINE_ROOM:eu")("m", self.QUEUES, ["m"])
        assert {queue.broker for queue in near} == {"eu@a"}

    @pytest.mark.parametrize("name", ["MACHINE_ROOM_NEARBY:eu", "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE:eu"])
    def test_the_nearby_room(self, name: str) -> None:
        assert own_room(name) == "eu"
        share = strategy_of(name)
        assert {queue.broker for queue in share("eu@1", self.QUEUES, ["eu@1", "us@2"])} == {"eu@a"}
        assert len(share("eu@1", self.QUEUES, ["eu@1"])) == 4

    @pytest.mark.parametrize("name", ["MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "MACHINE_ROOM_NEARBY-NO:eu", "NO"])
    def test_an_unknown_name_is_an_error_that_lists_the_known_ones(self, name: str) -> None:
        with pytest.raises(InvalidRequestError, match=r"no such strategy.*MACHINE_ROOM_NEARBY"):
            strategy_of(name)

    def test_a_consumer_in_a_room_has_it_in_its_id_and_gets_the_queues_of_its_room(self, store: Store) -> None:
        store.create_topic("rooms", queues=1, brokers=("eu@a", "us@b"))
        options: dict[str, Any] = {"subscriptions": {"rooms": {}}}
        eu = Steps(store, print, strategy="MACHINE_ROOM_NEARBY:eu", **options)
        us = Steps(store, print, strategy="MACHINE_ROOM_NEARBY:us", **options)
        with leaving(eu, us):
            eu.engine.share_again()
            eu.run()
            us.engine.share_again()
            us.run()
            assert eu.consumer.client_id.startswith("eu@")
            assert [each.broker for each in eu.engine.queues() if each.topic == "rooms"] == ["eu@a"]
            assert [each.broker for each in us.engine.queues() if each.topic == "rooms"] == ["us@b"]
