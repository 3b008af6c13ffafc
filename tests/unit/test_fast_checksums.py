"""The CRC-32 of the format: the same values from either library, and a log that works without the optional one."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.log import fast

REPOSITORY = Path(__file__).parents[2]


def test_the_quick_library_is_used_where_it_is_installed() -> None:
    isal = importlib.import_module("isal.isal_zlib")
    assert fast.crc32 is isal.crc32


@given(st.binary(max_size=2_000), st.integers(0, 2**32 - 1))
def test_both_libraries_give_the_same_values(data: bytes, before: int) -> None:
    assert fast.crc32(data) == zlib.crc32(data)
    assert fast.crc32(data, before) == zlib.crc32(data, before)


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, pa.py_buffer, lambda data: memoryview(data)[3:-5]])
def test_every_form_of_bytes_is_taken(form: Callable[[bytes], memoryview]) -> None:
    data = form(bytes(range(256)) * 4_000)
    assert fast.crc32(data) == zlib.crc32(data)


WITHOUT = """
import sys
sys.modules["isal"] = None  # what an import of a package that is not installed comes to
import zlib
from pathlib import Path
import pyarrow as pa
from rmq_spark.log import fast
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.storage.local import LocalStorage

assert fast.crc32 is zlib.crc32
rows = 5_000
table = pa.table({"topic": ["orders"] * rows, "queueId": pa.array([n % 3 for n in range(rows)], pa.int32()),
    "msgId": [f"id-{n}" for n in range(rows)], "body": [b"x" * 50] * rows,
    "bornTimestamp": pa.array([0] * rows, pa.timestamp("ms", "UTC"))})
with CommitLog(LocalStorage(sys.argv[1]), "brokers/b", "b") as log:
    log.append(MessageBatch.from_arrow(table))
    print(sum(batch.num_rows for batch in log.scan()))
"""


def test_a_log_works_without_the_quick_library_and_its_files_are_read_with_it(tmp_path: Path) -> None:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.storage.local import LocalStorage

    command = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "5000"
    with CommitLog(LocalStorage(tmp_path), "brokers/b", "b", read_only=True) as log:
        assert sum(batch.num_rows for batch in log.scan()) == 5_000
