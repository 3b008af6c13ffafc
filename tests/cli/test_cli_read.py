from __future__ import annotations

import time
from pathlib import Path

import pytest
from cli_runner import Run

from rmq_spark import Message, Producer, Store
from rmq_spark.log import schema


@pytest.fixture(autouse=True)
def messages(run: Run, store: Path) -> None:
    """Queue 0: a0 to a4 with tag A; queue 1: b0 to b4 with tag B; each is a commit of its own."""
    run("topic", "create", "t", "--queues", "2")
    with Store.open(str(store)) as opened:
        producer = Producer(opened)
        for number in range(5):
            for queue, name in enumerate("ab"):
                text = f"{name}{number}"
                producer.send(
                    Message(topic="t", body=text.encode(), queue_id=queue, tags=name.upper(), keys=[text, "every"])
                )


def bodies(run: Run, *args: object, topic: str = "t") -> list[str]:
    return [message["body"] for message in run("read", topic, "--json", *args).jsons]


def test_everything_is_read_in_order_per_queue(run: Run) -> None:
    shown = bodies(run)
    assert [body for body in shown if body[0] == "a"] == ["a0", "a1", "a2", "a3", "a4"]
    assert [body for body in shown if body[0] == "b"] == ["b0", "b1", "b2", "b3", "b4"]


@pytest.mark.parametrize("rolled", [False, True])
def test_every_option_narrows(run: Run, rolled: bool) -> None:
    if rolled:
        run("roll")
    assert bodies(run, "--queue", "0") == ["a0", "a1", "a2", "a3", "a4"]
    assert sorted(bodies(run, "--queue", "0", "--queue", "1", "--from-offset", "4")) == ["a4", "b4"]
    assert bodies(run, "--queue", "1", "--from-offset", "1", "--to-offset", "3") == ["b1", "b2"]
    assert bodies(run, "--tags", "A", "--from-offset", "3") == ["a3", "a4"]
    assert len(bodies(run, "--tags", "A || B")) == 10
    assert len(bodies(run, "--tags", "*")) == 10
    assert bodies(run, "--tags", "C") == []
    assert bodies(run, "--key", "b3") == ["b3"]
    assert len(bodies(run, "--key", "every")) == 10
    assert bodies(run, "--key", "ever") == []
    assert len(bodies(run, "--limit", "3")) == 3
    assert bodies(run, "--limit", "0") == []
    assert bodies(run, "--from-offset", str(2**63 - 1)) == []
    assert len(bodies(run, "--to-offset", str(2**63 - 1))) == 10
    first = run("read", "t", "--json", "--key", "a2").jsons[0]
    assert bodies(run, "--id", first["msgId"]) == ["a2"]


@pytest.mark.parametrize("rolled", [False, True])
def test_times_narrow_in_every_form(run: Run, rolled: bool) -> None:
    time.sleep(0.01)
    run("send", "t", "--body", "late", "--queue", "0")
    late = run("read", "t", "--json", "--queue", "0", "--from-offset", "5").jsons[0]["storeTimestamp"]
    if rolled:
        run("roll")
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(late // 1000)) + f".{late % 1000:03d}"
    day, clock = iso.split("T")
    for text in (str(late), iso, f"{iso}Z", f"{day}#{clock.replace('.', ':')}"):
        assert bodies(run, "--from", text) == ["late"]
        assert len(bodies(run, "--to", text)) == 10
    assert len(bodies(run, "--from", "1970-01-01", "--to", "now")) == 11
    assert bodies(run, "--from", "2999-01-01T00:00:00+02:00") == []
    ran = run("read", "t", "--from", "yesterday")
    assert ran.code == 2
    assert "--from/--since takes a time: now, 5m (ago; ms, s, m, h, d, w), ISO 8601" in ran.err


def test_times_may_be_relative(run: Run, store: Path) -> None:
    for option in ("--from", "--since"):
        assert len(bodies(run, option, "1h")) == 10
    for option in ("--to", "--until"):
        assert bodies(run, option, "1h") == []
    assert len(bodies(run, "--since", "1d", "--until", "now")) == 10
    assert bodies(run, "--since", "0ms") == []


def test_sql92_looks_at_properties_and_narrows_further(run: Run) -> None:
    run("send", "t", "--body", "dear", "--property", "amount=30", "--tags", "A", "--queue", "0")
    run("send", "t", "--body", "cheap", "--property", "amount=3", "--tags", "A", "--queue", "0")
    run("send", "t", "--body", "other", "--property", "amount=40", "--tags", "B", "--queue", "1")
    assert sorted(bodies(run, "--sql", "amount > 10")) == ["dear", "other"]
    assert bodies(run, "--sql", "amount > 10", "--tags", "A") == ["dear"]
    assert sorted(bodies(run, "--sql", "TAGS = 'B' AND amount IS NOT NULL", "--tags", "*")) == ["other"]
    assert run("read", "t", "--sql", "amount > 10", "--queue", "1", "--columns", "body").out == "other\n"


def test_json_has_the_columns_of_the_message_schema(run: Run) -> None:
    shown = run("read", "t", "--json", "--limit", "1").jsons[0]
    assert list(shown) == schema.MESSAGE.names
    assert (shown["brokerName"], shown["queueId"], shown["queueOffset"], shown["commitOffset"]) == ("broker-0", 0, 0, 0)
    assert abs(shown["storeTimestamp"] - time.time() * 1000) < 600_000
    assert list(run("read", "t", "--json", "--limit", "1", "--columns", "body, queueId").jsons[0]) == [
        "body", "queueId",
    ]  # fmt: skip


def test_text_is_one_line_a_message_with_readable_times(run: Run) -> None:
    line = run("read", "t", "--limit", "1").out
    stored, *rest = line.rstrip("\n").split("\t")
    assert stored.endswith("Z")
    assert len(stored) == 24
    assert rest == ["broker-0", "0", "0", "A", "a0 every", "a0"]
    assert run("read", "t", "--limit", "2", "--columns", "body").out == "a0\na1\n", "one queue after the other"


def test_text_escapes_what_a_terminal_would_obey(run: Run) -> None:
    run("send", "t", "--body", "x\x1b[31m\nred\x00\u2028", "--tags", "Z", "--property", "p=\x07")
    assert run("read", "t", "--tags", "Z", "--columns", "body,properties").out == (
        'x\\x1b[31m\\nred\\x00\\u2028\t{"p":"\\u0007"}\n'
    )


def test_bodies_that_are_not_text_are_base64(run: Run) -> None:
    run("send", "t", "--format", "text", "--tags", "Z", stdin=b"\xff\xfe\n")
    assert run("read", "t", "--tags", "Z", "--columns", "body").out == "base64://4=\n"
    assert run("read", "t", "--tags", "Z", "--columns", "body", "--json").out == '{"bodyBase64":"//4="}\n'


def test_compressed_bodies_are_shown_plain(run: Run, store: Path) -> None:
    with Store.open(str(store)) as opened:
        Producer(opened, compress_over_bytes=10).send(Message(topic="t", body=b"z" * 5000, tags="Z"))
    for columns in ("body", "body,sysFlag", "sysFlag,body"):
        assert run("read", "t", "--tags", "Z", "--json", "--columns", columns).jsons[0]["body"] == "z" * 5000
    assert run("read", "t", "--tags", "Z", "--columns", "sysFlag").out == "769\n"


def test_brokers_are_read_one_after_the_other(run: Run) -> None:
    run("topic", "create", "two", "--queues", "1", "--broker", "x", "--broker", "y")
    run("send", "two", "--count", "4", "--batch", "2", "--size", "1")
    assert [m["brokerName"] for m in run("read", "two", "--json").jsons] == ["x", "x", "y", "y"]
    assert [m["brokerName"] for m in run("read", "two", "--json", "--broker", "y").jsons] == ["y", "y"]
    assert run("read", "two", "--broker", "broker-0").out == ""
    ran = run("read", "two", "--broker", "z")
    assert ran.code == 3
    assert "no such broker" in ran.err


def test_the_engines_own_topics_can_be_read(run: Run) -> None:
    configs = run("read", "rmq_sys_topic_config", "--json").jsons
    assert '"topic":"t"' in configs[0]["body"]
    assert configs[0]["brokerName"] == "nameserver"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("nothing",), 3, "no such topic"),
        (("bad name",), 2, "illegal character"),
        (("t", "--columns", "bodi"), 2, "unknown column; did you mean 'body'?"),
        (("t", "--columns", "value"), 2, "unknown column; did you mean 'body'?"),
        (("t", "--tags", "||"), 2, "no tag is named"),
        (("t", "--tags", "A | B"), 2, "a tag has no '|'; write || between tags"),
        (("t", "--tags", "A|B"), 2, "a tag has no '|'; write || between tags"),
        (("t", "--sql", "region ="), 2, "filter expression is wrong at character 8"),
        (("t", "--queue", "99"), 3, "no such queue (topic='t', queue=99, queues=2)"),
        (("t", "--queue", "0", "--queue", "2"), 3, "no such queue (topic='t', queue=2"),
        (("rmq_sys_topic_config", "--queue", "1"), 3, "no such queue"),
        (("t", "--from-offset", "5", "--to-offset", "2"), 2, "--to-offset is before --from-offset"),
        (("t", "--from", "1h", "--to", "2h"), 2, "--to/--until is before --from/--since"),
        (("t", "--from", "2026"), 2, "--from/--since takes a time: a bare number is milliseconds since 1970"),
        (("t", "--since", "5x"), 2, "--from/--since takes a time"),
        (("t", "--from-offset", "-1"), 2, "--from-offset"),
        (("t", "--from-offset", "9" * 30), 2, "--from-offset"),
        (("t", "--limit", "many"), 2, "--limit"),
        (("t", "--nonsense"), 2, "no such option"),
    ],
)
def test_bad_questions_are_refused(run: Run, args: tuple[str, ...], code: int, said: str) -> None:
    ran = run("read", *args)
    assert (ran.code, ran.out) == (code, "")
    assert said.lower() in ran.err.lower()
