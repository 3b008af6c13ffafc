"""`rmq log`: what the logs are made of, segments first, then the commits behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli import logs
from rmq_spark.cli.options import BrokersOption, ConfOption, JsonOption, NameserverOption, StoreOption, common
from rmq_spark.cli.output import Cell, Table
from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.model.times import format_ms
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.file_format import FileMeta
    from rmq_spark.log.marks import SegmentRef

_HEADERS = ("LOG", "KIND", "FIRST", "MESSAGES", "BYTES", "STORED", "WRITER", "SEQ", "FLUSH", "QUEUES", "TOPICS")
_TOPICS_SHOWN = 3


def log(
    ctx: typer.Context,
    *,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="Only the newest so many of each log.")] = None,
    broker: BrokersOption = None,
    nameserver: NameserverOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show segments and commits of each log: offsets, sizes, times and writers."""
    options = common(ctx, store, json, conf)
    rows: list[tuple[Cell, ...]] = []
    with options.open(read_only=True) as opened:
        for place in logs.chosen(opened, broker, nameserver):
            for entry in _entries(place.open(opened), limit):
                if options.json:
                    options.out.record(entry)
                else:
                    rows.append(_row(entry))
    if not options.json:
        options.out.result(None, Table(_HEADERS, rows))


def _entries(log: CommitLog, limit: int | None) -> Iterator[dict[str, Any]]:
    """The newest `limit` segments and commits of a log, oldest first."""
    view = log.refresh()
    files: list[SegmentRef | int] = [*view.mark.segments, *view.state.commits.firsts]
    # Slicing from the length, because `files[-0:]` would be everything.
    for file in files[len(files) - min(limit, len(files)) :] if limit is not None else files:
        if not isinstance(file, int):
            yield _segment(log.broker, file)
            continue
        if (commit := _read_commit(log, file)) is not None:
            yield _commit(log.broker, commit)


def _read_commit(log: CommitLog, first: int) -> FileMeta | None:
    """The commit's metadata, or None if it was rolled since the view was taken.

    Raises:
        CorruptDataError: it is damaged, or missing although a snapshot knows it.
    """
    from rmq_spark.log.file_reader import read_meta

    path = paths.commit(log.root, first)
    try:
        meta = read_meta(log.storage, path, "commit")
    except NotFoundError as error:
        if first < log.refresh().mark.floor:
            return None
        raise CorruptDataError("a file of the log is missing", file=path) from error
    # Commits that a snapshot covers were not looked at when the log was opened.
    if meta.doc["first"] != first:
        raise meta.corrupt("another commit stands in this one's place", first=meta.doc["first"])
    return meta


def _segment(name: str, segment: SegmentRef) -> dict[str, Any]:
    return {
        "log": name,
        "kind": "segment",
        "firstOffset": segment.first,
        "messages": segment.end - segment.first,
        "bytes": segment.bytes,
        "minTimestamp": segment.min_ms,
        "maxTimestamp": segment.max_ms,
        "file": segment.name,
    }


def _commit(name: str, meta: FileMeta) -> dict[str, Any]:
    doc = meta.doc
    files = doc.get("files") or []
    return {
        "log": name,
        "kind": "commit",
        "firstOffset": doc["first"],
        "messages": meta.rows,
        "bytes": meta.size + sum(file[3] for file in files),
        "storeTimestamp": doc["ts"],
        "writer": doc["writer"],
        "epoch": doc["epoch"],
        "seq": doc["seq"],
        "flush": doc["flush"],
        "topics": doc["topics"],
        "queues": len(meta.runs.rows),
        "rowFiles": len(files),
        "file": meta.path.rpartition("/")[2],
    }


def _row(entry: dict[str, Any]) -> tuple[Cell, ...]:
    size = (entry["log"], entry["kind"], entry["firstOffset"], entry["messages"], entry["bytes"])
    if entry["kind"] == "segment":
        return (*size, format_ms(entry["maxTimestamp"]), None, None, None, None, None)
    topics = entry["topics"]
    more = f" and {len(topics) - _TOPICS_SHOWN} more" if len(topics) > _TOPICS_SHOWN else ""
    return (
        *size,
        format_ms(entry["storeTimestamp"]),
        entry["writer"],
        entry["seq"],
        entry["flush"],
        entry["queues"],
        ", ".join(topics[:_TOPICS_SHOWN]) + more,
    )
