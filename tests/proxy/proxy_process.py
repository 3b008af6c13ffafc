"""Proxies and Apache's clients as processes, and a plain gRPC client for what Apache's would never send."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from rmq_spark.client.store import Store, append_records
from rmq_spark.proxy import wire
from rmq_spark.rules.topics import GroupConfigs

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
PATIENCE = 120
"""Seconds after which a test gives up; no test should need them."""


class ProxyProcess:
    """A proxy on a store, until `stop`."""

    def __init__(self, store: Path, **settings: Any) -> None:
        self.store = store
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "proxy_main.py"), str(store), json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(store.parent),
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._reader.join()
            raise AssertionError("the proxy did not start:\n" + "".join(self.errors))
        told = json.loads(line)
        self.port: int = told["port"]
        self.metrics: int | None = told["metrics"]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Stop it as an operator does; it must end well and without a traceback."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        rest = self._process.stdout.read()
        code = self._end()
        assert (code, rest) == (0, "stopped\n"), "".join(self.errors)
        assert not [line for line in self.errors if "Traceback" in line], "".join(self.errors)

    def _end(self) -> int:
        code = self._process.wait(PATIENCE)
        self._reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return code

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self.errors.extend(self._process.stderr)


def apache(story: str, proxy: ProxyProcess, home: Path, **options: Any) -> Any:
    """What a story of `apache_stories.py` tells: Apache's own client, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / "apache_stories.py"), story, proxy.address, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**environment(home), **options.pop("environment", {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr + "".join(proxy.errors)
    return json.loads(done.stdout.splitlines()[-1])


def environment(home: Path) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    # Apache's client logs to files below the home directory.
    return {**os.environ, "PYTHONPATH": paths, "HOME": str(home), "GRPC_VERBOSITY": "NONE"}


class RawClient:
    """Calls of the protocol by name, without any client's checks."""

    def __init__(self, address: str, client_id: str = "raw", **channel: Any) -> None:
        # A connection of its own: channels to one address share one else.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, **{"options": options, **channel})
        self.metadata = [("x-mq-client-id", client_id)]

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, rpc: str, metadata: Any = None, timeout: float = 30, **fields: Any) -> Any:
        """The answer to a call; a list for a stream."""
        request = wire.message_class(f"{rpc}Request")(**fields)
        return self.send(rpc, request, metadata, timeout)

    def send(self, rpc: str, request: Any, metadata: Any = None, timeout: float = 30) -> Any:
        method = wire.SERVICE_DESCRIPTOR.methods_by_name[rpc]
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        serialize = bytes if isinstance(request, bytes) else type(request).SerializeToString
        done = kind(
            f"/{wire.SERVICE}/{rpc}",
            request_serializer=serialize,
            response_deserializer=wire.message_class(method.output_type.name).FromString,
        )(request, metadata=self.metadata if metadata is None else metadata, timeout=timeout)
        return list(done) if method.server_streaming else done

    def telemetry(self, commands: Iterator[Any]) -> Any:
        """The answers to a telemetry stream."""
        return self.channel.stream_stream(
            f"/{wire.SERVICE}/Telemetry",
            request_serializer=wire.TelemetryCommand.SerializeToString,
            response_deserializer=wire.TelemetryCommand.FromString,
        )(commands, metadata=self.metadata)


def message(topic: str, body: bytes = b"x", msg_id: str = "0001", **system: Any) -> Any:
    """A message as clients send it."""
    one = wire.Message(body=body)
    one.topic.name = topic
    one.system_properties.message_id = msg_id
    one.system_properties.body_encoding = 1
    one.system_properties.message_type = system.pop("message_type", 1)
    for name, value in system.items():
        field = getattr(one.system_properties, name)
        if isinstance(value, list):
            field.extend(value)
        elif hasattr(field, "CopyFrom"):
            for part, number in value.items():
                setattr(field, part, number)
        else:
            setattr(one.system_properties, name, value)
    return one


def make_fifo(store: Store, group: str, **more: object) -> None:
    """Let a group consume in order."""
    append_records(store.nameserver, GroupConfigs, {"group": group, "consumeMessageOrderly": True, **more})
