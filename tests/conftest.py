"""Servers shared by every test of a session; each starts when the first test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rmq_spark.testing.servers import S3Server, hdfs_server, s3_server, versitygw_server


@pytest.fixture(scope="session")
def hdfs_uri() -> Iterator[str]:
    """`hdfs://host:port` of a real NameNode with one DataNode."""
    with hdfs_server() as server:
        yield server.uri


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A running S3 server with one bucket: moto, or the versitygw binary that RMQ_VERSITYGW names."""
    binary = os.environ.get("RMQ_VERSITYGW")
    with versitygw_server(binary) if binary else s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_uri(s3: S3Server) -> str:
    """`s3://bucket` of the running S3 server."""
    return s3.uri


@pytest.fixture(scope="session")
def s3_options(s3: S3Server) -> dict[str, str]:
    """What `open_storage` needs beside `s3_uri`."""
    return dict(s3.options)
