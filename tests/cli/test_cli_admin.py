"""`rmq broker`, `dlq`, `consume`, `stats`, `group members|update`, and the names of mqadmin."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run

from rmq_spark import Admin, LitePullConsumer, Message, Producer, Store
from rmq_spark.cli import app, mqadmin
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import retry

GIVE_UP_SECONDS = 60.0
"""A command that tails ends far earlier, unless it never gets what it waits for."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Interrupt the block, as Ctrl-C does, when it takes longer: a command that tails would run for ever."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def give_up(path: Path, *bodies: str) -> None:
    """Dead letters of group `g`, from topic `t`."""
    with Store.open(str(path)) as opened:
        messages = [
            StoredMessage(
                topic="t",
                broker="broker-0",
                queue_id=0,
                queue_offset=at,
                commit_offset=at,
                msg_id=f"{at:032X}",
                body=body.encode(),
                born_ms=1,
                store_ms=1,
                reconsume_times=16,
            )
            for at, body in enumerate(bodies)
        ]
        opened.log().append(MessageBatch.from_rows([retry.dead_letter_row(message, "g") for message in messages]))


class TestConsume:
    def test_it_prints_commits_and_stops_at_the_end(self, run: Run, store: Path) -> None:
        run("send", "t", stdin="a\nb\nc\n")
        first = run("consume", "t", "--group", "g", "--from", "earliest", "--limit", "2", "--json")
        second = run("consume", "t", "--group", "g", "--json")
        assert sorted(line["body"] for line in [*first.jsons, *second.jsons]) == ["a", "b", "c"]
        assert len(first.jsons) == 2
        assert run("consume", "t", "--group", "g").out == ""
        assert run("group", "show", "g", "--json").json["lag"] == 0

    def test_text_shows_what_read_shows(self, run: Run, store: Path) -> None:
        run("send", "t", "--body", "hello", "--tags", "x")
        assert run("consume", "t", "--group", "g", "--from", "earliest").out == run("read", "t").out

    def test_filters_pass_over_what_they_do_not_want(self, run: Run, store: Path) -> None:
        run("send", "t", "--body", "a", "--tags", "x", "--property", "n=1")
        run("send", "t", "--body", "b", "--tags", "y", "--property", "n=2")
        for group, option in (("g", ("--tags", "y")), ("h", ("--sql", "n = 2"))):
            ran = run("consume", "t", "--group", group, "--from", "earliest", "--json", *option)
            assert [line["body"] for line in ran.jsons] == ["b"]
            assert run("group", "show", group, "--json").json["lag"] == 0

    def test_a_tail_delivers_what_is_due_as_any_client_does(self, run: Run, store: Path) -> None:
        run("send", "t", "--body", "later", "--delay", "100ms")
        with deadline(GIVE_UP_SECONDS):
            ran = run("consume", "t", "--group", "g", "--tail", "--from", "earliest", "--limit", "1", "--json")
        assert [line["body"] for line in ran.jsons] == ["later"]

    def test_a_tail_ends_by_an_interrupt_and_keeps_what_it_printed(
        self, run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run("send", "t", "--body", "a")
        real = LitePullConsumer.poll_table
        polls: list[float] = []

        def poll(self: LitePullConsumer, timeout: float, **options: Any) -> Any:
            polls.append(timeout)
            if len(polls) > 1:
                raise KeyboardInterrupt
            return real(self, timeout, **options)

        monkeypatch.setattr(LitePullConsumer, "poll_table", poll)
        ran = run("consume", "t", "--group", "g", "--tail", "--from", "earliest", "--json")
        assert (ran.code, [line["body"] for line in ran.jsons]) == (0, ["a"])
        assert run("group", "show", "g", "--json").json["lag"] == 0

    @pytest.mark.parametrize(
        ("args", "code"), [(("nothing", "--group", "g"), 3), (("t", "--group", "g", "--from", "soon"), 2), (("t",), 2)]
    )
    def test_wrong_arguments(self, run: Run, store: Path, args: tuple[str, ...], code: int) -> None:
        run("topic", "create", "t")
        assert run("consume", *args).code == code


class TestBroker:
    def test_add_list_and_read_only(self, run: Run, store: Path) -> None:
        run("topic", "create", "t", "--queues", "2")
        assert run("broker", "add", "b2").out == "broker b2 is there\n"
        assert run("topic", "update", "t", "--broker", "b2", "--json").json["queues"] == {"b2": 2, "broker-0": 2}
        assert run("broker", "readonly", "broker-0").code == 0
        listed = {each["brokerName"]: each for each in run("broker", "list", "--json").json}
        assert {name: (each["readOnly"], each["topics"]) for name, each in listed.items()} == {
            "b2": (False, 1), "broker-0": (True, 1),
        }  # fmt: skip
        assert run("send", "t", "--body", "x", "--json").json["brokerName"] == "b2"
        run("broker", "readonly", "broker-0", "--off")
        assert run("broker", "list").out.splitlines()[2].split()[:2] == ["broker-0", "no"]

    def test_drain_says_what_is_left_and_ends_with_1_until_it_is_drained(self, run: Run, store: Path) -> None:
        run("send", "t", stdin="a\nb\n")
        run("consume", "t", "--group", "g", "--from", "earliest", "--limit", "1")
        ran = run("broker", "drain", "broker-0", "--timeout", "0", "--json")
        assert (ran.code, ran.json["drained"], ran.json["groups"]) == (1, False, {"g": 1})
        ran = run("broker", "drain", "broker-0", "--status")
        assert ran.code == 0
        assert "1 messages to consume" in ran.out
        assert run("broker", "drain", "nowhere").code == 3

    def test_settings_of_the_store(self, run: Run, store: Path) -> None:
        assert run("broker", "settings", "--json").json == {"autoCreateTopics": True, "backlogMax": 0}
        changed = run("broker", "settings", "autoCreateTopics=false", "backlogMax=9", "--json").json
        assert changed == {"autoCreateTopics": False, "backlogMax": 9}
        assert run("send", "new", "--body", "x").code == 3
        assert run("broker", "settings", "autoCreateTopics=perhaps").code == 2


class TestDeadLetters:
    def test_list_show_and_replay(self, run: Run, store: Path) -> None:
        run("topic", "create", "t", "--queues", "1")
        give_up(store, "a", "b", "c")
        (listed,) = run("dlq", "list", "--json").json
        assert (listed["group"], listed["messages"], listed["notReplayed"]) == ("g", 3, 3)
        shown = run("dlq", "show", "g", "--json", "--limit", "2").jsons
        assert [line["body"] for line in shown] == ["b", "c"]
        assert shown[0]["properties"]["DLQ_ORIGIN_TOPIC"] == "t"
        assert [line.split("\t")[1] for line in run("dlq", "show", "g").out.splitlines()] == ["t", "t", "t"]
        assert run("dlq", "replay", "g", "--limit", "1", "--json").json == {"group": "g", "replayed": 1}
        assert run("dlq", "replay", "g", "--rate", "1000").out == "replayed 2 dead letters of g\n"
        assert [line["body"] for line in run("read", "t", "--json").jsons] == ["a", "b", "c"]
        assert run("dlq", "list", "--json").json[0]["notReplayed"] == 0
        assert run("dlq", "replay", "g", "--again", "--to-group", "--json").json["replayed"] == 3

    def test_a_group_without_any(self, run: Run, store: Path) -> None:
        assert run("dlq", "list", "--json").json == []
        assert run("dlq", "show", "g").code == run("dlq", "replay", "g").code == 3
        assert run("dlq", "replay", "g", "--rate", "0").code == 2


class TestGroup:
    def test_update_shows_the_settings(self, run: Run, store: Path) -> None:
        args = ("--retry-max", "3", "--no-consume", "--orderly", "--retry-policy", "EXPONENTIAL")
        assert run("group", "update", "g", *args, "--json").json == {
            "group": "g", "retryMaxTimes": 3, "consumeEnable": False, "consumeMessageOrderly": True,
            "groupRetryPolicy": "EXPONENTIAL",
        }  # fmt: skip
        assert run("group", "update", "g", "--consume").out.splitlines()[1].split()[1:3] == ["3", "yes"]

    def test_rule_24_members_that_subscribe_differently_are_warned_of(self, run: Run, store: Path) -> None:
        run("topic", "create", "t")
        with Store.open(str(store)) as opened:
            one, two = LitePullConsumer(opened, "g"), LitePullConsumer(opened, "g")
            with one, two:
                one.subscribe("t", tags="a").poll(0)
                two.subscribe("t", tags="b").poll(0)
                document = run("group", "members", "g", "--json").json
                assert document["differing"] == ["t"]
                assert {each["subscriptions"]["t"] for each in document["members"]} == {"tags a", "tags b"}
                assert "they subscribe differently to t" in run("group", "members", "g").out
        assert run("group", "members", "g").out.startswith("g has 0 live consumers")


@pytest.mark.parametrize(
    "args",
    [
        ("stats", "--once", "--interval"),
        ("serve", "--check", "--max-behind"),
        ("broker", "drain", "broker-0", "--timeout"),
        ("tables", "build", "--wait"),
    ],
)
def test_nan_is_no_number_of_seconds(run: Run, store: Path, args: tuple[str, ...]) -> None:
    ran = run(*args, "nan")
    assert ran.code == 2
    assert f"invalid value for '{args[-1]}': nan is not a number" in ran.err


class TestStats:
    def test_rates_and_lag_of_topics_and_groups(self, run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run("send", "t", stdin="a\nb\nc\n")
        run("consume", "t", "--group", "g", "--from", "earliest", "--limit", "1")
        with Store.open(str(store)) as opened:
            Producer(opened).send(Message("%RETRY%g", b"x", queue_id=0))
        document = run("stats", "--once", "--interval", "0.1", "--json").json
        topics = {each["topic"]: each for each in document["topics"]}
        groups = {(each["group"], each["topic"]): each for each in document["groups"]}
        assert (topics["t"]["messages"], topics["t"]["inPerSecond"]) == (3, 0.0)
        assert (groups["g", "t"]["lag"], groups["g", "%RETRY%g"]["lag"]) == (2, 1)
        assert {each["service"] for each in document["services"]} >= {"timer", "revive"}
        text = run("stats", "--once", "--interval", "0.1").out
        assert "GROUP" in text
        assert "SERVICE" in text

    def test_a_rate_counts_what_came_in_and_went_out_between_two_looks(self, store: Path) -> None:
        from rmq_spark.client.traffic import between, count

        with Store.open(str(store)) as opened:
            opened.create_topic("t", queues=1)
            Admin(opened).offsets.commit("g", {("t", "broker-0", 0): 0})
            before = count(opened)
            for _ in range(4):
                Producer(opened).send(Message("t", b"x"))
            Admin(opened).offsets.commit("g", {("t", "broker-0", 0): 3})
            traffic = between(before, count(opened))
        assert traffic.topics[0].in_per_second * traffic.seconds == pytest.approx(4)
        assert traffic.groups[0].out_per_second * traffic.seconds == pytest.approx(3)
        assert traffic.groups[0].lag == 1


class TestMqadmin:
    def test_every_alias_leads_to_a_command_with_its_options(self) -> None:
        for name, alias in mqadmin.ALIASES.items():
            command: Any = app._command(alias.command[0])
            for word in alias.command[1:]:
                command = command.commands[word]
            known = {text for param in command.params for text in (*param.opts, *param.secondary_opts)}
            plain = {becomes for becomes in alias.letters.values() if isinstance(becomes, str)} - {"@", "", "!"}
            wanted = plain | {word for word in alias.fixed if word.startswith("--")}
            assert wanted <= known, name

    def test_no_alias_hides_a_command(self) -> None:
        assert mqadmin.ALIASES.keys().isdisjoint(app._HOMES)

    def test_a_day_with_mqadmin(self, run: Run, store: Path) -> None:
        run(
            "updateTopic",
            "-n",
            "ns:9876",
            "-c",
            "cluster",
            "-t",
            "t",
            "-r",
            "2",
            "-w",
            "2",
            "-a",
            "+message.type=NORMAL",
        )
        (topic,) = run("topicList", "--json").json
        assert (topic["queues"], topic["messageType"]) == ({"broker-0": 2}, "NORMAL")
        run("updateTopic", "-t", "t", "-r", "4", "-w", "4")
        assert len(run("topicRoute", "-t", "t", "--json").json["queues"]) == 4
        sent = run("sendMessage", "-t", "t", "-p", "hello", "-k", "k1", "-c", "tag", "-i", "3", "--json").json
        questions = (
            ("queryMsgById", "-i", sent["msgId"]),
            ("queryMsgByKey", "-k", "k1"),
            ("queryMsgByUniqueKey", "-i", sent["msgId"]),
            ("queryMsgByOffset", "-b", "broker-0", "-i", "3", "-o", "0"),
            ("printMsg", "-s", "tag"),
        )
        for args in questions:
            assert [line["body"] for line in run(args[0], "-t", "t", *args[1:], "--json").jsons] == ["hello"], args
        assert run("queryMsgTraceById", "-i", sent["msgId"], "--json").json[0]["topic"] == "t"
        assert [line["body"] for line in run("consumeMessage", "-t", "t", "-g", "g", "--json").jsons] == ["hello"]
        assert run("consumerProgress", "-g", "g", "--json").json["lag"] == 0
        assert [each["group"] for each in run("consumerProgress", "--json").json] == ["g"]
        again = run("resetOffsetByTime", "-g", "g", "-t", "t", "-s", "0", "-f", "true", "--json")
        assert again.code == 2, "a bare 0 is no time"
        reset = run("resetOffsetByTime", "-g", "g", "-t", "t", "-s", "2020-01-01#00:00:00:000", "-f", "true", "--json")
        assert reset.json["redelivered"] == 1
        assert run("skipAccumulatedMessage", "-g", "g", "-t", "t", "-f", "true", "--json").json["skipped"] == 1
        assert run("cloneGroupOffset", "-s", "g", "-d", "h", "-t", "t").code == 0
        assert run("updateSubGroup", "-g", "g", "-r", "3", "-s", "false", "--json").json["consumeEnable"] is False
        assert run("consumerStatus", "-g", "g", "--json").json["members"] == []
        assert run("wipeWritePerm", "-b", "broker-0", "--json").json["readOnly"] is True
        assert run("addWritePerm", "-b", "broker-0", "--json").json["readOnly"] is False
        assert run("clusterList", "--json").json == run("brokerStatus", "-b", "broker-0", "--json").json
        assert run("deleteSubGroup", "-g", "h").code == 0
        assert run("deleteTopic", "-c", "cluster", "-t", "t", "--yes").code == 0

    def test_letters_that_have_no_value_in_mqadmin_need_none(self, run: Run, store: Path) -> None:
        run("sendMessage", "-t", "t", "-p", "hello")
        run("consumeMessage", "-t", "t", "-g", "g")
        for words in (("topicList", "-c"), ("statsAll", "-a"), ("clusterList", "-m"), ("consumerProgress", "-s")):
            assert run(*words, "--json").code == 0, words
            assert run(*words, "-n", "ns:9876", "--json").code == 0, words
        assert run("consumerStatus", "-s", "-g", "g", "--json").code == 0
        assert run("consumerProgress", "-s", "-g", "g", "--json").json["lag"] == 0

    def test_wrong_values(self, run: Run, store: Path) -> None:
        assert run("updateTopic", "-t").code == 2
        assert run("updateTopic", "-t", "t", "-a", "+queue.type=BatchCQ").code == 2
        assert run("updateSubGroup", "-g", "g", "-s", "maybe").code == 2
        assert run("updateTopics", "-t", "t").code == 2

    def test_the_list_of_names(self, run: Run) -> None:
        listed = {each["name"]: each["command"] for each in run("mqadmin", "--json").json}
        assert listed["updateTopic"] == "rmq topic create --update"
        assert set(listed) == set(mqadmin.ALIASES)
        assert "updateTopic" not in run("--help").out
