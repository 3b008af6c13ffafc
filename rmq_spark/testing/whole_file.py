"""Checking a whole file of a log, as its bytes."""

from __future__ import annotations

from rmq_spark.log.file_format import FileMeta, parse
from rmq_spark.log.file_reader import FileReader
from rmq_spark.storage.memory import MemoryStorage


def check_whole(path: str, data: bytes) -> FileMeta:
    """Check every byte of a file and return its metadata.

    Raises:
        CorruptDataError: some bit is not what was written, or it is no file of this project's.
        UnsupportedVersionError: written by a newer version.
    """
    meta = parse(path, data, len(data))
    for _ in FileReader(MemoryStorage(), meta).read(range(len(meta.places.rows)), meta.schema.names):
        pass
    return meta
