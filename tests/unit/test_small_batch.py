"""The hand-written IPC message of a few rows is what pyarrow would have written, for any rows."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.log import schema
from rmq_spark.log.message_batch import to_record_batch
from rmq_spark.log.small_batch import to_message

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROW = st.tuples(
    TEXT,
    st.integers(0, 65_535),
    TEXT,
    st.none() | TEXT,
    st.none() | TEXT,
    st.binary(max_size=40),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | TEXT,
    st.integers(0, 2**31 - 1),
    st.lists(st.tuples(TEXT, TEXT), max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=20))
def test_pyarrow_reads_back_what_was_written(rows):
    batch = pa.ipc.read_record_batch(pa.py_buffer(to_message(rows)), schema.ROWS)
    batch.validate(full=True)
    assert batch.equals(to_record_batch(rows))
    assert batch.column("properties").to_pylist() == [row[-1] for row in rows]
