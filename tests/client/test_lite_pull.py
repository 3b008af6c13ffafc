"""Lite pull consumers: polling, positions, sharing, and consume-transform-produce as one commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from group_store import again, memory_store
from push_steps import advance, committed

from rmq_spark import (
    Admin,
    ClosedError,
    InvalidRequestError,
    LitePullConsumer,
    Message,
    MessageQueue,
    NotFoundError,
    PreconditionFailedError,
    Producer,
    Store,
)
from rmq_spark.clock import ManualClock
from rmq_spark.log import schema

Q = [MessageQueue("t", "broker-0", queue) for queue in range(2)]


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(), retention_ms=86_400_000) as made:
        made.create_topic("t", queues=2)
        made.create_topic("out", queues=1)
        yield made


def send(store: Store, *bodies: str, queue: int = 0, topic: str = "t") -> None:
    for body in bodies:
        Producer(store).send(Message(topic, body.encode(), queue_id=queue, tags=body))


def bodies(consumer: LitePullConsumer, **options: int) -> list[str]:
    return [message.body.decode() for message in consumer.poll(0, **options)]


def sleep_through_lease(consumer: LitePullConsumer, store: Store) -> None:
    """Its thread is stopped with its process, for longer than it takes to expire as a member."""
    consumer._ended.set()
    consumer._thread.join()  # type: ignore[union-attr]
    consumer._ended.clear()
    advance(store, 121)


def test_poll_returns_messages_in_order_and_then_none(store: Store) -> None:
    with LitePullConsumer(store, "g").subscribe("t") as consumer:
        send(store, "a", "b", "c")
        assert bodies(consumer, max_messages=2) == ["a", "b"]
        assert bodies(consumer) == ["c"]
        assert bodies(consumer) == []


def test_poll_table_has_the_columns_of_read(store: Store) -> None:
    Producer(store, compress_over_bytes=1).send(Message("t", b"body" * 100, queue_id=0))
    send(store, "b", queue=1)
    with LitePullConsumer(store, "g").subscribe("t") as consumer:
        table = consumer.poll_table(0)
        assert table.schema == schema.MESSAGE
        assert set(table["body"].to_pylist()) == {b"body" * 100, b"b"}
        assert table["sysFlag"].to_pylist() == [0, 0]
        assert consumer.poll_table(0).num_rows == 0


def test_only_what_is_subscribed_is_returned(store: Store) -> None:
    send(store, "a", "b", "c")
    with LitePullConsumer(store, "g").subscribe("t", tags="b || c") as consumer:
        assert bodies(consumer) == ["b", "c"]
        assert consumer.position(Q[0]) == 3


def test_consume_from_counts_for_a_new_group(store: Store) -> None:
    send(store, "old")
    advance(store, 7_200)
    with LitePullConsumer(store, "late").subscribe("t") as late:
        assert bodies(late) == []
    with LitePullConsumer(store, "early", consume_from="earliest").subscribe("t") as early:
        assert bodies(early) == ["old"]


def test_a_poll_commits_what_earlier_polls_returned_every_five_seconds(store: Store) -> None:
    consumer = LitePullConsumer(store, "g").subscribe("t")
    send(store, "a", "b")
    assert bodies(consumer, max_messages=1) == ["a"]
    advance(store, 5)
    assert committed(store)[0] == 0
    assert bodies(consumer) == ["b"]
    assert committed(store)[0] == 1
    consumer.close()
    assert committed(store)[0] == 2


def test_without_auto_commit_only_commit_commits(store: Store) -> None:
    consumer = LitePullConsumer(store, "g", auto_commit=False).subscribe("t")
    send(store, "a", "b")
    bodies(consumer, max_messages=1)
    consumer.commit()
    bodies(consumer)
    consumer.close()
    assert committed(store)[0] == 1
    with LitePullConsumer(store, "g").subscribe("t") as other:
        assert bodies(other) == ["b"]


def test_seek_pause_and_resume(store: Store) -> None:
    send(store, "a", "b")
    send(store, "x", queue=1)
    with LitePullConsumer(store, "g").subscribe("t") as consumer:
        assert sorted(bodies(consumer)) == ["a", "b", "x"]
        consumer.seek(Q[0], 1)
        assert bodies(consumer) == ["b"]
        consumer.seek(("t", "broker-0", 0), "earliest")
        consumer.pause([Q[0]])
        assert bodies(consumer) == []
        consumer.resume([Q[0]])
        assert bodies(consumer) == ["a", "b"]
        consumer.seek(Q[1], "earliest")
        consumer.seek(Q[1], "latest")
        assert bodies(consumer) == []
        with pytest.raises(InvalidRequestError, match=r"seek to an offset that the queue holds.*end=2"):
            consumer.seek(Q[0], 3)
        with pytest.raises(InvalidRequestError, match="not this consumer's"):
            consumer.pause([("t", "broker-0", 7)])


def test_assign_reads_the_queues_that_the_caller_chose(store: Store) -> None:
    send(store, "a")
    send(store, "x", queue=1)
    with LitePullConsumer(store, "g").assign([Q[1]]) as consumer:
        assert bodies(consumer) == ["x"]
        assert consumer.assignment() == [Q[1]]
        consumer.assign([Q[0], Q[1]])
        assert bodies(consumer) == ["a"]
    assert committed(store) == {0: 1, 1: 1}
    with pytest.raises(NotFoundError, match="no such queue"):
        LitePullConsumer(store, "g").assign([("t", "broker-0", 5)])
    with pytest.raises(InvalidRequestError, match="either subscribe or assign"):
        LitePullConsumer(store, "g").assign(Q).subscribe("t")


def test_consumers_share_the_queues_and_hand_them_over_at_a_poll(store: Store) -> None:
    with again(store) as other_store:
        first = LitePullConsumer(store, "g").subscribe("t")
        send(store, "a")
        send(store, "x", queue=1)
        assert sorted(bodies(first)) == ["a", "x"]
        second = LitePullConsumer(other_store, "g").subscribe("t")
        assert bodies(second) == []
        advance(store, 20)
        assert bodies(first) == []
        advance(store, 0.5)
        send(store, "b")
        send(store, "y", queue=1)
        assert sorted(bodies(first) + bodies(second)) == ["b", "y"]
        assert sorted(first.assignment() + second.assignment()) == Q
        first.close()
        advance(store, 20)
        assert bodies(second) == []
        assert second.assignment() == Q
        second.close()


def test_a_consumer_that_slept_through_its_lease_cannot_commit(store: Store) -> None:
    with again(store) as other_store:
        sleeper = LitePullConsumer(store, "g", auto_commit=False).subscribe("t")
        send(store, "a")
        assert bodies(sleeper) == ["a"]
        sleep_through_lease(sleeper, store)
        with LitePullConsumer(other_store, "g").subscribe("t") as other:
            assert bodies(other) == ["a"]
            with pytest.raises(PreconditionFailedError, match="went to other consumers"):
                sleeper.commit()
        assert committed(store)[0] == 1


class TestTransaction:
    def consumer(self, store: Store) -> LitePullConsumer:
        return LitePullConsumer(store, "g", auto_commit=False).subscribe("t")

    def test_outputs_and_offsets_land_in_one_commit(self, store: Store) -> None:
        send(store, "a", "b")
        consumer = self.consumer(store)
        with consumer.transaction() as tx:
            for message in consumer.poll(0):
                tx.send(Message("out", message.body.upper()))
            assert store.read("out").num_rows == 0
        out = store.read("out").to_pylist()
        assert [row["body"] for row in out] == [b"A", b"B"]
        assert [result.queue_offset for result in tx.results] == [0, 1]
        records = store.read("rmq_sys_consumer_offset", columns=["commitOffset"]).to_pylist()
        assert records[-1]["commitOffset"] == out[-1]["commitOffset"] + 1
        assert out[-1]["storeTimestamp"] is not None
        assert committed(store)[0] == 2

    def test_an_exception_sends_nothing_and_the_messages_are_polled_again(self, store: Store) -> None:
        send(store, "a")
        consumer = self.consumer(store)
        with pytest.raises(RuntimeError, match="no"), consumer.transaction() as tx:
            tx.send(Message("out", consumer.poll(0)[0].body))
            raise RuntimeError("no")
        assert store.read("out").num_rows == 0
        assert bodies(consumer) == ["a"]

    def test_a_consumer_that_lost_its_queue_sends_nothing(self, store: Store) -> None:
        with again(store) as other_store:
            send(store, "a")
            consumer = self.consumer(store)
            with pytest.raises(PreconditionFailedError), consumer.transaction() as tx:
                tx.send(Message("out", consumer.poll(0)[0].body))
                sleep_through_lease(consumer, store)
                other = self.consumer(other_store)
                with other.transaction() as mine:
                    mine.send(Message("out", other.poll(0)[0].body + b" by other"))
            assert [row["body"] for row in store.read("out").to_pylist()] == [b"a by other"]

    def test_a_consumer_whose_upkeep_found_the_lease_lost_sends_nothing(self, store: Store) -> None:
        send(store, "a")
        consumer = LitePullConsumer(store, "g", auto_commit=False).subscribe("t")
        assert bodies(consumer) == ["a"]
        sleep_through_lease(consumer, store)
        with LitePullConsumer(again(store), "g", auto_commit=False).subscribe("t") as other:
            assert bodies(other) == ["a"]
            consumer._queues.keep()  # as the thread does while the caller works
            with pytest.raises(PreconditionFailedError, match="went to other consumers"), consumer.transaction() as tx:
                tx.send(Message("out", b"A"))
            consumer.close()
        assert store.read("out").num_rows == 0

    def test_a_queue_that_was_given_up_between_two_polls_refuses_it(self, store: Store) -> None:
        send(store, "a", queue=0)
        send(store, "b", queue=1)
        consumer = LitePullConsumer(store, "g", auto_commit=False).subscribe("t")
        assert sorted(bodies(consumer)) == ["a", "b"]
        with LitePullConsumer(again(store), "g", auto_commit=False).subscribe("t") as other:
            bodies(other)
            advance(store, 20)
            assert bodies(consumer) == []  # this poll gives one queue back
            assert len(consumer.assignment()) == 1
            with pytest.raises(PreconditionFailedError, match="went to other consumers"), consumer.transaction() as tx:
                tx.send(Message("out", b"A"))
                tx.send(Message("out", b"B"))
            assert store.read("out").num_rows == 0
            assert len(bodies(consumer)) == 1  # what is still its own comes again
            with consumer.transaction() as tx:
                tx.send(Message("out", b"once"))
            consumer.close()
        assert store.read("out")["body"].to_pylist() == [b"once"]

    def test_a_consumer_that_was_closed_meanwhile_sends_nothing(self, store: Store) -> None:
        send(store, "a")
        consumer = LitePullConsumer(store, "g", auto_commit=False).subscribe("t")
        assert bodies(consumer) == ["a"]
        with pytest.raises(ClosedError), consumer.transaction() as tx:
            tx.send(Message("out", b"A"))
            consumer.close()
        assert store.read("out").num_rows == 0

    def test_an_assigned_queue_that_somebody_else_committed_refuses_it(self, store: Store) -> None:
        send(store, "a")
        both = [LitePullConsumer(store, "g", auto_commit=False).assign(Q) for _ in range(2)]
        with both[0].transaction() as first:
            first.send(Message("out", both[0].poll(0)[0].body))
        with pytest.raises(PreconditionFailedError, match="another consumer"), both[1].transaction() as second:
            second.send(Message("out", both[1].poll(0)[0].body))
        assert store.read("out").num_rows == 1
        assert bodies(both[1]) == []

    def test_several_brokers_are_refused(self) -> None:
        with memory_store() as store:
            store.create_topic("t", queues=1, brokers=("a", "b"))
            store.create_topic("out", queues=1, brokers=("a",))
            for _ in range(8):
                Producer(store).send(Message("t", b"x"))
            with LitePullConsumer(store, "g", auto_commit=False).subscribe("t") as consumer:
                with pytest.raises(InvalidRequestError, match="several brokers"), consumer.transaction() as tx:
                    assert {message.broker for message in consumer.poll(0)} == {"a", "b"}
                    tx.send(Message("out", b"x"))
                consumer.pause([("t", "a", 0)])
                with pytest.raises(InvalidRequestError, match="share a broker"), consumer.transaction() as tx:
                    assert consumer.poll(0)
                    tx.send(Message("out", b"x"))
            assert store.read("out").num_rows == 0

    def test_a_consumer_that_commits_by_itself_has_no_transactions(self, store: Store) -> None:
        with pytest.raises(InvalidRequestError, match="auto_commit=False"):
            LitePullConsumer(store, "g").transaction()


def test_a_commit_of_what_was_lost_says_so_however_it_was_found_out(store: Store) -> None:
    send(store, "a")
    consumer = LitePullConsumer(store, "g", auto_commit=False).subscribe("t")
    assert bodies(consumer) == ["a"]
    sleep_through_lease(consumer, store)
    with LitePullConsumer(again(store), "g").subscribe("t") as other:
        assert bodies(other) == ["a"]
        consumer._queues.keep()
        with pytest.raises(PreconditionFailedError, match="went to other consumers"):
            consumer.commit()
        consumer.commit()  # said once
        consumer.close()


def test_a_queue_whose_messages_were_all_passed_over_may_go_without_a_word(store: Store) -> None:
    send(store, "a", queue=0)
    send(store, "a", queue=1)
    consumer = LitePullConsumer(store, "g", auto_commit=False, consume_from="earliest").subscribe("t", tags="b")
    assert bodies(consumer) == []  # it has looked at both queues
    with LitePullConsumer(again(store), "g").subscribe("t", tags="b") as other:
        bodies(other)
        advance(store, 20)
        assert bodies(consumer) == []
        assert len(consumer.assignment()) == 1
        consumer.commit()
        consumer.close()


def test_upkeep_after_the_end_does_not_join_the_group_again(store: Store) -> None:
    consumer = LitePullConsumer(store, "g").subscribe("t")
    bodies(consumer)
    queues = consumer._queues
    consumer.close()
    advance(store, 31)
    queues.keep()
    assert not Admin(store).members("g").members


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3"])
def test_a_poll_of_no_message_is_refused(store: Store, wrong: Any) -> None:
    send(store, "a", "b")
    with LitePullConsumer(store, "g").subscribe("t") as consumer:
        with pytest.raises(InvalidRequestError, match="max_messages"):
            consumer.poll(0, max_messages=wrong)
        with pytest.raises(InvalidRequestError, match="max_rows"):
            consumer.poll_table(0, max_rows=wrong)
        assert bodies(consumer) == ["a", "b"]


def test_what_is_no_queue_is_refused(store: Store) -> None:
    with LitePullConsumer(store, "g").subscribe("t") as consumer:
        consumer.poll(0)
        for wrong in ("t", ("t", "broker-0"), ("t", "broker-0", "0"), ("t", "broker-0", True), None):
            with pytest.raises(InvalidRequestError, match="a queue is given as"):
                consumer.seek(wrong, 0)  # type: ignore[arg-type]
        for pausing in (consumer.pause, LitePullConsumer(store, "g").assign):
            for several in ("t", Q[0], None):
                with pytest.raises(InvalidRequestError, match="give a list of queues"):
                    pausing(several)  # type: ignore[arg-type, operator]
    with pytest.raises(InvalidRequestError, match="settings takes"):
        LitePullConsumer(store, "g", settings=None)  # type: ignore[arg-type]


def test_queues_that_are_assigned_no_more_are_committed(store: Store) -> None:
    send(store, "a", queue=0)
    consumer = LitePullConsumer(store, "g", consume_from="earliest").assign([Q[0]])
    assert bodies(consumer) == ["a"]
    consumer.assign([Q[1]])
    consumer.assign(Q)
    assert bodies(consumer) == []
    consumer.close()


def test_a_closed_consumer_says_so(store: Store) -> None:
    consumer = LitePullConsumer(store, "g").subscribe("t")
    with pytest.raises(InvalidRequestError, match="nothing is subscribed"):
        LitePullConsumer(store, "g").poll(0)
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError, match="the consumer is closed"):
        consumer.poll(0)
