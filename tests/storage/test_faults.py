"""What a caller is told when a call fails half way, on every backend where that can happen."""

from __future__ import annotations

import errno
import http.client
import os
import resource
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest

from rmq_spark.clock import SystemClock
from rmq_spark.errors import (
    ExistsError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RmqError,
    StorageFullError,
    UnavailableError,
    UnsafeStorageError,
)
from rmq_spark.storage import object_store
from rmq_spark.storage.base import Bytes
from rmq_spark.storage.local import FileOps, LocalStorage
from rmq_spark.storage.object_store import ObjectStorage
from rmq_spark.testing.small_disk import small_disk


class FaultyOps(FileOps):
    """Raises `code` in the call `name`, before or after really doing it, for the next `times` calls."""

    def __init__(self, name: str, code: int, *, after: bool = False, times: int = 1) -> None:
        self.times = times
        real = getattr(self, name)

        def fault(*args: object) -> object:
            if not self.times:
                return real(*args)
            self.times -= 1
            if after:
                real(*args)
            raise OSError(code, os.strerror(code))

        setattr(self, name, fault)


def create_fails(root: Path, ops: FileOps, kind: type[RmqError]) -> LocalStorage:
    """A durable create raises exactly `kind`, and leaves neither the file nor a temporary one."""
    LocalStorage(root).create_if_absent("a/old", [b"0"])
    storage = LocalStorage(root, ops=ops)
    with pytest.raises(kind) as failed:
        storage.create_if_absent("a/x", [b"1" * 100_000])
    assert type(failed.value) is kind
    assert os.listdir(root / "a") == ["old"]
    storage.create_if_absent("a/x", [b"2"])
    assert storage.read("a/x") == b"2"
    return storage


@pytest.mark.parametrize("call", ["open_new", "allocate", "writev", "fsync", "link"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(tmp_path: Path, call: str, code: int) -> None:
    create_fails(tmp_path, FaultyOps(call, code), StorageFullError)


def test_a_full_disk_by_the_kernel(tmp_path: Path) -> None:
    """Room that cannot be set aside is an error of its own, before anything is written."""
    free = os.statvfs(tmp_path)
    with tempfile.TemporaryFile(dir=tmp_path) as file, pytest.raises(OSError, match=r"space|large") as failed:
        FileOps().allocate(file.fileno(), 2 * free.f_blocks * free.f_frsize)
    assert failed.value.errno in (errno.ENOSPC, errno.EFBIG)


def test_a_disk_full_on_close(tmp_path: Path) -> None:
    create_fails(tmp_path, FaultyOps("close", errno.EDQUOT, after=True), StorageFullError)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_read_only_directory(tmp_path: Path, code: int) -> None:
    create_fails(tmp_path, FaultyOps("open_new", code), ReadOnlyError)


def test_a_read_only_parent(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, ops=FaultyOps("mkdir", errno.EROFS))
    with pytest.raises(ReadOnlyError):
        storage.create_if_absent("a/x", [b"1"])
    assert os.listdir(tmp_path) == []


def test_delete_on_a_read_only_disk(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, ops=FaultyOps("unlink", errno.EROFS))
    with pytest.raises(ReadOnlyError):
        storage.delete("a/x")


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV])
def test_no_hard_links(tmp_path: Path, code: int) -> None:
    create_fails(tmp_path, FaultyOps("link", code), UnsafeStorageError)


@pytest.mark.parametrize("call", ["open_new", "writev", "fsync", "link"])
def test_a_broken_disk(tmp_path: Path, call: str) -> None:
    create_fails(tmp_path, FaultyOps(call, errno.EIO), UnavailableError)


def test_a_temporary_file_swept_too_early_loses_the_attempt_only(tmp_path: Path) -> None:
    class Swept(FileOps):
        def link(self, source: str, target: str) -> None:
            if target.endswith("/x") and not os.path.exists(target + "-tried"):
                Path(target + "-tried").touch()
                os.unlink(source)
            super().link(source, target)

    storage = LocalStorage(tmp_path, ops=Swept())
    with pytest.raises(UnavailableError):
        storage.create_if_absent("a/x", [b"1"])
    assert not storage.exists("a/x")


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_a_lost_reply_of_the_link_is_success(tmp_path: Path, code: int) -> None:
    storage = LocalStorage(tmp_path, ops=FaultyOps("link", code, after=True))
    storage.create_if_absent("a/x", [b"non", b"ce"])
    assert storage.read("a/x") == b"nonce"
    assert os.listdir(tmp_path / "a") == ["x"]


def test_an_unclear_link_that_cannot_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path, ops=FaultyOps("link", errno.EIO, after=True))

    def broken(path: str) -> bytes:
        raise UnavailableError("no", path=path)

    monkeypatch.setattr(storage, "read", broken)
    with pytest.raises(OutcomeUnknownError):
        storage.create_if_absent("a/x", [b"nonce"])


def test_a_temporary_file_that_cannot_be_removed_does_not_undo_success(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, ops=FaultyOps("unlink", errno.EIO))
    storage.create_if_absent("a/x", [b"1"])
    assert [info.name for info in storage.list("a")] == ["x"]
    assert len(os.listdir(tmp_path / "a")) == 2
    assert storage.sweep_temp(0, SystemClock().now_ms() + 60_000) == 1


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path) -> None:
    class Interrupted(FileOps):
        def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalStorage(tmp_path, ops=Interrupted()).create_if_absent("a/x", [b"1"])
    assert os.listdir(tmp_path / "a") == []


def test_a_failed_flush_of_the_directory_is_never_forgotten(tmp_path: Path) -> None:
    LocalStorage(tmp_path).create_if_absent("a/old", [b"0"])
    storage = LocalStorage(tmp_path, ops=FaultyOps("fsync_dir", errno.EIO, times=0))
    storage.create_if_absent("a/warm", [b"0"])
    storage._ops.times = 1  # type: ignore[attr-defined]
    with pytest.raises(OutcomeUnknownError):
        storage.create_if_absent("a/x", [b"nonce"])
    # The kernel would report success now although the first flush was lost.
    with pytest.raises(OutcomeUnknownError):
        storage.create_if_absent("a/x", [b"nonce"])
    with pytest.raises(OutcomeUnknownError):
        storage.sync(["a/x"])
    LocalStorage(tmp_path).create_if_absent("a/x", [b"nonce"])


def test_a_failed_flush_of_a_file_is_never_forgotten(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, ops=FaultyOps("fsync", errno.EIO))
    storage.create_if_absent("a/x", [b"1"], durable=False)
    storage.create_if_absent("a/y", [b"1"], durable=False)
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError):
            storage.sync(["a/x"])
    storage.sync(["a/y"])


@pytest.mark.parametrize("call", ["allocate", "writev"])
def test_a_file_that_is_too_large_is_not_tried_again(tmp_path: Path, call: str) -> None:
    create_fails(tmp_path, FaultyOps(call, errno.EFBIG), InvalidRequestError)
    assert not InvalidRequestError.retriable


def test_the_limit_of_the_process_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create_if_absent("a/old", [b"0"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(InvalidRequestError, match="ulimit -f"):
            storage.create_if_absent("a/x", [bytes(20_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path / "a") == ["old"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "tiny", 1024 * 1024) as place:
        yield place


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    storage = LocalStorage(tiny_disk)
    storage.create_if_absent("a/fits", [bytes(500_000)])
    with pytest.raises(StorageFullError):
        storage.create_if_absent("a/x", [bytes(400_000), bytes(400_000)])
    assert os.listdir(tiny_disk / "a") == ["fits"]
    storage.delete("a/fits")
    storage.create_if_absent("a/x", [bytes(400_000), bytes(400_000)])


def test_a_disk_that_is_really_read_only(tiny_disk: Path) -> None:
    storage = LocalStorage(tiny_disk)
    storage.create_if_absent("a/x", [b"1"])
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(ReadOnlyError):
        storage.create_if_absent("a/y", [b"1"])
    with pytest.raises(ReadOnlyError):
        storage.create_if_absent("new/y", [b"1"])
    with pytest.raises(ReadOnlyError):
        storage.delete("a/x")
    assert storage.read("a/x") == b"1"
    with storage.turn("a", 0.1) as mine:
        assert not mine


STALLED_S = 300.0
"""How long a stalled connection stands still: longer than any test waits."""


class FaultProxy(ThreadingHTTPServer):
    """Passes requests on to a real server. The next PUTs meet the faults in `faults`, other requests those in `other`.

    `lost_request`: dropped before the server sees it. `lost_reply`: done, but the connection breaks.
    `slow`: done and answered, after two seconds. `late_reply`: done, but answered after the client's patience.
    `stall`: never answered, and not done. `500_after`: done, answered 500.
    `503` and `409`: answered so and not done. `409_other`: answered 409 after somebody else's PUT.
    """

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), FaultHandler)
        self.upstream = upstream
        self.faults: deque[str] = deque()
        self.other: deque[str] = deque()
        self.all_down = False
        self.puts = 0
        self.others = 0
        self.ended = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is part of the plan."""


class FaultHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=30)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        dropped = {"transfer-encoding", "connection", "content-length"}
        for key, value in headers:
            if key.lower() not in dropped:
                self.send_header(key, value)
        length = {key.lower(): value for key, value in headers}.get("content-length", str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = ""
        if self.command == "PUT":
            self.server.puts += 1
            fault = self.server.faults.popleft() if self.server.faults else ""
        else:
            self.server.others += 1
            fault = self.server.other.popleft() if self.server.other else ""
        if self.server.all_down:
            fault = "lost_request"
        if fault == "slow":
            fault = ""
            threading.Event().wait(2.0)
        if fault in ("lost_reply", "late_reply", "500_after"):
            self._pass_on(body)
        if fault == "409_other":
            self._pass_on(b"other"[: len(body)])
        if fault == "late_reply":
            threading.Event().wait(2.0)
        if fault == "stall":
            self.server.ended.wait(STALLED_S)
        if fault.startswith("lost") or fault in ("late_reply", "stall"):
            self.close_connection = True
            return
        if fault:
            code = int(fault[:3])
            name = {409: "ConditionalRequestConflict", 500: "InternalError", 503: "SlowDown"}[code]
            self._answer(code, [], f"<Error><Code>{name}</Code></Error>".encode())
            return
        self._answer(*self._pass_on(body))

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve


@pytest.fixture
def proxy(s3_options: dict[str, str]) -> Iterator[FaultProxy]:
    with FaultProxy(s3_options["endpoint"].removeprefix("http://")) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def direct(s3_uri: str, s3_options: dict[str, str]) -> ObjectStorage:
    return ObjectStorage(f"{s3_uri}/faults-{uuid4().hex}", options=s3_options)


@pytest.fixture
def through(direct: ObjectStorage, proxy: FaultProxy, s3_options: dict[str, str]) -> ObjectStorage:
    """The same store as `direct`, through the proxy and with little patience."""
    options = {**s3_options, "endpoint": f"http://127.0.0.1:{proxy.server_port}", "timeout": "1s"}
    return ObjectStorage(direct.uri, options=options, deadline_s=5)


@pytest.mark.server
@pytest.mark.parametrize(
    ("faults", "puts"),
    [
        (["lost_reply"], 1),
        (["late_reply"], 1),
        (["500_after"], 1),
        (["lost_request"], 2),
        (["503"], 2),
        (["409"], 2),
        (["409", "503", "lost_request", "lost_reply"], 4),
    ],
)
def test_unclear_answers_end_in_one_create(
    direct: ObjectStorage, through: ObjectStorage, proxy: FaultProxy, faults: list[str], puts: int
) -> None:
    proxy.faults.extend(faults)
    through.create_if_absent("d/x", [b"nonce"])
    assert direct.read("d/x") == b"nonce"
    assert proxy.puts == puts


@pytest.mark.server
@pytest.mark.parametrize("fault", ["", "lost_request", "503", "409", "500_after", "lost_reply"])
def test_unclear_answers_about_a_taken_name(
    direct: ObjectStorage, through: ObjectStorage, proxy: FaultProxy, fault: str
) -> None:
    direct.create_if_absent("d/x", [b"first"])
    proxy.faults.append(fault)
    with pytest.raises(ExistsError):
        through.create_if_absent("d/x", [b"nonce"])
    assert direct.read("d/x") == b"first"
    assert proxy.puts == 1


@pytest.fixture
def impatient(
    direct: ObjectStorage, proxy: FaultProxy, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> ObjectStorage:
    """The same store as `direct`, through the proxy, with the settings that users have but less patience."""
    monkeypatch.setattr(object_store, "STALL_S", 1.0)
    options = {**s3_options, "endpoint": f"http://127.0.0.1:{proxy.server_port}"}
    return ObjectStorage(direct.uri, options=options)


def test_no_request_stands_still_for_longer_than_a_few_seconds() -> None:
    assert object_store.STALL_S <= 5


@pytest.mark.server
def test_a_read_that_stalls_is_tried_again_soon(
    direct: ObjectStorage, impatient: ObjectStorage, proxy: FaultProxy
) -> None:
    direct.create_if_absent("d/x", [b"0123456789"])
    calls: list[Callable[[], object]] = [
        lambda: impatient.read("d/x") == b"0123456789",
        lambda: impatient.read_range("d/x", 2, 3) == b"234",
        lambda: impatient.read_tail("d/x", 3) == (b"789", 10),
        lambda: impatient.exists("d/x"),
        lambda: [info.name for info in impatient.list("d")] == ["x"],
    ]
    for call in calls:
        proxy.other.extend(["stall", "stall"])
        start = time.monotonic()
        assert call()
        assert time.monotonic() - start < STALLED_S / 2
        assert not proxy.other
    assert proxy.others >= 3 * len(calls)


@pytest.mark.server
def test_a_delete_that_stalls_is_tried_again_soon(
    direct: ObjectStorage, impatient: ObjectStorage, proxy: FaultProxy
) -> None:
    direct.create_if_absent("d/x", [b"nonce"])
    proxy.other.extend(["stall", "stall"])
    impatient.delete("d/x")
    assert not direct.exists("d/x")


@pytest.mark.server
def test_a_small_create_that_stalls_is_tried_again_soon(
    direct: ObjectStorage, impatient: ObjectStorage, proxy: FaultProxy
) -> None:
    proxy.faults.extend(["stall", "stall"])
    proxy.other.append("stall")
    impatient.create_if_absent("d/x", [b"nonce"])
    assert direct.read("d/x") == b"nonce"
    assert proxy.puts >= 3


@pytest.mark.server
def test_a_large_create_gets_more_time(direct: ObjectStorage, impatient: ObjectStorage, proxy: FaultProxy) -> None:
    proxy.faults.append("slow")
    content = bytes(object_store.SMALL_BYTES + 1)
    impatient.create_if_absent("d/x", [content])
    assert direct.read("d/x") == content
    assert proxy.puts == 1


@pytest.mark.server
def test_a_conflict_that_somebody_else_won(direct: ObjectStorage, through: ObjectStorage, proxy: FaultProxy) -> None:
    proxy.faults.append("409_other")
    with pytest.raises(ExistsError):
        through.create_if_absent("d/x", [b"nonce"])
    assert direct.read("d/x") == b"other"


@pytest.mark.server
def test_endless_conflicts_end_at_the_deadline(
    direct: ObjectStorage, through: ObjectStorage, proxy: FaultProxy
) -> None:
    through._deadline_s = 0.3
    proxy.faults.extend(["409"] * 1_000)
    with pytest.raises(OutcomeUnknownError):
        through.create_if_absent("d/x", [b"nonce"])
    assert 2 <= proxy.puts < 100
    with pytest.raises(NotFoundError):
        direct.read("d/x")


@pytest.mark.server
def test_nobody_knows_when_reading_back_fails_too(
    direct: ObjectStorage, through: ObjectStorage, proxy: FaultProxy
) -> None:
    through._deadline_s = 0.3
    through._store = through._create_store  # the library retries reads for longer than a test may take
    proxy.all_down = True
    with pytest.raises(OutcomeUnknownError):
        through.create_if_absent("d/x", [b"nonce"])
    proxy.all_down = False
    through.create_if_absent("d/x", [b"nonce"])
    assert direct.read("d/x") == b"nonce"
