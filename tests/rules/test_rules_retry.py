"""What happens to messages that consumers fail on."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_spark.model.message_id import parse_offset_id
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import delay, retry, system_topics
from rmq_spark.rules.delay import Delay
from rmq_spark.rules.retry import CustomizedPolicy, ExponentialPolicy, Path

NOW = 1_700_000_000_000


def message(**changes: Any) -> StoredMessage:
    values: dict[str, Any] = {
        "topic": "orders",
        "broker": "b",
        "queue_id": 3,
        "queue_offset": 7,
        "commit_offset": 99,
        "msg_id": "ID",
        "tags": "tag",
        "keys": "k",
        "body": b"body",
        "flag": 1,
        "born_ms": 5,
        "born_host": "host",
        "store_ms": 6,
        "properties": {"p": "1"},
    }
    return StoredMessage(**{**values, **changes})


def test_rule_06_first_retry_is_level_three() -> None:
    assert [retry.retry_delay(times, NOW) for times in range(16)] == [Delay(level=3 + times) for times in range(16)]
    texts = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert tuple(delay.DEFAULT.level_ms(3 + times) for times in range(16)) == delay.parse_levels(texts)


def test_rule_06_seventeen_deliveries_before_the_dead_letter_topic() -> None:
    delivered = 1
    while not retry.is_given_up(delivered - 1, retry.max_times(-1)):
        delivered += 1
    assert delivered == 17


def test_rule_06_pop_push_starts_at_one_second() -> None:
    waits = [retry.pop_nack_ms(times) for times in (0, 1, 2, 3, 17, 50)]
    assert waits == [1000, 5000, 10_000, 30_000, 7_200_000, 7_200_000]


def test_a_listener_may_ask_for_a_level_or_for_the_dead_letter_topic() -> None:
    assert retry.retry_delay(9, NOW, level=1) == Delay(level=1)
    assert retry.is_given_up(0, 16, level=retry.DLQ_NOW)


@pytest.mark.parametrize(
    ("path", "given_up"),
    [(Path.SEND_BACK, [False, True, True]), (Path.DIRECT_SEND, [False, False, True]), (Path.POP, [False, False, True])],
)
def test_rule_07_send_back_gives_up_at_the_maximum_and_a_direct_send_above_it(path: Path, given_up: list[bool]) -> None:
    assert [retry.is_given_up(times, 16, path) for times in (15, 16, 17)] == given_up


def test_rule_08_orderly_never_gives_up_and_concurrent_at_16() -> None:
    assert retry.max_times(-1) == 16
    assert retry.max_times(-1, orderly=True) == 2**31 - 1
    assert retry.max_times(-1, group_max=3) == 3
    assert retry.max_times(2, orderly=True) == 2


def test_rule_32_pop_delivers_once_more_than_the_maximum_and_then_gives_up() -> None:
    delivered = [times + 1 for times in range(5) if not retry.is_given_up(times, 1, Path.POP)]
    assert delivered == [1, 2]


def test_a_failed_message_is_copied_to_the_retry_topic() -> None:
    failed = message()
    row = retry.retry_row(failed, system_topics.retry_topic("g"))
    assert (row.topic, row.queue_id, row.reconsume_times) == ("%RETRY%g", 0, 1)
    assert (row.msg_id, row.tags, row.keys, row.body, row.flag) == ("ID", "tag", "k", b"body", 1)
    assert (row.born_ms, row.born_host) == (5, "host")
    properties = dict(row.properties)
    assert parse_offset_id(properties.pop("ORIGIN_MESSAGE_ID"))[2] == 99
    assert properties == {"p": "1", "RETRY_TOPIC": "orders", "WAIT": "false"}
    assert failed.properties == {"p": "1"}


def test_rule_20_only_the_id_survives_and_the_first_origin_is_kept() -> None:
    first = retry.retry_row(message(), "%RETRY%g")
    second = message(
        topic="%RETRY%g",
        commit_offset=200,
        queue_id=0,
        reconsume_times=first.reconsume_times,
        properties=dict(first.properties),
    )
    assert retry.original_topic(second) == "orders"
    row = retry.retry_row(second, "%RETRY%g")
    assert row.reconsume_times == 2
    assert dict(row.properties) == dict(first.properties)
    assert row.msg_id == "ID"


def test_a_retry_of_a_delayed_message_waits_for_its_own_delay() -> None:
    delivered = message(properties={"DELAY": "18", "REAL_TOPIC": "orders", "REAL_QID": "3"})
    row = delay.park(retry.retry_row(delivered, "%RETRY%g"), retry.retry_delay(0, NOW), NOW)
    properties = dict(row.properties)
    assert (row.topic, row.queue_id) == (system_topics.SCHEDULE_TOPIC, 2)
    assert (properties["DELAY"], properties["REAL_TOPIC"], properties["REAL_QID"]) == ("3", "%RETRY%g", "0")


def test_a_dead_letter_says_where_it_came_from() -> None:
    failed = message(
        topic="%RETRY%g",
        reconsume_times=16,
        properties={"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "X", "DELAY": "18"},
    )
    row = retry.dead_letter_row(failed, "g")
    assert (row.topic, row.queue_id, row.reconsume_times) == ("%DLQ%g", 0, 17)
    assert dict(row.properties) == {
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "X",
        "WAIT": "false",
        "DLQ_ORIGIN_TOPIC": "orders",
        "DLQ_ORIGIN_MESSAGE_ID": "ID",
    }


def test_the_policies_of_a_group() -> None:
    assert [CustomizedPolicy().delay_ms(times) for times in (0, 1, 15, 99)] == [10_000, 30_000, 7_200_000, 7_200_000]
    assert [CustomizedPolicy((1, 2)).delay_ms(times) for times in (0, 9)] == [2, 2]
    doubled = ExponentialPolicy()
    assert [doubled.delay_ms(times) for times in (0, 1, 10, 11, 10**6)] == [5000, 10_000, 5_120_000] + [7_200_000] * 2
    assert retry.retry_delay(1, NOW, doubled) == Delay(deliver_ms=NOW + 10_000)
