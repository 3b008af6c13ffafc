from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import Run


def test_init_creates_a_store_and_says_where(run: Run, tmp_path: Path) -> None:
    ran = run("init", "--store", tmp_path / "a")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"created a store at {tmp_path / 'a'}\n"
    made = run("init", "--store", tmp_path / "b", "--json").json
    assert made["uri"] == str(tmp_path / "b")
    assert made["format"] == 1
    assert made["createdAt"] > 0


def test_init_twice_is_a_clear_error(run: Run, store: Path) -> None:
    before = (store / "store.json").read_bytes()
    ran = run("init")
    assert (ran.code, ran.out) == (4, "")
    assert "there is a store already" in ran.err
    assert (store / "store.json").read_bytes() == before


SETTINGS = {"perm": 6, "messageType": "UNSPECIFIED", "backlogMax": 0}


def test_topics_are_created_listed_shown_and_deleted(run: Run, store: Path) -> None:
    assert run("topic", "create", "orders", "--queues", "3").out == "topic orders has 3 queues on broker-0\n"
    made = run("topic", "create", "events", "--broker", "b-1", "--broker", "b-2", "--json").json
    assert made == {**SETTINGS, "topic": "events", "queues": {"b-1": 8, "b-2": 8}, "writeQueues": {"b-1": 8, "b-2": 8}}
    orders = {**SETTINGS, "topic": "orders", "queues": {"broker-0": 3}, "writeQueues": {"broker-0": 3}}
    empty = {"messages": 0, "bytes": 0, "lastTimestamp": None}
    assert run("topic", "list", "--json").json == [{**made, **empty}, {**orders, **empty}]
    run("send", "orders", "--body", "x", "--queue", "1")
    shown = run("topic", "show", "orders", "--json").json
    assert shown["messages"] == 1
    assert shown["queues"][1] == {"brokerName": "broker-0", "queueId": 1, "minOffset": 0, "maxOffset": 1}
    assert run("topic", "show", "orders").out.splitlines()[2].split() == ["broker-0", "1", "0", "1"]
    assert run("topic", "delete", "orders", "--yes", "--json").json == {
        "topic": "orders", "deleted": True, "messages": 1,
    }  # fmt: skip
    assert run("topic", "delete", "events", "-y").out == "deleted topic events with 0 messages\n"
    assert run("topic", "list", "--json").json == []
    assert run("read", "orders").code == 3


def test_creating_the_same_topic_again_is_fine_and_another_is_not(run: Run, store: Path) -> None:
    assert run("topic", "create", "t", "--queues", "2").code == 0
    assert run("topic", "create", "t", "--queues", "2").code == 0
    assert run("topic", "create", "t", "--queues", "3").code == 4


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("topic", "create", "no spaces"), 2, "illegal character"),
        (("topic", "create", "t", "--queues", "0"), 2, "1 to 65536 queues"),
        (("topic", "create", "t", "--broker", "../up"), 2, "broker name"),
        (("topic", "show", "nothing"), 3, "no such topic"),
        (("topic", "delete", "nothing"), 3, "no such topic"),
        (("topic",), 2, "missing command; see `rmq topic --help`"),
        (("topic", "crate", "t"), 2, "Did you mean 'create'"),
    ],
)
def test_bad_topics_are_refused(run: Run, store: Path, args: tuple[str, ...], code: int, said: str) -> None:
    ran = run(*args)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


def test_common_options_stand_anywhere(run: Run, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert run("--store", a, "init").code == 0
    assert run("init", "--store", b).code == 0
    assert run("topic", "--store", b, "create", "in-b").code == 0
    for args in (
        ("--store", b, "--json", "topic", "list"),
        ("topic", "--store", b, "--json", "list"),
        ("topic", "list", "--store", b, "--json"),
        ("--json", "topic", "list", f"--store={b}"),
        ("--store", a, "topic", "list", "--store", b, "--json"),
    ):
        assert [topic["topic"] for topic in run(*args).json] == ["in-b"]


def test_the_environment_names_the_store_unless_an_option_does(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for path in (a, b):
        run("init", "--store", path)
        run("topic", "create", path.name, "--store", path)
    monkeypatch.setenv("RMQ_STORE", str(a))
    assert [topic["topic"] for topic in run("topic", "list", "--json").json] == ["a"]
    assert [topic["topic"] for topic in run("--store", b, "topic", "list", "--json").json] == ["b"]
    monkeypatch.delenv("RMQ_STORE")
    ran = run("topic", "list")
    assert (ran.code, ran.err) == (2, "rmq: no store is named; give --store URI or set RMQ_STORE\n")


def test_json_is_one_document_on_one_line(run: Run, store: Path) -> None:
    run("topic", "create", "ünlawful", "--queues", "1")
    run("topic", "create", "t")
    out = run("topic", "list", "--json").out
    assert out.count("\n") == 1
    assert json.loads(out)[0]["topic"] == "t"


def test_a_broker_may_be_called_nameserver(run: Run, store: Path) -> None:
    run("topic", "create", "t", "--queues", "1", "--broker", "nameserver")
    run("send", "t", "--body", "x")
    assert [entry["topics"] for entry in run("log", "--json", "--nameserver").jsons] == [
        ["rmq_sys_fold", "rmq_sys_topic_config"]
    ]
    assert [entry["topics"] for entry in run("log", "--json", "--broker", "nameserver").jsons] == [["t"]]
    assert run("read", "t", "--columns", "body").out == "x\n"
