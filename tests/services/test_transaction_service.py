"""Transactions from begin to commit, rollback, check and giving up, with a clock that only moves when told to."""

from __future__ import annotations

import pytest
from service_world import ServiceWorld

from rmq_spark.client.check_answers import CheckAnswers
from rmq_spark.errors import InvalidRequestError, PreconditionFailedError
from rmq_spark.log.expire import expire
from rmq_spark.log.roll import roll
from rmq_spark.model.message import Message
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules.all_folds import BROKER_FOLDS
from rmq_spark.rules.system_topics import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC
from rmq_spark.rules.transaction import CheckSettings, Transactions, TransactionState
from rmq_spark.services.retention import expire_safely
from rmq_spark.services.timer import TimerService
from rmq_spark.services.transaction_check import TransactionCheckService


def open_transactions(world: ServiceWorld) -> dict[str, object]:
    return world.store.log("broker-0", Transactions).look(lambda view: dict(view.state.fold(Transactions).open))


def test_messages_of_several_topics_become_visible_together(world):
    producer = world.producer(group="shop")
    with producer.begin_transaction() as tx:
        sent = producer.send(Message("orders", b"a", tags="t"), transaction=tx)
        producer.send(Message("pay", b"b"), transaction=tx)
        assert world.bodies("orders", "pay") == []
        assert (sent.queue_offset, sent.transaction_id) == (None, tx.id)
        tx.commit()
    first, second = world.messages("orders", "pay")
    assert (first.body, second.body) == (b"a", b"b")
    assert first.msg_id == sent.msg_id
    assert first.store_ms == second.store_ms
    assert not open_transactions(world)
    tx.commit()
    assert len(world.bodies("orders", "pay")) == 2


def test_an_exception_rolls_back(world):
    producer = world.producer()
    with pytest.raises(RuntimeError), producer.begin_transaction() as tx:
        producer.send(Message("orders", b"a"), transaction=tx)
        raise RuntimeError
    assert tx.state is TransactionState.ROLLBACK
    assert not open_transactions(world)
    assert world.bodies("orders") == []
    with pytest.raises(InvalidRequestError, match="has ended"):
        tx.commit()
    with pytest.raises(InvalidRequestError, match="has ended"):
        producer.send(Message("orders", b"b"), transaction=tx)


def test_left_without_either_it_stays_open_for_the_check(world):
    producer = world.producer()
    with producer.begin_transaction() as tx:
        producer.send(Message("orders", b"a"), transaction=tx)
    assert list(open_transactions(world)) == [tx.id]


def test_an_empty_transaction_writes_nothing(world):
    before = world.store.log().refresh().state.offset
    with world.producer().begin_transaction() as tx:
        tx.commit()
    assert world.store.log().refresh().state.offset == before


def test_a_delay_level_is_refused_and_a_time_counts_from_the_commit_on(world):
    producer = world.producer()
    with producer.begin_transaction() as tx:
        with pytest.raises(InvalidRequestError, match="delay level"):
            producer.send(Message("orders", b"a", delay_level=3), transaction=tx)
        producer.send(Message("orders", b"a", delay=10), transaction=tx)
        tx.commit()
    timers = TimerService(world.store)
    timers.run_once()
    assert world.bodies("orders") == []
    world.clock.advance(10)
    timers.run_once()
    assert world.bodies("orders") == [b"a"]


def test_topics_on_other_brokers_are_refused(world):
    world.store.create_topic("near", queues=1, brokers=("broker-0",))
    world.store.create_topic("far", queues=1, brokers=("broker-1",))
    producer = world.producer()
    with producer.begin_transaction() as tx:
        producer.send(Message("near", b"a"), transaction=tx)
        with pytest.raises(InvalidRequestError, match="share a broker"):
            producer.send(Message("far", b"b"), transaction=tx)
        tx.commit()
    assert world.bodies("near") == [b"a"]


class TestCheck:
    def leave_open(self, world: ServiceWorld, **options: object) -> str:
        producer = world.producer(group="shop", **options)
        with producer.begin_transaction() as tx:
            producer.send(Message("orders", b"a"), transaction=tx)
            producer.send(Message("pay", b"b"), transaction=tx)
        return tx.id

    @pytest.mark.parametrize("answer", [TransactionState.COMMIT, TransactionState.ROLLBACK])
    def test_rule_19_any_producer_of_the_group_answers(self, world, answer):
        self.leave_open(world)
        seen: list[StoredMessage] = []

        def checker(message: StoredMessage) -> TransactionState:
            seen.append(message)
            return answer

        checks, other = TransactionCheckService(world.store), world.again()
        mine = CheckAnswers(other, "shop", checker)
        theirs = CheckAnswers(world.again(), "another", lambda message: pytest.fail("another group was asked"))
        for seconds in (0, 5.999):
            world.clock.advance(seconds)
            checks.run_once()
            assert mine.run_once() == 0
        world.clock.advance(0.001)
        checks.run_once()
        assert (theirs.run_once(), mine.run_once()) == (0, 1)
        assert [(message.topic, message.body) for message in seen] == [("orders", b"a")]
        assert world.bodies("orders", "pay") == ([b"a", b"b"] if answer is TransactionState.COMMIT else [])
        assert not open_transactions(world)

    def test_rule_18_unknown_does_nothing_and_after_15_questions_it_is_parked(self, world):
        tx_id = self.leave_open(world)
        checks = TransactionCheckService(world.store)
        asked = []
        answers = CheckAnswers(world.store, "shop", lambda message: asked.append(1) or TransactionState.UNKNOWN)
        world.clock.advance(6)
        for number in range(15):
            checks.run_once()
            answers.run_once()
            assert len(asked) == number + 1
            assert open_transactions(world)[tx_id].checks == number + 1
            world.clock.advance(29.999)
            checks.run_once()
            assert open_transactions(world)[tx_id].checks == number + 1
            world.clock.advance(0.001)
        assert world.bodies(CHECK_MAX_TOPIC) == []
        checks.run_once()
        assert world.bodies(CHECK_MAX_TOPIC) == [b"a", b"b"]
        assert world.messages(CHECK_MAX_TOPIC)[0].properties["TRANSACTION_CHECK_TIMES"] == "15"
        assert world.bodies("orders", "pay") == []
        assert not open_transactions(world)

    def test_rule_18_questions_are_counted_with_no_producer_there(self, world):
        self.leave_open(world)
        checks = TransactionCheckService(world.store, CheckSettings(interval_ms=1000, checks_max=2))
        world.clock.advance(6)
        for _ in range(3):
            checks.run_once()
            world.clock.advance(1)
        assert world.bodies(CHECK_MAX_TOPIC) == [b"a", b"b"]

    def test_a_checker_that_fails_means_unknown(self, world, caplog):
        tx_id = self.leave_open(world)

        def checker(message: StoredMessage) -> TransactionState:
            raise ValueError("database is down")

        world.clock.advance(6)
        TransactionCheckService(world.store).run_once()
        assert CheckAnswers(world.store, "shop", checker).run_once() == 0
        assert tx_id in open_transactions(world)
        assert "database is down" in caplog.text

    def test_an_immunity_of_the_producer_counts(self, world):
        self.leave_open(world, check_immunity=60)
        checks = TransactionCheckService(world.store)
        world.clock.advance(59.999)
        checks.run_once()
        assert world.bodies(OP_TOPIC) == []
        world.clock.advance(0.001)
        checks.run_once()
        assert len(world.bodies(OP_TOPIC)) == 1

    def test_a_commit_after_a_check_has_settled_it_is_refused(self, world):
        producer = world.producer(group="shop")
        with producer.begin_transaction() as tx:
            producer.send(Message("orders", b"a"), transaction=tx)
            world.clock.advance(6)
            TransactionCheckService(world.store).run_once()
            CheckAnswers(world.again(), "shop", lambda message: TransactionState.ROLLBACK).run_once()
            with pytest.raises(PreconditionFailedError, match="not open"):
                producer.send(Message("orders", b"b"), transaction=tx)
            with pytest.raises(PreconditionFailedError, match="not open"):
                tx.commit()
        assert world.bodies("orders") == []

    def test_a_producer_with_a_checker_answers_by_itself(self, world):
        self.leave_open(world)
        producer = world.producer(group="shop", checker=lambda message: TransactionState.COMMIT)
        world.clock.advance(6)
        TransactionCheckService(world.store).run_once()
        log = world.store.log()
        for _ in range(100):
            if world.bodies("orders"):
                break
            log.wait(log.view.state.offset, 0.1)
        producer.close()
        assert world.bodies("orders", "pay") == [b"a", b"b"]

    def test_a_compressed_body_is_shown_as_it_was_sent(self, world):
        producer = world.producer(group="shop", compress_over_bytes=1)
        with producer.begin_transaction() as tx:
            producer.send(Message("orders", b"a" * 500), transaction=tx)
        world.clock.advance(6)
        TransactionCheckService(world.store).run_once()
        seen = []
        CheckAnswers(world.store, "shop", lambda message: seen.append(message.body) or "commit").run_once()
        assert seen == [b"a" * 500]
        [message] = world.messages("orders")
        assert len(message.body) < 500


def test_open_transactions_survive_rolls_and_restarts(world):
    producer = world.producer(group="shop")
    with producer.begin_transaction() as tx:
        producer.send(Message("orders", b"a"), transaction=tx)
        roll(world.store.log("broker-0", Transactions), min_commits=1)
        assert list(world.again().log("broker-0", Transactions).refresh().state.fold(Transactions).open) == [tx.id]
        tx.commit()
    assert world.bodies("orders") == [b"a"]


def test_retention_gives_up_transactions_whose_messages_it_takes(world):
    producer = world.producer(group="shop")
    with producer.begin_transaction() as tx:
        producer.send(Message("orders", b"a"), transaction=tx)
    for _ in range(3):
        world.clock.advance(1)
        producer.send(Message("other", b"x"))
        roll(world.store.log("broker-0"), min_commits=1)
    assert expire_safely(world.store.log(), before_ms=world.clock.now_ms() + 1).segments
    assert world.messages(HALF_TOPIC) == []
    assert world.bodies(CHECK_MAX_TOPIC) == [b"a"]
    assert not open_transactions(world)


def test_half_messages_that_are_gone_hold_up_no_other_transaction(world, caplog):
    producer = world.producer(group="shop")
    with producer.begin_transaction() as tx:
        producer.send(Message("orders", b"gone"), transaction=tx)
        roll(world.store.log(), min_commits=1)
        producer.send(Message("orders", b"left"), transaction=tx)
    with producer.begin_transaction() as other:
        producer.send(Message("orders", b"other"), transaction=other)
    roll(world.store.log(), min_commits=1)
    producer.send(Message("orders", b"x"))
    expire(world.store.log("broker-0", *BROKER_FOLDS), before_ms=world.clock.now_ms() + 1)
    assert b"gone" not in world.bodies(HALF_TOPIC)
    checks = TransactionCheckService(world.store)
    for _ in range(20):
        world.clock.advance(31)
        checks.run_once()
    assert not open_transactions(world)
    assert "expired before" in caplog.text


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1", "1e300", "soon"])
def test_an_immunity_that_is_no_time_is_refused_and_nothing_is_written(world, seconds):
    producer = world.producer()
    message = Message("orders", b"x", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": seconds})
    with producer.begin_transaction() as tx, pytest.raises(InvalidRequestError):
        producer.send(message, transaction=tx)
    assert world.messages(HALF_TOPIC) == []


def test_an_immunity_counts_to_the_millisecond(world):
    producer = world.producer(check_immunity=12_345.678)
    with producer.begin_transaction() as tx:
        producer.send(Message("orders", b"x"), transaction=tx)
    (known,) = open_transactions(world).values()
    assert known.next_check_ms - known.began_ms == 12_345_678


def test_a_transaction_that_was_asked_about_is_not_behind(world):
    producer = world.producer(group="shop")
    with producer.begin_transaction() as tx:
        producer.send(Message("orders", b"a"), transaction=tx)
    world.clock.advance(3600)
    checks = TransactionCheckService(world.store)
    checks.run_once()
    assert checks.behind_ms() == 0
    world.clock.advance(31)
    assert checks.behind_ms() == 1000
