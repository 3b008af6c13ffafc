"""What a sink's batch held, as the log remembers it: how a repetition is told from a new batch under an old number.

See docs/decisions/0013-a-landed-batch-remembers-what-it-held.md for what is compared and why. Knows no pyspark.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from rmq_spark.errors import RmqError
from rmq_spark.spark.open_stores import kept_storage
from rmq_spark.spark.options import WriteOptions
from rmq_spark.spark.stream_offset import StreamOffset

_DIGITS: Final = 16
_HEADER_LINES: Final = 2
"""An offset log's entry begins with its version and with a line about the batch; one line for each source follows."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlan:
    """What the checkpoint says of a batch, as digests. Spark writes it before the batch runs, and repeats it by it."""

    entry: str
    """Of the whole entry, which holds the time of planning: equal means that Spark repeats this very batch."""
    ends: str
    """Of the sources' ends alone: equal when the same messages were planned again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContent:
    """What is remembered of a batch."""

    rows: int
    topics: str
    """Digest of the topics that got rows."""
    plan: SparkPlan | None = None
    """None for a batch write, and where the checkpoint cannot be read from here."""

    @classmethod
    def of(cls, rows: int, topics: Iterable[str], plan: SparkPlan | None) -> BatchContent:
        """The content of a batch with so many rows for these topics."""
        return cls(rows=rows, topics=_digest(json.dumps(sorted(topics)).encode()), plan=plan)

    def to_text(self) -> str:
        """The fingerprint that stands in the commit."""
        plan = (self.plan.entry, self.plan.ends) if self.plan is not None else ()
        return " ".join((str(self.rows), self.topics, *plan))

    @classmethod
    def from_text(cls, text: str) -> BatchContent:
        """What `to_text` returned."""
        rows, topics, *plan = text.split(" ")
        return cls(
            rows=int(rows), topics=topics, plan=SparkPlan(entry=plan[0], ends=plan[1]) if len(plan) > 1 else None
        )

    def repeats(self, landed: BatchContent) -> bool:
        """Whether this is the batch that landed, run again."""
        if self.plan is not None and landed.plan is not None:
            if self.plan.entry == landed.plan.entry:
                return True  # whatever its rows: a query need not be deterministic
            if self.plan.ends != landed.plan.ends:
                return False
        return (self.rows, self.topics) == (landed.rows, landed.topics)


def read_plan(options: WriteOptions, batch: int) -> SparkPlan | None:
    """What the checkpoint says of `batch`; None where it cannot be read from here.

    Read are checkpoints on a local disk, and those that lie beside the store, in its bucket or on its cluster: with
    the store's settings. Others might let each batch wait for an answer.
    """
    place = _place(options)
    if place is None:
        return None
    uri, is_stores = place
    try:
        storage = kept_storage(uri, options.storage_options if is_stores else {})
        entry = storage.read(f"offsets/{batch}")
    except RmqError as error:
        _log.info(
            "batch %d is remembered by its rows alone; its entry in the checkpoint was not read: %s", batch, error
        )
        return None
    ends = map(_end, entry.splitlines()[_HEADER_LINES:])
    return SparkPlan(entry=_digest(entry), ends=_digest(b"\n".join(ends)))


def _end(line: bytes) -> bytes:
    """A source's end, in a form that is equal for the same messages."""
    try:
        offset = StreamOffset.from_json(json.loads(line))
    except (RmqError, TypeError, ValueError):
        return line  # another source's: its own text is all that is known
    # The log may have grown without a message of the subscription: by this sink's own rows, if it writes there.
    seen = {broker: position.seen for broker, position in offset.brokers.items()}
    return json.dumps([offset.store_id, offset.subscription, seen], sort_keys=True).encode()


def _place(options: WriteOptions) -> tuple[str, bool] | None:
    """Where the checkpoint can be read, and whether that is the store's own file system."""
    if options.checkpoint is None:
        return None
    parts = urlsplit(options.checkpoint)
    if parts.scheme in ("", "file"):
        return (parts.path if parts.scheme else options.checkpoint), False  # Hadoop writes file:/path
    store = urlsplit(options.store)
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    if (scheme, parts.netloc) != (store.scheme, store.netloc):
        return None
    return f"{scheme}://{parts.netloc}{parts.path}", True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
