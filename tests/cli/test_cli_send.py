from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cli_runner import Run

from rmq_spark import Store
from rmq_spark.client.delays import set_delay_levels
from rmq_spark.model.java_hash import java_hash


@pytest.fixture(autouse=True)
def topic(run: Run, store: Path) -> None:
    run("topic", "create", "t", "--queues", "4")


def read(run: Run, *args: object) -> list[dict[str, object]]:
    return run("read", "t", "--json", *args).jsons


def test_one_message_with_everything(run: Run) -> None:
    sent = run(
        "send", "t", "--body", "hällo", "--tags", "A", "--keys", "k1", "--keys", "k2",
        "--property", "a=1", "--property", "b=x=y", "--sharding-key", "s", "--json",
    ).json  # fmt: skip
    message = read(run)[0]
    assert message["body"] == "hällo"
    assert (message["tags"], message["keys"]) == ("A", "k1 k2")
    assert message["properties"] == {"a": "1", "b": "x=y", "__SHARDINGKEY": "s"}
    assert message["queueId"] == abs(java_hash("s")) % 4
    names = ("msgId", "topic", "brokerName", "queueId", "queueOffset", "commitOffset", "storeTimestamp")
    assert sent == {name: message[name] for name in names}


def test_one_message_as_text(run: Run) -> None:
    ran = run("send", "t", "--body", "x", "--queue", "2")
    assert ran.out.split()[1:] == ["t", "broker-0", "queue", "2", "offset", "0"]


def test_an_argument_that_is_not_utf8_is_sent_byte_for_byte(run: Run) -> None:
    assert run("send", "t", "--body", "\udcff\udcfe").code == 0
    assert read(run, "--columns", "body") == [{"bodyBase64": base64.b64encode(b"\xff\xfe").decode()}]


def test_lines_are_bodies_and_json_objects_are_messages(run: Run) -> None:
    lines = [
        "plain",
        '{"body": "j1", "tags": "T", "keys": "one", "properties": {"p": "v"}}',
        '{"bodyBase64": "/w==", "keys": ["a", "b"], "shardingKey": "s", "topic": "t"}',
        '{"body": "q", "queueId": 3}',
        '{"no": "body"}',
        '{"body": "broken"',
        "",
        "[1]",
    ]
    ran = run("send", "t", "--json", stdin="\n".join(lines) + "\n")
    assert (ran.json["sent"], ran.json["commits"], len(ran.json["results"])) == (7, 1, 7)
    bodies = {message.get("body", message.get("bodyBase64")): message for message in read(run)}
    assert set(bodies) == {"plain", "j1", "/w==", "q", '{"no": "body"}', '{"body": "broken"', "[1]"}
    assert (bodies["j1"]["tags"], bodies["j1"]["keys"], bodies["j1"]["properties"]) == ("T", "one", {"p": "v"})
    assert bodies["/w=="]["keys"] == "a b"
    assert bodies["q"]["queueId"] == 3


def test_options_are_defaults_for_lines(run: Run) -> None:
    stdin = '{"body": "own", "tags": "X", "keys": "k", "properties": {"p": "2"}, "queueId": 1}\nplain\n'
    run("send", "t", "--tags", "D", "--keys", "d", "--property", "p=1", "--queue", "2", stdin=stdin)
    own, plain = read(run, "--columns", "body,tags,keys,properties,queueId")
    assert own == {"body": "own", "tags": "X", "keys": "k", "properties": {"p": "2"}, "queueId": 1}
    assert plain == {"body": "plain", "tags": "D", "keys": "d", "properties": {"p": "1"}, "queueId": 2}


def test_lines_say_when_they_are_delivered_and_with_which_priority(run: Run, store: Path) -> None:
    run("topic", "create", "urgent", "--type", "PRIORITY")
    sent = run("send", "urgent", "--json", stdin='{"body": "p", "priority": 3}\n').json
    assert [each["queueId"] for each in sent["results"]] == [3]
    lines = [
        '{"body": "level", "delay_level": 3}',
        '{"body": "delay", "delay": 3600.5}',
        '{"body": "time", "deliver_at": "2100-01-01T00:00:00Z"}',
        '{"body": "ms", "deliver_at": 4102444800000}',
        '{"body": "now", "delay_level": 0}',
        '{"body": "option"}',
    ]
    run("send", "t", "--delay", "1h", stdin="\n".join(lines) + "\n")
    with Store.open(str(store), read_only=True) as opened:
        waiting = {row["body"]: dict(row["properties"]) for row in opened.read("SCHEDULE_TOPIC_XXXX").to_pylist()}
        timed = {row["body"]: dict(row["properties"]) for row in opened.read("rmq_sys_wheel_timer").to_pylist()}
        assert opened.read("t")["body"].to_pylist() == [b"now"]
    assert {body: properties["DELAY"] for body, properties in waiting.items()} == {b"level": "3"}
    assert sorted(timed) == [b"delay", b"ms", b"option", b"time"]
    assert {timed[body]["TIMER_OUT_MS"] for body in (b"ms", b"time")} == {"4102444800000"}


def test_text_format_takes_every_line_as_it_is(run: Run) -> None:
    raw = b'{"body": "x"}\r\n\xff\xfe\n  \nlast'
    assert run("send", "t", "--format", "text", "--queue", "0", "--json", stdin=raw).json["sent"] == 4
    assert [m.get("body", m.get("bodyBase64")) for m in read(run)] == ['{"body": "x"}', "//4=", "  ", "last"]


def test_what_read_writes_send_takes(run: Run) -> None:
    run("send", "t", "--body", "ä\n\u2028", "--tags", "A", "--keys", "k", "--property", "p=ü")
    run("topic", "create", "copy")
    names = "body,tags,keys,properties"
    run("send", "copy", "--format", "json", stdin=run("read", "t", "--json", "--columns", names).out)
    assert run("read", "copy", "--json", "--columns", names).out == run("read", "t", "--json", "--columns", names).out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "line 2: not valid JSON"),
        ('"text"', 'line 2: not a JSON object with "body"'),
        ('{"tags": "A"}', 'line 2: not a JSON object with "body"'),
        ('{"body": 1}', "line 2: field must be a text (field='body'"),
        ('{"body": null}', "line 2: field must be a text (field='body'"),
        ('{"body": "x", "bodyBase64": "eA=="}', "line 2: give either"),
        ('{"bodyBase64": "?"}', "line 2: not valid base64"),
        ('{"body": ""}', "line 2: message body is empty"),
        ('{"body": "x", "tag": "A"}', "line 2: unknown field; did you mean 'tags'?"),
        ('{"body": "x", "topic": "other"}', "line 2: message is for another topic"),
        ('{"body": "x", "tags": "A|B"}', "line 2: message tag has a '|'"),
        ('{"body": "x", "keys": [1]}', "line 2: field must be a text or a list of texts"),
        ('{"body": "x", "keys": 7}', "line 2: field must be a text or a list of texts"),
        ('{"body": "x", "properties": {"a": 1}}', "line 2: field must be an object of texts"),
        ('{"body": "x", "properties": ["a"]}', "line 2: field must be an object of texts"),
        ('{"body": "x", "properties": {"KEYS": "a"}}', "line 2: message property name is reserved"),
        ('{"body": "x", "queueId": "1"}', "line 2: field must be a whole number"),
        ('{"body": "x", "queueId": true}', "line 2: field must be a whole number"),
        ('{"body": "x", "priority": "1"}', "line 2: field must be a whole number (field='priority'"),
        ('{"body": "x", "priority": -1}', "line 2: a priority is 0 or more"),
        ('{"body": "x", "delay_level": 1.5}', "line 2: field must be a whole number (field='delay_level'"),
        ('{"body": "x", "delay_level": -1}', "line 2: delay_level is a whole number from 0 on"),
        ('{"body": "x", "delay": "5m"}', "line 2: field must be a number of seconds (field='delay'"),
        ('{"body": "x", "delay": NaN}', "line 2: delay takes a timedelta or a number of seconds"),
        ('{"body": "x", "deliver_at": 1.5}', "line 2: field must be ISO 8601 or milliseconds since 1970"),
        ('{"body": "x", "deliver_at": "noon"}', "line 2: deliver_at takes a time"),
        ('{"body": "x", "delay": 1, "delay_level": 1}', "line 2: give one of delay, deliver_at and delay_level"),
        ('{"body": "x", "deliverAt": 1}', "line 2: unknown field; did you mean 'deliver_at'?"),
        ('{"body": "\\ud800"}', "line 2: body is not valid UTF-8"),
        ('{"body": "x", "tags": "\\ud800"}', "line 2: tags is not valid UTF-8"),
        ("[" * 100_000, "line 2: not valid JSON"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_batch_is_sent(run: Run, line: str, said: str) -> None:
    ran = run("send", "t", "--format", "json", stdin=f'{{"body": "good"}}\n{line}\n{{"body": "good"}}\n')
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "sent_before=0" in ran.err
    assert read(run) == []


def test_batches_before_a_bad_line_stay_sent(run: Run) -> None:
    lines = ['{"body": "1"}', '{"body": "2"}', '{"body": "3"}', "bad"]
    ran = run("send", "t", "--format", "json", "--batch", "2", stdin="\n".join(lines))
    assert ran.code == 2
    assert "line 4: not valid JSON" in ran.err
    assert "sent_before=2" in ran.err
    assert sorted(str(m["body"]) for m in read(run)) == ["1", "2"]


def test_an_error_of_the_store_says_which_lines_and_what_was_sent(run: Run) -> None:
    ran = run("send", "t", "--batch", "1", stdin='a\n{"body": "b", "queueId": 9}\n')
    assert ran.code == 2
    assert "no such queue" in ran.err
    assert "lines='2-2', sent_before=1" in ran.err


def test_a_batch_is_a_commit(run: Run) -> None:
    lines = "".join(f"m{number}\n" for number in range(250))
    ran = run("send", "t", "--batch", "100", "--json", stdin=lines).json
    assert (ran["sent"], ran["commits"], ran["results"]) == (250, 3, None)
    commits = run("log", "--json", "--broker", "broker-0").jsons
    assert [entry["messages"] for entry in commits] == [100, 100, 50]
    assert run("send", "t", stdin=lines).out.startswith("sent 250 messages (890 bytes) to t in 1 commits")


def test_few_lines_are_listed_one_by_one(run: Run) -> None:
    assert len(run("send", "t", stdin="a\nb\n").out.splitlines()) == 2


def test_empty_input_sends_nothing(run: Run) -> None:
    ran = run("send", "t", "--json", stdin="")
    assert (ran.code, ran.json["sent"], ran.json["commits"], ran.json["results"]) == (0, 0, 0, [])
    assert run("send", "t", stdin="\n\n").out.startswith("sent 0 messages")


@pytest.mark.parametrize("flush", ["sync", "async", "buffered"])
def test_every_flush_policy_has_the_messages_in_the_log_at_the_end(run: Run, flush: str) -> None:
    ran = run("send", "t", "--flush", flush, "--json", stdin="a\nb\n")
    assert ran.code == 0
    offsets = [result["queueOffset"] for result in ran.json["results"]]
    assert (None in offsets) == (flush == "buffered")
    assert len(read(run)) == 2
    assert run("log", "--json", "--broker", "broker-0").jsons[-1]["flush"] == ("sync" if flush == "sync" else "async")
    if flush == "buffered":
        assert "not in the log yet" in run("send", "t", "--body", "x", "--flush", flush).out


def test_made_up_load_is_spread_over_the_queues(run: Run, store: Path) -> None:
    ran = run(
        "send", "t", "--count", "2500", "--size", "20", "--batch", "1000", "--tags", "L", "--keys", "k-",
        "--property", "p=v", "--json",
    ).json  # fmt: skip
    assert (ran["sent"], ran["bytes"], ran["commits"], ran["results"]) == (2500, 50_000, 3, None)
    assert [queue["maxOffset"] for queue in run("topic", "show", "t", "--json").json["queues"]] == [625] * 4
    matching = read(run, "--key", "k-2499")
    assert len(matching) == 1
    assert str(matching[0]["body"]).startswith("000000002499")
    assert len(str(matching[0]["body"])) == 20
    assert (matching[0]["tags"], matching[0]["properties"]) == ("L", {"p": "v"})
    messages = read(run)
    assert len({message["msgId"] for message in messages}) == len({m["body"] for m in messages}) == 2500
    assert run("verify").code == 0


def test_made_up_load_takes_queue_sharding_key_and_brokers(run: Run) -> None:
    run("topic", "create", "two", "--queues", "2", "--broker", "a", "--broker", "b")
    run("send", "two", "--count", "40", "--batch", "10", "--size", "1")
    assert [queue["maxOffset"] for queue in run("topic", "show", "two", "--json").json["queues"]] == [10] * 4
    run("send", "t", "--count", "5", "--queue", "1")
    run("send", "t", "--count", "6", "--sharding-key", "s")
    counts = {m["queueId"]: 0 for m in read(run)}
    for message in read(run):
        counts[message["queueId"]] += 1
    assert counts == {1: 5, abs(java_hash("s")) % 4: 6} or counts == {1: 11}


def test_unknown_topics_are_created_unless_told_not_to(run: Run) -> None:
    for args in (("--body", "x"), ("--count", "3")):
        ran = run("send", "new", *args, "--no-create")
        assert (ran.code, ran.out) == (3, "")
        assert "no such topic" in ran.err
    assert run("send", "new", "--body", "x").code == 0
    assert run("send", "newer", "--count", "3").code == 0
    assert {topic["topic"]: topic["queues"] for topic in run("topic", "list", "--json").json} == {
        "new": {"broker-0": 4}, "newer": {"broker-0": 4}, "t": {"broker-0": 4},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("t", "--body", "x", "--count", "2"), "either --body or --count"),
        (("t", "--body", ""), "body is empty"),
        (("t", "--body", "x", "--property", "novalue"), "--property takes NAME=VALUE"),
        (("t", "--body", "x", "--property", "KEYS=v"), "reserved"),
        (("t", "--body", "x", "--tags", "A||B"), "tag has a '|'"),
        (("t", "--body", "x", "--tags", "\udcff"), "--tags is not valid UTF-8"),
        (("t", "--body", "x", "--queue", "4"), "no such queue"),
        (("t", "--body", "x", "--queue", "-1"), "--queue"),
        (("t", "--body", "x", "--flush", "never"), "'never' is not one of"),
        (("t", "--count", "0"), "--count"),
        (("t", "--count", "1", "--queue", "4"), "no such queue"),
        (("t", "--count", "1", "--size", "0"), "--size"),
        (("t", "--body", "x", "--size", "5"), "--size goes with --count"),
        (("t", "--count", "1", "--tags", " "), "tag is blank"),
        (("t", "--count", "1", "--keys", "a", "--keys", "b"), "--keys is one prefix"),
        (("rmq_sys_topic_config", "--body", "x"), "reserved for the engine"),
        (("rmq_sys_topic_config", "--count", "1"), "reserved for the engine"),
        (("bad topic", "--body", "x"), "illegal character"),
        ((), "missing argument 'TOPIC'"),
    ],
)
def test_bad_arguments_send_nothing(run: Run, args: tuple[str, ...], said: str) -> None:
    ran = run("send", *args)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert read(run) == []


def test_an_interrupt_says_what_was_sent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.flush

    def interrupted(self: Store) -> None:
        real(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "flush", interrupted)
    ran = run("send", "t", stdin="a\nb\n")
    assert (ran.code, ran.out, ran.err) == (130, "", "rmq: interrupted; 2 messages were sent before\n")


def test_json_lines_may_hold_any_unicode(run: Run) -> None:
    body = "".join(map(chr, [*range(1, 0x250), 0x2028, 0x1F600]))
    run("send", "t", stdin=json.dumps({"body": body}) + "\n")
    assert read(run, "--columns", "body") == [{"body": body}]


def test_a_delivery_time_is_given_in_three_ways(run: Run, store: Path) -> None:
    for option, value in (("--delay", "5m"), ("--deliver-at", "2999-01-01T00:00:00Z"), ("--delay-level", "3")):
        sent = run("send", "t", "--body", option, option, value, "--json").json
        assert sent["queueOffset"] is None
    assert run("send", "t", "--delay", "1.5", stdin="one\ntwo\n").out.count("waits until it is due") == 2
    assert read(run) == []
    with Store.open(str(store), services="off") as opened:
        waiting = [*opened.scan("rmq_sys_wheel_timer"), *opened.scan("SCHEDULE_TOPIC_XXXX")]
    rows = {row["body"]: row for batch in waiting for row in batch.to_pylist()}
    assert dict(rows[b"--deliver-at"]["properties"])["TIMER_DELIVER_MS"] == "32472144000000"
    assert dict(rows[b"--delay-level"]["properties"])["DELAY"] == "3"
    born = int(rows[b"--delay"]["bornTimestamp"].timestamp() * 1000)
    assert 0 <= int(dict(rows[b"--delay"]["properties"])["TIMER_DELIVER_MS"]) - born - 300_000 < 10_000
    assert {b"one", b"two"} <= rows.keys()


def test_delay_levels_are_those_of_the_store(run: Run, store: Path) -> None:
    with Store.open(str(store), services="off") as opened:
        set_delay_levels(opened, " ".join(f"{level}s" for level in range(1, 21)))
    assert run("send", "t", "--body", "x", "--delay-level", "20").code == 0
    refused = run("send", "t", "--body", "x", "--delay-level", "21")
    assert refused.code == 2
    assert "the store has delay levels 1 to 20" in " ".join(refused.err.split())


def test_a_priority_needs_a_topic_that_has_them(run: Run) -> None:
    run("topic", "create", "p", "--type", "PRIORITY")
    assert run("send", "p", "--body", "x", "--priority", "2", "--json").json["queueId"] == 2
    refused = run("send", "t", "--body", "x", "--priority", "2")
    assert (refused.code, read(run)) == (2, [])
    assert "priority" in refused.err.lower()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--delay", "soon"], "--delay takes seconds, or a number with ms, s, m, h, d or w"),
        (["--delay", "-1"], "--delay takes seconds"),
        (["--deliver-at", "5m"], "--deliver-at takes milliseconds since 1970 or ISO 8601"),
        (["--delay", "1", "--deliver-at", "2999-01-01"], "give either --delay or --deliver-at"),
        (["--delay", "1", "--delay-level", "3"], "give either --delay or --delay-level"),
        (["--delay-level", "19"], "the store has delay levels 1 to 18"),
        (["--priority", "-1"], "-1 is not in the range"),
        (["--count", "3", "--delay", "5"], "--delay does not go with --count"),
        (["--count", "3", "--priority", "5"], "--priority does not go with --count"),
    ],
)
def test_delivery_options_that_make_no_sense_are_refused(run: Run, options: list[str], problem: str) -> None:
    body = [] if "--count" in options else ["--body", "x"]
    ran = run("send", "t", *body, *options)
    assert ran.code == 2
    assert problem in " ".join(ran.err.split())
    assert read(run) == []


def test_a_wrong_time_is_told_under_both_names_of_its_option(run: Run) -> None:
    assert "--from/--since takes a time" in run("read", "t", "--since", "yesterday").err
    assert "--to/--until takes a time" in run("read", "t", "--until", "tomorrow").err
    assert "--from/--since takes a time" in run("consume", "t", "--group", "g", "--since", "yesterday").err
