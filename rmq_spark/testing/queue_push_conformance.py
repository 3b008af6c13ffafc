"""What push consumers must do, where a group starts, and broadcasting: tests of `QueueConformance` with listeners."""

from __future__ import annotations

from collections import Counter

import pytest

from rmq_spark.client.consume_result import ConsumeResult
from rmq_spark.model.message import Message
from rmq_spark.testing.queue_checks import bodies, collect, needs, note_order, receive, send, send_in_order
from rmq_spark.testing.queue_world import Feature, MessageKind, QueueWorld, Received


class PushConformance:
    """The promises about listeners, one per test."""

    # ------------------------------------------------------------ push consumers

    def test_a_listener_gets_every_message_once_and_its_successor_none_of_them(self, world: QueueWorld) -> None:
        world.create_topic("t", queues=4)
        seen: list[str] = []
        consumer = world.push_consumer("g", "t", collect(seen))
        send(world, "t", map(str, range(40)))
        world.wait_until(lambda: len(seen) >= 40, "forty messages")
        consumer.close()
        send(world, "t", ["last"])
        later: list[str] = []
        successor = world.push_consumer("g", "t", collect(later))
        world.wait_until(lambda: "last" in later, "the last message")
        successor.close()
        assert (sorted(seen), later) == (sorted(map(str, range(40))), ["last"])

    def test_listeners_of_a_group_share_the_messages(self, world: QueueWorld) -> None:
        world.create_topic("t", queues=4)
        seen: list[str] = []
        consumers = [world.push_consumer("g", "t", collect(seen)) for _ in range(2)]
        world.settle()
        send(world, "t", map(str, range(40)))
        world.wait_until(lambda: len(set(seen)) >= 40, "forty messages")
        consumers[0].close()
        send(world, "t", map(str, range(40, 60)))
        world.wait_until(lambda: len(set(seen)) >= 60, "the messages after one has left")
        consumers[1].close()
        assert set(seen) == set(map(str, range(60)))

    def test_a_listener_gets_what_its_filter_wants(self, world: QueueWorld) -> None:
        world.create_topic("t")
        by_tag: list[str] = []
        by_sql: list[str] = []
        consumers = [
            world.push_consumer("g1", "t", collect(by_tag), tags="a || b"),
            world.push_consumer("g2", "t", collect(by_sql), sql="n > 1"),
        ]
        producer = world.producer()
        for number, tag in enumerate("abc"):
            producer.send(Message("t", tag.encode(), tags=tag, properties={"n": str(number)}))
        world.wait_until(lambda: len(by_tag) >= 2 and len(by_sql) >= 1, "three deliveries")
        for consumer in consumers:
            consumer.close()
        assert (sorted(by_tag), by_sql) == (["a", "b"], ["c"])

    @pytest.mark.parametrize("raises", [True, False])
    def test_rule_10_a_message_whose_listener_fails_comes_again_and_holds_nobody_up(
        self, world: QueueWorld, raises: bool
    ) -> None:
        world.create_topic("t", queues=1)
        attempts: list[int] = []
        others: list[str] = []
        at: list[float] = []

        def handle(message: Received) -> ConsumeResult:
            if message.body != b"bad":
                others.append(message.body.decode())
                return ConsumeResult.SUCCESS
            attempts.append(message.delivery_attempt)
            at.append(world.now())
            if len(attempts) > 1:
                return ConsumeResult.SUCCESS
            if raises:
                raise RuntimeError("the listener fails")
            return ConsumeResult.FAILURE

        consumer = world.push_consumer("g", "t", handle)
        send(world, "t", ["bad", "x", "y"])
        world.wait_until(lambda: len(attempts) >= 2, "the second attempt")
        consumer.close()
        assert (attempts, sorted(others)) == ([1, 2], ["x", "y"])
        assert at[1] - at[0] >= world.first_retry_seconds

    def test_rule_6_a_message_is_delivered_17_times_and_then_is_a_dead_letter(self, world: QueueWorld) -> None:
        needs(world, Feature.MANUAL_TIME)
        world.create_topic("t")
        attempts: list[int] = []

        def fail(message: Received) -> ConsumeResult:
            attempts.append(message.delivery_attempt)
            return ConsumeResult.FAILURE

        consumer = world.push_consumer("g", "t", fail)
        sent = world.producer().send(Message("t", b"bad"))
        world.pass_time(5 * 3600)
        consumer.close()
        assert attempts == list(range(1, 18))
        assert [dead.msg_id for dead in world.dead_letters("g")] == [sent.msg_id]

    def test_an_orderly_listener_sees_each_key_in_order_and_a_failure_holds_what_is_behind_it(
        self, world: QueueWorld
    ) -> None:
        world.create_topic("t", queues=2, kind=MessageKind.FIFO)
        world.set_group("g", fifo=True)
        order: dict[str, list[int]] = {}
        failed: list[int] = []

        def handle(message: Received) -> ConsumeResult:
            if message.body == b"a 2" and len(failed) < 2:
                failed.append(message.delivery_attempt)
                return ConsumeResult.FAILURE
            note_order(order, message)
            return ConsumeResult.SUCCESS

        send_in_order(world, "t", keys="ab", count=5)
        consumer = world.push_consumer("g", "t", handle, orderly=True)
        world.wait_until(lambda: sum(map(len, order.values())) >= 10, "ten messages in order")
        consumer.close()
        assert order == {key: list(range(5)) for key in "ab"}
        assert failed == [1, 2]

    # ------------------------------------------------------------ where a group starts

    def test_rule_2_a_new_group_reads_a_young_topic_from_its_beginning(self, world: QueueWorld) -> None:
        world.create_topic("t")
        send(world, "t", ["early"])
        seen: list[str] = []
        consumer = world.push_consumer("pushed", "t", collect(seen))
        world.wait_until(lambda: seen == ["early"], "the early message")
        consumer.close()
        assert bodies(receive(world, world.simple_consumer("simple", "t"), 1)) == ["early"]

    def test_a_new_group_starts_where_it_is_told(self, world: QueueWorld) -> None:
        needs(world, Feature.MANUAL_TIME, Feature.START_POSITIONS)
        world.create_topic("t", queues=1)
        send(world, "t", ["old"])
        world.pass_time(2 * 3600)
        middle = world.wall_ms()
        send(world, "t", ["middle"])
        world.pass_time(2 * 3600)
        seen: dict[str, list[str]] = {"latest": [], "earliest": [], "time": []}
        starts = {"latest": "latest", "earliest": "earliest", "time": middle}
        consumers = [
            world.push_consumer(f"g-{name}", "t", collect(seen[name]), consume_from=start)
            for name, start in starts.items()
        ]
        world.settle()
        send(world, "t", ["new"])
        world.wait_until(lambda: all("new" in each for each in seen.values()), "the new message in every group")
        for consumer in consumers:
            consumer.close()
        wanted = {"latest": ["new"], "earliest": ["old", "middle", "new"], "time": ["middle", "new"]}
        assert seen == wanted

    # ------------------------------------------------------------ broadcasting

    def test_each_broadcasting_consumer_gets_every_message(self, world: QueueWorld) -> None:
        needs(world, Feature.BROADCASTING)
        world.create_topic("t")
        seen: list[list[str]] = [[], []]
        consumers = [world.push_consumer("g", "t", collect(each), broadcasting=True) for each in seen]
        send(world, "t", map(str, range(10)))
        world.wait_until(lambda: all(len(each) >= 10 for each in seen), "ten messages each")
        for consumer in consumers:
            consumer.close()
        assert [Counter(each) for each in seen] == [Counter(map(str, range(10)))] * 2

    def test_rule_9_a_message_that_a_broadcasting_listener_fails_on_is_dropped(self, world: QueueWorld) -> None:
        needs(world, Feature.BROADCASTING, Feature.MANUAL_TIME)
        world.create_topic("t")
        attempts: list[int] = []

        def fail(message: Received) -> ConsumeResult:
            attempts.append(message.delivery_attempt)
            return ConsumeResult.FAILURE

        consumer = world.push_consumer("g", "t", fail, broadcasting=True)
        send(world, "t", ["bad"])
        world.pass_time(3600)
        consumer.close()
        assert attempts == [1]
        assert world.dead_letters("g") == []
