"""A scan returns the rows that match, and nothing beside them."""

from __future__ import annotations

import pytest
from faulty import message, open_log

from rmq_spark.log.roll import roll
from rmq_spark.log.scan import Query
from rmq_spark.storage.memory import MemoryStorage


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("commits", [1, 2])
def test_no_batch_is_empty(commits: int, rolled: bool) -> None:
    with open_log(MemoryStorage()) as log:
        for number in range(commits):
            log.append(message(f"m{number}"))
        if rolled:
            roll(log, min_commits=1)
        assert sum(batch.num_rows for batch in log.scan()) == commits
        for query in (Query(from_ms=1, to_ms=2), Query(msg_id="m"), Query(msg_id="m00"), Query(keys=frozenset({"k"}))):
            assert list(log.scan(query)) == [], query
