"""The fold that numbers messages, where its arrays grow under a call."""

from __future__ import annotations

import numpy as np
import pytest

from rmq_spark.log.queues import Queues
from rmq_spark.log.run_index import Runs

INLINE = [-1]


def runs(topic: str, *queues: int, rows: int = 1) -> Runs:
    count = len(queues)
    zeros = np.zeros(count, np.int32)
    return Runs([topic], zeros, np.array(queues, np.int32), np.full(count, rows, np.int32), zeros, zeros)


@pytest.mark.parametrize("queue", [0, 63, 64, 8_191, 65_535])
def test_a_first_message_is_counted_where_the_arrays_have_to_grow(queue: int) -> None:
    queues = Queues()
    queues.advance(runs("old", 3, rows=5), INLINE)
    queues.advance(runs("new", queue), INLINE)
    assert queues.bounds("new", queue) == (0, 1)
    assert queues.number(runs("new", queue), INLINE).tolist() == [1]
    assert queues.bounds("old", 3) == (0, 5)


@pytest.mark.parametrize("queue", [64, 65_535])
def test_a_first_message_is_numbered_where_the_arrays_have_to_grow(queue: int) -> None:
    queues = Queues()
    assert queues.number(runs("t", queue), INLINE).tolist() == [0]
    assert queues.number(runs("t", 1, queue), INLINE).tolist() == [0, 0]


def test_one_run_and_many_count_alike() -> None:
    one, many = Queues(), Queues()
    draw = np.random.default_rng(3)
    for _ in range(300):
        topic, queue, rows = f"t{draw.integers(4)}", int(draw.integers(200)), int(draw.integers(1, 9))
        both = (runs(topic, queue, rows=rows), INLINE)
        assert one.number(*both).tolist() == [many.bounds(topic, queue)[1]]
        one.advance(*both)
        many.advance(runs(topic, queue, 500, rows=rows), INLINE)
        assert one.bounds(topic, queue) == many.bounds(topic, queue)


def test_offsets_behind_damage_are_taken_over_where_the_arrays_have_to_grow() -> None:
    queues = Queues()
    queues.resume(runs("t", 2, 5_000), np.array([7, 9]))
    assert (queues.bounds("t", 2)[1], queues.bounds("t", 5_000)[1]) == (7, 9)
