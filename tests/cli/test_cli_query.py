"""`rmq query`, `rmq trace` and `rmq tables`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import Run

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message import Message

TABLES = ("consumequeue", "index", "consumer_offsets")


@pytest.fixture
def orders(store: Path, run: Run) -> Path:
    """Ten messages in two queues; key and number agree, and all share a second key."""
    lines = "\n".join(json.dumps({"body": f"b{n}", "keys": [f"o-{n}", "all"], "tags": "T"}) for n in range(10))
    assert run("topic", "create", "orders", "--queues", "2").code == 0
    assert run("send", "orders", "--batch", "3", stdin=lines).code == 0
    return store


def build(run: Run, how: str) -> None:
    if how == "built":
        assert run("tables", "build").code == 0


@pytest.mark.parametrize("how", ["absent", "built"])
def test_query_by_key_id_queue_and_time(run: Run, orders: Path, how: str) -> None:
    build(run, how)
    [message] = run("query", "orders", "--key", "o-7", "--json").jsons
    assert (message["body"], message["keys"]) == ("b7", "o-7 all")
    assert run("query", "orders", "--id", message["msgId"], "--json").jsons == [message]
    newest = [line["commitOffset"] for line in run("query", "orders", "--key", "all", "--limit", "4", "--json").jsons]
    assert newest == [9, 8, 7, 6]
    offsets = [line["commitOffset"] for line in run("query", "orders", "--key", "all", "--json").jsons]
    assert offsets == list(range(9, -1, -1))
    assert run("query", "orders", "--from", "1970-01-01", "--json", "--limit", "3").jsons[0]["commitOffset"] == 9
    assert run("query", "orders", "--key", "all", "--to", "1970-01-02", "--json").jsons == []
    queue = run("query", "orders", "--queue", "1", "--from-offset", "1", "--to-offset", "3", "--json").jsons
    assert [line["queueOffset"] for line in queue] == [2, 1]
    place = f"0A000001{10911:08X}{message['commitOffset']:016X}"
    assert run("query", "orders", "--id", place, "--json").jsons == [message]


def test_text_has_the_columns_of_read(run: Run, orders: Path) -> None:
    done = run("query", "orders", "--key", "o-3")
    assert done.out.split("\t")[-1] == "b3\n"
    assert run("query", "orders", "--key", "o-3", "--columns", "body,keys").out == "b3\to-3 all\n"
    assert run("query", "orders", "--key", "nothing").out == ""


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "say what to find"),
        (("--key", "a", "--id", "b"), "ask one question"),
        (("--id", "b", "--from", "0"), "ask one question"),
        (("--queue", "0", "--to", "now"), "ask one question"),
        (("--key", "a b"), "has no space"),
        (("--key", "a", "--limit", "0"), "--limit"),
        (("--key", "a", "--limit", "99999999999999999999"), "--limit"),
        (("--key", "a\udcff"), "UTF-8"),
        (("--id", "a\udcff"), "UTF-8"),
        (("--key", "a", "--columns", "bodi"), "did you mean 'body'"),
        (("--key", "a", "--from", "yesterday"), "--from/--since takes a time"),
        (("--key", "a", "--since", "2026"), "--from/--since takes a time: a bare number"),
        (("--from", "1h", "--until", "2h"), "--to/--until is before --from/--since"),
        (("--queue", "0", "--from-offset", "5", "--to-offset", "2"), "--to-offset is before --from-offset"),
    ],
)
def test_bad_questions_are_usage_errors(run: Run, orders: Path, args: tuple[str, ...], problem: str) -> None:
    done = run("query", "orders", *args)
    assert done.code == 2
    assert problem in done.err


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300", "-1"])
def test_a_wait_is_a_number_of_seconds(run: Run, orders: Path, seconds: str) -> None:
    for command in (("build",), ("build", "--rebuild"), ("drop",)):
        assert run("tables", *command, "--wait", seconds).code == 2


def test_ids_that_no_message_can_have_are_usage_errors(run: Run, orders: Path) -> None:
    assert run("trace", "--id", "\udcff").code == 2
    assert run("read", "orders", "--limit", "99999999999999999999").code == 2


def test_unknown_topics_and_brokers_are_not_found(run: Run, orders: Path) -> None:
    assert run("query", "nope", "--key", "a").code == 3
    assert run("query", "orders", "--key", "a", "--broker", "nope").code == 3
    assert run("trace", "--id", "nope").code == 3
    for broker in ((), ("--broker", "broker-0")):
        done = run("query", "orders", "--queue", "99", *broker)
        assert (done.code, done.out) == (3, "")
        assert "no such queue (topic='orders', queue=99" in done.err
    assert run("tables", "build", "--broker", "nope").code == 3
    assert run("tables", "status", "--table", "nope").code == 2


def test_tables_are_built_shown_and_dropped(run: Run, orders: Path) -> None:
    before = run("tables", "status", "--json").json
    assert {(one["table"], one["mark"], one["behind"]) for one in before} == {(name, None, 10) for name in TABLES}
    done = run("tables", "build", "--json").json
    assert (done["messages"], done["rows"]) == (10, {"consumequeue": 10, "index": 30, "consumer_offsets": 0})
    after = run("tables", "status", "--json").json
    assert {(one["table"], one["mark"], one["behind"]) for one in after} == {(name, 10, 0) for name in TABLES}
    assert run("tables", "build", "--json").json["messages"] == 0
    assert run("tables", "build", "--rebuild", "--json").json["rows"]["index"] == 30
    assert run("tables", "build", "--table", "index", "--broker", "broker-0", "--json").json["messages"] == 0
    assert "30" in run("tables", "status", "--table", "index").out
    assert run("tables", "drop", "--table", "index", "--json").json == {"dropped": ["index"]}
    assert run("tables", "drop", "--json").json == {"dropped": ["consumequeue", "consumer_offsets"]}
    assert "nothing" in run("tables", "drop").out
    assert not list((orders / "tables").glob("*/*.parquet"))


def test_options_of_tables_stand_before_or_after_the_command(run: Run, orders: Path) -> None:
    assert run("tables", "--json", "status").json == run("tables", "status", "--json").json
    assert run("tables").err == "rmq: missing command; see `rmq tables --help`\n"


@pytest.mark.parametrize("option", ["--from-offset", "--to-offset"])
def test_offsets_without_a_queue_are_not_ignored(run: Run, orders: Path, option: str) -> None:
    done = run("query", "orders", "--key", "a", option, "0")
    assert done.code == 2
    assert "name it by --queue" in done.err


def test_an_engine_at_work_is_a_conflict(run: Run, orders: Path) -> None:
    from rmq_spark.tables.lease import TableLease

    with Store.open(str(orders)) as opened, TableLease.acquire(opened, name="spark"):
        done = run("tables", "build")
        assert done.code == 4
        assert "another engine" in done.err
        holders = {one["holder"] for one in run("tables", "status", "--json").json}
        assert len(holders) == 1 and holders.pop().startswith("spark-")
    assert run("tables", "build", "--wait", "1").code == 0


@pytest.mark.parametrize("how", ["absent", "built"])
def test_trace_shows_a_messages_life(run: Run, store: Path, how: str) -> None:
    life = (
        ("RMQ_SYS_TRANS_HALF_TOPIC", (("REAL_TOPIC", "orders"),), 0),
        ("orders", (), 0),
        ("SCHEDULE_TOPIC_XXXX", (("REAL_TOPIC", "%RETRY%billing"), ("DELAY", "3")), 1),
        ("%RETRY%billing", (), 1),
        ("%DLQ%billing", (), 16),
    )
    with Store.open(str(store)) as opened:
        opened.create_topic("orders", queues=1)
        for number, (topic, properties, tries) in enumerate(life):
            batch = [
                MessageBatch.of(
                    topic=topic,
                    queue_id=0,
                    msg_id=msg_id,
                    body=b"x",
                    born_timestamp_ms=0,
                    reconsume_times=tries,
                    properties=properties,
                )
                for msg_id in (f"OTHER{number}", "LIFE")
            ]
            opened.log().append(MessageBatch.merge(batch))
        groups = GroupOffsets(opened)
        groups.commit("billing", {("orders", "broker-0", 0): 2})
        groups.commit("slow", {("orders", "broker-0", 0): 1})
    build(run, how)
    steps = run("trace", "--id", "LIFE", "--json").json
    stages = [step["stage"] for step in steps]
    assert stages == ["half", "delivered", "delayed", "retried", "dead-lettered"]
    assert [step["topic"] for step in steps] == [topic for topic, _, _ in life]
    assert steps[0]["realTopic"] == "orders"
    assert (steps[1]["consumedBy"], steps[1]["waitedForBy"]) == (["billing"], ["slow"])
    assert [step["group"] for step in steps][3:] == ["billing", "billing"]
    assert steps[4]["reconsumeTimes"] == 16
    assert [step["commitOffset"] for step in steps] == sorted(step["commitOffset"] for step in steps)
    text = run("trace", "--id", "LIFE").out
    assert "SCHEDULE_TOPIC_XXXX (for %RETRY%billing)" in text


def test_trace_shows_what_clients_said(run: Run, store: Path) -> None:
    with Store.open(str(store)) as opened, Producer(opened, group="web", trace=True) as producer:
        sent = producer.send(Message("orders", b"x"))
    records = run("trace", "--id", sent.msg_id, "--json").json
    assert [record["stage"] for record in records] == ["delivered", "Pub"]
    assert (records[1]["group"], records[1]["success"], records[1]["topic"]) == ("web", True, "orders")
    text = run("trace", "--id", sent.msg_id).out
    assert "CLIENT" in text and "Pub" in text and "web" in text
