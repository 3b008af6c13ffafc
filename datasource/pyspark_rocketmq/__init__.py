"""`format("rocketmq")` for Spark: found by its own look-up of modules named `pyspark_*`, with nothing to register.

Spark imports this module, with those of every other such source, at the first look-up of any source; one that raises
makes it drop them all. So nothing else is imported here until the source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Messages of a store as rows; see docs/spark.md and docs/options.md."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return "rocketmq"

    def schema(self) -> StructType:
        """The columns of a message; a schema given by the user replaces it and narrows what is read."""
        from rmq_spark.spark.schema import READ_SCHEMA

        return READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from rmq_spark.spark.batch_reader import RocketMQBatchReader
        from rmq_spark.spark.options import parse_read

        return RocketMQBatchReader(parse_read(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        from rmq_spark.spark.stream_reader import RocketMQStreamReader

        return RocketMQStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        from rmq_spark.spark.options import parse_write
        from rmq_spark.spark.writer import RocketMQBatchWriter

        return RocketMQBatchWriter(parse_write(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`."""
        from rmq_spark.spark.options import parse_write
        from rmq_spark.spark.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(parse_write(self.options, streaming=True), schema, overwrite)
