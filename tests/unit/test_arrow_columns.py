"""Columns made from numbers and texts by hand are what Arrow makes of them, and nobody imports pandas for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.log.arrow_columns import integers, integers_of, repeated

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


WITHOUT_PANDAS = """
import sys
from rmq_spark.client.compression import decompress
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.storage.local import LocalStorage

with CommitLog(LocalStorage(sys.argv[1]), "brokers/b", "b") as log:
    log.append(MessageBatch.of(topic="orders", queue_id=0, msg_id="1", body=b"x", born_timestamp_ms=0))
    assert "pandas" not in sys.modules, "appending one message"
    [batch] = [decompress(batch) for batch in log.scan()]
    assert "pandas" not in sys.modules, "reading it"
    assert batch.num_rows == 1
"""


def test_sending_and_reading_do_not_import_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
