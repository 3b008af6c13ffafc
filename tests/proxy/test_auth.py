"""Access control at the proxy: signatures, rights, and what is told to whom."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from proxy_process import ProxyProcess, RawClient, message

from rmq_spark.client.acl import Acl
from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.proxy import auth, wire
from rmq_spark.proxy.auth import AGE_MS_MAX, DATE_FORMAT, StoreAuthorizer, source_ip
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.clients import Client, Clients
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import Code, RefusedError
from rmq_spark.proxy.telemetry import Telemetry
from rmq_spark.proxy.wire import ClientType, Resolution, WireType
from rmq_spark.rules.message_type import MessageType
from rmq_spark.rules.signature import sign
from rmq_spark.storage.memory import MemoryStorage

NOW_MS = SystemClock().now_ms()


def date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime(DATE_FORMAT)


DATE = date(NOW_MS)


def signed(user: str, secret: str, date: str = DATE, client_id: str = "raw") -> list[tuple[str, str]]:
    header = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={sign(secret, date)}"
    return [("x-mq-client-id", client_id), ("x-mq-date-time", date), ("authorization", header)]


ALICE = signed("alice", "secret-of-alice")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    path = tmp_path_factory.mktemp("guarded")
    with Store.create(str(path / "store")) as store:
        for topic in ("orders", "others"):
            store.create_topic(topic, queues=1)
            store.create_topic(f"{topic}_tx", queues=1, message_type=MessageType.TRANSACTION)
        acl = Acl(store)
        acl.add_user("alice", "secret-of-alice")
        acl.add_user("root", "secret-of-root", is_super=True)
        acl.add_policy("alice", "Topic:orders", ["Pub", "Sub"])
        acl.add_policy("alice", "Topic:orders_tx", ["Pub"])
        acl.add_policy("alice", "Group:billing", ["Sub"])
        acl.turn_on()
    started = ProxyProcess(path / "store", access_log=str(path / "access.jsonl"))
    yield started
    started.stop()


@pytest.fixture
def client(guarded: ProxyProcess) -> Iterator[RawClient]:
    with RawClient(guarded.address) as made:
        yield made


def requests(topic: str, group: str) -> dict[str, dict[str, Any]]:
    """One request for each call that needs a right."""
    named, of_group = {"name": topic}, {"name": group}
    queue = {"topic": named, "id": 0, "broker": {"name": "broker-0"}}
    receipt = {"group": of_group, "topic": named, "receipt_handle": "x", "message_id": "x"}
    return {
        "QueryRoute": {"topic": named},
        "SendMessage": {"messages": [message(topic)]},
        "RecallMessage": {"topic": named, "recall_handle": "x"},
        "EndTransaction": {"topic": named, "message_id": "x", "transaction_id": "x", "resolution": 1},
        "QueryAssignment": {"topic": named, "group": of_group},
        "ReceiveMessage": {"group": of_group, "message_queue": queue, "batch_size": 1},
        "AckMessage": {"group": of_group, "topic": named, "entries": [{"message_id": "x", "receipt_handle": "x"}]},
        "ChangeInvisibleDuration": {**receipt, "invisible_duration": {"seconds": 10}},
        "ForwardMessageToDeadLetterQueue": receipt,
        "PullMessage": {"group": of_group, "message_queue": queue, "offset": 0, "batch_size": 1},
        "UpdateOffset": {"group": of_group, "message_queue": queue, "offset": 0},
        "GetOffset": {"group": of_group, "message_queue": queue},
        "QueryOffset": {"message_queue": queue},
    }


def code(answer: Any) -> int:
    return int((answer[0] if isinstance(answer, list) else answer).status.code)


@pytest.mark.parametrize("rpc", [*requests("", ""), "Heartbeat", "NotifyClientTermination"])
@pytest.mark.parametrize(
    "metadata",
    [
        [("x-mq-client-id", "raw")],
        signed("alice", "guessed"),
        signed("nobody", "secret-of-alice"),
        [*ALICE[:2], ("authorization", "Basic YWxpY2U6eA==")],
        [ALICE[0], ("x-mq-date-time", "20200101T000000Z"), ALICE[2]],
        signed("alice", "secret-of-alice", "20200101T000000Z"),
    ],
    ids=["unsigned", "wrong secret", "unknown user", "another kind", "another date", "old"],
)
def test_a_call_that_is_not_signed_well_is_unauthorized(client: RawClient, rpc: str, metadata: Any) -> None:
    answer = client.call(rpc, metadata, **requests("orders", "billing").get(rpc, {}))
    assert code(answer) == Code.UNAUTHORIZED


@pytest.mark.parametrize("rpc", requests("", ""))
def test_a_call_on_a_topic_without_rights_is_forbidden(client: RawClient, rpc: str) -> None:
    assert code(client.call(rpc, ALICE, **requests("others", "billing")[rpc])) == Code.FORBIDDEN


GROUP_CALLS = [rpc for rpc, request in requests("", "").items() if "group" in request]


@pytest.mark.parametrize("rpc", GROUP_CALLS)
def test_a_call_as_a_group_without_rights_is_forbidden(client: RawClient, rpc: str) -> None:
    assert code(client.call(rpc, ALICE, **requests("orders", "stolen")[rpc])) == Code.FORBIDDEN


@pytest.mark.parametrize("rpc", requests("", ""))
def test_a_call_with_the_rights_is_neither(client: RawClient, rpc: str) -> None:
    for metadata in (ALICE, signed("root", "secret-of-root")):
        answer = client.call(rpc, metadata, **requests("orders", "billing")[rpc])
        assert code(answer) not in (Code.UNAUTHORIZED, Code.FORBIDDEN)


def half(client: RawClient, metadata: Any, topic: str) -> str:
    answer = client.call("SendMessage", metadata, messages=[message(topic, message_type=WireType.TRANSACTION)])
    assert code(answer) == Code.OK
    return str(answer.entries[0].transaction_id)


def end(client: RawClient, metadata: Any, topic: str, transaction_id: str) -> int:
    return code(
        client.call(
            "EndTransaction",
            metadata,
            topic={"name": topic},
            message_id="0001",
            transaction_id=transaction_id,
            resolution=Resolution.COMMIT,
        )
    )


def test_a_transaction_is_not_ended_by_a_right_on_another_topic(client: RawClient) -> None:
    root = signed("root", "secret-of-root")
    transaction_id = half(client, root, "others_tx")
    assert end(client, ALICE, "orders_tx", transaction_id) == Code.INVALID_TRANSACTION_ID
    assert end(client, root, "others_tx", transaction_id) == Code.OK


def test_a_client_of_another_user_can_be_neither_listened_to_nor_ended(guarded: ProxyProcess) -> None:
    settings = wire.TelemetryCommand()
    settings.settings.client_type = ClientType.PRODUCER
    settings.settings.publishing.topics.add(name="orders")
    with RawClient(guarded.address) as victim, RawClient(guarded.address) as thief:
        victim.metadata = signed("root", "secret-of-root", client_id="victim")
        thief.metadata = signed("alice", "secret-of-alice", client_id="victim")
        assert next(victim.telemetry(iter((settings,)))).settings.publishing.max_body_size
        assert next(thief.telemetry(iter((settings,)))).status.code == Code.FORBIDDEN
        for rpc in ("Heartbeat", "NotifyClientTermination"):
            fields = {"client_type": ClientType.PRODUCER} if rpc == "Heartbeat" else {}
            assert code(thief.call(rpc, **fields)) == Code.FORBIDDEN
            assert code(victim.call(rpc, **fields)) == Code.OK


def test_an_unknown_topic_is_forbidden_so_that_names_cannot_be_found_out(client: RawClient) -> None:
    assert code(client.call("QueryRoute", ALICE, topic={"name": "unheard_of"})) == Code.FORBIDDEN


def test_secrets_and_signatures_are_in_no_log(guarded: ProxyProcess, client: RawClient) -> None:
    client.call("QueryRoute", signed("alice", "guessed"), topic={"name": "orders"})
    client.call("QueryRoute", ALICE, topic={"name": "others"})
    access = (guarded.store.parent / "access.jsonl").read_text()
    assert '"code": 40100' in access
    assert '"code": 40300' in access
    told = access + "".join(guarded.errors)
    for secret in ("secret-of-alice", "guessed", sign("secret-of-alice", DATE), sign("guessed", DATE)):
        assert secret not in told


def test_a_change_takes_effect_while_the_proxy_runs(guarded: ProxyProcess, client: RawClient) -> None:
    carol = signed("carol", "secret-of-carol")

    def becomes(wanted: Code) -> None:
        end = time.monotonic() + 60
        while code(client.call("SendMessage", carol, messages=[message("orders")])) != wanted:
            assert time.monotonic() < end
            time.sleep(0.05)

    with Store.open(str(guarded.store)) as store:
        acl = Acl(store)
        acl.add_user("carol", "secret-of-carol")
        becomes(Code.FORBIDDEN)
        acl.add_policy("carol", "Topic:ord*", ["Pub"])
        becomes(Code.OK)
        acl.update_user("carol", enabled=False)
        becomes(Code.UNAUTHORIZED)
        acl.turn_off()
        becomes(Code.OK)
        acl.turn_on()
        becomes(Code.UNAUTHORIZED)


# ------------------------------------------------------------ without a server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    try:
        with Store.create("memory://auth", clock=clock) as made:
            acl = Acl(made)
            acl.add_user("alice", "secret-of-alice")
            acl.add_policy("alice", "Group:billing", ["Sub"], source_ips=["10.0.0.0/8"])
            acl.turn_on()
            yield made
    finally:
        MemoryStorage.forget("auth")


def call(authorizer: StoreAuthorizer, metadata: list[tuple[str, str]], peer: str = "ipv4:10.0.0.1:5") -> Call:
    return Call("ReceiveMessage", "client", peer, dict(metadata), 0, authorizer)


def refused(act: Any, *arguments: Any) -> Code:
    with pytest.raises(RefusedError) as raised:
        act(*arguments)
    return raised.value.code


@pytest.mark.parametrize(("ms", "is_known"), [(0, True), (AGE_MS_MAX, True), (AGE_MS_MAX + 1_000, False)])
@pytest.mark.parametrize("sign_of", [-1, 1])
def test_a_signature_counts_for_a_day(store: Store, clock: ManualClock, ms: int, sign_of: int, is_known: bool) -> None:
    # Apache's clients write the time of their own time zone.
    clock.wall_ms -= clock.wall_ms % 1_000
    authorizer = StoreAuthorizer(store)
    made = call(authorizer, signed("alice", "secret-of-alice", date(clock.wall_ms + sign_of * ms)))
    if is_known:
        authorizer.authenticate(made)
        assert made.user == "alice"
    else:
        assert refused(authorizer.authenticate, made) is Code.UNAUTHORIZED


def test_retry_and_dead_letter_topics_are_their_groups(store: Store) -> None:
    authorizer = StoreAuthorizer(store)
    made = call(authorizer, ALICE)
    authorizer.authenticate(made)
    for topic in ("%RETRY%billing", "%DLQ%billing"):
        authorizer.allow(made, Right.SUB, "Topic", topic)
    assert refused(authorizer.allow, made, Right.SUB, "Topic", "%DLQ%other") is Code.FORBIDDEN


def test_a_policy_for_a_network_looks_at_the_peer(store: Store) -> None:
    authorizer = StoreAuthorizer(store)
    made = call(authorizer, ALICE, peer="ipv4:11.0.0.1:5")
    authorizer.authenticate(made)
    assert refused(authorizer.allow, made, Right.SUB, "Group", "billing") is Code.FORBIDDEN


def test_a_stream_that_began_before_access_control_was_on_is_unauthorized(store: Store) -> None:
    Acl(store).turn_off()
    authorizer = StoreAuthorizer(store)
    made = call(authorizer, [])
    authorizer.authenticate(made)
    authorizer.allow(made, Right.SUB, "Group", "billing")
    Acl(store).turn_on()
    authorizer._known = Acl(store).access_list()
    assert refused(authorizer.allow, made, Right.SUB, "Group", "billing") is Code.UNAUTHORIZED


def test_a_stream_of_a_user_who_was_deleted_is_unauthorized(store: Store) -> None:
    authorizer = StoreAuthorizer(store)
    made = call(authorizer, ALICE)
    authorizer.authenticate(made)
    Acl(store).add_user("root", "secret-of-root", is_super=True)
    Acl(store).delete_user("alice")
    authorizer._known = Acl(store).access_list()
    assert refused(authorizer.allow, made, Right.SUB, "Group", "billing") is Code.UNAUTHORIZED


def test_a_question_about_a_transaction_is_not_asked_when_the_right_to_publish_was_withdrawn(store: Store) -> None:
    async def silence() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def gone(_: Client) -> None: ...

    async def ask() -> None:
        clients = Clients(ProxySettings(), store.clock, Metrics("cluster", "node"), gone)
        authorizer = StoreAuthorizer(store)
        made = call(authorizer, ALICE)
        authorizer.authenticate(made)
        directory: Any = None  # only settings need it
        stream = Telemetry(ProxySettings(), clients, directory).telemetry(made, silence(), None)
        command = wire.TelemetryCommand()
        command.recover_orphaned_transaction_command.message.topic.name = "orders"
        answer = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert clients.join(made.client_id, "alice").send(command)
        with pytest.raises(RefusedError, match="no policy allows"):
            await answer

    asyncio.run(ask())


def test_calls_are_refused_when_the_store_could_not_be_asked_for_long(store: Store, clock: ManualClock) -> None:
    authorizer = StoreAuthorizer(store)
    clock.advance(auth.STALE_SECONDS)
    authorizer.authenticate(call(authorizer, ALICE))
    clock.advance(0.001)
    assert refused(authorizer.authenticate, call(authorizer, ALICE)) is Code.HA_NOT_AVAILABLE


def test_the_same_complaint_is_logged_once_a_minute(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    authorizer = StoreAuthorizer(store)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert refused(authorizer.authenticate, call(authorizer, signed("mallory", "guess"))) is Code.UNAUTHORIZED
        assert [record.getMessage() for record in caplog.records] == [
            "refused ReceiveMessage of user 'mallory' from 10.0.0.1: no such user"
        ]
        authorizer._known_ns += int(61e9)
        clock.advance(61)
        assert refused(authorizer.authenticate, call(authorizer, signed("mallory", "guess"))) is Code.UNAUTHORIZED
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:1234", "10.0.0.1"),
        ("ipv6:[::1]:1234", "::1"),
        ("ipv6:%5B::1%5D:1234", "::1"),
        ("ipv6:[::ffff:10.0.0.1]:1234", "10.0.0.1"),
        ("unix:/tmp/socket", None),
        ("ipv4:nonsense", None),
        ("", None),
    ],
)
def test_the_address_of_a_peer(peer: str, address: str | None) -> None:
    assert source_ip(peer) == address
