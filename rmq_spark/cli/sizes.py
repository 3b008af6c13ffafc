"""How much topics and logs hold, and from when to when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.client.store import Store, Topic
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.file_format import FileMeta
    from rmq_spark.log.scan import Plan
    from rmq_spark.log.view import LogView


@dataclass(frozen=True, slots=True)
class TopicSize:
    """What a topic holds."""

    messages: int
    bytes: int
    """What its messages take in the log's files, by the average of each block of a file."""
    last_ms: int | None
    """storeTimestamp of its newest message; None when it holds none."""


def messages_of(store: Store, topic: Topic) -> int:
    """How many messages a topic holds."""
    queues = (queue for broker in topic.queues for queue in _queues(store, broker, topic.name))
    return sum(end - first for _, first, end in queues)


def _queues(store: Store, broker: str, topic: str) -> list[tuple[int, int, int]]:
    return store.log(broker).look(lambda view: list(view.state.queues.of_topic(topic)))


def topic_sizes(store: Store, topics: Sequence[Topic]) -> dict[str, TopicSize]:
    """What each topic holds, by its name.

    Raises:
        CorruptDataError: a file is damaged or missing.
    """
    from rmq_spark.client.time_search import QueueTimes

    newest: dict[tuple[str, str, int], int] = {}
    messages = dict.fromkeys((topic.name for topic in topics), 0)
    for topic in topics:
        for broker in topic.queues:
            for queue, first, end in _queues(store, broker, topic.name):
                messages[topic.name] += end - first
                if first < end:
                    newest[topic.name, broker, queue] = end - 1
    # All queues in one question: it walks the commits that are not rolled once, not once for each topic.
    last: dict[str, int] = {}
    for (name, _, _), backlog in QueueTimes(store).backlogs(newest).items():
        if backlog.oldest_ms is not None:
            last[name] = max(last.get(name, 0), backlog.oldest_ms)
    sizes = _bytes_of(store, {topic.name: topic for topic in topics})
    return {name: TopicSize(count, sizes.get(name, 0), last.get(name)) for name, count in messages.items()}


def _bytes_of(store: Store, topics: Mapping[str, Topic]) -> dict[str, int]:
    """Bytes of each topic's messages, from the metadata of files: no message is read."""
    from rmq_spark.log.files import read_planned
    from rmq_spark.log.scan import Query, plan

    totals: Counter[str] = Counter()
    for broker in sorted({broker for topic in topics.values() for broker in topic.queues}):
        names = frozenset(name for name, topic in topics.items() if broker in topic.queues)
        first = {(name, queue): at for name in names for queue, at, _ in _queues(store, broker, name)}
        log = store.log(broker)

        def add(planned: Plan, log: CommitLog = log, first: Mapping[tuple[str, int], int] = first) -> Counter[str]:
            sizes: Counter[str] = Counter()
            for source in planned.sources:
                sizes.update(_file_bytes(log.files.meta(source.path, source.kind, source.fingerprint), first))
            return sizes

        query = Query(topics=names)
        totals.update(read_planned(log, lambda view, query=query: plan(view, query), add))  # type: ignore[misc]
    return totals


def _file_bytes(meta: FileMeta, first: Mapping[tuple[str, int], int]) -> Counter[str]:
    """Bytes of one file by topic, rows below a queue's first offset left out; by the average of each block."""
    import numpy as np

    if "blocks" in meta.doc:
        rows, ends = meta.block_rows, np.concatenate(([0], np.cumsum(meta.places.size, dtype=np.int64)))
    else:
        whole = sum(file[3] for file in meta.doc.get("files", ())) or meta.size
        rows, ends = np.array([0, meta.rows]), np.array([0, whole])
    sizes: Counter[str] = Counter()
    runs = zip(
        meta.runs.topic.tolist(),
        meta.runs.queue.tolist(),
        meta.bases.tolist(),
        meta.runs.rows.tolist(),
        meta.runs.first_rows().tolist(),
        strict=True,
    )
    for topic, queue, base, count, at in runs:
        name = meta.runs.topics[topic]
        begin = first.get((name, queue))
        if begin is not None:
            gone = min(count, max(0, begin - base))
            sizes[name] += int(np.interp(at + count, rows, ends) - np.interp(at + gone, rows, ends))
    return sizes


def log_size(log: CommitLog) -> dict[str, Any]:
    """What a log holds: offsets, files, bytes and times, under the names that JSON results have."""
    directories = (paths.commitlog, paths.segments, paths.data, paths.marks, paths.snapshots, paths.floors)
    files = [info.size for directory in directories for info in log.storage.list(directory(log.root))]
    return {"log": log.broker, **log.look(_extent), "files": len(files), "bytes": sum(files)}


def _extent(view: LogView) -> dict[str, Any]:
    mark, commits, end = view.mark, view.state.commits, view.state.offset
    starts = [segment.min_ms for segment in mark.segments[:1]] or list(commits.times[:1])
    return {
        "logStart": mark.log_start,
        "logEnd": end,
        "messages": end - mark.log_start,
        "segments": len(mark.segments),
        "commits": len(commits.firsts),
        "firstTimestamp": starts[0] if starts else None,
        "lastTimestamp": view.state.store_ms if starts else None,
    }
