"""Writes as Spark makes them (plan, pickle, tasks, commit by a writer of its own), in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark_rocketmq import DefaultSource

from rmq_spark.client.store import Store
from rmq_spark.log.scan import Query
from rmq_spark.spark.writer import RocketMQBatchWriter, RocketMQStreamWriter, SinkMessage

MAP = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class FakeTask:
    """What the sink asks of Spark's TaskContext."""

    partition: int
    query_id: str | None

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> str | None:
        return self.query_id if name == "sql.streaming.queryId" else None


def batch_of(**columns: Any) -> pa.RecordBatch:
    """A batch; a value may be a list (strings, bytes or numbers) or an Arrow array."""
    return pa.RecordBatch.from_pydict(columns)


def bodies(*texts: str) -> pa.RecordBatch:
    return batch_of(body=pa.array(texts, pa.string()))


@dataclass
class Write:
    """One `df.write`, or one batch of a `df.writeStream`."""

    options: Mapping[str, str]
    schema: pa.Schema
    query_id: str | None = None
    overwrite: bool = False
    shipped: bytes = b""
    """The writer as tasks got it."""

    def new_writer(self) -> Any:
        source = DefaultSource(dict(self.options))
        schema = from_arrow_schema(self.schema)
        make = source.writer if self.query_id is None else source.streamWriter
        return make(schema, self.overwrite)

    def tasks(self, parts: Sequence[Iterable[pa.RecordBatch]]) -> list[SinkMessage]:
        """Run one task for each part and return their messages, as they come back to the driver."""
        self.shipped = pickle.dumps(self.new_writer())
        return [self.task(number, part) for number, part in enumerate(parts)]

    def task(self, number: int, part: Iterable[pa.RecordBatch]) -> SinkMessage:
        with patch("rmq_spark.spark.writer.TaskContext") as context:
            context.get.return_value = FakeTask(number, self.query_id)
            done: SinkMessage = pickle.loads(pickle.dumps(pickle.loads(self.shipped).write(iter(part))))
        return done

    def commit(self, messages: Sequence[SinkMessage | None], batch: int = 0) -> None:
        """Commit by a writer that has seen nothing of the tasks."""
        if self.query_id is None:
            self._batch_writer().commit(list(messages))
        else:
            self._stream_writer().commit(list(messages), batch)

    def abort(self, messages: Sequence[SinkMessage | None], batch: int = 0) -> None:
        if self.query_id is None:
            self._batch_writer().abort(list(messages))
        else:
            self._stream_writer().abort(list(messages), batch)

    def _batch_writer(self) -> RocketMQBatchWriter:
        # Spark keeps the pickled writer of a batch write; of a stream it keeps the source, and makes a new writer.
        writer = pickle.loads(self.shipped)
        assert isinstance(writer, RocketMQBatchWriter)
        return writer

    def _stream_writer(self) -> RocketMQStreamWriter:
        writer = self.new_writer()
        assert isinstance(writer, RocketMQStreamWriter)
        return writer


def write(options: Mapping[str, str], *parts: pa.RecordBatch, query_id: str | None = None, batch: int = 0) -> None:
    """Write each of `parts` by a task of its own, and commit."""
    job = Write(options, parts[0].schema, query_id)
    job.commit(job.tasks([[part] for part in parts]), batch)


def stored(store: Store, *topics: str, broker: str = "broker-0") -> list[dict[str, Any]]:
    """Messages of these topics (all that are not the engine's unless named), in the order of the log."""
    rows = [row for batch in store.log(broker).scan(Query()) for row in batch.to_pylist()]
    rows.sort(key=lambda row: row["commitOffset"])
    return [row for row in rows if (row["topic"] in topics if topics else not row["topic"].startswith("rmq_sys_"))]


def row_files(store: Store, broker: str = "broker-0") -> list[str]:
    return sorted(info.name for info in store.storage.list(f"brokers/{broker}/data"))
