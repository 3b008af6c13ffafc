"""Delays: levels, times, parking and delivery."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import CorruptDataError, InvalidRequestError
from rmq_spark.model.message import Message
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import delay
from rmq_spark.rules.delay import Delay, DelaySettings
from rmq_spark.rules.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC

NOW = 1_700_000_000_123
THREE_DAYS = DelaySettings(delay_max_ms=delay.ROCKETMQ_DELAY_MAX_MS)


def row(topic: str = "orders", queue_id: int = 2, **properties: str) -> MessageRow:
    return MessageRow(topic, queue_id, "id", "tag", "k1 k2", b"body", 7, 0x301, 11, "host", 3, list(properties.items()))


def stored(made: MessageRow, **changes: Any) -> StoredMessage:
    values = made._asdict()
    values["properties"] = dict(made.properties)
    return StoredMessage(**{**values, "broker": "b", "queue_offset": 5, "commit_offset": 9, "store_ms": NOW, **changes})


# ------------------------------------------------------------ levels


def test_the_eighteen_levels_of_rocketmq() -> None:
    minutes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
    assert (1000, 5000, 10_000, 30_000, *(60_000 * minute for minute in minutes)) == delay.LEVELS_MS


def test_levels_have_units() -> None:
    assert delay.parse_levels("1s 2m 3h  4d") == (1000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize("text", ["", "  ", "5", "s", "1x", "0s", "-1s", "1s,5s", "1.5s", "\u0661s"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="delay level"):
        delay.parse_levels(text)


@pytest.mark.parametrize(("level", "counts"), [(-3, 0), (0, 0), (1, 1), (18, 18), (19, 18), (1000, 18)])
def test_rule_15_a_level_above_the_highest_is_the_highest_and_0_or_less_is_none(level: int, counts: int) -> None:
    assert delay.DEFAULT.clamp(level) == counts
    made = delay.park(row(), Delay(level=level), NOW)
    assert (made.topic, made.queue_id) == ((SCHEDULE_TOPIC, counts - 1) if counts else ("orders", 2))


def test_another_list_has_other_levels() -> None:
    settings = DelaySettings(levels_ms=delay.parse_levels("2s 1d"))
    assert (settings.level_ms(1), settings.level_ms(5), settings.level_ms(0)) == (2000, 86_400_000, 0)


# ------------------------------------------------------------ what is asked for


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, Delay()),
        ({"delay_level": 3}, Delay(3)),
        ({"delay_level": 3, "delay": 1}, Delay(3, NOW + 1000)),
        ({"delay": 1.5}, Delay(0, NOW + 1500)),
        ({"delay": timedelta(milliseconds=2, microseconds=1)}, Delay(0, NOW + 3)),
        ({"delay": -5}, Delay(0, NOW - 5000)),
        ({"deliver_at": NOW + 7}, Delay(0, NOW + 7)),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, Delay(0, 1_893_456_000_000)),
        ({"deliver_at": datetime(2030, 1, 1, microsecond=1, tzinfo=UTC)}, Delay(0, 1_893_456_000_001)),
        ({"deliver_at": "2030-01-01T01:00:00+01:00"}, Delay(0, 1_893_456_000_000)),
        ({"deliver_at": "2030-01-01T00:00:00.000001"}, Delay(0, 1_893_456_000_001)),
    ],
)
def test_what_a_message_asks_for_is_never_early(fields: dict[str, Any], asked: Delay) -> None:
    assert delay.of_message(Message("orders", b"x", **fields), NOW) == asked


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"delay": 1, "deliver_at": 1}, "either"),
        ({"deliver_at": "soon"}, "deliver_at takes a time"),
        ({"deliver_at": 1.5}, "deliver_at takes a time"),
        ({"delay": float("nan")}, "delay takes"),
        ({"delay": "1s"}, "delay takes"),
        ({"priority": -1}, "0 or more"),
    ],
)
def test_a_wrong_time_is_refused_when_the_message_is_made(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        Message("orders", b"x", **fields)


# ------------------------------------------------------------ how far ahead


def test_rule_14_a_time_that_has_passed_is_now() -> None:
    for deliver in (NOW, NOW - 1, 0):
        made = delay.park(row(), Delay(deliver_ms=deliver), NOW)
        assert made == row(TIMER_DELIVER_MS=str(deliver))


def test_rule_14_exactly_three_days_are_allowed_and_more_is_an_error() -> None:
    limit = delay.ROCKETMQ_DELAY_MAX_MS
    assert delay.park(row(), Delay(deliver_ms=NOW + limit), NOW, THREE_DAYS).topic == TIMER_TOPIC
    with pytest.raises(InvalidRequestError, match="too far ahead"):
        delay.park(row(), Delay(deliver_ms=NOW + limit + 1), NOW, THREE_DAYS)


def test_there_is_no_limit_unless_set_and_none_for_levels() -> None:
    assert delay.park(row(), Delay(deliver_ms=NOW + 10**12), NOW).topic == TIMER_TOPIC
    small = DelaySettings(delay_max_ms=1)
    assert delay.park(row(), Delay(18, NOW + 10**12), NOW, small).topic == SCHEDULE_TOPIC


# ------------------------------------------------------------ parking and delivery


def test_a_level_is_parked_in_its_queue_of_the_schedule_topic() -> None:
    made = delay.park(row(p="1"), Delay(level=3), NOW)
    assert (made.topic, made.queue_id) == (SCHEDULE_TOPIC, 2)
    assert dict(made.properties) == {"p": "1", "DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "2"}
    assert delay.due_ms(stored(made)) == NOW + 10_000


def test_a_time_is_parked_to_the_millisecond() -> None:
    made = delay.park(row(p="1"), Delay(deliver_ms=NOW + 1), NOW)
    assert (made.topic, made.queue_id) == (TIMER_TOPIC, 0)
    due = str(NOW + 1)
    expected = {"p": "1", "TIMER_DELIVER_MS": due, "TIMER_OUT_MS": due, "REAL_TOPIC": "orders", "REAL_QID": "2"}
    assert dict(made.properties) == expected
    assert delay.due_ms(stored(made, store_ms=5)) == NOW + 1


delays = st.builds(Delay, st.integers(-2, 20), st.one_of(st.none(), st.integers(NOW - 9999, NOW + 9999)))


@given(delays)
def test_what_is_delivered_is_what_was_sent(asked: Delay) -> None:
    sent = row(p="1")
    made = delay.park(sent, asked, NOW)
    if not asked.waits(NOW):
        assert made[:-1] == sent[:-1]
        return
    delivered = delay.unpark(stored(made))
    assert delivered[:-1] == sent[:-1]
    assert dict(delivered.properties) == dict(made.properties)


def test_rule_16_a_delivered_message_still_shows_its_delay() -> None:
    delivered = delay.unpark(stored(delay.park(row(), Delay(level=5), NOW)))
    assert dict(delivered.properties)["DELAY"] == "5"
    assert dict(delivered.properties)["REAL_TOPIC"] == "orders"


@given(delays, delays)
def test_rule_16_a_message_that_was_delayed_can_be_delayed_anew(first: Delay, second: Delay) -> None:
    again = delay.unpark(stored(delay.park(row(), first, NOW))) if first.waits(NOW) else row()
    made = delay.park(again._replace(topic="%RETRY%g", queue_id=0), second, NOW)
    if second.waits(NOW):
        fresh = delay.park(row("%RETRY%g", 0), second, NOW)
        assert dict(made.properties) == dict(fresh.properties)
        assert len(made.properties) == len(fresh.properties)
        assert made[:2] == fresh[:2]


@pytest.mark.parametrize(
    ("topic", "properties"),
    [("orders", {}), (SCHEDULE_TOPIC, {}), (TIMER_TOPIC, {"TIMER_OUT_MS": "x"}), (SCHEDULE_TOPIC, {"DELAY": ""})],
)
def test_a_message_that_does_not_say_when_it_is_due_is_damaged(topic: str, properties: dict[str, str]) -> None:
    with pytest.raises(CorruptDataError):
        delay.due_ms(stored(row(topic, 2, **properties)))


@pytest.mark.parametrize("properties", [{}, {"REAL_TOPIC": "t"}, {"REAL_TOPIC": "t", "REAL_QID": "x"}])
def test_a_message_that_does_not_say_where_it_goes_is_damaged(properties: dict[str, str]) -> None:
    with pytest.raises(CorruptDataError):
        delay.unpark(stored(row(SCHEDULE_TOPIC, 2, **properties)))


# ------------------------------------------------------------ columns


@given(st.lists(delays, max_size=20), st.booleans(), st.booleans())
def test_columns_are_parked_as_rows_are(asked: list[Delay], with_levels: bool, with_times: bool) -> None:
    asked = [Delay(one.level if with_levels else 0, one.deliver_ms if with_times else None) for one in asked]
    rows = [row("orders" if number % 2 else "other", number) for number in range(len(asked))]
    made = delay.park_columns(
        pa.array([one.topic for one in rows], pa.string()),
        np.array([one.queue_id for one in rows], np.int64),
        level=np.array([one.level for one in asked], np.int64) if with_levels else None,
        deliver=pa.array([one.deliver_ms for one in asked], pa.int64()) if with_times else None,
        now_ms=NOW,
    )
    properties: list[dict[str, str]] = [{} for _ in rows]
    for added in made.added:
        for number, value in zip(added.rows.tolist(), added.values.to_pylist(), strict=True):
            properties[number][added.name] = value
    expected = [delay.park(one, wanted, NOW) for one, wanted in zip(rows, asked, strict=True)]
    assert made.topic.to_pylist() == [one.topic for one in expected]
    assert made.queue.tolist() == [one.queue_id for one in expected]
    assert properties == [dict(one.properties) for one in expected]


@given(st.lists(delays, min_size=1, max_size=20))
def test_columns_are_too_far_ahead_when_rows_are(asked: list[Delay]) -> None:
    settings = DelaySettings(delay_max_ms=5000)
    level = np.array([one.level for one in asked], np.int64)
    deliver = np.array([one.deliver_ms or 0 for one in asked], np.int64)

    def refused(one: Delay) -> bool:
        try:
            delay.check_delay(one, NOW, settings)
        except InvalidRequestError:
            return True
        return False

    assert delay.too_far_ahead(level, deliver, NOW, settings).tolist() == [refused(one) for one in asked]
    assert not delay.too_far_ahead(level, deliver, NOW).any()


def test_columns_are_due_when_rows_are() -> None:
    levels = np.arange(1, 22)
    due = delay.due_after_levels(np.full(21, NOW), levels)
    assert due.tolist() == [NOW + delay.DEFAULT.level_ms(level) for level in levels.tolist()]
