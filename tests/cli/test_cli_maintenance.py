from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from cli_runner import Run

from rmq_spark import LogSettings, Store
from rmq_spark.cli.conf import load_conf
from rmq_spark.clock import SystemClock
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.rows import write_row_file
from rmq_spark.testing.small_disk import fill, free_bytes, small_disk

ROOT = Path(__file__).parents[2]


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """Settings under which files are deleted at once and segments stay small."""
    path = tmp_path / "store.toml"
    path.write_text("delete_grace_ms = 0\nsegment_bytes = 1000\n")
    return path


def send(run: Run, topic: str, count: int) -> None:
    for number in range(count):
        assert run("send", topic, "--body", f"m{number}", "--queue", "0").code == 0


def test_log_shows_segments_then_commits(run: Run, store: Path) -> None:
    send(run, "t", 3)
    run("roll", "--broker", "broker-0")
    send(run, "t", 2)
    entries = run("log", "--json").jsons
    assert [(e["log"], e["kind"], e["firstOffset"], e["messages"]) for e in entries] == [
        ("nameserver", "commit", 0, 2),  # the topic, and that the log has topics
        ("broker-0", "segment", 0, 3),
        ("broker-0", "commit", 3, 1),
        ("broker-0", "commit", 4, 1),
    ]
    last = entries[-1]
    assert (last["seq"], last["flush"], last["topics"], last["queues"], last["rowFiles"]) == (1, "sync", ["t"], 1, 0)
    assert last["bytes"] == (store / "brokers/broker-0/commitlog" / last["file"]).stat().st_size
    assert entries[2]["writer"] != last["writer"]
    lines = run("log").out.splitlines()
    assert lines[0].split() == [
        "LOG",
        "KIND",
        "FIRST",
        "MESSAGES",
        "BYTES",
        "STORED",
        "WRITER",
        "SEQ",
        "FLUSH",
        "QUEUES",
        "TOPICS",
    ]
    assert len(lines) == 5


def test_log_can_be_narrowed(run: Run, store: Path) -> None:
    send(run, "t", 5)
    assert [e["firstOffset"] for e in run("log", "--json", "--broker", "broker-0", "--limit", "2").jsons] == [3, 4]
    assert run("log", "--json", "--limit", "0").out == ""
    assert [e["log"] for e in run("log", "--json", "--nameserver").jsons] == ["nameserver"]
    ran = run("log", "--broker", "nope")
    assert ran.code == 3
    assert "no such broker (broker='nope', known=['broker-0'])" in ran.err


def test_log_lists_many_topics_shortly(run: Run, store: Path) -> None:
    with Store.open(str(store)) as opened:
        rows = [
            MessageBatch.of(topic=f"t{n}", queue_id=0, msg_id=f"{n}", body=b"x", born_timestamp_ms=1) for n in range(5)
        ]
        opened.log().append(MessageBatch.merge(rows))
    assert run("log", "--broker", "broker-0").out.splitlines()[1].endswith("t0, t1, t2 and 2 more")


def test_roll_makes_segments_of_commits(run: Run, store: Path, conf: Path) -> None:
    send(run, "t", 4)
    before = run("read", "t", "--json").out
    rolled = run("roll", "--json", "--conf", conf).json
    assert rolled == [
        {"log": "nameserver", "commits": 0, "segments": 0, "deletedFiles": 0, "deletedRowFiles": 0},
        {"log": "broker-0", "commits": 4, "segments": 4, "deletedFiles": 4, "deletedRowFiles": 0},
    ]
    assert run("read", "t", "--json").out == before
    assert [entry["log"] for entry in run("roll", "--json", "--nameserver", "--min-commits", "1").json] == [
        "nameserver"
    ]
    assert run("roll", "--min-commits", "9").out.splitlines()[2].split() == ["broker-0", "0", "0", "0", "0"]
    assert run("verify").code == 0


def test_roll_collects_row_files(run: Run, store: Path, conf: Path) -> None:
    with Store.open(str(store)) as opened:
        opened.create_topic("t", queues=1)
        batch = MessageBatch.of(topic="t", queue_id=0, msg_id="1", body=b"x", born_timestamp_ms=1)
        log = opened.log()
        file = write_row_file(opened.storage, log.root, batch, nonce=SystemClock().token(), block_bytes=1000)
        log.append_files([file])
    commit = run("log", "--json", "--broker", "broker-0").jsons[0]
    assert commit["rowFiles"] == 1
    assert commit["bytes"] > file.bytes
    assert run("roll", "--min-commits", "1", "--json", "--conf", conf).json[1]["deletedRowFiles"] == 1
    assert run("read", "t", "--columns", "body").out == "x\n"


def test_expire_drops_old_segments(run: Run, store: Path, conf: Path) -> None:
    send(run, "t", 4)
    assert run("expire", "--json").json[1]["segments"] == 0
    expired = run("expire", "--before", "now", "--yes", "--conf", conf, "--json").json
    assert [entry["log"] for entry in expired] == ["nameserver", "broker-0"]
    assert expired[1]["segments"] == expired[1]["messages"] == expired[1]["logStart"] == 3
    assert expired[1]["forced"] is False
    assert len(run("read", "t", "--json").jsons) == 1
    assert run("expire", "--scheduled", "--broker", "broker-0").out.splitlines()[1].split() == [
        "broker-0", "0", "0", "3", "0", "0", "no",
    ]  # fmt: skip
    assert run("expire", "--before", "someday").code == 2
    assert run("verify").code == 0


def test_verify_counts_what_it_checked(run: Run, store: Path) -> None:
    send(run, "t", 3)
    report = run("verify", "--json").json
    assert (report["ok"], report["brokersKnown"]) == (True, True)
    assert [(log["log"], log["ok"], log["commits"], log["messages"]) for log in report["logs"]] == [
        ("nameserver", True, 1, 2),
        ("broker-0", True, 3, 3),
    ]
    assert run("verify", "--broker", "broker-0").out.splitlines()[1].split()[:3] == ["broker-0", "yes", "3"]


def test_warnings_are_no_damage_and_do_not_flood(run: Run, store: Path) -> None:
    send(run, "t", 13)
    run("roll")
    ran = run("verify")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("leftover below the floor") == 10
    assert ran.out.endswith("and 3 more warnings; --json has them all\n")
    assert len(run("verify", "--json").json["logs"][1]["findings"]) == 13


def test_recover_asks_for_confirmation_and_finds_nothing_to_do(run: Run, store: Path) -> None:
    send(run, "t", 2)
    ran = run("recover")
    assert (ran.code, ran.out) == (2, "")
    assert "give --yes" in ran.err
    assert run("recover", "--yes", "--json").json == [
        {"log": "nameserver", "logEnd": 2, "moved": []},
        {"log": "broker-0", "logEnd": 2, "moved": []},
    ]
    assert [entry["log"] for entry in run("recover", "-y", "--json", "--broker", "broker-0").json] == ["broker-0"]
    assert [entry["log"] for entry in run("recover", "-y", "--json", "--nameserver").json] == ["nameserver"]
    assert run("recover", "-y").out.splitlines()[2].split() == ["broker-0", "2", "0"]


def test_recover_cuts_behind_a_torn_commit(run: Run, store: Path) -> None:
    run("topic", "create", "t")
    run("send", "t", "--flush", "async", "--batch", "1", stdin="a\nb\nc\n")
    commits = store / "brokers/broker-0/commitlog"
    torn = commits / f"{1:020d}.arrow"
    torn.write_bytes(torn.read_bytes()[:100])
    assert run("read", "t").code == 6
    done = run("recover", "--yes", "--json").json[1]
    assert done == {"log": "broker-0", "logEnd": 1, "moved": [f"{1:020d}.arrow", f"{2:020d}.arrow"]}
    assert run("read", "t", "--columns", "body").out == "a\n"
    assert run("send", "t", "--body", "d").code == 0
    assert run("verify").code == 0


def test_recover_gives_up_durable_commits_only_when_forced(run: Run, store: Path) -> None:
    send(run, "t", 3)
    torn = store / f"brokers/broker-0/commitlog/{1:020d}.arrow"
    torn.write_bytes(b"")
    ran = run("recover", "--yes")
    assert ran.code == 6
    assert "a durable commit stands behind the damage" in ran.err
    assert torn.exists()
    assert run("recover", "--yes", "--force", "--json").json[1]["logEnd"] == 1
    assert run("read", "t", "--columns", "body").out == "m0\n"


def test_the_example_conf_is_complete_and_says_the_defaults() -> None:
    settings, options = load_conf(ROOT / "conf/store.toml")
    assert settings == LogSettings()
    assert options is None
    text = (ROOT / "conf/store.toml").read_text()
    assert all(f"\n{name} = " in text for name in LogSettings.__dataclass_fields__)


def test_settings_of_the_conf_file_are_used_and_options_go_before_them(run: Run, store: Path, conf: Path) -> None:
    conf.write_text('flush = "async"\n')
    run("send", "t", "--body", "x", "--conf", conf)
    run("--conf", conf, "send", "t", "--body", "x", "--flush", "sync")
    assert [e["flush"] for e in run("log", "--json", "--broker", "broker-0").jsons] == ["async", "sync"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retention = 5", "unknown setting; did you mean 'retention_ms'?"),
        ("retention_ms = 'long'", "setting has a bad value"),
        ("retention_ms = -1", "setting must be at least 0"),
        ("retention_ms = [1]", "setting must be a number or a text"),
        ("retention_ms = true", "setting must be a number or a text"),
        ("[retention_ms]\nx = 1", "setting must be a number or a text"),
        ("storage = 1", "[storage] in a conf file is a table"),
        ("[storage]\nregion = 'here'", "file storages take no options"),
        ("not toml", "conf file cannot be read"),
        ("flush = 'never'", "setting has a bad value"),
    ],
)
def test_bad_conf_files_are_refused(run: Run, store: Path, conf: Path, text: str, said: str) -> None:
    conf.write_text(text)
    ran = run("topic", "list", "--conf", conf)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert run("topic", "list", "--conf", conf.parent / "absent.toml").code == 2
    conf.write_bytes(b"\xff")
    assert run("topic", "list", "--conf", conf).code == 2


@pytest.mark.parametrize("command", [("roll",), ("expire",)])
def test_maintenance_removes_old_temporary_files_of_killed_writers(
    run: Run, store: Path, command: tuple[str, ...]
) -> None:
    send(run, "t", 1)
    old, new = (store / "brokers/broker-0/commitlog" / f".rmq-tmp-{name}" for name in ("old", "new"))
    for left in (old, new):
        left.write_bytes(b"part of a commit")
    os.utime(old, (time.time() - 3_700,) * 2)
    assert run(*command).code == 0
    assert (old.exists(), new.exists()) == (False, True)
    assert run("verify").code == 0


def test_expire_frees_a_disk_without_a_free_block(
    run: Run, tmp_path: Path, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 20 * 1024 * 1024) as place:
        store = place / "store"
        monkeypatch.setenv("RMQ_STORE", str(store))
        assert run("init").code == 0
        for number in range(4):
            body = "abcd"[number] * 1_000_000
            assert run("send", "t", "--body", body, "--queue", "0").code == 0
        assert run("roll", "--min-commits", "1", "--conf", conf).code == 0
        fill(place)
        assert free_bytes(place) == 0
        assert run("send", "t", "--body", "x").code != 0
        ran = run("expire", "--before", "now", "--yes", "--conf", conf, "--json")
        assert ran.code == 0, ran.err
        assert ran.json[1]["segments"] == 3
        assert free_bytes(place) > 2_000_000
        (place / "junk").unlink()
        assert run("send", "t", "--body", "x").code == 0
        assert (store / ".reserve").exists()
        assert run("verify").code == 0
