"""Decodes many small files at once.

Opening one Arrow file of one row takes longer than all its other work. Small files of a kind have the same schema, so
their record batch messages, one behind the other, are a valid Arrow stream, which is opened once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from rmq_spark.errors import CorruptDataError
from rmq_spark.log import ipc_file
from rmq_spark.log.file_layout import VERSION, head, newest_schema, schema_message


def decode_small_files(files: Sequence[bytes], kind: str = "commit", version: int = VERSION) -> pa.RecordBatch:
    """Return the rows of `files`, in order, as one record batch.

    Each file must be whole, checked by `file_format.parse`, of this kind and format version, and must have one block
    (no block table, no references to row files).

    Raises:
        CorruptDataError: a file has another schema, or rows that cannot be decoded.
    """
    start, _ = head(version, kind)
    stream = [schema_message(version, kind)]
    for number, data in enumerate(files):
        if not data.startswith(start):
            raise CorruptDataError("file has other columns", number=number, kind=kind, version=version)
        footer: int = struct.unpack_from("<i", data, len(data) - 10)[0]
        stream.append(data[len(start) : len(data) - 10 - footer - len(ipc_file.END_OF_STREAM)])
    stream.append(ipc_file.END_OF_STREAM)
    try:
        batches = pa.ipc.open_stream(b"".join(stream)).read_all().combine_chunks().to_batches()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError("rows cannot be decoded", kind=kind, files=len(files), reason=str(error)) from error
    return batches[0] if batches else newest_schema(kind).empty_table().to_batches()[0]
