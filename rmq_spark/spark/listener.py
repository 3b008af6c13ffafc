"""`track(spark)`: a listener that notes the progress of every stream with a consumer group when its batches end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from rmq_spark.client.store import Store
from rmq_spark.errors import RmqError
from rmq_spark.spark.bounds import Latest
from rmq_spark.spark.group_progress import GroupProgress
from rmq_spark.spark.log_cursor import LogCursor
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.start_file import QueueStarts, StartFiles
from rmq_spark.spark.stream_offset import StreamOffset, assigned

_log = logging.getLogger(__name__)


class GroupTracker(StreamingQueryListener):
    """Commits group offsets from Spark's progress reports. A failure is logged: it never touches the query."""

    def __init__(self, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._storage_options = dict(storage_options or {})
        self._lock = threading.Lock()
        self._stores: dict[str, Store] = {}
        self._known: dict[str, tuple[GroupProgress, dict[str, LogCursor], StartFiles]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to do: the source resolves its start itself."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch has ended: its end offset is done."""
        for source in event.progress.sources:
            self._note(source.startOffset, source.endOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last batch was reported before."""

    def close(self) -> None:
        """Close the stores that were opened; call it after `spark.streams.removeListener`."""
        with self._lock:
            stores, self._stores = self._stores, {}
            self._known.clear()
        for store in stores.values():
            store.close()

    def _note(self, start: str | None, end: str | None) -> None:
        offset = _parse(end)
        if offset is None or offset.group is None or offset.store is None:
            return
        try:
            with self._lock:
                progress, cursors, files = self._progress(offset, offset.store, offset.group)
                begin = _parse(start)
                if begin is not None:
                    starts = files.read(begin.starts or offset.starts)
                    progress.planned(offset, _touched(begin, offset, cursors, starts))
                progress.commit(offset, cursors, files.read(offset.starts))
        except RmqError as error:
            _log.warning("the progress of group %s could not be noted: %s", offset.group, error)

    def _progress(
        self, offset: StreamOffset, uri: str, group: str
    ) -> tuple[GroupProgress, dict[str, LogCursor], StartFiles]:
        if uri not in self._stores:
            self._stores[uri] = Store.open(uri, options=self._storage_options, services="off")
        store = self._stores[uri]
        key = json.dumps([uri, group, dict(offset.subscription)])
        if key not in self._known:
            self._known[key] = (GroupProgress(store, group), {}, StartFiles(store.storage))
        progress, cursors, files = self._known[key]
        for broker in offset.brokers:
            if broker not in cursors:
                cursors[broker] = LogCursor(store.log(broker), _options(offset, uri, group))
        return progress, cursors, files


def track(spark: SparkSession, storage_options: Mapping[str, str] | None = None) -> GroupTracker:
    """Note the progress of this session's streams in their consumer groups, so that `rmq group` shows their lag.

    Without it a group is one batch behind, and the last batch of an AvailableNow run is never noted: Spark does not
    tell the source. `storage_options` are what the source gets as `storage.*`.

    Returns:
        The listener, for `spark.streams.removeListener`.
    """
    tracker = GroupTracker(storage_options)
    spark.streams.addListener(tracker)
    return tracker


def _touched(
    start: StreamOffset, end: StreamOffset, cursors: Mapping[str, LogCursor], starts: QueueStarts
) -> dict[tuple[str, str, int], int]:
    return {
        (topic, broker, queue): offset
        for broker, position in end.brokers.items()
        for (topic, queue), offset in cursors[broker]
        .touched(start.position(broker), position, starts.of(broker))
        .items()
    }


def _options(offset: StreamOffset, uri: str, group: str) -> ReadOptions:
    sub = offset.subscription
    return ReadOptions(
        store=uri,
        topics=tuple(sub["topics"]) if "topics" in sub else None,
        pattern=sub.get("pattern"),
        assign=assigned(sub),
        consumer_group=group,
        include_retry=bool(sub.get("retry")),
        starting=Latest(),
        ending=Latest(),
    )


def _parse(text: str | None) -> StreamOffset | None:
    """The offset if it is one of this source, else None: other sources' progress is none of ours."""
    try:
        value: Any = json.loads(text or "null")
        return StreamOffset.from_json(value) if isinstance(value, dict) and "sub" in value else None
    except (ValueError, RmqError):
        return None
