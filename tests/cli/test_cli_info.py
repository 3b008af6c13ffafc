"""`rmq info`, `rmq conf`, and what `rmq topic list` and `update` say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run

from rmq_spark import InvalidRequestError, LogSettings, Message, NotFoundError, Producer, Store
from rmq_spark.log.commit_log import CommitLog


def test_info_says_what_a_store_is_and_holds(run: Run, store: Path, tmp_path: Path) -> None:
    run("topic", "create", "t", "--queues", "2")
    run("send", "t", "--batch", "2", stdin="a\nb\nc\nd\n")
    run("roll", "--broker", "broker-0")
    run("send", "t", "--body", "e")
    stored = [message["storeTimestamp"] for message in run("read", "t", "--json").jsons]
    conf = tmp_path / "own.toml"
    conf.write_text("retention_ms = 5000\n")
    shown = run("info", "--json", "--conf", conf).json
    made = json.loads((store / "store.json").read_text())
    assert (shown["uri"], shown["id"], shown["format"], shown["createdAt"]) == (
        str(store), made["nonce"], 1, made["createdAt"],
    )  # fmt: skip
    counts = {name: shown[name] for name in ("brokers", "topics", "groups", "messages")}
    assert counts == {"brokers": ["broker-0"], "topics": 1, "groups": 0, "messages": 5}
    assert 0 < shown["diskUsed"] < shown["diskTotal"]
    assert shown["settings"] == {**run("conf", "--json").json["settings"], "retention_ms": 5000}
    nameserver, log = shown["logs"]
    assert nameserver["log"] == "nameserver"
    files = list((store / "brokers/broker-0").rglob("*.arrow"))
    assert log == {
        "log": "broker-0",
        "logStart": 0,
        "logEnd": 5,
        "messages": 5,
        "segments": 1,
        "commits": 1,
        "firstTimestamp": min(stored),
        "lastTimestamp": max(stored),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }
    text = run("info").out
    assert text.startswith(f"store {store}\nid {made['nonce']}, format 1, created ")
    assert "1 topics with 5 messages, 0 groups, 1 brokers, " in text


def test_info_of_an_empty_store(run: Run, store: Path) -> None:
    shown = run("info", "--json").json
    assert (shown["topics"], shown["messages"]) == (0, 0)
    assert [(log["firstTimestamp"], log["lastTimestamp"]) for log in shown["logs"]] == [(None, None)] * 2
    assert run("info").code == 0


def test_conf_shows_every_setting_and_where_it_is_from_but_no_secret(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "own.toml"
    conf.write_text('flush = "async"\nretention_ms = 5000\n[storage]\nsecret_access_key = "hush"\n')
    shown = run("conf", "--conf", conf, "--json")
    assert list(shown.json["settings"]) == list(LogSettings.__dataclass_fields__)
    assert (shown.json["settings"]["flush"], shown.json["settings"]["retention_ms"]) == ("async", 5000)
    assert (shown.json["file"], shown.json["changed"], shown.json["storage"]) == (
        str(conf), ["flush", "retention_ms"], ["secret_access_key"],
    )  # fmt: skip
    text = run("conf", "--conf", conf).out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert rows["flush"] == ['"async"', "conf", "file"]
    assert rows["segment_bytes"] == ["67108864", "default"]
    assert "storage options set: secret_access_key" in text
    assert "hush" not in text + shown.out
    assert run("conf", "--json").json["changed"] == []


@pytest.mark.parametrize("rolled", [False, True])
def test_topics_are_listed_with_their_size_and_last_time(run: Run, store: Path, rolled: bool) -> None:
    run("topic", "create", "idle", "--queues", "1")
    run("topic", "create", "two", "--queues", "1", "--broker", "x", "--broker", "y")
    run("send", "t", stdin="a\nb\nc\n")
    run("send", "two", "--count", "4", "--batch", "2", "--size", "1")
    if rolled:
        run("roll")
    last = {topic: max(m["storeTimestamp"] for m in run("read", topic, "--json").jsons) for topic in ("t", "two")}
    listed = {topic["topic"]: topic for topic in run("topic", "list", "--json").json}
    assert {name: (topic["messages"], topic["lastTimestamp"]) for name, topic in listed.items()} == {
        "idle": (0, None), "t": (3, last["t"]), "two": (4, last["two"]),
    }  # fmt: skip
    lines = run("topic", "list").out.splitlines()
    assert lines[0].split("  ")[0] == "TOPIC"
    assert lines[1].split() == ["idle", "1", "0", "0", "-", "UNSPECIFIED", "6", "broker-0"]
    assert lines[3].split()[:3] == ["two", "2", "4"]


@pytest.mark.parametrize("rolled", [False, True])
def test_topics_are_listed_with_the_bytes_of_what_they_hold(run: Run, store: Path, rolled: bool) -> None:
    run("send", "small", "--count", "50", "--size", "10")
    run("send", "large", "--count", "50", "--size", "100000")
    run("send", "gone", "--count", "50", "--size", "1000")
    run("topic", "delete", "gone", "--yes")
    run("send", "gone", "--body", "x")
    if rolled:
        run("roll")
    sizes = {topic["topic"]: topic["bytes"] for topic in run("topic", "list", "--json").json}
    files = sum(log["bytes"] for log in run("info", "--json").json["logs"])
    assert 4_500_000 <= sizes["large"] <= files
    assert sizes["small"] <= 500_000  # the block that it shares with others, at most
    assert 0 < sizes["gone"] <= 500_000


def test_a_topic_gets_more_queues_and_keeps_its_messages(run: Run, store: Path) -> None:
    run("topic", "create", "t", "--queues", "2", "--broker", "a", "--broker", "b")
    run("send", "t", "--body", "before", "--queue", "1")
    updated = run("topic", "update", "t", "--queues", "4", "--json").json
    assert (updated["queues"], updated["writeQueues"]) == ({"a": 4, "b": 4}, {"a": 4, "b": 4})
    assert run("topic", "update", "t", "--queues", "4").out == "topic t has 4 queues on a, 4 queues on b\n"
    assert run("send", "t", "--body", "after", "--queue", "3").code == 0
    assert sorted(m["body"] for m in run("read", "t", "--json").jsons) == ["after", "before"]
    assert len(run("topic", "show", "t", "--json").json["queues"]) == 8


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("t", "--queues", "1"), 2, "cannot get fewer queues at once"),
        (("t", "--queues", "0"), 2, "1 to 65536 queues"),
        (("nothing", "--queues", "9"), 3, "no such topic"),
        (("t",), 2, "say what to change, by --queues"),
    ],
)
def test_bad_updates_are_refused(run: Run, store: Path, args: tuple[str, ...], code: int, said: str) -> None:
    run("topic", "create", "t", "--queues", "2")
    ran = run("topic", "update", *args)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert run("topic", "list", "--json").json[0]["queues"] == {"broker-0": 2}


def test_an_update_does_not_undo_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.create("memory://update-race") as store, Store.open("memory://update-race") as other:
        store.create_topic("t", queues=2)
        real = CommitLog.decide

        def slow(self: CommitLog, rule: Any) -> Any:
            monkeypatch.setattr(CommitLog, "decide", real)
            other.update_topic("t", queues=8)
            return real(self, rule)

        monkeypatch.setattr(CommitLog, "decide", slow)
        with pytest.raises(InvalidRequestError, match="fewer queues"):
            store.update_topic("t", queues=4)
        assert dict(store.topic("t").queues) == {"broker-0": 8}
        with pytest.raises(NotFoundError):
            store.update_topic("nothing", queues=4)
        assert Producer(store).send(Message(topic="t", body=b"x", queue_id=7)).queue_id == 7
