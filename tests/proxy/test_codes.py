"""Each mistake of a client has its code, and each call does what its name says; by plain gRPC."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from proxy_process import ProxyProcess, RawClient, make_fifo, message

from rmq_spark.client.store import Store
from rmq_spark.proxy import wire
from rmq_spark.proxy.status import Code
from rmq_spark.rules.message_type import MessageType


@pytest.fixture(scope="module", autouse=True)
def topics(store: Store) -> None:
    store.create_topic("orders", queues=2)
    store.create_topic("only-fifo", queues=2, message_type=MessageType.FIFO)


def send(raw: RawClient, *messages: Any) -> Any:
    return raw.call("SendMessage", messages=messages)


def queue(topic: str, number: int = -1) -> Any:
    made = wire.message_class("MessageQueue")(id=number)
    made.topic.name = topic
    made.broker.name = "broker-0"
    return made


def receive(raw: RawClient, topic: str = "orders", group: str = "g", **more: Any) -> list[Any]:
    fields = {"batch_size": 32, "invisible_duration": {"seconds": 30}, "long_polling_timeout": {"seconds": 0}, **more}
    number = fields.pop("queue", -1)
    return raw.call("ReceiveMessage", group={"name": group}, message_queue=queue(topic, number), **fields)


def body_of(answers: list[Any]) -> list[bytes]:
    return [each.message.body for each in answers if each.HasField("message")]


# ------------------------------------------------------------ sending


@pytest.mark.parametrize("kind", ["plain", "transaction"])
def test_the_born_host_is_what_the_client_says_or_its_address(raw: RawClient, store: Store, kind: str) -> None:
    topic = f"born_{kind}"
    store.create_topic(topic, queues=1, message_type=MessageType.UNSPECIFIED)
    number = 4 if kind == "transaction" else 1
    for msg_id, told in (("A1", {"born_host": "there.example"}), ("A2", {})):
        answer = send(raw, message(topic, msg_id=msg_id, message_type=number, **told))
        assert answer.status.code == Code.OK
        if kind == "transaction":
            ended = {"topic": {"name": topic}, "transaction_id": answer.entries[0].transaction_id, "resolution": 1}
            assert raw.call("EndTransaction", message_id=msg_id, **ended).status.code == Code.OK
    got = [each.message.system_properties for each in receive(raw, topic, "born") if each.HasField("message")]
    assert {each.message_id: each.born_host for each in got} == {"A1": "there.example", "A2": "127.0.0.1"}


BAD_MESSAGES: dict[str, tuple[Any, Code]] = {
    "body over 4 MiB": (message("orders", bytes(4 * 1024 * 1024 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    "empty body": (message("orders", b""), Code.MESSAGE_BODY_EMPTY),
    "illegal topic": (message("or/ders"), Code.ILLEGAL_TOPIC),
    "a topic of the engine": (message("rmq_sys_pop"), Code.ILLEGAL_TOPIC),
    "unknown topic": (message("nowhere"), Code.TOPIC_NOT_FOUND),
    "blank tag": (message("orders", tag=" "), Code.ILLEGAL_MESSAGE_TAG),
    "tag with a bar": (message("orders", tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    "long born host": (message("orders", born_host="h" * 256), Code.BAD_REQUEST),
    "blank key": (message("orders", keys=[" "]), Code.ILLEGAL_MESSAGE_KEY),
    "blank id": (message("orders", msg_id=""), Code.ILLEGAL_MESSAGE_ID),
    "blank message group": (message("orders", message_group="", message_type=2), Code.ILLEGAL_MESSAGE_GROUP),
    "group and type differ": (message("orders", message_group="a"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "type without its field": (message("orders", message_type=2), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "type of the topic": (message("only-fifo"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "lite topic": (message("orders", lite_topic="x", message_type=5), Code.NOT_IMPLEMENTED),
    "unknown type": (message("orders", message_type=77), Code.BAD_REQUEST),
    "negative priority": (message("orders", priority=-1, message_type=6), Code.BAD_REQUEST),
    "over one day ahead": (
        message("orders", delivery_timestamp={"seconds": int(time.time()) + 90_000}, message_type=3),
        Code.ILLEGAL_DELIVERY_TIME,
    ),
    "wrong digest": (message("orders", body_digest={"type": 1, "checksum": "0"}), Code.MESSAGE_CORRUPTED),
    "not gzip": (message("orders", b"plain", body_encoding=2), Code.MESSAGE_CORRUPTED),
    "gzip cut short": (message("orders", gzip.compress(bytes(1000))[:-9], body_encoding=2), Code.MESSAGE_CORRUPTED),
    "gzip bomb": (message("orders", gzip.compress(bytes(5 << 20)), body_encoding=2), Code.MESSAGE_BODY_TOO_LARGE),
}


@pytest.mark.parametrize("mistake", BAD_MESSAGES)
def test_a_bad_message_is_refused_by_the_code_that_names_it(raw: RawClient, mistake: str) -> None:
    bad, code = BAD_MESSAGES[mistake]
    answer = send(raw, bad)
    assert (answer.status.code, list(answer.entries)) == (code, [])
    assert answer.status.message


def test_too_many_or_too_long_user_properties_are_refused(raw: RawClient) -> None:
    many, long_, reserved = message("orders"), message("orders"), message("orders")
    for i in range(129):
        many.user_properties[f"p{i}"] = "v"
    long_.user_properties["p"] = "v" * 16_400
    reserved.user_properties["UNIQ_KEY"] = "v"
    codes = [send(raw, each).status.code for each in (many, long_, reserved)]
    assert codes == [43101, 43101, 40007]


def test_a_digest_and_a_packed_body_are_checked_and_unpacked(raw: RawClient, store: Store) -> None:
    store.create_topic("packed", queues=1)
    packed = gzip.compress(b"hello")
    digest = {"type": 1, "checksum": f"{zlib.crc32(packed):X}"}
    assert send(raw, message("packed", packed, body_encoding=2, body_digest=digest)).status.code == Code.OK
    assert store.read("packed").column("body").to_pylist() == [b"hello"]


def test_a_batch_goes_to_one_queue_and_a_wrong_one_is_refused_whole(raw: RawClient, store: Store) -> None:
    store.create_topic("batches", queues=4)
    answer = send(raw, *(message("batches", b"%d" % i, msg_id=f"id{i}") for i in range(5)))
    assert [each.message_id for each in answer.entries] == [f"id{i}" for i in range(5)]
    assert [each.offset for each in answer.entries] == [0, 1, 2, 3, 4]
    assert len(set(store.read("batches").column("queueId").to_pylist())) == 1
    assert send(raw, message("batches"), message("orders")).status.code == Code.BAD_REQUEST
    assert send(raw).status.code == Code.BAD_REQUEST
    assert store.read("batches").num_rows == 5


# ------------------------------------------------------------ routes, settings


def test_routes_name_the_endpoint_that_the_client_used_and_what_a_topic_takes(raw: RawClient) -> None:
    endpoints = {"scheme": 1, "addresses": [{"host": "10.1.2.3", "port": 99}]}
    answer = raw.call("QueryRoute", topic={"name": "orders"}, endpoints=endpoints)
    assert answer.status.code == Code.OK
    assert [(each.id, each.permission, each.broker.id) for each in answer.message_queues] == [(0, 4, 0), (1, 4, 0)]
    one = answer.message_queues[0]
    assert (one.broker.endpoints.scheme, one.broker.endpoints.addresses[0].host) == (1, "10.1.2.3")
    assert {1, 2, 3, 4} <= set(one.accept_message_types)
    fifo = raw.call("QueryRoute", topic={"name": "only-fifo"}, endpoints=endpoints)
    assert list(fifo.message_queues[0].accept_message_types) == [2]
    codes = [
        raw.call("QueryRoute", topic={"name": name}, endpoints=endpoints).status.code for name in ("nowhere", "", "a b")
    ]
    assert codes == [40402, 40002, 40002]
    assert raw.call("QueryRoute", topic={"name": "orders"}).status.code == Code.ILLEGAL_ACCESS_POINT


def test_assignments_are_whole_brokers_and_single_queues_for_a_fifo_group(raw: RawClient, store: Store) -> None:
    make_fifo(store, "assigned-fifo")
    fields = {"topic": {"name": "orders"}, "endpoints": {"addresses": [{"host": "h", "port": 1}]}}
    any_ = raw.call("QueryAssignment", group={"name": "assigned"}, **fields)
    assert [each.message_queue.id for each in any_.assignments] == [-1]
    fifo = raw.call("QueryAssignment", group={"name": "assigned-fifo"}, **fields)
    assert [each.message_queue.id for each in fifo.assignments] == [0, 1]


def _settings(**settings: Any) -> Iterator[Any]:
    yield wire.TelemetryCommand(settings=settings)


def test_settings_are_answered_and_unknown_clients_refused(raw: RawClient) -> None:
    told = next(raw.telemetry(_settings(client_type=1, publishing={"topics": [{"name": "orders"}]})))
    assert (told.status.code, told.settings.publishing.max_body_size) == (Code.OK, 4 * 1024 * 1024)
    assert told.settings.publishing.validate_message_type
    consumer = next(raw.telemetry(_settings(client_type=2, subscription={"group": {"name": "told"}}))).settings
    assert (consumer.subscription.receive_batch_size, consumer.backoff_policy.max_attempts) == (32, 17)
    assert [each.seconds for each in consumer.backoff_policy.customized_backoff.next][:3] == [1, 5, 10]
    for kind, code in ((0, Code.UNRECOGNIZED_CLIENT_TYPE), (5, Code.NOT_IMPLEMENTED)):
        assert next(raw.telemetry(_settings(client_type=kind))).status.code == code
        assert raw.call("Heartbeat", client_type=kind).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    assert raw.call("Heartbeat", client_type=1).status.code == Code.OK
    assert raw.call("Heartbeat", client_type=3).status.code == Code.ILLEGAL_CONSUMER_GROUP


def test_a_call_needs_a_client_id(raw: RawClient) -> None:
    answer = raw.call("SendMessage", metadata=[], messages=[message("orders")])
    assert answer.status.code == Code.CLIENT_ID_REQUIRED
    assert raw.call("SyncLiteSubscription").status.code == Code.NOT_IMPLEMENTED


# ------------------------------------------------------------ receiving


def test_an_empty_receive_says_so_and_batch_sizes_are_cut(raw: RawClient, store: Store) -> None:
    store.create_topic("many", queues=1)
    for at in range(0, 40, 20):
        send(raw, *(message("many", b"%d" % (at + i), msg_id=f"{at + i}") for i in range(20)))
    assert [each.status.code for each in receive(raw, "many", "cut", batch_size=0)] == [Code.MESSAGE_NOT_FOUND]
    assert len(body_of(receive(raw, "many", "cut", batch_size=1000))) == 32
    answers = receive(raw, "many", "cut", batch_size=33)
    assert answers[0].status.code == Code.OK
    assert (len(body_of(answers)), answers[-1].HasField("delivery_timestamp")) == (8, True)
    assert [each.status.code for each in receive(raw, "many", "cut")] == [Code.MESSAGE_NOT_FOUND]


def test_bad_receives_are_refused_by_the_code_that_names_it(raw: RawClient) -> None:
    def code(**more: Any) -> int:
        answers = receive(raw, **more)
        assert len(answers) == 1
        return int(answers[0].status.code)

    assert code(topic="nowhere") == Code.TOPIC_NOT_FOUND
    assert code(group="") == Code.ILLEGAL_CONSUMER_GROUP
    assert code(invisible_duration={"seconds": 0}) == Code.ILLEGAL_INVISIBLE_TIME
    assert code(invisible_duration={"seconds": 13 * 3600}) == Code.ILLEGAL_INVISIBLE_TIME
    assert code(filter_expression={"type": 2, "expression": "a >"}) == Code.ILLEGAL_FILTER_EXPRESSION
    assert code(filter_expression={"type": 9, "expression": "a"}) == Code.ILLEGAL_FILTER_EXPRESSION
    assert code(queue=7) == Code.NOT_FOUND
    assert code(long_polling_timeout={"seconds": -1}) == Code.ILLEGAL_POLLING_TIME


def test_a_waiting_receive_is_woken_by_a_send(raw: RawClient, proxy: ProxyProcess, store: Store) -> None:
    store.create_topic("woken", queues=4)
    method = f"/{wire.SERVICE}/ReceiveMessage"
    request = wire.message_class("ReceiveMessageRequest")(
        group={"name": "woken-group"},
        message_queue=queue("woken"),
        batch_size=1,
        invisible_duration={"seconds": 30},
        long_polling_timeout={"seconds": 20},
    )
    with RawClient(proxy.address, "waiter") as waiter:
        waiting = waiter.channel.unary_stream(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=wire.ReceiveMessageResponse.FromString,
        )
        for i in range(5):
            answers = waiting(request, metadata=waiter.metadata, timeout=60)
            if i:
                time.sleep(0.3)  # most likely it waits by now; either way it must get the message
            send(raw, message("woken", b"%d" % i, msg_id=f"{i}"))
            assert body_of(list(answers)) == [b"%d" % i]


def test_receipts_are_checked(raw: RawClient, store: Store) -> None:
    store.create_topic("receipts", queues=1)
    send(raw, message("receipts", b"a", msg_id="a"), message("receipts", b"b", msg_id="b"))
    got = [each.message.system_properties for each in receive(raw, "receipts", "rg") if each.HasField("message")]

    def ack(*handles: str) -> Any:
        entries = [{"message_id": "m", "receipt_handle": each} for each in handles]
        return raw.call("AckMessage", group={"name": "rg"}, topic={"name": "receipts"}, entries=entries)

    def change(handle: str, seconds: int) -> Any:
        names = {"group": {"name": "rg"}, "topic": {"name": "receipts"}}
        return raw.call(
            "ChangeInvisibleDuration", **names, receipt_handle=handle, invisible_duration={"seconds": seconds}
        )

    first, second = (each.receipt_handle for each in got)
    assert ack("garbage").status.code == Code.INVALID_RECEIPT_HANDLE
    assert ack(first.replace("broker-0", "elsewhere")).status.code == Code.INVALID_RECEIPT_HANDLE
    assert change("garbage", 30).status.code == Code.INVALID_RECEIPT_HANDLE
    assert change(first, 13 * 3600).status.code == Code.ILLEGAL_INVISIBLE_TIME
    mixed = ack(first, "garbage", second)
    assert mixed.status.code == Code.MULTIPLE_RESULTS
    assert [each.status.code for each in mixed.entries] == [20000, 40013, 20000]
    assert ack(first).status.code == Code.OK  # a second ack is no error
    assert ack().status.code == Code.BAD_REQUEST


def test_a_message_that_is_given_up_stands_in_the_dead_letter_topic(raw: RawClient, store: Store) -> None:
    store.create_topic("given-up", queues=1)
    send(raw, message("given-up", b"bad"))
    names = {"group": {"name": "giver"}, "topic": {"name": "given-up"}}
    handle = receive(raw, "given-up", "giver")[1].message.system_properties.receipt_handle
    for _ in range(2):
        answer = raw.call("ForwardMessageToDeadLetterQueue", **names, receipt_handle=handle)
        assert answer.status.code == Code.OK
    assert store.read("%DLQ%giver").column("body").to_pylist() == [b"bad"]
    garbage = raw.call("ForwardMessageToDeadLetterQueue", **names, receipt_handle="?")
    assert garbage.status.code == Code.INVALID_RECEIPT_HANDLE


# ------------------------------------------------------------ transactions, recall, offsets


def test_bad_transaction_ids_and_recall_handles_are_refused(raw: RawClient) -> None:
    def end(tx_id: str, resolution: int = 1) -> int:
        answer = raw.call("EndTransaction", topic={"name": "orders"}, transaction_id=tx_id, resolution=resolution)
        return int(answer.status.code)

    assert [end(""), end("no"), end("broker-9:x"), end("broker-0:x")] == [40008] * 4
    assert end("broker-0:x", 0) == Code.BAD_REQUEST
    for handle in ("", "garbage", "djIgYSBiIDEgYw=="):
        answer = raw.call("RecallMessage", topic={"name": "orders"}, recall_handle=handle)
        assert answer.status.code == Code.BAD_REQUEST


def test_queues_are_read_by_offset(raw: RawClient, store: Store) -> None:
    store.create_topic("pulled", queues=1)
    send(raw, *(message("pulled", b"%d" % i, msg_id=f"{i}", tag="ab"[i % 2]) for i in range(4)))
    at = {"group": {"name": "pullers"}, "message_queue": queue("pulled", 0)}

    def offset(policy: int, **more: Any) -> int:
        answer = raw.call("QueryOffset", message_queue=queue("pulled", 0), query_offset_policy=policy, **more)
        assert answer.status.code == Code.OK
        return int(answer.offset)

    assert (offset(0), offset(1), offset(2, timestamp={"seconds": 1})) == (0, 4, 0)
    answers = raw.call("PullMessage", **at, offset=1, batch_size=2)
    assert (body_of(answers), answers[-1].next_offset) == ([b"1", b"2"], 3)
    tagged = raw.call("PullMessage", **at, offset=0, batch_size=32, filter_expression={"type": 1, "expression": "b"})
    assert (body_of(tagged), tagged[-1].next_offset) == ([b"1", b"3"], 4)
    empty = raw.call("PullMessage", **at, offset=4, batch_size=1)
    assert (empty[0].status.code, empty[-1].next_offset) == (Code.MESSAGE_NOT_FOUND, 4)
    assert raw.call("GetOffset", **at).status.code == Code.OFFSET_NOT_FOUND
    assert raw.call("UpdateOffset", **at, offset=3).status.code == Code.OK
    assert raw.call("GetOffset", **at).offset == 3
    assert raw.call("UpdateOffset", **at, offset=-1).status.code == Code.ILLEGAL_OFFSET
    assert raw.call("PullMessage", **at, offset=-1, batch_size=1)[0].status.code == Code.ILLEGAL_OFFSET
    assert raw.call("GetOffset", group={"name": "g"}, message_queue=queue("pulled", 5)).status.code == Code.NOT_FOUND
