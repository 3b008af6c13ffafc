"""Small files decoded together have the rows that they have one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from any_rows import ROW
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.errors import CorruptDataError
from rmq_spark.log import ipc_file
from rmq_spark.log.file_encoder import Encoded, make_blocks, one_block
from rmq_spark.log.file_format import parse
from rmq_spark.log.message_batch import to_record_batch
from rmq_spark.log.small_batch import to_message
from rmq_spark.log.small_commits import decode_small, is_small

FILES = st.lists(st.tuples(st.lists(ROW, min_size=1, max_size=10), st.booleans()), min_size=1, max_size=12)


def file_of(rows: list[tuple[Any, ...]], by_pyarrow: bool = False) -> bytes:
    if by_pyarrow:
        blocks = make_blocks("commit", [to_record_batch(rows)])
    else:
        blocks = one_block("commit", to_message(rows), len(rows))
    return b"".join(Encoded(blocks, {}))


def decoded(files: list[bytes]) -> pa.RecordBatch:
    metas = [parse("file", data, len(data)) for data in files]
    assert all(is_small(meta) for meta in metas)
    return decode_small(metas)


def one_by_one(files: list[bytes]) -> pa.RecordBatch:
    return pa.concat_batches([pa.ipc.open_file(pa.BufferReader(data)).get_batch(0) for data in files])


@settings(deadline=None, max_examples=200)
@given(FILES)
def test_many_files_have_the_rows_of_each(drawn: list[tuple[list[tuple[Any, ...]], bool]]) -> None:
    files = [file_of(rows, by_pyarrow) for rows, by_pyarrow in drawn]
    batch = decoded(files)
    batch.validate(full=True)
    assert batch.equals(one_by_one(files))


def row(number: int) -> tuple[Any, ...]:
    return ("orders", 0, f"{number:032X}", "paid", None, b"x" * number, 0, 0, number, None, 0, [("n", "1")])


def test_the_order_of_files_is_kept() -> None:
    files = [file_of([row(number), row(number + 100)]) for number in range(10)]
    assert decoded(files).equals(one_by_one(files))


def test_a_file_whose_header_is_laid_out_in_another_way_is_decoded_too() -> None:
    message = to_message([row(3)])
    header = ipc_file.header_layout(message).size
    # Eight bytes more in front of the body, as another writer of flatbuffers might leave them.
    longer = message[:4] + (header - 8 + 8).to_bytes(4, "little") + message[8:header] + bytes(8) + message[header:]
    files = [file_of([row(1)]), b"".join(Encoded(one_block("commit", longer, 1), {}))]
    assert decoded(files).equals(one_by_one(files))


def test_a_file_that_another_writer_laid_out_is_not_decoded_with_others() -> None:
    source = pa.ipc.open_file(pa.BufferReader(file_of([row(1)])))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, source.schema) as writer:  # puts the metadata into the schema at the head, too
        writer.write_batch(source.get_batch(0))
    data = file_of([row(1)])
    meta = parse("file", data, len(data))
    assert is_small(meta)
    meta.whole = sink.getvalue().to_pybytes()
    assert not is_small(meta)


def test_another_number_of_rows_than_the_metadata_says_is_refused() -> None:
    data = file_of([row(1)])
    meta = parse("file", data, len(data))
    meta.rows = 2
    with pytest.raises(CorruptDataError, match="number of rows"):
        decode_small([meta])


def test_numbers_that_point_outside_a_message_are_refused() -> None:
    good = to_message([row(5)])
    layout = ipc_file.header_layout(good)
    for index in range(2 * layout.buffers):
        at = layout.buffers_at + 8 * index
        if int.from_bytes(good[at : at + 8], "little") == 0:
            continue
        for value in (1 << 40, (1 << 64) - 8):
            bad = good[:at] + value.to_bytes(8, "little") + good[at + 8 :]
            files = [file_of([row(1)]), b"".join(Encoded(one_block("commit", bad, 1), {})), file_of([row(2)])]
            if index % 2 == 0 and int.from_bytes(good[at + 8 : at + 16], "little") == 0:
                assert decoded(files).num_rows == 3, "a buffer without bytes may be said to stand anywhere"
                continue
            with pytest.raises(CorruptDataError, match="decoded"):
                decoded(files)
