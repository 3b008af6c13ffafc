from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from rmq_spark.clock import SystemClock
from rmq_spark.errors import (
    CorruptDataError,
    ExistsError,
    InvalidRequestError,
    MissingExtraError,
    OutcomeUnknownError,
    ReadOnlyError,
    UnavailableError,
)
from rmq_spark.storage.hdfs import TEMP_PREFIX, HdfsStorage
from rmq_spark.testing.storage_conformance import StorageConformance

pytestmark = [pytest.mark.server, pytest.mark.java]


@pytest.fixture
def uri(hdfs_uri: str) -> str:
    return f"{hdfs_uri}/test-{uuid4().hex}"


@pytest.fixture
def storage(uri: str) -> Iterator[HdfsStorage]:
    storage = HdfsStorage(uri)
    yield storage
    storage.close()


class TestHdfs(StorageConformance):
    race_names = 50

    @pytest.fixture
    def storage(self, uri: str) -> Iterator[HdfsStorage]:
        storage = HdfsStorage(uri)
        yield storage
        storage.close()

    @pytest.fixture
    def second_handle(self, uri: str) -> Iterator[HdfsStorage]:
        storage = HdfsStorage(uri)
        yield storage
        storage.close()


class FaultyClient:
    """A client whose named call does `fault(real_call)` instead."""

    def __init__(self, real: Any, call: str, fault: Any) -> None:
        self._real, self._call, self._fault = real, call, fault

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name != self._call:
            return real
        return lambda *args, **kwargs: self._fault(lambda: real(*args, **kwargs))


def temp_files(storage: HdfsStorage) -> list[str]:
    names = [s.path.rpartition("/")[2] for s in storage._client.list_status(storage._prefix, recursive=True)]
    return [name for name in names if name.startswith(TEMP_PREFIX)]


def fail_after(error: Exception) -> Any:
    def fault(real: Any) -> None:
        real()
        raise error

    return fault


def fail_before(error: Exception) -> Any:
    def fault(real: Any) -> None:
        raise error

    return fault


def test_a_create_does_not_wait_for_the_clients_slow_close(storage: HdfsStorage) -> None:
    storage.create_if_absent("d/warm-up", [b"x" * 5_000])
    times = []
    for number in range(5):
        start = time.perf_counter()
        storage.create_if_absent(f"d/{number}", [b"x" * 5_000])
        times.append(time.perf_counter() - start)
    assert sorted(times)[2] < 0.4
    assert temp_files(storage) == []


def test_without_the_early_close_it_still_works(storage: HdfsStorage) -> None:
    storage._client = FaultyClient(storage._client, "get_content_summary", fail_before(RuntimeError("no")))
    storage.create_if_absent("d/x", [b"x" * 5_000])
    assert storage.read("d/x") == b"x" * 5_000


def test_files_of_several_blocks(hdfs_uri: str) -> None:
    import hdfs_native

    storage = HdfsStorage(f"{hdfs_uri}/test-{uuid4().hex}")
    storage._write_options = hdfs_native.WriteOptions(create_parent=True, overwrite=False, block_size=65_536)
    for size in (65_536, 65_537, 200_000, 131_072):
        content = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
        storage.create_if_absent(f"d/{size}", [content])
        assert storage.read(f"d/{size}") == content
    storage.close()


def test_a_directory_on_the_name_is_refused_and_stays_empty(storage: HdfsStorage) -> None:
    storage._client.mkdirs(storage._full("d/x"), create_parent=True)
    with pytest.raises(ExistsError):
        storage.create_if_absent("d/x", [b"data"])
    assert list(storage._client.list_status(storage._full("d/x"))) == []
    assert temp_files(storage) == []


def test_a_file_where_a_directory_belongs(storage: HdfsStorage) -> None:
    storage.create_if_absent("d", [b"file"])
    with pytest.raises(CorruptDataError):
        storage.create_if_absent("d/x", [b"data"])


def test_a_name_hdfs_cannot_have(storage: HdfsStorage) -> None:
    with pytest.raises(InvalidRequestError):
        storage.create_if_absent("d:e/x", [b"data"])


def test_losers_leave_no_temporary_file(storage: HdfsStorage) -> None:
    storage.create_if_absent("d/x", [b"first"])
    with pytest.raises(ExistsError):
        storage.create_if_absent("d/x", [b"second"])
    assert temp_files(storage) == []


def test_a_lost_reply_of_the_rename_is_success(storage: HdfsStorage) -> None:
    storage._client = FaultyClient(storage._client, "rename", fail_after(OSError("connection reset")))
    storage.create_if_absent("d/x", [b"nonce"])
    assert storage.read("d/x") == b"nonce"


def test_a_rename_retried_by_the_client_is_success(storage: HdfsStorage) -> None:
    storage._client = FaultyClient(storage._client, "rename", fail_after(FileNotFoundError("no source")))
    storage.create_if_absent("d/x", [b"nonce"])
    assert storage.read("d/x") == b"nonce"


def test_a_rename_that_did_not_happen_is_unavailable(storage: HdfsStorage) -> None:
    storage._client = FaultyClient(storage._client, "rename", fail_before(OSError("connection reset")))
    with pytest.raises(UnavailableError):
        storage.create_if_absent("d/x", [b"nonce"])
    assert not storage.exists("d/x")
    assert temp_files(storage) == []


def test_nobody_knows_when_reading_back_fails_too(storage: HdfsStorage) -> None:
    storage._client = FaultyClient(storage._client, "rename", fail_after(OSError("connection reset")))
    storage._client = FaultyClient(storage._client, "get_file_info", fail_before(OSError("still down")))
    with pytest.raises(OutcomeUnknownError):
        storage.create_if_absent("d/x", [b"nonce"])


def test_a_failed_write_leaves_nothing(storage: HdfsStorage) -> None:
    storage._client = FaultyClient(storage._client, "create", fail_after(OSError("pipeline broke")))
    with pytest.raises(UnavailableError):
        storage.create_if_absent("d/x", [b"nonce"])
    assert not storage.exists("d/x")
    assert temp_files(storage) == []


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ('RPCError("org.apache.hadoop.security.AccessControlException", "denied")', ReadOnlyError),
        ('RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "wait")', UnavailableError),
    ],
)
def test_refusals_have_their_own_errors(storage: HdfsStorage, message: str, kind: type) -> None:
    storage._client = FaultyClient(storage._client, "create", fail_before(RuntimeError(message)))
    with pytest.raises(kind):
        storage.create_if_absent("d/x", [b"nonce"])


def test_sweep_takes_old_temporary_files_only(storage: HdfsStorage) -> None:
    storage.create_if_absent("d/x", [b"x"])
    storage._client.create(storage._full(f"d/{TEMP_PREFIX}dead"))
    now_ms = SystemClock().now_ms()
    assert storage.sweep_temp(60_000, now_ms) == 0
    assert temp_files(storage) == [f"{TEMP_PREFIX}dead"]
    assert [info.name for info in storage.list("d")] == ["x"]
    assert storage.sweep_temp(60_000, now_ms + 120_000) == 1
    assert temp_files(storage) == []


def test_an_unreachable_name_node() -> None:
    # With Hadoop's default of 15 attempts the answer is the same, after minutes.
    storage = HdfsStorage("hdfs://127.0.0.1:1/x", options={"dfs.client.failover.max.attempts": "0"})
    with pytest.raises(UnavailableError):
        storage.read("d/x")
    with pytest.raises(UnavailableError):
        storage.create_if_absent("d/x", [b"x"])
    storage.close()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="colour"):
        HdfsStorage("hdfs://127.0.0.1:1/x", options={"colour": "red"})


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hdfs_native", None)
    with pytest.raises(MissingExtraError, match=r"rmq-spark\[hdfs\]"):
        HdfsStorage("hdfs://127.0.0.1:1/x")


class BrokenOff:
    """A client whose reads are broken off by the DataNode, the first so many of them."""

    def __init__(self, inner: Any, times: int) -> None:
        self.inner = inner
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, path: str) -> Any:
        reader = self.inner.read(path)
        outer = self

        class Reader:
            def __len__(self) -> int:
                return len(reader)

            def read_range(self, start: int, length: int) -> bytes:
                outer.left -= 1
                if outer.left >= 0:
                    raise RuntimeError('DataTransferError("All DataNodes failed: [...]")')
                return bytes(reader.read_range(start, length))

        return Reader()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_read_that_was_broken_off_is_tried_again_but_not_for_ever(storage: HdfsStorage, times: int) -> None:
    storage.create_if_absent("d/file", [b"content"])
    storage._client = BrokenOff(storage._client, times)
    if times < 3:
        assert storage.read("d/file") == b"content"
    else:
        with pytest.raises(UnavailableError):
            storage.read("d/file")
