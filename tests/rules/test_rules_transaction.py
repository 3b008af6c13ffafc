"""Transactions as pure decisions: visible together and once, or never."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.errors import CorruptDataError, PreconditionFailedError
from rmq_spark.log.state import LogState
from rmq_spark.model import properties as names
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import sys_flag, system_topics
from rmq_spark.rules import transaction as rules
from rmq_spark.rules.transaction import CheckSettings, Transactions, TransactionState

NOW = 1_000_000


def row(name: str, topic: str = "orders", flags: int = 0) -> MessageRow:
    return MessageRow(topic, 1, name, "tag", None, b"x", 0, flags, 0, None, 0, [("user", "value")])


def half(name: str, tx: str = "t", topic: str = "orders", **more) -> MessageRow:
    given_ = {"deliver_ms": None, "immunity_ms": rules.IMMUNITY_MS, **more}
    return rules.half_row(row(name, topic), tx, "shop", **given_)


class Log:
    """A state and what became visible: decisions land at once."""

    def __init__(self) -> None:
        self.state = LogState([Transactions])
        self.state.open_trial(NOW)
        self.visible: list[str] = []

    @property
    def open(self):
        return self.state.fold(Transactions).open

    def decide(self, rule):
        decision = rule(self.state)
        self.state.admit(decision.rows)
        self.visible += [each.msg_id for each in decision.rows.rows if not system_topics.is_system(each.topic)]
        return decision

    def wait(self, ms: int) -> None:
        self.state.now_ms += ms


@pytest.fixture
def log() -> Log:
    return Log()


def nothing(state):
    return []


def test_rule_16_and_17_a_half_has_no_transaction_bits_and_the_real_message_keeps_its_properties():
    first = half("a")
    assert first.topic == system_topics.HALF_TOPIC
    assert sys_flag.transaction(first.sys_flag) is sys_flag.Transaction.NONE
    real = rules.real_row(first, NOW)
    assert (real.topic, real.queue_id, real.msg_id) == ("orders", 1, "a")
    assert sys_flag.transaction(real.sys_flag) is sys_flag.Transaction.COMMIT
    kept = dict(real.properties)
    assert kept.keys() >= {"user", names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.REAL_TOPIC, names.REAL_QID}
    assert kept[names.TRANSACTION_ID] == "t"


def test_rule_17_only_its_topic_hides_a_half_and_no_pattern_finds_it():
    for topic in (system_topics.HALF_TOPIC, system_topics.OP_TOPIC, *Transactions.topics):
        assert system_topics.is_system(topic)
        assert not system_topics.is_found_by_pattern(topic, ".*")


def test_flags_of_compression_stay():
    flags = sys_flag.compressed_by_zlib()
    stored = rules.half_row(row("a", flags=flags), "t", "shop", deliver_ms=None, immunity_ms=rules.IMMUNITY_MS)
    assert rules.real_row(stored, NOW).sys_flag & sys_flag.COMPRESSION_MASK == sys_flag.Compression.ZLIB


def test_a_committed_message_with_a_delivery_time_is_then_delayed():
    real = rules.real_row(half("a", deliver_ms=NOW + 5_000), NOW)
    assert real.topic == system_topics.TIMER_TOPIC
    assert dict(real.properties)[names.REAL_TOPIC] == "orders"
    assert rules.real_row(half("a", deliver_ms=NOW), NOW).topic == "orders", "a time that has passed is now (rule 14)"


def test_a_half_that_names_no_queue_is_damage():
    with pytest.raises(CorruptDataError):
        rules.real_row(row("a"), NOW)


def test_several_messages_and_topics_are_one_transaction(log):
    log.decide(rules.prepare("t", "shop", 0, [half("a")]))
    log.decide(rules.prepare("t", "shop", 1, [half("b", topic="pay")]))
    assert log.open["t"].halves == (0, 1)
    assert log.open["t"].topics == ("orders", "pay")
    log.decide(rules.settle("t", TransactionState.COMMIT, 2, [row("a"), row("b", "pay")]))
    assert log.visible == ["a", "b"]
    assert not log.open


def test_a_commit_that_does_not_know_all_messages_is_refused(log):
    log.decide(rules.prepare("t", "shop", 0, [half("a"), half("b")]))
    with pytest.raises(PreconditionFailedError, match="other messages"):
        log.decide(rules.settle("t", TransactionState.COMMIT, 1, [row("a")]))


@pytest.mark.parametrize("outcome", [TransactionState.COMMIT, TransactionState.ROLLBACK])
def test_only_an_open_transaction_can_be_settled_or_get_messages(log, outcome):
    log.decide(rules.prepare("t", "shop", 0, [half("a")]))
    log.decide(rules.settle("t", outcome, 1, [row("a")]))
    for rule in (
        rules.settle("t", TransactionState.COMMIT, 1, [row("a")]),
        rules.prepare("t", "shop", 1, [half("b")]),
        rules.give_up("t", 1, []),
        rules.claim("t", 0),
    ):
        with pytest.raises(PreconditionFailedError, match="not open"):
            log.decide(rule)
    assert log.visible == (["a"] if outcome is TransactionState.COMMIT else [])


def test_an_id_that_is_taken_is_refused(log):
    log.decide(rules.prepare("t", "shop", 0, [half("a")]))
    with pytest.raises(PreconditionFailedError, match="with this id"):
        log.decide(rules.prepare("t", "shop", 0, [half("b")]))


class TestCheck:
    def test_nobody_is_asked_before_the_immunity_is_over(self, log):
        log.decide(rules.prepare("t", "shop", 0, [half("a")]))
        rule = rules.check("t", 0, CheckSettings(), nothing)
        log.wait(rules.IMMUNITY_MS - 1)
        with pytest.raises(PreconditionFailedError):
            log.decide(rule)
        log.wait(1)
        log.decide(rule)
        assert log.open["t"].checks == 1
        assert log.open["t"].next_check_ms == log.state.now_ms + 30_000

    def test_an_immunity_of_its_own(self, log):
        log.decide(rules.prepare("t", "shop", 0, [half("a", immunity_ms=60_500)]))
        assert log.open["t"].next_check_ms == NOW + 60_500

    def test_two_who_ask_at_once_ask_once(self, log):
        log.decide(rules.prepare("t", "shop", 0, [half("a")]))
        log.wait(rules.IMMUNITY_MS)
        log.decide(rules.check("t", 0, CheckSettings(), nothing))
        with pytest.raises(PreconditionFailedError, match="already"):
            log.decide(rules.check("t", 0, CheckSettings(), nothing))

    def test_rule_19_one_producer_of_the_group_answers_each_question(self, log):
        log.decide(rules.prepare("t", "shop", 0, [half("a")]))
        log.wait(rules.IMMUNITY_MS)
        log.decide(rules.check("t", 0, CheckSettings(), nothing))
        assert log.decide(rules.claim("t", 1)).answer.halves == (0,)
        with pytest.raises(PreconditionFailedError, match="another producer"):
            log.decide(rules.claim("t", 1))
        log.wait(30_000)
        log.decide(rules.check("t", 1, CheckSettings(), nothing))
        assert not log.open["t"].claimed, "the next question is free again"

    def test_given_up_messages_are_kept_apart(self, log):
        log.decide(rules.prepare("t", "shop", 0, [half("a")]))
        kept = rules.given_up_row(half("a"), 15)
        assert kept.topic == system_topics.CHECK_MAX_TOPIC
        log.decide(rules.give_up("t", 1, [kept]))
        assert not log.open
        assert log.visible == []


def test_the_fold_is_the_same_after_dump_and_load(log):
    log.decide(rules.prepare("t", "shop", 0, [half("a"), half("b", topic="pay")]))
    log.wait(rules.IMMUNITY_MS)
    log.decide(rules.check("t", 0, CheckSettings(), nothing))
    other = Log().state.fold(Transactions)
    other.load(log.state.fold(Transactions).dump(), 1)
    assert other.open == log.open


def test_a_half_without_a_transaction_id_belongs_to_nobody(log):
    log.state.admit(rules.MessageBatch.from_rows([row("a")._replace(topic=system_topics.HALF_TOPIC)]))
    assert not log.open


ACTS = st.sampled_from(["add", "commit", "rollback", "check", "claim", "give up", "wait"])


@settings(max_examples=300, deadline=None)
@given(acts=st.lists(st.tuples(ACTS, st.sampled_from("tu")), max_size=30))
def test_all_or_none_and_once_whatever_is_decided_in_whatever_order(acts):
    log = Log()
    added: dict[str, list[str]] = {"t": [], "u": []}
    ended: dict[str, str] = {}
    for number, (act, tx) in enumerate(acts):
        known, count, name = added[tx], len(added[tx]), f"{tx}{number}"
        asked = log.open[tx].checks if tx in log.open else 0
        if act == "add":
            rule = rules.prepare(tx, "shop", count, [half(name, tx)])
        elif act == "commit":
            rule = rules.settle(tx, TransactionState.COMMIT, count, [row(each) for each in known])
        elif act == "rollback":
            rule = rules.settle(tx, TransactionState.ROLLBACK, count)
        elif act == "check":
            rule = rules.check(tx, asked, CheckSettings(), nothing)
        elif act == "claim":
            rule = rules.claim(tx, asked)
        elif act == "give up":
            rule = rules.give_up(tx, count, [])
        else:
            log.wait(20_000)
            continue
        if act == "add" and tx in ended and not count:
            continue  # a producer draws an id once
        try:
            log.decide(rule)
        except PreconditionFailedError:
            assert act in ("check", "claim") or tx in ended or tx not in log.open
            continue
        if act == "add":
            known.append(name)
        elif act in ("commit", "rollback", "give up"):
            assert tx not in ended, "settled twice"
            ended[tx] = act
    for tx, names_ in added.items():
        assert [name for name in log.visible if name[0] == tx] == (names_ if ended.get(tx) == "commit" else [])
