"""`rmq group` and `rmq topic spans`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store
from rmq_spark.model.times import format_ms

B = "broker-0"


@pytest.fixture
def filled(run: Run, store: Path) -> list[int]:
    """Topic orders with two queues; three messages in queue 0, stored at the times returned, none in queue 1."""
    run("topic", "create", "orders", "--queues", "2")
    stored = []
    for body in ("one", "two", "three"):
        sent = run("send", "orders", "--body", body, "--queue", "0", "--json").json
        stored.append(sent["storeTimestamp"])
        time.sleep(0.005)
    assert stored == sorted(set(stored))
    return stored


def commit(store: Path, group: str, offsets: dict[int, int], member: str | None = None) -> None:
    with Store.open(str(store)) as opened:
        GroupOffsets(opened).commit(group, {("orders", B, q): offset for q, offset in offsets.items()}, member=member)


def offsets_of(run: Run, group: str) -> dict[int, int | None]:
    shown = run("group", "show", group, "--json").json
    return {queue["queueId"]: queue["committedOffset"] for queue in shown["queues"]}


def reset(run: Run, *args: object) -> Any:
    return run("group", "reset", *args, "--json").json


class TestShow:
    def test_lag_in_messages_and_time(self, run: Run, store: Path, filled: list[int]) -> None:
        commit(store, "billing", {0: 1}, member="10.0.0.1@7")
        before = time.time_ns() // 1_000_000
        shown = run("group", "show", "billing", "--json").json
        after = time.time_ns() // 1_000_000
        queue = shown["queues"][0]
        assert before - filled[1] <= queue["lagMs"] <= after - filled[1]
        assert shown["lagMs"] == queue["lagMs"]
        updated = queue["updatedAt"]
        assert updated >= filled[2]
        assert shown == {
            "group": "billing",
            "lag": 2,
            "lagMs": queue["lagMs"],
            "missed": 0,
            "active": True,
            "member": "10.0.0.1@7",
            "memberAt": updated,
            "updatedAt": updated,
            "queues": [
                {
                    "topic": "orders",
                    "brokerName": B,
                    "queueId": 0,
                    "committedOffset": 1,
                    "minOffset": 0,
                    "maxOffset": 3,
                    "lag": 2,
                    "lagMs": queue["lagMs"],
                    "missed": 0,
                    "updatedAt": updated,
                },
                {
                    "topic": "orders",
                    "brokerName": B,
                    "queueId": 1,
                    "committedOffset": None,
                    "minOffset": 0,
                    "maxOffset": 0,
                    "lag": 0,
                    "lagMs": 0,
                    "missed": 0,
                    "updatedAt": updated,
                },
            ],
        }

    def test_as_text(self, run: Run, store: Path, filled: list[int]) -> None:
        commit(store, "billing", {0: 3}, member="me")
        lines = run("group", "show", "billing").out.splitlines()
        stamp = format_ms(run("group", "show", "billing", "--json").json["memberAt"])
        assert lines[0] == f"billing is 0 messages behind; active, last commit {stamp} by me"
        headers = "TOPIC BROKER QUEUE COMMITTED MIN OFFSET MAX OFFSET LAG AGE MISSED"
        assert " ".join(lines[1].split()) == headers
        assert lines[2].split() == ["orders", B, "0", "3", "0", "3", "0", "-", "-"]
        commit(store, "billing", {0: 1})
        lines = run("group", "show", "billing").out.splitlines()
        assert lines[0].startswith("billing is 2 messages behind, the oldest is ")

    def test_one_topic_of_several(self, run: Run, store: Path, filled: list[int]) -> None:
        run("topic", "create", "events", "--queues", "1")
        run("group", "reset", "g", "--topic", "orders", "--to-earliest")
        run("group", "reset", "g", "--topic", "events", "--to-earliest")
        shown = run("group", "show", "g", "--topic", "events", "--json").json
        assert [queue["topic"] for queue in shown["queues"]] == ["events"]
        assert shown["lag"] == 0
        assert run("group", "show", "g", "--json").json["lag"] == 3
        assert run("group", "show", "g", "--topic", "nothing").code == 3

    def test_list(self, run: Run, store: Path, filled: list[int]) -> None:
        assert run("group", "list", "--json").json == []
        run("group", "reset", "old", "--topic", "orders", "--to-earliest")
        commit(store, "billing", {0: 3}, member="me")
        listed = run("group", "list", "--json").json
        assert [(entry["group"], entry["topics"], entry["lag"], entry["active"]) for entry in listed] == [
            ("billing", ["orders"], 0, True),
            ("old", ["orders"], 3, False),
        ]
        lines = run("group", "list").out.splitlines()
        assert lines[0].split() == ["GROUP", "TOPICS", "LAG", "AGE", "ACTIVE", "UPDATED"]
        assert lines[1].split()[:5] == ["billing", "orders", "0", "-", "yes"]
        assert lines[2].split()[:3] == ["old", "orders", "3"]


class TestReset:
    def test_every_target(self, run: Run, store: Path, filled: list[int]) -> None:
        orders = ("g", "--topic", "orders")
        assert reset(run, *orders, "--to-earliest") == {
            "group": "g",
            "dryRun": False,
            "redelivered": 0,
            "skipped": 0,
            "queues": [
                {
                    "topic": "orders",
                    "brokerName": B,
                    "queueId": queue,
                    "before": None,
                    "after": 0,
                    "redelivered": 0,
                    "skipped": 0,
                }
                for queue in (0, 1)
            ],
        }
        for args, expected in (
            (("--to-latest",), 3),
            (("--to-time", filled[1]), 1),
            (("--to-time", filled[1] + 1), 2),
            (("--to-time", format_ms(filled[2])), 2),
            (("--to-time", "now"), 3),
            (("--to-offsets", json.dumps({"orders": {B: {"0": 2}}})), 2),
            (("--to-offsets", '{"orders": {"0": 1}}'), 1),
            (("--skip",), 3),
            (("--to-time", "1970-01-01"), 0),
            (("--to-time", "0s"), 3),
            (("--to-time", "1h"), 0),
        ):
            run("group", "reset", "g", *args)
            assert offsets_of(run, "g") == {0: expected, 1: 0}, args
        reset(run, "copy", "--clone", "g")
        assert offsets_of(run, "copy") == {0: 0, 1: 0}

    def test_as_text_and_dry(self, run: Run, store: Path, filled: list[int]) -> None:
        run("group", "reset", "g", "--topic", "orders", "--to-time", filled[1])
        ran = run("group", "reset", "g", "--to-latest", "--dry-run")
        assert ran.out.splitlines() == [
            "would set g on 1 of 2 queues: 0 messages again, 2 skipped",
            "TOPIC   BROKER    QUEUE  BEFORE  AFTER  AGAIN  SKIPPED",
            "orders  broker-0      0       1      3      0        2",
            "orders  broker-0      1       0      0      0        0",
        ]
        assert offsets_of(run, "g") == {0: 1, 1: 0}
        assert reset(run, "g", "--to-earliest", "--dry-run")["dryRun"] is True
        said = run("group", "reset", "g", "--to-earliest").out.splitlines()[0]
        assert said == "set g on 1 of 2 queues: 1 messages again, 0 skipped"

    def test_an_active_group_is_refused_unless_forced(self, run: Run, store: Path, filled: list[int]) -> None:
        commit(store, "g", {0: 2}, member="me")
        for args in (("reset", "g", "--to-earliest"), ("delete", "g")):
            ran = run("group", *args)
            assert (ran.code, ran.out) == (4, "")
            assert "consumers are active" in ran.err
            assert "member='me'" in ran.err
        assert run("group", "reset", "g", "--to-earliest", "--dry-run").code == 0
        assert offsets_of(run, "g")[0] == 2
        assert run("group", "reset", "g", "--to-earliest", "--force").code == 0
        assert offsets_of(run, "g")[0] == 0
        assert run("group", "delete", "g", "--force").out == "deleted group g\n"
        assert run("group", "list", "--json").json == []

    def test_reading_goes_on_at_the_moment(self, run: Run, store: Path, filled: list[int]) -> None:
        """The way of somebody who looks for a bad deploy: span, reset, read from there."""
        span = run("topic", "spans", "orders", "--json").json["queues"][0]
        assert (span["firstTimestamp"], span["lastTimestamp"]) == (filled[0], filled[2])
        queue = reset(run, "g", "--topic", "orders", "--to-time", filled[1])["queues"][0]
        read = run("read", "orders", "--queue", "0", "--from-offset", queue["after"], "--json").jsons
        assert [message["body"] for message in read] == ["two", "three"]
        assert read[0]["storeTimestamp"] == filled[1]

    def test_a_broker_may_be_left_out_of_a_topic_on_one_only(self, run: Run, store: Path) -> None:
        run("topic", "create", "wide", "--queues", "1", "--broker", "x", "--broker", "y")
        ran = run("group", "reset", "g", "--to-offsets", '{"wide": {"0": 0}}')
        assert ran.code == 2
        assert "name the broker" in ran.err
        assert run("group", "reset", "g", "--to-offsets", '{"wide": {"y": {"0": 0}}}').code == 0

    @pytest.mark.parametrize(
        ("args", "code", "said"),
        [
            (("reset", "g"), 2, "exactly one of --to-earliest, --to-latest, --skip, --to-time"),
            (("reset", "g", "--to-earliest", "--skip"), 2, "exactly one of"),
            (("reset", "g", "--to-earliest"), 3, "no such consumer group"),
            (("reset", "g", "--topic", "nothing", "--to-earliest"), 3, "no such topic"),
            (("reset", "g", "--topic", "orders", "--to-time", "soon"), 2, "--to-time takes a time"),
            (("reset", "g", "--clone", "h"), 3, "no such consumer group"),
            (("reset", "g", "--to-offsets", "{"), 2, "--to-offsets takes"),
            (("reset", "g", "--to-offsets", '{"orders": {"0": 1, "00": 0}}'), 2, "a queue is named twice"),
            (("reset", "g", "--to-offsets", '{"orders": {"0": 1}, "orders": {"0": 0}}'), 2, "a name stands twice"),
            (("reset", "g", "--to-offsets", "[]"), 2, "--to-offsets takes"),
            (("reset", "g", "--to-offsets", '{"orders": 3}'), 2, "--to-offsets takes"),
            (("reset", "g", "--to-offsets", '{"orders": {"broker-0": {"0": "3"}}}'), 2, "--to-offsets takes"),
            (("reset", "g", "--to-offsets", '{"orders": {"broker-0": {"0": true}}}'), 2, "--to-offsets takes"),
            (("reset", "g", "--to-offsets", '{"orders": {"broker-0": {"x": 3}}}'), 3, "no such queue"),
            (("reset", "g", "--to-offsets", '{"orders": {"broker-0": {"9": 3}}}'), 3, "no such queue"),
            (("reset", "g", "--to-offsets", '{"nothing": {"broker-0": {"0": 3}}}'), 3, "no such topic"),
            (
                ("reset", "g", "--to-offsets", '{"orders": {"broker-0": {"0": 4}}}'),
                2,
                "outside of what the queue holds",
            ),
            (("reset", "no spaces", "--topic", "orders", "--skip"), 2, "illegal character"),
            (("show", "g"), 3, "no such consumer group"),
            (("delete", "g"), 3, "no such consumer group"),
            ((), 2, "missing command; see `rmq group --help`"),
        ],
    )
    def test_bad_requests(
        self, run: Run, store: Path, filled: list[int], args: tuple[str, ...], code: int, said: str
    ) -> None:
        ran = run("group", *args)
        assert (ran.code, ran.out) == (code, "")
        assert said in ran.err
        assert run("group", "list", "--json").json == []


class TestSpans:
    def test_json_and_text(self, run: Run, store: Path, filled: list[int]) -> None:
        full = {"brokerName": B, "queueId": 0, "minOffset": 0, "maxOffset": 3}
        empty = {"brokerName": B, "queueId": 1, "minOffset": 0, "maxOffset": 0}
        expected = {
            "topic": "orders",
            "queues": [
                {**full, "firstTimestamp": filled[0], "lastTimestamp": filled[2]},
                {**empty, "firstTimestamp": None, "lastTimestamp": None},
            ],
        }
        assert run("topic", "spans", "orders", "--json").json == expected
        run("roll")
        assert run("topic", "spans", "orders", "--json").json == expected
        lines = run("topic", "spans", "orders").out.splitlines()
        assert lines[1].split() == [B, "0", "0", "3", format_ms(filled[0]), format_ms(filled[2])]
        assert lines[2].split() == [B, "1", "0", "0", "-", "-"]

    def test_an_unknown_topic(self, run: Run, store: Path) -> None:
        ran = run("topic", "spans", "nothing")
        assert (ran.code, ran.out) == (3, "")


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, None),
        (999, "0.999 s"),
        (59_999, "59.999 s"),
        (60_000, "1 min 0 s"),
        (3_599_000, "59 min 59 s"),
        (3_600_000, "1 h 0 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_ages_are_shown_in_two_units(ms: int, shown: str | None) -> None:
    from rmq_spark.cli.output import duration

    assert duration(ms) == shown


def test_a_time_before_1970_is_before_every_message(run: Run, store: Path, filled: list[int]) -> None:
    commit(store, "billing", {0: 3})
    for text in ("1960-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "000000000000"):
        done = reset(run, "billing", "--to-time", text, "--force", "--dry-run")
        assert (done["redelivered"], done["skipped"]) == (3, 0), text


def test_offsets_that_name_no_queue_are_refused(run: Run, store: Path, filled: list[int]) -> None:
    assert run("group", "reset", "nobody", "--to-offsets", "{}").code == 2
    assert run("group", "reset", "nobody", "--to-offsets", '{"orders": {}}').code == 2


def test_a_clone_has_no_queues_that_are_gone(run: Run, store: Path) -> None:
    run("topic", "create", "orders", "--queues", "4")
    commit(store, "from", dict.fromkeys(range(4), 0))
    run("topic", "delete", "orders", "--yes")
    run("topic", "create", "orders", "--queues", "1")
    done = reset(run, "to", "--clone", "from", "--topic", "orders")
    assert [queue["queueId"] for queue in done["queues"]] == [0]
    assert offsets_of(run, "to") == {0: 0}
