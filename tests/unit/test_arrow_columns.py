"""Columns made from numbers and texts by hand are what Arrow makes of them, and nobody imports pandas for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.log.arrow_columns import RowReorderer, booleans, booleans_of, column_of, integers, integers_of, repeated
from rmq_spark.log.schema import PROPERTIES

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("text", ["broker-0", "", "Köln", "x"])
@pytest.mark.parametrize("count", [0, 1, 7, 5_000])
def test_a_repeated_text(text: str, count: int) -> None:
    made = repeated(text, count)
    made.validate(full=True)
    assert made.equals(pa.array([text] * count, pa.string()))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_integers_there_and_back(kind: type) -> None:
    values = np.arange(-3, 60).astype(kind)
    made = integers(values)
    made.validate(full=True)
    assert made.equals(pa.array(values))
    assert integers_of(made.slice(5, 9)).tolist() == values[5:14].tolist()
    assert integers_of(made.slice(0, 0)).tolist() == []
    assert integers_of(pa.Array.from_buffers(pa.int32(), 0, [None, None])).tolist() == []


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "", "Köln"], pa.string()),
        ([b"", b"\xff"], pa.binary()),
        ([-1, 1 << 62], pa.int64()),
        ([3, 4], pa.timestamp("ms", "UTC")),
        ([], pa.string()),
    ],
)
def test_a_column_of_values(values: list[Any], kind: pa.DataType) -> None:
    made = column_of(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


@given(st.lists(st.booleans() | st.none()), st.integers(0, 20))
def test_truth_values_there_and_back(values: list[bool | None], skipped: int) -> None:
    expected = [bool(value) for value in values[skipped:]]
    assert booleans_of(pa.array(values, pa.bool_())[skipped:]).tolist() == expected
    assert booleans(np.array(expected, np.bool_)).equals(pa.array(expected, pa.bool_()))


@given(st.lists(st.sampled_from(["", "a", "aa", "ab", None]), min_size=1, max_size=4), st.integers(0, 3), st.data())
def test_rows_in_another_order_are_those_that_arrow_takes(
    texts: list[str | None], skipped: int, data: st.DataObject
) -> None:
    maps = pa.array([None if text is None else [("k", text)] if text else [] for text in texts], PROPERTIES)
    bodies = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    whole = pa.record_batch({"text": pa.array(texts, pa.string()), "map": maps, "body": bodies})
    batch = whole.slice(min(skipped, len(texts) - 1))
    order = np.array(data.draw(st.permutations(range(len(batch)))), np.int64)
    part = order[: data.draw(st.integers(0, len(order)))]
    taken = RowReorderer(batch).take(part)
    taken.validate(full=True)
    assert taken.equals(batch.take(pa.array(part)))


WITHOUT_PANDAS = """
import sys, threading
from rmq_spark import Message, Producer, PushConsumer, SimpleConsumer, Store
from rmq_spark.log.roll import roll

def none(after):
    assert "pandas" not in sys.modules, after

def consume(store, when):
    got = threading.Semaphore(0)
    consumer = PushConsumer(store, f"push-{when}", consume_from="earliest").subscribe("orders")
    consumer.start(lambda message: got.release())
    assert all(got.acquire(timeout=60) for _ in range(4))
    consumer.close()
    none(f"push {when}")
    with SimpleConsumer(store, f"pop-{when}", consume_from="earliest").subscribe("orders") as consumer:
        messages = consumer.receive(8)
        assert messages
        consumer.ack(messages)
    none(f"pop {when}")
    assert len(store.read("orders")) == 4
    none(f"read {when}")

with Store.create(sys.argv[1], services="off") as store:
    store.create_topic("orders", queues=2)
    with Producer(store) as producer:
        producer.send(Message("orders", b"x", tags="paid", keys="k1"))
        producer.send_batch([Message("orders", b"x", properties={"n": "1"})] * 3)
    none("sending")
    consume(store, "before")
    roll(store.log("broker-0"))
    none("rolling")
    consume(store, "after")
"""


def test_sending_consuming_reading_and_rolling_do_not_import_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
