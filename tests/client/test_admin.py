"""Admin: topics and their queue numbers, groups and their settings, brokers that are added, closed and drained."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from group_store import again, memory_store
from push_steps import Steps, advance, leaving

from rmq_spark import Admin, LitePullConsumer, Message, Producer, SimpleConsumer, Store
from rmq_spark.clock import ManualClock
from rmq_spark.errors import ExistsError, InvalidRequestError, NotFoundError
from rmq_spark.rules.group_config import GroupSettings, RetryPolicyName
from rmq_spark.services.timer import TimerService, set_delay_levels


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(1_700_000_000_000), retention_ms=10**9) as made:
        yield made


def queues_used(store: Store, topic: str = "t", sends: int = 40) -> set[tuple[str, int]]:
    producer = Producer(store)
    return {(sent.broker, sent.queue_id) for _ in range(sends) for sent in [producer.send(Message(topic, b"x"))]}


class TestTopics:
    def test_settings_are_kept_over_a_restart(self, store: Store) -> None:
        Admin(store).create_topic("t", queues=4, write_queues=2, message_type="NORMAL", backlog_max=7)
        with again(store) as other:
            topic = other.topic("t")
            assert (dict(topic.queues), dict(topic.write_queues)) == ({"broker-0": 4}, {"broker-0": 2})
            assert (topic.message_type, topic.backlog_max, topic.permission) == ("NORMAL", 7, 6)

    def test_creating_it_again_is_an_error(self, store: Store) -> None:
        Admin(store).create_topic("t")
        with pytest.raises(ExistsError, match="update it instead"):
            Admin(store).create_topic("t")

    def test_producers_use_the_write_queues_and_consumers_the_read_queues(self, store: Store) -> None:
        Admin(store).create_topic("t", queues=4, write_queues=2)
        assert queues_used(store) == {("broker-0", 0), ("broker-0", 1)}
        with LitePullConsumer(store, "g", consume_from="earliest") as consumer:
            consumer.subscribe("t").poll(0)
            assert [queue.queue_id for queue in consumer.assignment()] == [0, 1, 2, 3]

    def test_rule_22_queues_shrink_write_first_and_read_when_they_are_drained(self, store: Store) -> None:
        admin = Admin(store)
        admin.create_topic("t", queues=4)
        with pytest.raises(InvalidRequestError, match="more queues would be written than read"):
            admin.update_topic("t", write_queues=5)
        Producer(store).send(Message("t", b"x", queue_id=3))
        with pytest.raises(InvalidRequestError, match="lower the write number first"):
            admin.update_topic("t", queues=2)
        admin.update_topic("t", write_queues=2)
        with pytest.raises(InvalidRequestError, match="still hold messages"):
            admin.update_topic("t", read_queues=2)
        admin.offsets.commit("g", {("t", "broker-0", 3): 1})
        assert dict(admin.update_topic("t", read_queues=2).queues) == {"broker-0": 2}

    @pytest.mark.parametrize(("permission", "readable"), [(4, True), (0, False)])
    def test_a_topic_without_write_permission_refuses_sends(
        self, store: Store, permission: int, readable: bool
    ) -> None:
        store.create_topic("t", queues=1)
        Producer(store).send(Message("t", b"x"))
        Admin(store).update_topic("t", permission=permission)
        with pytest.raises(InvalidRequestError, match="no queues that may be written"):
            Producer(store).send(Message("t", b"x"))
        with LitePullConsumer(store, "g", consume_from="earliest") as pull:
            assert bool(pull.subscribe("t").poll(0)) is readable
        with SimpleConsumer(store, "s", consume_from="earliest") as simple:
            assert bool(simple.subscribe("t").receive(await_duration=0)) is readable

    @pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY"])
    def test_a_topic_takes_messages_of_its_type_only(self, store: Store, kind: str) -> None:
        store.create_topic("t", queues=2, message_type=kind)
        producer = Producer(store)
        messages = {
            "NORMAL": Message("t", b"x"),
            "FIFO": Message("t", b"x", sharding_key="k"),
            "DELAY": Message("t", b"x", delay=5),
            "PRIORITY": Message("t", b"x", priority=1),
        }
        for name, message in messages.items():
            if name == kind:
                producer.send(message)
            else:
                with pytest.raises(InvalidRequestError, match="another type"):
                    producer.send(message)
        with producer.begin_transaction() as tx:
            if kind == "TRANSACTION":
                producer.send(messages["NORMAL"], transaction=tx)
            else:
                with pytest.raises(InvalidRequestError, match="another type"):
                    producer.send(messages["NORMAL"], transaction=tx)
            tx.rollback()

    def test_rule_36_auto_creation_gives_four_queues_and_can_be_switched_off(self, store: Store) -> None:
        Producer(store).send(Message("auto", b"x"))
        assert dict(store.topic("auto").queues) == {"broker-0": 4}
        assert Admin(store).settings().auto_create_topics
        Admin(store).update_settings(auto_create_topics=False)
        with again(store) as other, pytest.raises(NotFoundError, match="create it first"):
            Producer(other).send(Message("nothing", b"x"))
        Producer(store).send(Message("auto", b"x"))


class TestGroups:
    def test_settings_have_rocketmqs_defaults_and_are_kept(self, store: Store) -> None:
        admin = Admin(store)
        assert admin.group("g") == GroupSettings(
            orderly=False, retry_max_times=16, consume_enabled=True, retry_policy=RetryPolicyName.CUSTOMIZED
        )
        admin.update_group("g", retry_max_times=3, retry_policy="EXPONENTIAL")
        admin.update_group("g", orderly=True)
        with again(store) as other:
            settings = Admin(other).group("g")
        assert (settings.retry_max_times, settings.orderly, settings.retry_policy) == (3, True, "EXPONENTIAL")
        assert admin.groups() == ["g"]

    @pytest.mark.parametrize("wrong", [{"retry_max_times": -1}, {"retry_policy": "SOMETIMES"}])
    def test_wrong_settings_are_refused(self, store: Store, wrong: dict[str, object]) -> None:
        with pytest.raises(InvalidRequestError):
            Admin(store).update_group("g", **wrong)  # type: ignore[arg-type]
        assert Admin(store).groups() == []

    def test_a_group_that_may_not_consume_gets_nothing_until_it_may_again(self, store: Store) -> None:
        admin = Admin(store)
        store.create_topic("t", queues=1)
        Producer(store).send(Message("t", b"x"))
        admin.update_group("g", consume_enabled=False)
        got: list[object] = []
        push = Steps(store, got.append, consume_from="earliest")
        with leaving(push), SimpleConsumer(store, "g", consume_from="earliest") as simple:
            push.run()
            assert not got
            assert not simple.subscribe("t").receive(await_duration=0)
            admin.update_group("g", consume_enabled=True)
            push.engine.share_again()
            push.run()
            assert len(got) == 1

    def test_an_exponential_policy_doubles_the_delay(self, store: Store) -> None:
        Admin(store).update_group("g", retry_policy="EXPONENTIAL")
        store.create_topic("t", queues=1)
        Producer(store).send(Message("t", b"x"))

        def fail(_: object) -> None:
            raise ValueError

        push = Steps(store, fail, consume_from="earliest")
        with leaving(push):
            push.run()
        (row,) = store.read("rmq_sys_wheel_timer").to_pylist()
        assert dict(row["properties"])["TIMER_OUT_MS"] == str(store.clock.now_ms() + 5_000)

    def test_rule_24_members_and_where_they_differ_are_shown(self, store: Store) -> None:
        store.create_topic("t", queues=2)
        one = Steps(store, print, subscriptions={"t": {"tags": "a"}})
        other = Steps(store, print, subscriptions={"t": {"tags": "b"}})
        with leaving(one, other):
            members = Admin(store).members("g")
            assert set(members.members) == {one.consumer.client_id, other.consumer.client_id}
            assert members.differing == ("t",)
        assert Admin(store).members("g").members == {}

    def test_the_lag_of_a_group_includes_its_retry_topic(self, store: Store) -> None:
        store.create_topic("t", queues=1)
        admin = Admin(store)
        admin.offsets.commit("g", {("t", "broker-0", 0): 0})
        Producer(store).send(Message("%RETRY%g", b"x", queue_id=0))
        lags = {(each.topic, each.lag) for each in admin.offsets.lag("g")}
        assert lags == {("t", 0), ("%RETRY%g", 1)}


class TestBrokers:
    def test_a_topic_is_put_on_a_broker_that_was_added(self, store: Store) -> None:
        admin = Admin(store)
        admin.create_topic("t", queues=2)
        admin.brokers.add("b")
        assert [each.name for each in admin.brokers.all()] == ["b", "broker-0"]
        admin.update_topic("t", brokers=["b"])
        assert queues_used(store) == {("b", 0), ("b", 1), ("broker-0", 0), ("broker-0", 1)}

    def test_producers_leave_a_read_only_broker_alone_and_consumers_go_on(self, store: Store) -> None:
        admin = Admin(store)
        admin.create_topic("t", queues=1, brokers=["a", "b"])
        queues_used(store, sends=4)
        old = Producer(store)
        old.send(Message("t", b"x"))
        admin.brokers.set_read_only("a")
        assert queues_used(store, sends=4) == {("b", 0)}
        advance(store, 30)  # a producer that is at work follows when it asks for routes again
        assert {old.send(Message("t", b"x")).broker for _ in range(4)} == {"b"}
        with LitePullConsumer(store, "g", consume_from="earliest") as consumer:
            assert {message.broker for message in consumer.subscribe("t").poll(0)} == {"a", "b"}
        admin.brokers.set_read_only("a", False)
        assert queues_used(store) == {("a", 0), ("b", 0)}

    def test_a_store_whose_default_broker_is_read_only_creates_topics_elsewhere(self, store: Store) -> None:
        admin = Admin(store)
        admin.brokers.add("b")
        admin.brokers.set_read_only("broker-0")
        assert Producer(store).send(Message("t", b"x")).broker == "b"

    def test_a_broker_is_drained_when_every_group_has_consumed_it_and_no_route_leads_there(self, store: Store) -> None:
        admin = Admin(store)
        admin.create_topic("t", queues=1, brokers=["a", "b"])
        for _ in range(4):
            Producer(store).send(Message("t", b"x"))
        sent = store.log("a").look(lambda view: view.state.queues.bounds("t", 0)[1])
        admin.offsets.commit("g", {("t", "a", 0): 0})
        with pytest.raises(InvalidRequestError, match="timeout takes a timedelta"):
            admin.brokers.drain("a", timeout="soon")  # type: ignore[arg-type]
        assert not admin.brokers.drained("a").read_only
        state = admin.brokers.drain("a", timeout=timedelta(0))
        assert (state.read_only, state.routed, state.is_drained, state.left) == (True, True, False, {"g": sent})
        admin.offsets.commit("g", {("t", "a", 0): sent})
        assert not admin.brokers.drained("a").is_drained  # producers remember routes
        advance(store, 30)
        assert admin.brokers.drained("a").is_drained

    def test_delayed_messages_and_those_in_flight_keep_a_broker_from_being_drained(self, store: Store) -> None:
        admin = Admin(store)
        admin.create_topic("t", queues=1)
        Producer(store).send(Message("t", b"x", delay=60))
        Producer(store).send(Message("t", b"y"))
        with SimpleConsumer(store, "g", consume_from="earliest") as consumer:
            held = consumer.subscribe("t").receive(await_duration=0)
            admin.brokers.set_read_only("broker-0")
            advance(store, 31)
            state = admin.brokers.drained("broker-0")
            assert (state.left, state.delayed, state.is_drained) == ({"g": 1}, 1, False)
            consumer.ack(held)
        assert admin.brokers.drained("broker-0").left == {}

    def test_changed_delay_levels_do_not_count_for_messages_that_were_delivered_before(self, store: Store) -> None:
        Producer(store).send(Message("t", b"x", delay_level=1))
        advance(store, 1)
        TimerService(store).run_once()
        set_delay_levels(store, "1h")
        assert Admin(store).brokers.drained("broker-0").delayed == 0
        Producer(store).send(Message("t", b"x", delay_level=1))
        assert Admin(store).brokers.drained("broker-0").delayed == 1

    def test_draining_tells_how_far_it_is(self, store: Store) -> None:
        admin = Admin(store)
        admin.create_topic("t", queues=1)
        Producer(store).send(Message("t", b"y"))
        admin.offsets.commit("g", {("t", "broker-0", 0): 0})
        seen: list[tuple[int, int]] = []

        def progress(done: int, total: int) -> None:
            seen.append((done, total))
            admin.offsets.commit("g", {("t", "broker-0", 0): 1})
            advance(store, 30)

        assert admin.brokers.drain("broker-0", progress=progress).is_drained
        assert seen[0] == (0, 1)
        assert seen[-1] == (1, 1)

    def test_an_unknown_broker_is_an_error(self, store: Store) -> None:
        for act in (Admin(store).brokers.set_read_only, Admin(store).brokers.drained):
            with pytest.raises(NotFoundError, match="no such broker"):
                act("nowhere")
