"""A group's retry topic is consumed on every broker that has it, whatever is subscribed now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from group_store import memory_store
from push_steps import RetryTimer, Steps, advance, leaving

from rmq_spark import ConsumeResult, Message, Producer, Store, UnavailableError
from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.rules import system_topics


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(1_700_000_000_000), retention_ms=10**9) as made:
        made.create_topic("t", queues=1, brokers=("a",))
        made.create_topic("u", queues=1, brokers=("b",))
        made.create_topic("v", queues=1, brokers=("c",))
        yield made


def fail_once(store: Store) -> None:
    """Let a message of `u` fail, by a consumer that is closed after that."""
    Producer(store).send(Message("u", b"again"))
    failing = Steps(
        store, lambda message: ConsumeResult.FAILURE, subscriptions={"u": {}}, consume_from="earliest", batch_size=1
    )
    with leaving(failing):
        failing.run()


def deliver_retries(store: Store) -> None:
    advance(store, 10)
    assert RetryTimer(store).run() == 1


def retry_brokers(consumer: Steps) -> list[str]:
    return sorted(queue.broker for queue in consumer.engine.queues() if system_topics.is_retry(queue.topic))


def test_what_failed_on_a_broker_without_subscribed_topics_comes_again(store: Store) -> None:
    fail_once(store)
    deliver_retries(store)
    seen: list[bytes] = []
    consumer = Steps(store, lambda message: seen.append(message.body), consume_from="earliest")
    with leaving(consumer):
        consumer.run()
        assert retry_brokers(consumer) == ["a", "b"], "c never had a retry of this group"
    assert seen == [b"again"]


def test_it_is_found_by_a_consumer_that_runs(store: Store) -> None:
    fail_once(store)
    seen: list[bytes] = []
    consumer = Steps(store, lambda message: seen.append(message.body), consume_from="earliest")
    with leaving(consumer):
        consumer.run()
        assert retry_brokers(consumer) == ["a"]
        deliver_retries(store)
        advance(store, 20)
        consumer.run()
    assert seen == [b"again"]


def test_a_broker_that_cannot_be_read_holds_up_no_subscribed_topic(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Producer(store).send(Message("t", b"fine"))
    opened = Store.log

    def log(self: Store, broker: str = "broker-0", *folds: Any) -> CommitLog:
        if broker == "b":
            raise UnavailableError("gone")
        return opened(self, broker, *folds)

    monkeypatch.setattr(Store, "log", log)
    seen: list[bytes] = []
    consumer = Steps(store, lambda message: seen.append(message.body), consume_from="earliest")
    with leaving(consumer):
        consumer.run()
    assert seen == [b"fine"]
    assert "retries on a broker" in caplog.text
    assert "broker='b'" in caplog.text
