from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import ExistsError, InvalidRequestError, MissingExtraError, UnsafeStorageError
from rmq_spark.storage.base import Storage
from rmq_spark.storage.local import LocalStorage
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.storage.object_store import ObjectStorage
from rmq_spark.storage.open import SCHEMES, open_storage, probe


def test_a_plain_path(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "store"))
    storage.create_if_absent("d/x", [b"1"])
    assert (tmp_path / "store" / "d" / "x").read_bytes() == b"1"
    assert storage.uri == str(tmp_path / "store")


def test_a_path_object(tmp_path: Path) -> None:
    assert open_storage(tmp_path).uri == str(tmp_path)


def test_a_relative_path_is_fixed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage("store")
    monkeypatch.chdir("/")
    storage.create_if_absent("d/x", [b"1"])
    assert (tmp_path / "store" / "d" / "x").exists()


def test_a_file_uri_is_unescaped(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/a%20b")
    assert storage.uri == f"{tmp_path}/a b"
    assert open_storage(f"file://localhost{tmp_path}").uri == str(tmp_path)


@pytest.mark.parametrize("uri", ["file://host/x", "file://", "file:///x?y=1", "file:///x#y"])
def test_file_uris_that_mean_nothing(uri: str) -> None:
    with pytest.raises(InvalidRequestError):
        open_storage(uri)


def test_opening_creates_nothing(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "store")
    assert list(storage.list("")) == []
    assert not storage.exists("x")
    assert storage.disk_usage() is not None
    assert list(tmp_path.iterdir()) == []


def test_memory_uris_share_by_name() -> None:
    name = uuid4().hex
    open_storage(f"memory://{name}").create_if_absent("d/x", [b"1"])
    assert open_storage(f"memory://{name}/").read("d/x") == b"1"
    assert not open_storage("memory://").exists("d/x")
    MemoryStorage.forget(name)


@pytest.mark.parametrize("uri", ["/tmp/x", "memory://x"])
def test_options_where_there_are_none(uri: str) -> None:
    with pytest.raises(InvalidRequestError):
        open_storage(uri, options={"region": "x"})


def test_the_uri_opens_the_same_store(tmp_path: Path) -> None:
    first = open_storage(f"file://{tmp_path}/store")
    first.create_if_absent("d/x", [b"1"])
    assert open_storage(first.uri).read("d/x") == b"1"


def test_an_object_store_uri_hides_its_secrets() -> None:
    storage = open_storage("s3://bucket/pre?region=eu-west-1&key=AK&secret_access_key=S3CR3T")
    assert isinstance(storage, ObjectStorage)
    assert storage.uri == "s3://bucket/pre?region=eu-west-1"


def test_unknown_object_store_options() -> None:
    with pytest.raises(InvalidRequestError, match="options"):
        open_storage("s3://bucket/pre", options={"colour": "red"})


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"rmq-spark\[s3\]"):
        open_storage("s3://bucket/pre")


@pytest.mark.parametrize("uri", ["ftp://host/x", "sftp://host/x", "smb://host/x", "webhdfs://host/x"])
def test_schemes_that_fsspec_knows_are_unsafe(uri: str) -> None:
    with pytest.raises(UnsafeStorageError, match="hdfs://") as refused:
        open_storage(uri)
    assert uri.partition(":")[0] in str(refused.value)


@pytest.mark.parametrize(("uri", "near"), [("s33://b/x", "s3://"), ("hfds://h/x", "hdfs://"), ("fil:///x", "file")])
def test_a_mistyped_scheme_names_the_nearest(uri: str, near: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"did you mean {near}"):
        open_storage(uri)


def test_every_named_scheme_is_really_known() -> None:
    for scheme in SCHEMES:
        try:
            open_storage(f"{scheme}://" + ("/tmp/x" if scheme == "file" else "127.0.0.1:1/x"))
        except InvalidRequestError as error:
            assert "options are wrong" in str(error)  # az:// wants an account


class Overwriting(MemoryStorage):
    """Accepts every create, as a server does that ignores the condition."""

    def create_if_absent(self, path: str, data: object, *, durable: bool = True) -> None:
        self.delete(path)
        super().create_if_absent(path, data, durable=durable)  # type: ignore[arg-type]


class Deaf(MemoryStorage):
    """Says yes to every create and keeps the first."""

    def create_if_absent(self, path: str, data: object, *, durable: bool = True) -> None:
        if not self.exists(path):
            super().create_if_absent(path, data, durable=durable)  # type: ignore[arg-type]


class Lying(MemoryStorage):
    """Refuses the second create after having replaced the first."""

    def create_if_absent(self, path: str, data: object, *, durable: bool = True) -> None:
        refuse = self.exists(path)
        self.delete(path)
        super().create_if_absent(path, data, durable=durable)  # type: ignore[arg-type]
        if refuse:
            raise ExistsError("exists", path=path)


@pytest.mark.parametrize(("kind", "reason"), [(Overwriting, "replaced"), (Deaf, "accepted"), (Lying, "replaced")])
def test_the_probe_refuses_unsafe_storages(kind: type[MemoryStorage], reason: str) -> None:
    storage = kind()
    with pytest.raises(UnsafeStorageError, match=reason):
        probe(storage, SystemClock())
    assert list(storage.list("probe")) == []


@pytest.mark.parametrize("skew_ms", [-7_000, -1_500, 0, 1_500, 86_400_000])
def test_the_probe_tells_the_clock_skew(skew_ms: int) -> None:
    local = ManualClock(now_ms=1_700_000_000_123)
    storage = MemoryStorage(clock=ManualClock(now_ms=1_700_000_000_123 + skew_ms))
    assert abs(probe(storage, local).clock_skew_ms - skew_ms) <= 10


def test_the_probe_sees_a_local_files_time(tmp_path: Path) -> None:
    clock = ManualClock(now_ms=SystemClock().now_ms() - 3_600_000)
    assert probe(LocalStorage(tmp_path), clock).clock_skew_ms == pytest.approx(3_600_000, abs=5_000)


def test_every_backend_is_a_storage(tmp_path: Path) -> None:
    for uri in (os.fspath(tmp_path), "memory://", "hdfs://127.0.0.1:1/x", "s3://bucket/x?region=x"):
        assert isinstance(open_storage(uri), Storage)
