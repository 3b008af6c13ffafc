"""What the stories need on a server: topics, groups, users; and the proxies of this project that serve it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rmq_spark import Store
from rmq_spark.client.acl import Acl
from rmq_spark.client.store import append_records
from rmq_spark.rules.topics import GroupConfigs, TopicConfigs
from rmq_spark.testing.jars import ensure_jars, java_command

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[1] / "docs" / "proxy.md"
TOPICS: Final = {
    "story_plain": "NORMAL",
    "story_plain_too": "NORMAL",
    "story_again": "NORMAL",
    "story_fifo": "FIFO",
    "story_delay": "DELAY",
    "story_half": "TRANSACTION",
    "story_push": "NORMAL",
    "story_push_fifo": "FIFO",
    "story_filter": "NORMAL",
    "story_refusal": "NORMAL",
    "story_tls": "NORMAL",
    "story_acl": "NORMAL",
}
GROUPS: Final = {"g_fifo": (True, 16), "g_push_fifo": (True, 16), "g_push_dead": (False, 1)}
"""Whether orderly, and how many retries."""
USERS: Final = {"alice": "secret-of-alice", "bob": "secret-of-bob"}
ROOT: Final = ("root", "root-secret")
RIGHTS: Final = (("alice", "Topic:story_acl", ("Pub", "Sub")), ("alice", "Group:g_acl", ("Sub",)))


@dataclass(frozen=True)
class Addresses:
    """Where a story is told."""

    open: str
    tls: str
    guarded: str
    certificate: Path
    """That TLS clients must trust."""


def fill(store: Store) -> None:
    """Create the topics and groups."""
    for topic, kind in TOPICS.items():
        config = {"topic": topic, "queues": {"broker-0": 4}, "perm": 6, "type": kind}
        append_records(store.nameserver, TopicConfigs, config)
    for group, (orderly, retries) in GROUPS.items():
        config = {"group": group, "consumeMessageOrderly": orderly, "retryMaxTimes": retries}
        append_records(store.nameserver, GroupConfigs, config)


def guard(store: Store) -> None:
    """Create the users and turn access control on."""
    acl = Acl(store)
    acl.add_user(*ROOT, is_super=True)
    for user, secret in USERS.items():
        acl.add_user(user, secret)
    for user, resource, actions in RIGHTS:
        acl.add_policy(user, resource, actions)
    acl.turn_on()


@contextmanager
def our_proxies(directory: Path) -> Iterator[Addresses]:
    """An open store behind two proxies, one of them with TLS, and a guarded store behind a third."""
    certificate, key = make_certificate(directory)
    with ExitStack() as held:
        for name in ("open", "guarded"):
            with Store.create(str(directory / name)) as store:
                fill(store)
                if name == "guarded":
                    guard(store)
        options = ("--tls-cert", str(certificate), "--tls-key", str(key))
        yield Addresses(
            open=held.enter_context(proxy(directory / "open")),
            tls=held.enter_context(proxy(directory / "open", *options)),
            guarded=held.enter_context(proxy(directory / "guarded")),
            certificate=certificate,
        )


@contextmanager
def proxy(store: Path, *options: str) -> Iterator[str]:
    """Run `rmq proxy` and yield its address."""
    process = start_proxy(store, *options)
    try:
        yield process.address
    finally:
        process.end()


class ProxyProcess:
    """A running `rmq proxy`."""

    def __init__(self, store: Path, *options: str, listen: str = "127.0.0.1:0") -> None:
        command = [sys.executable, "-m", "rmq_spark.cli.main", "proxy", "--store", str(store), "--listen", listen]
        self._child = subprocess.Popen([*command, "--json", *options], stdout=subprocess.PIPE, text=True)
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"the proxy ended with {self._child.wait()} before it listened"
        self.address: str = json.loads(line)["listen"]

    def end(self) -> None:
        """Stop it as an operator does; it must end well."""
        self._child.terminate()
        assert self._child.wait(60) == 0
        self._close()

    def kill(self) -> None:
        """Stop it as a power cut does."""
        self._child.kill()
        self._child.wait()
        self._close()

    def _close(self) -> None:
        assert self._child.stdout is not None
        self._child.stdout.close()


start_proxy = ProxyProcess


def tell(client: str, at: Addresses, home: Path) -> str:
    """The transcript of the story with one client."""
    places = [at.open, at.tls, at.guarded]
    if client == "java":
        classes = os.pathsep.join(map(str, ensure_jars("rocketmq-client")))
        command = [java_command(), f"-Duser.home={home}", "-XX:TieredStopAtLevel=1", "-cp", classes]
        command += [str(HERE / "Story.java"), *places]
    else:
        command = [sys.executable, str(HERE / "story.py"), *places]
    # Both clients write logs below the home directory.
    environment = {**os.environ, "HOME": str(home), "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(at.certificate)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "broken off" not in done.stdout, done.stdout + done.stderr
    return done.stdout


def recorded(client: str) -> str:
    """What the story was on RocketMQ 5.5.0."""
    return (HERE / "recorded" / f"rocketmq-5.5.0-{client}.txt").read_text()


def expected(client: str) -> str:
    """What the story must be on this project's proxy: RocketMQ's, but for the differences that docs/proxy.md lists."""
    changes = differences(client)
    lines = []
    for line in recorded(client).splitlines():
        chapter, step, outcome = line.split(" | ")
        theirs, ours = changes.pop((chapter, step), (outcome, outcome))
        assert theirs == outcome, f"docs/proxy.md says that RocketMQ answers {theirs!r}: {line}"
        lines.append(f"{chapter} | {step} | {ours}\n")
    assert not changes, f"docs/proxy.md lists steps that the story does not have: {changes}"
    return "".join(lines)


def differences(client: str) -> dict[tuple[str, str], tuple[str, str]]:
    """The table in docs/proxy.md: chapter and step -> RocketMQ's outcome and this project's."""
    section = PAGE.read_text().split("## Differences from RocketMQ's proxy\n")[1].split("\n## ")[0]
    found: dict[tuple[str, str], tuple[str, str]] = {}
    table = section.split("| Chapter | Step |")[1].split("\n\n")[0]
    for row in re.findall(r"^\| (.+) \|$", table, flags=re.MULTILINE)[1:]:
        chapter, step, clients, theirs, ours, reason = row.replace(r"\|", "\0").split(" | ")
        assert reason.strip()
        if client in clients.split(", "):
            found[chapter, step.replace("\0", "|")] = (theirs, ours)
    return found


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    return certificate, secret
