"""Dead letters are counted, read, and sent again: each once, whoever replays them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from group_store import again, memory_store
from push_steps import Steps, leaving

from rmq_spark import Admin, LitePullConsumer, Message, Producer, Store
from rmq_spark.client import dead_letters
from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError, NotFoundError


@pytest.fixture
def store() -> Iterator[Store]:
    """A store whose group `g` gave up 5 messages of topic `t`."""
    with memory_store(ManualClock(1_700_000_000_000), retention_ms=10**9) as made:
        made.create_topic("t", queues=2)
        for number in range(5):
            Producer(made).send(Message("t", str(number).encode(), keys=f"k{number}", sharding_key="same"))

        def fail(_: object) -> None:
            raise ValueError

        consumer = Steps(made, fail, consume_from="earliest", max_reconsume_times=0)
        with leaving(consumer):
            consumer.run()
        yield made


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [row["body"] for row in store.read(topic, columns=["body"]).to_pylist()]


def test_they_are_counted_and_read(store: Store) -> None:
    box = Admin(store).dead_letters
    (letters,) = box.groups()
    assert (letters.group, letters.topic, letters.messages, letters.left) == ("g", "%DLQ%g", 5, 5)
    assert letters.last_ms == store.clock.now_ms()
    assert [message.body for message in box.read("g")] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.body for message in box.read("g", limit=2)] == [b"3", b"4"]
    with pytest.raises(NotFoundError):
        box.read("other")


def test_they_go_to_the_topic_that_they_were_first_sent_to_as_if_never_delivered(store: Store) -> None:
    first = {row["msgId"]: row["queueId"] for row in store.read("t").to_pylist()}
    assert Admin(store).dead_letters.replay("g") == 5
    rows = store.read("t").to_pylist()[5:]
    assert {row["msgId"]: row["queueId"] for row in rows} == first, "the same ids, in the queue of the sharding key"
    assert [row["body"] for row in rows] == [b"0", b"1", b"2", b"3", b"4"]
    for row in rows:
        assert row["reconsumeTimes"] == 0
        assert {"RETRY_TOPIC", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"}.isdisjoint(dict(row["properties"]))


def test_each_is_replayed_once_and_a_replay_goes_on_where_the_last_one_ended(store: Store) -> None:
    box = Admin(store).dead_letters
    assert box.replay("g", limit=2) == 2
    assert box.of("g").left == 3
    with again(store) as other:
        assert Admin(other).dead_letters.replay("g") == 3
    assert box.replay("g") == 0
    assert sorted(bodies(store)) == sorted([b"0", b"1", b"2", b"3", b"4"] * 2)
    assert box.replay("g", again=True) == 5
    assert Admin(store).groups() == ["g"], "the engine's own offsets are no group of a user"


def test_a_rate_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(store.clock, "sleep", pauses.append)
    seen: list[tuple[int, int]] = []
    Admin(store).dead_letters.replay("g", rate=2, progress=lambda done, total: seen.append((done, total)))
    assert [pause for pause in pauses if pause] == [1.0, 1.0]
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_only_the_group_gets_them_through_its_retry_topic(store: Store) -> None:
    assert Admin(store).dead_letters.replay("g", to_group=True) == 5
    assert len(bodies(store)) == 5
    got: list[tuple[str, int]] = []
    consumer = Steps(store, lambda message: got.append((message.topic, message.reconsume_times)))
    with leaving(consumer):
        consumer.run()
    assert got == [("t", 0)] * 5


def test_a_topic_that_is_gone_is_an_error_that_says_what_to_do(store: Store) -> None:
    store.delete_topic("t")
    with pytest.raises(InvalidRequestError, match="replay to the group only"):
        Admin(store).dead_letters.replay("g")
    assert Admin(store).dead_letters.of("g").left == 5


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"limit": 0}])
def test_wrong_numbers_are_refused(store: Store, wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="over 0"):
        Admin(store).dead_letters.replay("g", **wrong)  # type: ignore[arg-type]


def test_a_replay_that_was_overtaken_sends_nothing_twice(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Admin(store).dead_letters
    real = dead_letters.read_queue

    def slow(*args: object, **options: object) -> object:
        monkeypatch.setattr(dead_letters, "read_queue", real)
        with again(store) as other:
            Admin(other).dead_letters.replay("g")
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(dead_letters, "read_queue", slow)
    with pytest.raises(Exception, match="has committed this queue"):
        box.replay("g")
    assert len(bodies(store)) == 10


def test_the_replayed_are_consumed(store: Store) -> None:
    Admin(store).dead_letters.replay("g")
    with LitePullConsumer(store, "g2", consume_from="earliest") as consumer:
        assert len(consumer.subscribe("t").poll(0)) == 10
