"""The hand-written IPC message of a few rows is what pyarrow would have written, for any rows."""

import pyarrow as pa
from any_rows import ROW
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.log import schema
from rmq_spark.log.message_batch import to_record_batch
from rmq_spark.log.small_batch import to_message


@settings(max_examples=300, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=20))
def test_pyarrow_reads_back_what_was_written(rows):
    batch = pa.ipc.read_record_batch(pa.py_buffer(to_message(rows)), schema.ROWS)
    batch.validate(full=True)
    assert batch.equals(to_record_batch(rows))
    assert batch.column("properties").to_pylist() == [row[-1] for row in rows]
