"""Large batches are sorted by two threads; the result is the same, and a forked child has threads of its own."""

import os

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.log.message_batch import MessageBatch, sort_into_runs
from rmq_spark.log.permute import TWO_THREADS_ROWS as MANY_ROWS


def table(rows):
    number = np.arange(rows)
    return pa.table(
        {
            "topic": pa.array(["a", "b"]).take(pa.array(number % 2)),
            "queueId": pa.array((number * 7 % 50).astype(np.int32)),
            "msgId": [f"{value:032d}" for value in number.tolist()],
            "tags": pa.array(["x", None, "y"]).take(pa.array(number % 3)),
            "body": [str(value).encode() for value in number.tolist()],
            "bornTimestamp": pa.array(number).cast(pa.timestamp("ms", "UTC")),
        }
    )


def test_rows_keep_their_order_within_each_queue_and_stay_together():
    batch, runs, order = sort_into_runs(MessageBatch.from_arrow(table(MANY_ROWS)).record_batch())
    rows = batch.to_pylist()
    assert [row["body"] for row in rows] == [str(value).encode() for value in order.tolist()]
    assert all(int(row["msgId"]) == int(row["body"]) for row in rows)
    places = [(row["topic"], row["queueId"], int(row["body"])) for row in rows]
    assert places == sorted(places)
    assert int(runs.rows.sum()) == MANY_ROWS


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12: fork beside threads, on purpose
def test_a_forked_child_sorts_too():
    given = MessageBatch.from_arrow(table(MANY_ROWS)).record_batch()
    sort_into_runs(given)  # the parent's threads are running
    child = os.fork()
    if child == 0:
        os._exit(0 if sort_into_runs(given)[0].num_rows == MANY_ROWS else 1)
    assert os.waitpid(child, 0)[1] == 0
