"""What cannot be undone is done only after a yes: at a terminal, or as `--yes`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import Run

from rmq_spark.cli import send as send_module
from rmq_spark.storage.local import LocalStorage

DESTRUCTIVE = (("topic", "delete", "t"), ("expire", "--before", "now"))


@pytest.fixture(autouse=True)
def messages(run: Run, store: Path) -> None:
    """Five commits of one message."""
    run("topic", "create", "t", "--queues", "1")
    assert run("send", "t", "--batch", "1", stdin="a\nb\nc\nd\ne\n").code == 0


def files(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("args", DESTRUCTIVE)
def test_a_script_without_yes_is_refused_and_nothing_changes(run: Run, store: Path, args: tuple[str, ...]) -> None:
    before = files(store)
    ran = run(*args)
    assert (ran.code, ran.out) == (2, "")
    assert "this cannot be undone; pass --yes to do it without a question, or --dry-run" in ran.err
    assert files(store) == before


@pytest.mark.parametrize(
    ("args", "question"),
    [
        (DESTRUCTIVE[0], "Delete topic t and its 5 messages, for good? [y/N] "),
        (DESTRUCTIVE[1], "Drop up to 7 messages stored before "),
        (("recover",), "Has every writer of this store stopped? [y/N] "),
    ],
)
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 2), ("\n", 2)])
def test_a_terminal_is_asked(store: Path, args: tuple[str, ...], question: str, answer: str, code: int) -> None:
    before = files(store)
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    ran = subprocess.run(
        [sys.executable, "-m", "rmq_spark.cli.main", "--store", str(store), *args],
        stdin=theirs, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(theirs)
    os.close(ours)
    assert question in ran.stderr
    assert ran.returncode == code, ran.stderr
    if code:
        assert ran.stderr.endswith("rmq: not confirmed; nothing was changed\n")
        assert files(store) == before


def test_a_dry_run_shows_what_would_go_and_changes_nothing(run: Run, store: Path) -> None:
    before = files(store)
    assert run("topic", "delete", "t", "--dry-run", "--json").json == {"topic": "t", "deleted": False, "messages": 5}
    assert run("topic", "delete", "t", "--dry-run").out == "would delete topic t with 5 messages\n"
    assert run("expire", "--before", "2990-01-01", "--dry-run", "--json", "--broker", "broker-0").json == [
        {"log": "broker-0", "dryRun": True, "messages": 5, "forced": False}
    ]
    assert run("expire", "--dry-run", "--json", "--broker", "broker-0").json[0]["messages"] == 0
    assert run("expire", "--dry-run").out.splitlines()[0].split("  ")[0] == "LOG"
    ran = run("expire", "--dry-run", "--scheduled")
    assert (ran.code, files(store)) == (2, before)


def test_a_dry_run_counts_at_least_what_expiry_drops(run: Run, store: Path, tmp_path: Path) -> None:
    conf = tmp_path / "small.toml"
    conf.write_text("segment_bytes = 1000\n")
    third = run("read", "t", "--json").jsons[3]["storeTimestamp"]
    run("roll", "--conf", conf)
    run("send", "t", "--batch", "1", stdin="f\ng\n")
    older = [m for m in run("read", "t", "--json").jsons if m["storeTimestamp"] < third]
    shown, done = preview_and_expire(run, third, conf)
    assert done <= shown == len(older)
    shown, later = preview_and_expire(run, "2990-01-01", conf)
    assert later == shown - 1 == 7 - done - 1, "the newest segment stays"


def preview_and_expire(run: Run, before: object, conf: Path) -> tuple[int, int]:
    """How many messages a dry run shows, and how many expiry then drops."""
    args = ("expire", "--before", before, "--json", "--broker", "broker-0", "--conf", conf)
    return run(*args, "--dry-run").json[0]["messages"], run(*args, "--yes").json[0]["messages"]


def test_a_full_disk_makes_the_oldest_go_in_a_dry_run_too(
    run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "small.toml"
    conf.write_text("segment_bytes = 1000\n")
    run("roll", "--conf", conf)
    monkeypatch.setattr(LocalStorage, "disk_usage", lambda self: (851, 1000))
    shown = run("expire", "--dry-run", "--json", "--broker", "broker-0").json[0]
    assert (shown["forced"], shown["messages"]) == (True, 1)


def test_load_that_does_not_fit_is_refused(run: Run, store: Path) -> None:
    ran = run("send", "t", "--count", "99999999999999999999999")
    assert (ran.code, ran.out) == (2, "")
    assert "--count" in ran.err
    ran = run("send", "t", "--count", str(10**12), "--yes")
    assert (ran.code, ran.out) == (5, "")
    assert "so many messages do not fit; give a smaller --count or --size (needed_bytes=200000000000000," in ran.err
    assert len(run("read", "t", "--json").jsons) == 5


def test_large_load_needs_consent(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "disk_usage", lambda self: None)
    ran = run("send", "t", "--count", str(10**9))
    assert (ran.code, ran.out) == (2, "")
    assert "1,000,000,000 messages take about 200 GB; pass --yes to send them" in ran.err
    monkeypatch.setattr(send_module, "ASK_BYTES", 1)
    assert run("send", "t", "--count", "3").code == 2
    assert run("send", "t", "--count", "3", "--yes").code == 0
    assert len(run("read", "t", "--json").jsons) == 8
