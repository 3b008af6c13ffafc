"""Writing from several threads: Spark 4.2 looks a Python sink up in the session that is active in the calling thread.

Only the thread that has made the session, and those that Spark itself starts (`foreachBatch`), have an active one. In
any other `df.write.format("rocketmq")` ends with DATA_SOURCE_NOT_FOUND. Reading is not concerned.
"""

from __future__ import annotations

from pyspark.sql import SparkSession


def activate(spark: SparkSession) -> None:
    """Make `spark` the active session of this thread, so that it finds `format("rocketmq")` when it writes.

    Over Spark Connect nothing needs to be done, and nothing is: the server's session is always the active one.

    Example:
        ThreadPoolExecutor(4, initializer=activate, initargs=(spark,))
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - there is no public call
