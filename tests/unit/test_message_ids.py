"""The producer's ids: unique, ascending, of RocketMQ's layout; and the offset id."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.message_id import UniqueIds, offset_id, own_address, parse_offset_id


def at(*moment: int) -> ManualClock:
    return ManualClock(int(datetime(*moment, tzinfo=UTC).timestamp() * 1000))  # type: ignore[misc, arg-type]


def test_an_id_is_32_hex_digits_that_start_with_the_address() -> None:
    (drawn,) = UniqueIds(ManualClock(), "10.1.2.3").draw()
    assert len(drawn) == 32
    assert drawn.startswith("0A010203")
    assert set(drawn) <= set("0123456789ABCDEF")


def test_the_time_part_is_the_millisecond_of_the_month() -> None:
    clock = at(2024, 5, 2, 0, 0, 1)
    (drawn,) = UniqueIds(clock, "10.1.2.3").draw()
    assert int(drawn[20:28], 16) == 24 * 3_600_000 + 1_000
    assert int(drawn[28:], 16) == 0


def test_ids_ascend_and_stay_unique_when_the_counter_wraps_within_a_millisecond() -> None:
    ids = UniqueIds(at(2024, 5, 2), "10.1.2.3")
    drawn = ids.draw(65_000) + ids.draw(2_000) + ids.draw(70_000) + ids.draw()
    assert len(set(drawn)) == len(drawn)
    assert drawn == sorted(drawn)


def test_time_that_was_borrowed_is_not_given_out_again() -> None:
    clock = at(2024, 5, 2)
    ids = UniqueIds(clock, "10.1.2.3")
    drawn = ids.draw(200_000)
    for _ in range(6):
        clock.advance(0.001)
        drawn += ids.draw(10)
    assert len(set(drawn)) == len(drawn)
    assert drawn == sorted(drawn)


def test_a_clock_that_is_set_back_does_not_repeat_ids() -> None:
    clock = at(2024, 5, 2)
    ids = UniqueIds(clock, "10.1.2.3")
    drawn = ids.draw(5)
    clock.advance(-10)
    drawn += ids.draw(5)
    clock.advance(10)
    drawn += ids.draw(5)
    assert len(set(drawn)) == 15
    assert drawn == sorted(drawn)


@pytest.mark.parametrize(("month", "days"), [(1, 31), (2, 29), (12, 31)])
def test_a_new_month_starts_low_and_keeps_ids_unique(month: int, days: int) -> None:
    clock = at(2024, month, days, 23, 59, 59)
    ids = UniqueIds(clock, "10.1.2.3")
    old = ids.draw(10)
    clock.advance(2)
    new = ids.draw(10)
    assert int(new[0][20:28], 16) == 1_000
    assert not set(old) & set(new)


@pytest.mark.parametrize("months", [1, -1, 14])
def test_the_same_millisecond_of_another_month_gives_other_ids(months: int) -> None:
    clock = at(2024, 5, 2)
    there = at(2024 + (4 + months) // 12, (4 + months) % 12 + 1, 2)
    ids = UniqueIds(clock, "10.1.2.3")
    drawn = ids.draw(5)
    away = (there.now_ms() - clock.now_ms()) / 1000
    for seconds in (away, -away):  # a clock that is set wrong and corrected comes back to the first month
        clock.advance(seconds)
        drawn += ids.draw(5)
    assert len(set(drawn)) == len(drawn)


def test_two_generators_of_one_process_differ() -> None:
    clock = ManualClock()
    assert UniqueIds(clock, "10.1.2.3").draw() != UniqueIds(clock, "10.1.2.3").draw()


def test_the_own_address_is_an_ipv4_address() -> None:
    assert len(own_address().split(".")) == 4


def test_an_offset_id_goes_there_and_back() -> None:
    text = offset_id("192.168.0.1", 10911, 123_456_789_012)
    assert text == "C0A8000100002A9F0000001CBE991A14"
    assert parse_offset_id(text) == ("192.168.0.1", 10911, 123_456_789_012)


@pytest.mark.parametrize("text", ["", "xyz", "C0A8", "C0A8000100002A9F0000001CBE991A1", "G" * 32])
def test_a_bad_offset_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="32 hex digits"):
        parse_offset_id(text)
