"""Body compression as RocketMQ's producers do it: per message, flagged in sysFlag, undone by the reader."""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import CorruptDataError
from rmq_spark.log.arrow_columns import integers_of
from rmq_spark.rules import sys_flag

COMPRESS_OVER_BYTES: Final = 4096
"""RocketMQ's `compressMsgBodyOverHowmuch`."""
_LEVEL: Final = 5


def compress(body: bytes, over_bytes: int | None) -> tuple[bytes, int]:
    """Return the body to store and its sysFlag bits; None or a small body leave it as it is."""
    if over_bytes is None or len(body) < over_bytes:
        return body, 0
    return zlib.compress(body, _LEVEL), sys_flag.compressed_by_zlib()


def compress_column(bodies: pa.BinaryArray, over_bytes: int) -> tuple[pa.BinaryArray, npt.NDArray[np.int32]]:
    """Return the bodies to store and the sysFlag bits of each; a body that would grow is left as it is.

    Args:
        bodies: a column without nulls.
        over_bytes: compress bodies of at least so many bytes.
    """
    lengths = pc.binary_length(bodies).to_numpy(zero_copy_only=False)
    flags = np.zeros(len(bodies), np.int32)
    large = np.flatnonzero(lengths >= max(over_bytes, 1))
    if not large.size:
        return bodies, flags
    # Only bodies that are compressed are touched one by one; zlib costs far more than the loop.
    made = [zlib.compress(bodies[row].as_buffer(), _LEVEL) for row in large.tolist()]
    smaller = np.array([len(new) for new in made]) < lengths[large]
    flags[large[smaller]] = sys_flag.compressed_by_zlib()
    mask = np.zeros(len(bodies), np.bool_)
    mask[large[smaller]] = True
    new = pa.array([body for body, wanted in zip(made, smaller.tolist(), strict=True) if wanted], pa.binary())
    return pc.replace_with_mask(bodies, pa.array(mask), new), flags


def decompress(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with plain bodies; `sysFlag` and `body` must be among its columns.

    Raises:
        CorruptDataError: a body says it is compressed and is not, or by a method that is not known here.
    """
    # A batch that came as Arrow may have nulls for flags: no flag is set.
    column = batch.column("sysFlag")
    flags = integers_of(pc.fill_null(column, 0) if column.null_count else column)
    marked = (flags & sys_flag.COMPRESSED) != 0
    if not marked.any():
        return batch
    bodies = batch.column("body").to_pylist()
    # Only compressed messages are touched one by one; zlib costs far more than the loop.
    for row in np.flatnonzero(marked).tolist():
        bodies[row] = decompress_body(bodies[row], int(flags[row]), row=row)
    at = batch.schema.get_field_index("body")
    return batch.set_column(at, batch.schema.field(at), pa.array(bodies, pa.binary()))


def decompress_body(body: bytes, flags: int, **facts: object) -> bytes:
    """The plain body of a message whose `flags` say that it is compressed; `facts` name it in errors.

    Raises:
        CorruptDataError: as `decompress`.
    """
    if not sys_flag.is_zlib(flags):
        raise CorruptDataError("body is compressed by a method that is not known here", sysFlag=flags)
    try:
        return zlib.decompress(body)
    except zlib.error as error:
        raise CorruptDataError("body cannot be decompressed", **facts) from error
