"""Spark's micro-batch loop over a stream reader, without Spark: the same calls in the same order, offsets as text.

It keeps what a checkpoint keeps (the ends of batches, and which batches are done) and no more, and can die at each
point where a driver can. What holds here in milliseconds is shown with a real query as well, once for each kind.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from pyspark_rocketmq import DefaultSource
from store_world import shipped

from rmq_spark.spark.schema import READ_SCHEMA
from rmq_spark.spark.stream_reader import RocketMQStreamReader

Point = Literal["planned", "reading", "sunk"]
"""Where a driver dies: the batch's end is in the offset log; tasks are at work; the sink has it, the commit log not."""


class Killed(Exception):
    """The driver died."""


@dataclass
class Checkpoint:
    """What is left when a driver has died."""

    ends: dict[int, str] = field(default_factory=dict)
    """Batch -> end offset, as text: Spark's offset log."""
    done: set[int] = field(default_factory=set)
    """Batches in the commit log."""
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """What the sink has, by batch: it takes a repeated batch in place of the first attempt."""

    def delivered(self) -> list[dict[str, Any]]:
        """All rows of the sink, batch by batch."""
        return [row for batch in sorted(self.rows) for row in self.rows[batch]]

    def end(self) -> dict[str, Any]:
        """The last batch's end."""
        value: dict[str, Any] = json.loads(self.ends[max(self.ends)])
        return value


class Query:
    """One run of a streaming query, from start or restart to stop or death."""

    def __init__(
        self,
        options: Mapping[str, str],
        checkpoint: Checkpoint,
        *,
        trigger: Literal["default", "availableNow", "once"] = "default",
        schema: StructType = READ_SCHEMA,
    ) -> None:
        self.checkpoint = checkpoint
        reader = DefaultSource(dict(options)).streamReader(schema)
        assert isinstance(reader, RocketMQStreamReader)
        self.reader = reader
        if trigger == "availableNow":
            self.reader.prepareForTriggerAvailableNow()
        self.limit = ReadAllAvailable() if trigger == "once" else self.reader.getDefaultReadLimit()
        self.batch = max(checkpoint.ends, default=-1)
        self.available = checkpoint.ends.get(self.batch)
        self.committed = self.available if self.batch in checkpoint.done else checkpoint.ends.get(self.batch - 1)
        self.is_pending = self.available is not None and self.batch not in checkpoint.done
        if not self.is_pending:
            self.batch += 1
        self.latest: str | None = None

    def trigger(self, die: Point | None = None) -> bool:
        """One turn of the loop; returns whether a batch was run.

        Raises:
            Killed: it was asked to die, and there was a batch to die in.
        """
        if not self.is_pending and not self._construct():
            return False
        self.is_pending = True
        if die == "planned":
            self._die()
        self._run(die)
        self.checkpoint.done.add(self.batch)
        self.committed = self.available
        self.is_pending = False
        self.batch += 1
        return True

    def run(self, most: int = 1_000) -> int:
        """Run batches until there is nothing new (an AvailableNow query would end then); returns how many."""
        for count in range(most):
            if not self.trigger():
                return count
        raise AssertionError(f"there was something new {most} times; the last offset is {self.available}")

    def stop(self) -> None:
        self.reader.stop()

    def _construct(self) -> bool:
        start = self.available or self._initial()
        end = json.dumps(self.reader.latestOffset(json.loads(start), self.limit))
        self.latest = json.dumps(self.reader.reportLatestOffset())
        self.available = end
        if end == self.committed:  # Spark compares texts
            return False
        self.checkpoint.ends[self.batch] = end
        if self.batch > 0:
            self.reader.commit(json.loads(self.checkpoint.ends[self.batch - 1]))
        return True

    def _run(self, die: Point | None) -> None:
        end = json.loads(self.checkpoint.ends[self.batch])
        start = json.loads(self.committed or self._initial())
        self.reader.partitions(start, end)  # Spark keeps no answer and may ask again: any of them has to do
        partitions = [shipped(part) for part in self.reader.partitions(start, end)]
        worker = pickle.loads(pickle.dumps(self.reader))
        rows: list[dict[str, Any]] = []
        for part in partitions:
            rows += [row for batch in worker.read(part) for row in batch.to_pylist()]
            if die == "reading":
                break
        if die == "reading":
            self._die()
        self.checkpoint.rows[self.batch] = rows
        if die == "sunk":
            self._die()

    def _initial(self) -> str:
        return json.dumps(self.reader.initialOffset())

    def _die(self) -> None:
        self.reader.stop()
        raise Killed


def run_once(options: Mapping[str, str], checkpoint: Checkpoint, **settings: Any) -> int:
    """An AvailableNow run from start to end; returns how many batches it had."""
    query = Query(options, checkpoint, trigger="availableNow", **settings)
    try:
        return query.run()
    finally:
        query.stop()
