"""Nothing that arrives stops the proxy: random fields, broken frames, connections that say nothing."""

from __future__ import annotations

import random
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy_process import ProxyProcess, RawClient, message

from rmq_spark.client.store import Store
from rmq_spark.proxy import wire
from rmq_spark.proxy.status import Code

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
UNARY = [each.name for each in wire.SERVICE_DESCRIPTOR.methods if not each.client_streaming]
CODES = frozenset(each.value for each in Code)
NAMES = st.sampled_from(["orders", "", "x", "%DLQ%g", "rmq_sys_pop", "broker-0", "a" * 300, "\x00", "ä"])
HANDLES = st.sampled_from(
    ["0 1 60000 0 0 broker-0 0 0 0", "0 1 60000 0 2 broker-0 0 0 0", "9 9 9 999 0 broker-0 99 99 99", "broker-0:x"]
)


def fields_of(descriptor: Any, depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Any of a message's fields, with any values."""
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field in descriptor.fields:
        one = _value(field, depth)
        if one is None:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            optional[field.name] = st.dictionaries(NAMES | st.text(max_size=5), st.text(max_size=5), max_size=3)
        elif field.is_repeated:
            optional[field.name] = st.lists(one, max_size=2)
        else:
            optional[field.name] = one
    return st.fixed_dictionaries({}, optional=optional)


def _value(field: Any, depth: int) -> st.SearchStrategy[Any] | None:
    kinds: dict[int, st.SearchStrategy[Any]] = {
        field.TYPE_STRING: NAMES | HANDLES | st.text(max_size=20),
        field.TYPE_BYTES: st.binary(max_size=50),
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_INT32: st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 40),
        field.TYPE_INT64: st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 40),
        field.TYPE_ENUM: st.integers(-1, 8),
        field.TYPE_FLOAT: st.floats(width=32),
    }
    if field.type != field.TYPE_MESSAGE:
        return kinds[field.type]
    return None if depth > 4 else fields_of(field.message_type, depth + 1)


REQUESTS = {
    name: fields_of(wire.SERVICE_DESCRIPTOR.methods_by_name[name].input_type).filter(
        lambda made: not _waits(made)  # a receive that waits is right, and no matter for this test
    )
    for name in UNARY
}


def _waits(made: dict[str, Any]) -> bool:
    return made.get("long_polling_timeout", {}).get("seconds", 0) > 0


@pytest.fixture(scope="module")
def orders(store: Store) -> None:
    store.create_topic("orders", queues=2)


@pytest.mark.parametrize("rpc", UNARY)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_fields_get_an_answer(proxy: ProxyProcess, orders: None, rpc: str, data: st.DataObject) -> None:
    with RawClient(proxy.address, "fuzz") as raw:
        made = data.draw(REQUESTS[rpc])
        if rpc == "ReceiveMessage":
            made.setdefault("long_polling_timeout", {"seconds": 0})
        answer = raw.call(rpc, **made)
        first = answer[0] if isinstance(answer, list) else answer
        assert first.status.code in CODES
        assert first.status.code != Code.INTERNAL_SERVER_ERROR, first.status.message


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(rpc=st.sampled_from(UNARY), noise=st.binary(max_size=200))
def test_random_bytes_as_a_request_get_an_answer(proxy: ProxyProcess, orders: None, rpc: str, noise: bytes) -> None:
    with RawClient(proxy.address, "fuzz") as raw:
        answer = raw.send(rpc, noise, timeout=30)
        first = answer[0] if isinstance(answer, list) else answer
        assert first.status.code in CODES
        assert first.status.code != Code.INTERNAL_SERVER_ERROR, first.status.message


def test_broken_frames_end_their_connection_only(proxy: ProxyProcess, raw: RawClient, orders: None) -> None:
    chance = random.Random(21)
    whole = PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    for _ in range(100):
        noise = chance.randbytes(chance.randrange(1, 400))
        start = chance.choice([b"", whole[: chance.randrange(len(whole))], whole])
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection:
            connection.sendall(start + noise)
    assert raw.call("SendMessage", messages=[message("orders")]).status.code == Code.OK


def _silent(proxy: ProxyProcess, count: int) -> Iterator[socket.socket]:
    for _ in range(count):
        yield socket.create_connection(("127.0.0.1", proxy.port), timeout=60)


def _resident_bytes(proxy: ProxyProcess) -> int:
    pages = int(Path(f"/proc/{proxy.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _keeps_serving(proxy: ProxyProcess, count: int, growth_max: int) -> None:
    with RawClient(proxy.address, "other") as raw:
        assert raw.call("SendMessage", messages=[message("orders")]).status.code == Code.OK
        before = _resident_bytes(proxy)
        silent = list(_silent(proxy, count))
        try:
            for _ in range(10):
                assert raw.call("SendMessage", messages=[message("orders")]).status.code == Code.OK
            assert _resident_bytes(proxy) - before < growth_max
        finally:
            for connection in silent:
                connection.close()


def test_silent_connections_do_not_stop_others(proxy: ProxyProcess, orders: None) -> None:
    _keeps_serving(proxy, 200, 50 << 20)


@pytest.mark.slow
def test_ten_thousand_silent_connections_do_not_stop_others(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 12_000:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        proxy = ProxyProcess(tmp_path / "store")
        with Store.open(str(proxy.store)) as store:
            store.create_topic("orders", queues=2)
        _keeps_serving(proxy, 10_000, 400 << 20)
        proxy.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
