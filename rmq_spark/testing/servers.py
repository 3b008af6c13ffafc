"""Real servers for tests and benchmarks, on free loopback ports, without containers.

Each is a context manager that yields once the server answers. A server that cannot start raises
`ServerStartError` with its log: a test that needs a server fails without it, it is never skipped quietly.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rmq_spark.errors import UnavailableError
from rmq_spark.testing.jars import ensure_jars, java_command, pyspark_jars

START_LIMIT_S: Final = 90.0
"""How long a server may take until it answers; a loaded two-core machine needs a third of it."""

_LOG_LINES: Final = 200
_ANSWERS: Final = ("READY ", "DONE", "FAILED ")
"""How lines begin that are meant for us; servers print their logs to the same stream."""
_STOP_LIMIT_S: Final = 10.0


class ServerStartError(UnavailableError):
    """A test server ended or stayed silent before it was ready; the message holds its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsServer:
    """A running NameNode with one DataNode."""

    uri: str
    """`hdfs://host:port`, without a trailing slash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running S3 server with one empty bucket."""

    endpoint: str
    """`http://host:port`."""
    bucket: str
    """Name of the bucket that was created."""
    options: Mapping[str, str]
    """What `open_storage(..., options=...)` needs to reach it."""

    @property
    def uri(self) -> str:
        """`s3://bucket`, without a trailing slash."""
        return f"s3://{self.bucket}"


class ServerProcess:
    """A child process whose output is kept and always drained, so that it never blocks on a full pipe."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._changed = threading.Condition()
        self._answers: deque[str] = deque()
        self._child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        assert self._child.stdout is not None
        self._reader = threading.Thread(target=self._drain, args=(self._child.stdout,), daemon=True)
        self._reader.start()

    def _drain(self, output: IO[str]) -> None:
        for line in output:
            with self._changed:
                self._lines.append(line)
                if line.startswith(_ANSWERS):
                    self._answers.append(line.strip())
                self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._child.poll() is not None

    def wait_for_ready_line(self) -> str:
        """Return what follows `READY ` in the output.

        Raises:
            ServerStartError: the server ended, or said nothing for too long.
        """
        return self._wait_for_answer().partition(" ")[2]

    def ask(self, command: str) -> None:
        """Send a command line to a server that takes such, and wait until it says `DONE`.

        Raises:
            UnavailableError: it said `FAILED`, ended, or said nothing for too long.
        """
        assert self._child.stdin is not None
        self._child.stdin.write(f"{command}\n")
        self._child.stdin.flush()
        answer = self._wait_for_answer()
        if answer != "DONE":
            raise UnavailableError(f"the {self.name} server refused a command", command=command, answer=answer)

    def _wait_for_answer(self) -> str:
        deadline = time.monotonic() + START_LIMIT_S
        with self._changed:
            while not self._answers:
                if self.ended or time.monotonic() > deadline:
                    raise self.failure()
                self._changed.wait(0.2)
            return self._answers.popleft()

    def failure(self) -> ServerStartError:
        """The error to raise when the server did not come up, or answers no more."""
        how = f"ended with code {self._child.returncode}" if self.ended else "did not answer in time"
        return ServerStartError(f"the {self.name} server {how}; its log:\n{''.join(self._lines)}")

    def kill(self) -> None:
        """End a server that does not watch its input."""
        self._child.kill()
        self.stop()

    def stop(self) -> None:
        """Close its input, which ends servers that watch it, then make sure that it is gone."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join()
        self._child.stdout.close()


@contextlib.contextmanager
def hdfs_server() -> Iterator[HdfsServer]:
    """Run a NameNode and a DataNode in one JVM of 512 MB; about 10 s to start.

    Raises:
        ServerStartError: it did not start; the message holds its log.
        MissingExtraError: pyspark, whose jars it uses, is not installed.
    """
    extra = ensure_jars("hdfs")
    source = Path(__file__).parent / "java" / "MiniHdfs.java"
    class_path = os.pathsep.join([*map(str, extra), f"{pyspark_jars()}/*"])
    # Not in the working directory: the servers write a good deal, and only for the test's time.
    with tempfile.TemporaryDirectory(prefix="rmq-hdfs-") as scratch:
        flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={scratch}"]
        log = [f"-Dhadoop.log.dir={scratch}", f"-Djava.io.tmpdir={scratch}"]
        command = [java_command(), *flags, *log, "-cp", class_path, str(source), scratch]
        process = ServerProcess("HDFS", command)
        try:
            yield HdfsServer(uri=process.wait_for_ready_line().rstrip("/"))
        finally:
            process.stop()


@contextlib.contextmanager
def s3_server(bucket: str = "rmq-test") -> Iterator[S3Server]:
    """Run an S3 server (moto) in a process of its own and create a bucket on it; about 2 s to start.

    Raises:
        ServerStartError: it did not start; the message holds its log.
    """
    process = ServerProcess("S3", [sys.executable, "-m", "rmq_spark.testing.servers"])
    try:
        address = process.wait_for_ready_line()
        options = {
            "endpoint": f"http://{address}",
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "test",
            "allow_http": "true",
        }
        create_bucket(options, bucket)
        yield S3Server(endpoint=f"http://{address}", bucket=bucket, options=options)
    finally:
        process.stop()


@contextlib.contextmanager
def versitygw_server(binary: str, bucket: str = "rmq-test") -> Iterator[S3Server]:
    """Run versitygw, an S3 server that checks signatures and conditions, on a directory of its own.

    Raises:
        ServerStartError: it did not start; the message holds its log.
    """
    import botocore.exceptions

    with tempfile.TemporaryDirectory(prefix="rmq-s3-") as place, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        keys = {"access_key_id": "rmqtestkey", "secret_access_key": "rmqtestsecret"}
        environment = {"ROOT_ACCESS_KEY": keys["access_key_id"], "ROOT_SECRET_KEY": keys["secret_access_key"]}
        options = {"endpoint": f"http://{address}", "region": "us-east-1", "allow_http": "true", **keys}
        process = ServerProcess("S3", [binary, "--port", address, "posix", place], environment)
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while True:
                try:
                    create_bucket(options, bucket)
                    break
                except botocore.exceptions.BotoCoreError as error:
                    if process.ended or time.monotonic() > deadline:
                        raise process.failure() from error
                    time.sleep(0.2)
            yield S3Server(endpoint=options["endpoint"], bucket=bucket, options=options)
        finally:
            process.kill()


def create_bucket(options: Mapping[str, str], bucket: str) -> None:
    """Create `bucket` through the API of the server that `options` lead to."""
    import boto3

    boto3.client(
        "s3",
        endpoint_url=options["endpoint"],
        region_name=options["region"],
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
    ).create_bucket(Bucket=bucket)


def _serve_s3() -> None:
    """Serve S3 on a free port until standard input closes, so that the server never outlives its test."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"READY {host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # Not `server.stop()`: it waits for connections that clients keep open.
    os._exit(0)


if __name__ == "__main__":
    _serve_s3()
