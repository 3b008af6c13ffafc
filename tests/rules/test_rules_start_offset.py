"""Where a group starts in a queue that it has no offset of."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_spark.rules.start_offset import YOUNG_MS, ConsumeFrom, QueueEnds, start_offset

NOW = 10**12
LATEST, EARLIEST = ConsumeFrom.LATEST, ConsumeFrom.EARLIEST
OLD = QueueEnds(topic="t", first=0, end=50, first_store_ms=NOW - YOUNG_MS - 1)
YOUNG = QueueEnds(topic="t", first=0, end=50, first_store_ms=NOW - YOUNG_MS)
CUT = QueueEnds(topic="t", first=20, end=50, first_store_ms=None)
EMPTY = QueueEnds(topic="t", first=0, end=0, first_store_ms=None)
RETRY = QueueEnds(topic="%RETRY%g", first=0, end=50, first_store_ms=1)


def start(stored: int | None, consume_from: ConsumeFrom | int, queue: QueueEnds, **changes: Any) -> int:
    return start_offset(stored, consume_from, queue, now_ms=NOW, offset_at=lambda ms: ms, **changes)


@pytest.mark.parametrize("queue", [OLD, YOUNG, CUT, EMPTY, RETRY])
@pytest.mark.parametrize("consume_from", [LATEST, EARLIEST, 30])
def test_a_stored_offset_always_wins(queue: QueueEnds, consume_from: ConsumeFrom | int) -> None:
    assert start(7, consume_from, queue) == 7
    assert start(0, consume_from, queue) == 0


def test_rule_01_latest_is_behind_the_last_message() -> None:
    assert start(None, LATEST, OLD) == 50
    assert start(None, LATEST, CUT) == 50
    assert start(-1, LATEST, OLD) == 50


def test_rule_02_a_young_queue_is_read_from_its_beginning() -> None:
    assert start(None, LATEST, YOUNG) == 0
    assert start(None, LATEST, EMPTY) == 0
    assert start(None, LATEST, YOUNG, young_ms=-1) == 50


def test_earliest_is_the_first_message_that_is_left() -> None:
    assert [start(None, EARLIEST, queue) for queue in (OLD, YOUNG, CUT, EMPTY)] == [0, 0, 20, 0]


def test_a_time_is_looked_up_and_never_before_the_first_message() -> None:
    assert start(None, 30, OLD) == 30
    assert start(None, 5, CUT) == 20


@pytest.mark.parametrize("consume_from", [LATEST, EARLIEST, 30])
def test_retry_topics_are_read_whole(consume_from: ConsumeFrom | int) -> None:
    assert start(None, consume_from, RETRY) == 0
