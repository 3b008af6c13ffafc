"""Whatever is broken, `rmq` says so in one line and with a documented code; it never shows a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_runner import Run

from rmq_spark import errors
from rmq_spark.cli import exits

COMMANDS = (
    ("read", "t", "--json"),
    ("topic", "list"),
    ("topic", "show", "t"),
    ("log",),
    ("verify", "--json"),
    ("roll", "--min-commits", "1"),
    ("expire", "--before", "now", "--yes"),
    ("send", "t", "--body", "x"),
    ("recover", "--yes"),
)


@pytest.fixture
def full(run: Run, store: Path) -> Path:
    """A store with a segment, leftovers below the floor, and commits behind it."""
    run("topic", "create", "t", "--queues", "2")
    for text in ("a", "b"):
        run("send", "t", "--body", text, "--queue", "0", "--tags", "A", "--keys", "k")
    run("roll")
    for text in ("c", "d"):
        run("send", "t", "--body", text)
    return store


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


def test_a_flipped_byte_anywhere_never_ends_in_a_traceback(run: Run, full: Path, tmp_path: Path) -> None:
    files = sorted(file.relative_to(full) for file in full.rglob("*") if file.is_file() and file.name[0] != ".")
    copy = tmp_path / "copy"
    damaged = 0
    for index, file in enumerate(files):
        size = (full / file).stat().st_size
        for step in range(3):
            shutil.copytree(full, copy)
            flip(copy / file, (size * step // 3 + 37 * index) % size)
            command = COMMANDS[(3 * index + step) % len(COMMANDS)]
            for args in (("verify",), command):
                ran = run(*args, "--store", copy)
                assert ran.code in (0, 1, 2, 3, 6), (file, step, args, ran)
                damaged += ran.code == 6
            shutil.rmtree(copy)
    assert damaged > len(files)


def test_damage_is_found_shown_and_has_its_code(run: Run, full: Path) -> None:
    newest = sorted((full / "brokers/broker-0/commitlog").glob("*.arrow"))[-1]
    flip(newest, 300)
    ran = run("verify")
    assert ran.code == 6
    assert ran.err == "rmq: damage was found (1 findings)\n"
    row = next(line for line in ran.out.splitlines() if " damage " in line)
    assert newest.name in row
    assert "check-sum" in row
    report = run("verify", "--json")
    assert report.code == 6
    assert report.json["ok"] is False
    finding = next(f for f in report.json["logs"][1]["findings"] if f["damage"])
    assert (finding["first"], finding["path"]) == (3, f"brokers/broker-0/commitlog/{newest.name}")
    for args in (("read", "t"), ("send", "t", "--body", "x"), ("roll",), ("log",)):
        ran = run(*args)
        assert ran.code == 6
        assert newest.name in ran.err


def test_a_damaged_nameserver_does_not_keep_verify_from_the_brokers(run: Run, store: Path) -> None:
    run("topic", "create", "t", "--broker", "far")
    run("send", "t", "--body", "x")
    run("topic", "create", "u")
    flip(store / f"nameserver/commitlog/{2:020d}.arrow", 300)
    ran = run("verify", "--json")
    assert ran.code == 6
    assert ran.json["brokersKnown"] is False
    assert [(log["log"], log["ok"]) for log in ran.json["logs"]] == [
        ("nameserver", False), ("broker-0", True), ("far", True),
    ]  # fmt: skip
    assert "there may be more brokers" in ran.err
    assert run("verify", "--broker", "far").code == 0
    assert run("topic", "list").code == 6


def test_messages_before_the_damage_are_shown(run: Run, full: Path) -> None:
    segment = next((full / "brokers/broker-0/segments").iterdir())
    assert sorted(run("read", "t", "--columns", "body").out.split()) == ["a", "b", "c", "d"]
    newest = sorted((full / "brokers/broker-0/commitlog").glob("*.arrow"))[-1]
    newest.unlink()
    assert run("read", "t", "--columns", "body").out == "a\nb\nc\n"
    segment.unlink()
    assert run("read", "t").code in (3, 6)


def test_a_damaged_store_file(run: Run, store: Path) -> None:
    (store / "store.json").write_text('{"format": 1')
    assert run("topic", "list").code == 6
    (store / "store.json").write_text('{"format": 99}')
    ran = run("topic", "list")
    assert ran.code == 1
    assert "upgrade rmq-spark" in ran.err


def test_init_says_that_a_file_is_no_place_for_a_store(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("I am a file")
    for place in (path, path / "below"):
        ran = run("init", "--store", place)
        assert (ran.code, ran.out) == (2, "")
        assert f"a store is a directory, and a file stands there; name another path (path='{path}')" in ran.err


def test_a_store_in_memory_is_refused_because_it_ends_with_the_command(run: Run) -> None:
    for args in (("init",), ("topic", "list"), ("info",)):
        ran = run(*args, "--store", "memory://gone")
        assert (ran.code, ran.out) == (2, "")
        assert "a memory:// store ends with the command that made it; give a path" in ran.err


@pytest.mark.parametrize("args", COMMANDS)
def test_a_file_instead_of_a_directory(run: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    path = tmp_path / "file"
    path.write_text("I am a file")
    ran = run(*args, "--store", path)
    assert (ran.code, ran.out) in [(3, ""), (6, "")]
    assert path.read_text() == "I am a file"


@pytest.mark.parametrize("args", COMMANDS)
def test_a_missing_store(run: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    ran = run(*args, "--store", tmp_path / "nowhere")
    assert (ran.code, ran.out) == (3, "")
    assert "create one with `rmq init`" in ran.err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("uri", "code"), [("nonsense://x", 2), ("ftp://host/x", 5), ("file://host/x", 2), ("memory://fresh-one", 2)]
)
def test_stores_that_cannot_be_opened(run: Run, uri: str, code: int) -> None:
    assert run("topic", "list", "--store", uri).code == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError, 2),
        (errors.NotFoundError, 3),
        (errors.ExistsError, 4),
        (errors.PreconditionFailedError, 4),
        (errors.LostRaceError, 4),
        (errors.FencedError, 4),
        (errors.UnavailableError, 5),
        (errors.StorageFullError, 5),
        (errors.ReadOnlyError, 5),
        (errors.UnsafeStorageError, 5),
        (errors.OutcomeUnknownError, 5),
        (errors.CorruptDataError, 6),
        (errors.DataExpiredError, 1),
        (errors.BackPressureError, 1),
        (errors.UnsupportedVersionError, 1),
        (errors.ClockSkewError, 1),
        (errors.ClosedError, 1),
        (errors.MissingExtraError, 1),
        (KeyboardInterrupt, 130),
        (KeyError, 70),
        (MemoryError, 70),
        (RecursionError, 70),
        (OSError, 70),
    ],
)
def test_every_error_has_its_exit_code(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], code: int
) -> None:
    def fail(self: object) -> None:
        raise error("first line\nsecond line")

    monkeypatch.setattr("rmq_spark.client.store.Store.topics", fail)
    ran = run("topic", "list", "--json")
    assert (ran.code, ran.out) == (code, "")
    assert code in exits.MEANINGS
    assert len(ran.err.splitlines()) == 1
    assert "first line\\nsecond line" in ran.err
    if code == 70:
        assert ran.err.startswith("rmq: internal error: ")
        assert ran.err.endswith("; run with RMQ_DEBUG=1 for the traceback\n")


def test_every_error_class_is_in_the_table_above() -> None:
    listed = {kind for mark in test_every_error_has_its_exit_code.pytestmark for kind, _ in mark.args[1]}
    assert set(errors.RmqError.__subclasses__()) <= listed | {errors.InvalidRequestError}


def test_what_a_snapshot_hides_from_opening_is_still_noticed(run: Run, store: Path, tmp_path: Path) -> None:
    conf = tmp_path / "conf.toml"
    conf.write_text("snapshot_every_commits = 2\n")
    run("send", "t", "--batch", "1", "--conf", conf, stdin="a\nb\nc\nd\n")
    commits = sorted((store / "brokers/broker-0/commitlog").glob("*.arrow"))
    kept = commits[1].read_bytes()
    commits[1].write_bytes(commits[0].read_bytes())
    assert run("log").code == 6
    commits[1].unlink()
    assert run("log").code == 6
    commits[1].write_bytes(kept)
    assert run("log").code == 0
    snapshot = sorted((store / "brokers/broker-0/snapshots").iterdir())[-1]
    flip(snapshot, 300)
    ran = run("topic", "show", "t", "--json")
    assert (ran.code, ran.json["messages"]) == (0, 4)
    assert ran.err.startswith("rmq: warning: snapshot is damaged, skipped")
