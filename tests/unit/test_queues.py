"""The fold that numbers messages, where its arrays grow under a call."""

from __future__ import annotations

import numpy as np
import pytest

from rmq_spark.log.queues import Queues
from rmq_spark.log.run_index import Runs


def runs(topic: str, *queues: int, rows: int = 1) -> Runs:
    count = len(queues)
    zeros = np.zeros(count, np.int32)
    return Runs([topic], zeros, np.array(queues, np.int32), np.full(count, rows, np.int32), zeros, zeros)


@pytest.mark.parametrize("queue", [0, 63, 64, 8_191, 65_535])
def test_a_first_message_is_counted_where_the_arrays_have_to_grow(queue: int) -> None:
    queues = Queues()
    queues.advance(runs("old", 3, rows=5))
    queues.advance(runs("new", queue))
    assert queues.bounds("new", queue) == (0, 1)
    assert queues.number(runs("new", queue)).tolist() == [1]
    assert queues.bounds("old", 3) == (0, 5)


@pytest.mark.parametrize("queue", [64, 65_535])
def test_a_first_message_is_numbered_where_the_arrays_have_to_grow(queue: int) -> None:
    queues = Queues()
    assert queues.number(runs("t", queue)).tolist() == [0]
    assert queues.number(runs("t", 1, queue)).tolist() == [0, 0]


def test_one_run_and_many_count_alike() -> None:
    one, many = Queues(), Queues()
    draw = np.random.default_rng(3)
    for _ in range(300):
        topic, queue, rows = f"t{draw.integers(4)}", int(draw.integers(200)), int(draw.integers(1, 9))
        single = runs(topic, queue, rows=rows)
        assert one.number(single).tolist() == [many.bounds(topic, queue)[1]]
        one.advance(single)
        many.advance(runs(topic, queue, 500, rows=rows))
        assert one.bounds(topic, queue) == many.bounds(topic, queue)


def test_a_queue_in_several_files_of_a_commit_goes_on_from_one_to_the_next() -> None:
    queues = Queues()
    queues.advance(runs("t", 1, rows=4))
    files = runs("t", 1, 2, 0, 1, 1, 2, rows=3)
    assert queues.number(files).tolist() == [4, 0, 0, 7, 10, 3]
    queues.advance(files)
    assert [queues.bounds("t", queue)[1] for queue in range(3)] == [3, 13, 6]


def test_offsets_behind_damage_are_taken_over_where_the_arrays_have_to_grow() -> None:
    queues = Queues()
    queues.resume(runs("t", 2, 5_000), np.array([7, 9]))
    assert (queues.bounds("t", 2)[1], queues.bounds("t", 5_000)[1]) == (7, 9)
