"""Message traces: RocketMQ's format, written in the background, and never in the way of a send."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from group_store import batch, memory_store
from push_steps import Steps

from rmq_spark import (
    ConsumeResult,
    LitePullConsumer,
    Message,
    NotFoundError,
    PreconditionFailedError,
    Producer,
    SimpleConsumer,
    Store,
    UnavailableError,
)
from rmq_spark.client import trace_writer
from rmq_spark.client.check_answers import CheckAnswers
from rmq_spark.client.observer import Observer, Sending
from rmq_spark.client.trace_writer import TraceWriter
from rmq_spark.clock import ManualClock
from rmq_spark.query.trace import client_traces
from rmq_spark.rules.trace_record import TraceRecord, TraceType, decode, encode
from rmq_spark.rules.transaction import TransactionState
from rmq_spark.services.transaction_check import TransactionCheckService

TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock()) as made:
        made.create_topic("t", queues=1)
        yield made


def kinds(store: Store, msg_id: str) -> list[tuple[str, str, bool]]:
    return [(str(record.type), record.group, record.success) for record in client_traces(store, msg_id)]


class TestFormat:
    RECORDS = (
        TraceRecord(
            type=TraceType.PUB, ms=5, group="g", topic="t", msg_id="ID", tags="a", keys="k1 k2", store_host="broker-0",
            body_bytes=3, cost_ms=2, message_type=3, offset_id="17", success=False,
        ),
        TraceRecord(type=TraceType.SUB_BEFORE, ms=6, group="g", request_id="R", msg_id="ID", retry_times=2, keys="k1"),
        TraceRecord(
            type=TraceType.SUB_AFTER, request_id="R", msg_id="ID", cost_ms=9, success=False, keys="k1", code=4, ms=7,
            group="g",
        ),
        TraceRecord(
            type=TraceType.END_TRANSACTION, ms=8, group="g", topic="t", msg_id="ID", tags="a", keys="k", store_host="b",
            message_type=2, transaction_id="TX", transaction_state="COMMIT_MESSAGE", from_check=True,
        ),
        TraceRecord(type=TraceType.RECALL, ms=9, group="g", topic="t", msg_id="ID", success=True),
    )  # fmt: skip

    def test_records_come_back_as_they_were_written(self) -> None:
        assert decode("".join(map(encode, self.RECORDS))) == list(self.RECORDS)

    def test_a_send_is_written_in_rocketmqs_order_of_fields(self) -> None:
        fields = encode(self.RECORDS[0]).removesuffix("\x02").split("\x01")
        assert fields == [
            "Pub", "5", "DefaultRegion", "g", "t", "ID", "a", "k1 k2", "broker-0", "3", "2", "3", "17", "false",
        ]  # fmt: skip

    def test_a_consumption_is_written_in_rocketmqs_order_of_fields(self) -> None:
        before, after = (encode(record).removesuffix("\x02").split("\x01") for record in self.RECORDS[1:3])
        assert before == ["SubBefore", "6", "DefaultRegion", "g", "R", "ID", "2", "k1"]
        assert after == ["SubAfter", "R", "ID", "9", "false", "k1", "4", "7", "g"]

    def test_records_of_older_clients_are_read(self) -> None:
        pub = "\x01".join(["Pub", "5", "r", "g", "t", "ID", "", "", "h", "3", "2", "0", "true"])
        after = "\x01".join(["SubAfter", "R", "ID", "9", "true", "k1"])
        records = decode(f"{pub}\x02{after}\x02")
        assert [(record.msg_id, record.success, record.ms) for record in records] == [("ID", True, 5), ("ID", True, 0)]

    @pytest.mark.parametrize("text", ["nonsense", "Pub\x01x", "Nobody\x011\x01r\x01g\x01t\x01i\x01true"])
    def test_nonsense_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError):
            decode(text)


class TestProducer:
    def test_every_message_has_a_trace_with_its_id_and_keys_as_keys(self, store: Store) -> None:
        with Producer(store, group="web", trace=True) as producer:
            sent = producer.send(Message("t", b"abc", tags="a", keys="o-1"))
            producer.send_batch([Message("t", b"x", sharding_key="k"), Message("t", b"y", delay=5)])
        [row] = store.read(TOPIC).to_pylist()
        assert row["keys"].split()[:2] == [sent.msg_id, "o-1"]
        [record] = client_traces(store, sent.msg_id)
        assert (record.type, record.group, record.topic, record.body_bytes) == ("Pub", "web", "t", 3)
        assert (record.tags, record.keys, record.store_host, record.success) == ("a", "o-1", "broker-0", True)
        records = decode(row["body"].decode())
        assert [record.message_type for record in records] == [0, 4, 3]

    def test_a_failed_send_has_a_trace_that_says_so(self, store: Store) -> None:
        producer = Producer(store, group="web", trace=True, auto_create=False)
        with producer, pytest.raises(NotFoundError):
            producer.send(Message("missing", b"x", msg_id="A" * 32))
        assert kinds(store, "A" * 32) == [("Pub", "web", False)]

    def test_a_transactional_message_is_traced_as_half(self, store: Store) -> None:
        with Producer(store, group="web", trace=True) as producer, producer.begin_transaction() as tx:
            sent = producer.send(Message("t", b"x"), transaction=tx)
            tx.commit()
        assert [record.message_type for record in client_traces(store, sent.msg_id)] == [1, 2]

    @pytest.mark.parametrize(("end", "state"), [("commit", "COMMIT_MESSAGE"), ("rollback", "ROLLBACK_MESSAGE")])
    def test_the_end_of_a_transaction_is_traced_for_each_message(self, store: Store, end: str, state: str) -> None:
        with Producer(store, group="web", trace=True) as producer, producer.begin_transaction() as tx:
            sent = [producer.send(Message("t", b"x", tags="a", keys=key), transaction=tx) for key in ("o-1", "o-2")]
            getattr(tx, end)()
            getattr(tx, end)()
        for each, key in zip(sent, ("o-1", "o-2"), strict=True):
            half, ended = client_traces(store, each.msg_id)
            assert (half.type, ended.type) == (TraceType.PUB, TraceType.END_TRANSACTION)
            assert (ended.group, ended.topic, ended.tags, ended.keys) == ("web", "t", "a", key)
            assert (ended.store_host, ended.transaction_id) == ("broker-0", tx.id)
            assert (ended.transaction_state, ended.from_check) == (state, False)

    def test_what_the_checker_has_said_is_traced(self, store: Store) -> None:
        producer = Producer(store, group="web")
        tx = producer.begin_transaction()
        sent = producer.send(Message("t", b"x"), transaction=tx)
        store.clock.advance(7)  # type: ignore[attr-defined]
        TransactionCheckService(store).run_once()
        traces = TraceWriter(store)
        answers = CheckAnswers(store, "web", lambda _: TransactionState.COMMIT, lambda: (traces,))
        assert answers.run_once() == 1
        traces.close()
        [ended] = client_traces(store, sent.msg_id)
        assert (ended.transaction_state, ended.from_check) == ("COMMIT_MESSAGE", True)

    def test_a_recall_is_traced_with_its_outcome(self, store: Store) -> None:
        with Producer(store, group="web", trace=True) as producer:
            taken, late = (producer.send(Message("t", b"x", delay=delay)) for delay in (60, 5))
            producer.recall(taken)
            store.clock.advance(10)  # type: ignore[attr-defined]
            store.log("broker-0").append(batch([("t", 0)]))  # time goes on in the log
            with pytest.raises(PreconditionFailedError):
                producer.recall(late)
        assert kinds(store, taken.msg_id) == [("Pub", "web", True), ("Recall", "web", True)]
        assert kinds(store, late.msg_id) == [("Pub", "web", True), ("Recall", "web", False)]

    def test_without_the_option_nothing_is_written(self, store: Store) -> None:
        with Producer(store) as producer:
            producer.send(Message("t", b"x"))
        assert store.find_topic(TOPIC) is None

    def test_a_trace_message_holds_at_most_ten_records(self, store: Store) -> None:
        with Producer(store, trace=True) as producer:
            producer.send_batch([Message("t", b"%d" % number) for number in range(25)])
        counts = [len(decode(body.decode())) for body in store.read(TOPIC)["body"].to_pylist()]
        assert counts == [10, 10, 5]

    def test_a_trace_that_cannot_be_written_fails_no_send(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*_: object) -> None:
            raise UnavailableError("the disk is away")

        with Producer(store, trace=True) as producer:
            monkeypatch.setattr(store, "ensure_queues", refuse)
            producer.send(Message("t", b"x"))
        assert "1 message traces could not be written and are dropped: the disk is away" in caplog.text

    def test_traces_that_come_too_fast_are_dropped_and_counted(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(trace_writer, "WAITING_MAX", 3)
        writer = TraceWriter(store)
        writer.sent(Sending(group="g", messages=[Message("t", b"x")] * 5, results=None, began_ms=0))
        writer.close()
        assert "2 were dropped" in caplog.text

    def test_an_observer_that_fails_does_not_fail_the_send(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Observer):
            def sent(self, sending: Sending) -> None:
                raise RuntimeError("broken")

        store.observers.append(Broken())
        Producer(store).send(Message("t", b"x"))
        assert "an observer failed: Broken" in caplog.text
        assert store.read("t").num_rows == 1


class TestConsumers:
    def test_a_listener_has_a_record_before_and_after_each_call(self, store: Store) -> None:
        results = [ConsumeResult.FAILURE]
        consumer = Steps(store, lambda _: results.pop(), "billing", trace=True)
        sent = Producer(store).send(Message("t", b"x", keys="k"))
        consumer.run()
        for trace in consumer.consumer._traces:
            trace.close()
        assert kinds(store, sent.msg_id) == [("SubBefore", "billing", True), ("SubAfter", "billing", False)]
        before, after = client_traces(store, sent.msg_id)
        assert before.request_id == after.request_id
        assert (after.code, before.keys) == (4, "k")
        consumer.leave()

    def test_a_simple_consumer_is_traced_from_the_receive_to_the_acknowledgement(self, store: Store) -> None:
        sent = Producer(store).send(Message("t", b"x"))
        with SimpleConsumer(store, "jobs", trace=True) as consumer:
            consumer.subscribe("t")
            [message] = consumer.receive(1, 30, 0)
            assert isinstance(store.clock, ManualClock)
            store.clock.advance(2)
            consumer.ack(message)
        before, after = client_traces(store, sent.msg_id)
        assert (before.type, after.type, after.cost_ms) == ("SubBefore", "SubAfter", 2_000)
        assert before.request_id == after.request_id

    def test_a_poll_is_traced(self, store: Store) -> None:
        sent = Producer(store).send(Message("t", b"x"))
        with LitePullConsumer(store, "reports", consume_from="earliest", trace=True) as pull:
            pull.subscribe("t")
            assert len(pull.poll(0)) == 1
        assert kinds(store, sent.msg_id) == [("SubBefore", "reports", True), ("SubAfter", "reports", True)]
