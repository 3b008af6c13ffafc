"""Servers shared by every test of a session; each starts when the first test asks for it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from rmq_spark.testing.servers import S3Server, hdfs_server, s3_server, versitygw_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For every JVM that Spark starts, also in processes that tests start. It lives for seconds to minutes, so its second
# compiler and its web page cost more than they give; and the data of a test fill two tasks, not 200 (Delta: 50).
SPARK_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -Dspark.ui.enabled=false -Dspark.sql.shuffle.partitions=2 "
    "-Dspark.databricks.delta.snapshotPartitions=2"
)
os.environ.setdefault("SPARK_SUBMIT_OPTS", SPARK_OPTIONS)

# How long an example takes is the machine's affair, not the test's.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spark's programs without `python/lib/pyspark.zip`, which it puts before the installed pyspark.

    An archive holds no compiled modules: every Python process that Spark starts would compile them anew, for over a
    second of each start of a stream.
    """
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return
    folder = tmp_path_factory.mktemp("spark-home")
    for name in ("bin", "jars"):
        (folder / name).symlink_to(Path(pyspark.origin).parent / name)
    os.environ["SPARK_HOME"] = str(folder)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session that found `format("rocketmq")` by itself: nothing is registered here."""
    from pyspark.sql import SparkSession

    # Spark looks sources up, and runs tasks, with this interpreter; the default is the first python3 of the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.minBatchesToRetain": "100",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("rmq-spark tests")
    session = builder.config(map=settings).getOrCreate()
    yield session
    session.stop()


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
