"""What names of topics mean, and who may write to them."""

from __future__ import annotations

import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import names
from rmq_spark.rules import system_topics as topics


def test_a_group_has_a_retry_and_a_dead_letter_topic() -> None:
    assert topics.retry_topic("g") == "%RETRY%g"
    assert topics.dlq_topic("g") == "%DLQ%g"
    assert topics.is_retry("%RETRY%g")
    assert not topics.is_retry("%DLQ%g")
    assert topics.is_dlq("%DLQ%g")
    assert not topics.is_dlq("orders")


def test_a_pop_retry_topic_has_two_forms() -> None:
    assert topics.pop_retry_topic("g", "t", topics.POP_RETRY_V1) == "%RETRY%g_t"
    assert topics.pop_retry_topic("g", "t") == "%RETRY%g+t"
    with pytest.raises(InvalidRequestError, match="version 1 or 2"):
        topics.pop_retry_topic("g", "t", 3)


def test_version_two_is_unambiguous_and_version_one_is_not() -> None:
    v1, v2 = topics.POP_RETRY_V1, topics.POP_RETRY_V2
    assert topics.pop_retry_topic("a_b", "c", v1) == topics.pop_retry_topic("a", "b_c", v1)
    assert topics.pop_retry_topic("a_b", "c", v2) != topics.pop_retry_topic("a", "b_c", v2)


def test_the_longest_pop_retry_topic_is_legal() -> None:
    name = topics.pop_retry_topic("g" * names.GROUP_CHARS_MAX, "t" * names.TOPIC_CHARS_MAX)
    assert names.check_topic(name) == name


@pytest.mark.parametrize(
    ("topic", "group"),
    [("%RETRY%g", "g"), ("%RETRY%g+t", "g"), ("%DLQ%g", "g"), ("%RETRY%g_t", "g_t"), ("orders", None)],
)
def test_whose_topic_it_is(topic: str, group: str | None) -> None:
    assert topics.group_of(topic) == group


REFUSED = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "rmq_sys_wheel_timer",
    "rmq_sys_topic_config",
    "rmq_sys_REVIVE_LOG_c",
]


@pytest.mark.parametrize("topic", REFUSED)
def test_topics_of_the_engine_refuse_sends_and_are_hidden(topic: str) -> None:
    with pytest.raises(InvalidRequestError, match="reserved"):
        topics.check_sendable(topic)
    assert topics.is_system(topic)
    assert not topics.is_found_by_pattern(topic, ".*%.*")
    assert topics.is_made_by_engine(topic)


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_eu"])
def test_clients_write_traces_and_no_pattern_finds_them(topic: str) -> None:
    assert topics.check_sendable(topic) == topic
    assert topics.is_system(topic)
    assert topics.has_table_rows(topic)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g", "%DLQ%g", "RMQ_SYS_OTHER"])
def test_clients_may_send_to_other_topics(topic: str) -> None:
    assert topics.check_sendable(topic) == topic
    assert not topics.is_system(topic)


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_topics_of_consumer_groups_take_no_rows_of_jobs(topic: str) -> None:
    assert topics.check_sendable(topic) == topic, "a consumer sends to them"
    with pytest.raises(InvalidRequestError, match="belongs to a consumer group"):
        topics.check_sink(topic)


def test_jobs_write_to_ordinary_topics_and_to_none_of_the_engine() -> None:
    assert topics.check_sink("orders") == "orders"
    with pytest.raises(InvalidRequestError, match="reserved"):
        topics.check_sink("rmq_sys_topic_config")


def test_a_pattern_finds_retry_topics_only_when_it_means_them() -> None:
    assert topics.is_found_by_pattern("orders", ".*")
    assert not topics.is_found_by_pattern("%RETRY%g", ".*")
    assert not topics.is_found_by_pattern("%DLQ%g", ".*")
    assert topics.is_found_by_pattern("%DLQ%g", "%DLQ%.*")


@pytest.mark.parametrize(
    ("topic", "has"),
    [
        ("orders", True),
        ("%RETRY%g", True),
        ("SCHEDULE_TOPIC_XXXX", True),
        ("RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("rmq_sys_wheel_timer", True),
        ("rmq_sys_topic_config", False),
        ("rmq_sys_REVIVE_LOG_c", False),
    ],
)
def test_tables_have_messages_of_users_and_no_state(topic: str, has: bool) -> None:
    assert topics.has_table_rows(topic) is has
