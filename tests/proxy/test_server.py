"""The proxy as a server: health, reflection, metrics, access log, limits, TLS, a graceful stop."""

from __future__ import annotations

import json
import os
import queue as queues
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from proxy_process import ProxyProcess, RawClient, apache, message

from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError
from rmq_spark.proxy import ProxySettings, wire
from rmq_spark.proxy.status import Code


def test_health_and_reflection_answer(proxy: ProxyProcess, raw: RawClient) -> None:
    health = health_pb2_grpc.HealthStub(raw.channel)
    for service in ("", wire.SERVICE):
        told = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert told.status == health_pb2.HealthCheckResponse.SERVING
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    listed = next(reflection_pb2_grpc.ServerReflectionStub(raw.channel).ServerReflectionInfo(asked, timeout=30))
    assert wire.SERVICE in {each.name for each in listed.list_services_response.service}


def test_metrics_have_rocketmqs_names(proxy: ProxyProcess, raw: RawClient, store: Store) -> None:
    store.create_topic("counted", queues=1)
    for _ in range(3):
        assert raw.call("SendMessage", messages=[message("counted", b"12345")]).status.code == Code.OK
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = {line.partition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    mine = {name.partition("{")[0]: value for name, value in values.items() if 'topic="counted"' in name}
    assert mine["rocketmq_messages_in_total"] == 3
    assert mine["rocketmq_throughput_in_total"] == 15
    names = {name.partition("{")[0] for name in values}
    assert {
        "rocketmq_rpc_latency_bucket",
        "rocketmq_producer_connections",
        "rocketmq_proxy_up",
        "rocketmq_topic_number",
    } <= names


def test_the_access_log_has_a_line_for_each_call(tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path / "store", access_log=str(tmp_path / "access.jsonl"))
    with RawClient(proxy.address, "me") as raw:
        raw.call("SendMessage", messages=[message("nowhere")])
        raw.call("Heartbeat", client_type=1)
    proxy.stop()
    lines = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    assert [(each["rpc"], each["client"], each["code"]) for each in lines] == [
        ("SendMessage", "me", 40402),
        ("Heartbeat", "me", 20000),
    ]
    assert lines[0]["topic"] == "nowhere"


def test_limits_answer_too_many_requests(tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path / "store", calls_per_client_max=1, clients_max=1, waiting_bytes_max=10)
    with Store.open(str(proxy.store)) as store:
        store.create_topic("orders", queues=1)
    with RawClient(proxy.address, "one") as one, RawClient(proxy.address, "two") as two:
        commands: queues.Queue[Any] = queues.Queue()
        stream = one.telemetry(iter(commands.get, None))
        commands.put(wire.TelemetryCommand(settings={"client_type": 1}))
        assert next(stream).status.code == Code.OK
        # The stream is a call that is under way.
        assert one.call("Heartbeat", client_type=1).status.code == Code.TOO_MANY_REQUESTS
        assert two.call("Heartbeat", client_type=1).status.code == Code.OK
        assert next(two.telemetry(iter(()))).status.code == Code.TOO_MANY_REQUESTS
        large = two.call("SendMessage", messages=[message("orders", bytes(11))])
        assert large.status.code == Code.TOO_MANY_REQUESTS
        commands.put(None)
        stream.cancel()
    proxy.stop()


def test_a_push_consumer_beyond_the_limit_of_clients_claims_nothing(tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path / "store", clients_max=0)
    with Store.open(str(proxy.store)) as store:
        store.create_topic("orders", queues=1)
    with RawClient(proxy.address) as raw:
        assert raw.call("SendMessage", messages=[message("orders")]).status.code == Code.OK
        asked: dict[str, Any] = {
            "group": {"name": "g"},
            "message_queue": {"topic": {"name": "orders"}, "id": -1},
            "batch_size": 1,
            "long_polling_timeout": {"seconds": 0},
        }
        refused = raw.call("ReceiveMessage", auto_renew=True, **asked)
        assert [each.status.code for each in refused] == [Code.TOO_MANY_REQUESTS]
        got = raw.call("ReceiveMessage", invisible_duration={"seconds": 30}, **asked)
        assert [each.message.system_properties.delivery_attempt for each in got if each.HasField("message")] == [1]
    proxy.stop()


def test_a_stop_tells_clients_to_reconnect_and_answers_calls_under_way(tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path / "store")
    with Store.open(str(proxy.store)) as store:
        store.create_topic("orders", queues=1)
    with RawClient(proxy.address) as raw:
        commands: queues.Queue[Any] = queues.Queue()
        stream = raw.telemetry(iter(commands.get, None))
        commands.put(wire.TelemetryCommand(settings={"client_type": 1}))
        assert next(stream).HasField("settings")
        request = wire.message_class("ReceiveMessageRequest")(
            group={"name": "g"}, batch_size=1, invisible_duration={"seconds": 30}, long_polling_timeout={"seconds": 20}
        )
        request.message_queue.topic.name = "orders"
        waiting = raw.channel.unary_stream(
            f"/{wire.SERVICE}/ReceiveMessage",
            request_serializer=type(request).SerializeToString,
            response_deserializer=wire.ReceiveMessageResponse.FromString,
        )(request, metadata=raw.metadata, timeout=60)
        # The next call is answered after the receive was begun: both are of one connection.
        assert raw.call("Heartbeat", client_type=1).status.code == Code.OK
        proxy.stop()
        assert next(stream).HasField("reconnect_endpoints_command")
        assert [each.status.code for each in waiting] == [Code.MESSAGE_NOT_FOUND]
        commands.put(None)


@pytest.mark.parametrize(
    "bad",
    [
        {"listen": "nowhere"},
        {"listen": "h:99999"},
        {"advertise": ("x",)},
        {"tls_cert": Path("c")},
        {"tls_client_ca": Path("c")},
        {"threads": -1},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        ProxySettings(**bad)


# ------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate authority, and a server's and a client's certificate that it has signed."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        openssl("req", *new[:3], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", "names", "-out", f"{name}.pem"),
        )
    return folder


@pytest.fixture
def tls(certificates: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    yield {"tls_cert": str(certificates / "server.pem"), "tls_key": str(certificates / "server.key")}


def test_apaches_client_speaks_tls(tls: dict[str, Any], certificates: Path, tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path / "store", **tls)
    with Store.open(str(proxy.store)) as store:
        store.create_topic("sync", queues=2)
    trust = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificates / "ca.pem")}
    told = apache("send_sync", proxy, tmp_path, topic="sync", group="tls-group", tls=True, environment=trust)
    assert told["got"] == told["sent"]
    proxy.stop()


def test_mutual_tls_lets_only_known_clients_in(tls: dict[str, Any], certificates: Path, tmp_path: Path) -> None:
    proxy = ProxyProcess(tmp_path / "store", **tls, tls_client_ca=str(certificates / "ca.pem"))
    roots = (certificates / "ca.pem").read_bytes()
    key, chain = ((certificates / f"client.{end}").read_bytes() for end in ("key", "pem"))
    for credentials, works in (
        (grpc.ssl_channel_credentials(roots, key, chain), True),
        (grpc.ssl_channel_credentials(roots), False),
    ):
        with grpc.secure_channel(proxy.address, credentials) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            if works:
                assert check(health_pb2.HealthCheckRequest(), timeout=60).status == 1
            else:
                with pytest.raises(grpc.RpcError):
                    check(health_pb2.HealthCheckRequest(), timeout=10)
    assert os.path.isdir(proxy.store)
    proxy.stop()
