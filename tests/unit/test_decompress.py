"""Plain bodies out of batches whose messages may have no flags."""

from __future__ import annotations

import zlib

import pyarrow as pa

from rmq_spark.client.compression import decompress
from rmq_spark.rules.sys_flag import COMPRESSED


def batch(flags: list[int | None], bodies: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"sysFlag": pa.array(flags, pa.int32()), "body": pa.array(bodies, pa.binary())})


def test_a_message_without_flags_is_plain() -> None:
    found = decompress(batch([None, COMPRESSED, 0], [b"a", zlib.compress(b"b"), b"c"]))
    assert found.column("body").to_pylist() == [b"a", b"b", b"c"]


def test_a_batch_without_any_flags_comes_back_as_it_is() -> None:
    given = batch([None, None], [b"a", b"b"])
    assert decompress(given) is given
