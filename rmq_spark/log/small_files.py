"""Decodes many small files at once: their record batches become one Arrow stream behind a common schema.

Opening each file by itself takes many times as long as reading its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from rmq_spark.errors import CorruptDataError, InvalidRequestError
from rmq_spark.log import file_layout, ipc_file

BYTES_MAX: Final = (1 << 31) - 1
"""Rows of one call, in bytes: offsets of texts have 32 bits."""


def decode_small_files(
    files: Sequence[bytes], kind: str = "commit", version: int | None = None, rows: Sequence[int] | None = None
) -> pa.RecordBatch:
    """Return the rows of `files`, in order, as one record batch.

    Each file must be whole and checked by `file_format.parse`, of this kind and format version (by default the one
    that is written), and must have one block: no block table, no references to row files. `rows` says how many rows
    each has, if that is known.

    Raises:
        CorruptDataError: a file has other columns, another number of rows, or rows that cannot be decoded.
        InvalidRequestError: the files have over 2 GB.
    """
    version = file_layout.VERSION if version is None else version
    schema, head = file_layout.SCHEMAS[version][kind], file_layout.head(version, kind)
    messages = [file_layout.schema_message(version, kind)]
    for number, data in enumerate(files):
        if not data.startswith(head):
            raise CorruptDataError("file has other columns", number=number, kind=kind, version=version)
        footer: int = struct.unpack_from("<i", data, len(data) - 10)[0]
        messages.append(data[len(head) : len(data) - 10 - footer - len(ipc_file.END_OF_STREAM)])
    if sum(map(len, messages)) > BYTES_MAX:
        raise InvalidRequestError("over 2 GB of small files; decode them in parts", files=len(files))
    try:
        with pa.ipc.open_stream(b"".join([*messages, ipc_file.END_OF_STREAM])) as stream:
            batches = list(stream)
        if rows is not None and [batch.num_rows for batch in batches] != rows:
            raise CorruptDataError("a file has another number of rows than its metadata says", files=len(files))
        return (
            pa.concat_batches(batches)
            if batches
            else pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError("rows cannot be decoded", kind=kind, files=len(files), reason=str(error)) from error
