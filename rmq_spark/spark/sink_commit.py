"""The driver's part of a write: one commit that refers to all row files, or none at all. Knows no pyspark.

1. Is this batch in the log already (a replay)? Then its new row files are thrown away. Another batch under a number
   that has landed is an error: leaving it out would lose its rows.
2. Create the topics that do not exist; check that the others still have the queues that rows were put in.
3. Append one commit that names the row files and (application id, batch id, what the batch held).

Tasks with few rows write no file: their rows travel to the driver and stand in the commit itself, so that a stream of
small batches leaves one file a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from rmq_spark.client.store import Store
from rmq_spark.errors import ExistsError, InvalidRequestError, NotFoundError, RmqError
from rmq_spark.log.collect import discard
from rmq_spark.log.commit_log import AppendResult, CommitLog
from rmq_spark.log.core_folds import SinkBatches, SinkMark
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.rows import RowFile, write_row_file
from rmq_spark.log.view import LogView
from rmq_spark.spark.batch_content import BatchContent, SparkPlan
from rmq_spark.spark.open_stores import forget_store, kept_store
from rmq_spark.spark.options import WriteOptions
from rmq_spark.spark.sink_plan import no_queues

INLINE_TASK_BYTES: Final = 64 * 1024
"""Up to so many bytes of rows a task writes no file. Messages of all tasks have to fit the driver's result limit."""
INLINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Up to so many bytes, the rows of tasks that wrote no file stand in the commit itself."""
ATTEMPTS: Final = 3
"""How often a commit is tried when the storage does not answer; each try has the log's own deadline."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one task has written; everything that the driver needs to know travels in it."""

    partition: int
    """Number of the task."""
    broker: str
    """Whose log the row files are for."""
    query_id: str | None = None
    """The streaming query's id; None for a batch write."""
    files: tuple[RowFile, ...] = ()
    """Row files in the order in which they were written."""
    inline_rows: bytes = b""
    """Instead of files: so few rows that they travel along, as an Arrow stream."""
    rows: int = 0
    """How many it wrote, in files or inline."""
    topics: dict[str, int] = field(default_factory=dict)
    """Topic -> highest queue id that got a row, + 1."""

    @property
    def is_empty(self) -> bool:
        """Whether it wrote no row."""
        return not self.files and not self.inline_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchName:
    """How the log knows a batch."""

    app: str
    """The application: a query, or the name that the user has given, and the topic of the options."""
    number: int
    """Rises from batch to batch."""
    plan: SparkPlan | None = None
    """What the checkpoint says of the batch."""
    old_app: str | None = None
    """Under what name versions without fingerprints noted it, if that differs."""


def commit(options: WriteOptions, written: Sequence[Written], name: BatchName | None) -> None:
    """Land what the tasks have written, in the order of their numbers, as one commit. Without rows nothing happens.

    Called again for the same batch, it changes nothing: the rows of the first time stay.

    Raises:
        InvalidRequestError: another batch has landed under this number, and `changedBatch` is not `skip`.
        InvalidRequestError: a topic has fewer queues by now than rows were put in.
        NotFoundError: a topic is gone and must not be created.
        PreconditionFailedError: the row files were collected as orphans before this commit.
        RmqError: as `CommitLog.append_files` says.
    """
    parts = [part for part in sorted(written, key=lambda part: part.partition) if not part.is_empty]
    if not parts:
        return
    broker = parts[0].broker
    try:
        store = kept_store(options.store, options.storage_options, read_only=False)
        log = store.log(broker)
        topics = _topics(parts)
        content = BatchContent.of(sum(part.rows for part in parts), topics, name.plan if name else None)
        if name is not None and _is_landed(log, options, name, content):
            _throw_away_repeated(log, parts)
            return
        for topic, queues in sorted(topics.items()):
            _ensure_topic(store, options, topic, queues, broker)
        result = _append(log, parts, None if name is None else (name.app, name.number, content.to_text()))
        if name is not None and result.repeated:
            _is_landed(log, options, name, content)  # by this commit itself, or by somebody who was faster
    except RmqError:
        forget_store(options.store, options.storage_options)
        raise


def throw_away(options: WriteOptions, written: Sequence[Written]) -> None:
    """Delete the row files of a write that failed, unless their commit has landed after all; failing that, say so.

    What stays is collected by `rmq roll` and `rmq expire` after a day.
    """
    files = [file.name for part in written for file in part.files]
    if not files:
        return
    try:
        log = kept_store(options.store, options.storage_options, read_only=False).log(written[0].broker)
        if not discard(log, files):
            _log.warning("the write was aborted, but its commit is in the log: the rows stay")
    except RmqError as error:
        _log.warning("%d row files of an aborted write were not deleted: %s", len(files), error)
        forget_store(options.store, options.storage_options)


def _topics(written: Sequence[Written]) -> dict[str, int]:
    topics: dict[str, int] = {}
    for part in written:
        for topic, queues in part.topics.items():
            topics[topic] = max(queues, topics.get(topic, 0))
    return topics


def _is_landed(log: CommitLog, options: WriteOptions, name: BatchName, content: BatchContent) -> bool:
    """Whether the batch is in the log already, or is to be left out like one that is.

    Raises:
        InvalidRequestError: its number has landed, but not its content.
    """

    def look_up(view: LogView) -> tuple[int, str | None, int]:
        batches = view.state.fold(SinkBatches)
        fingerprint = dict(batches.fingerprints.get(name.app, ())).get(name.number)
        # The old name of one query may be the present name of another one, which has fingerprints.
        old_app = name.old_app if name.old_app not in batches.fingerprints else None
        return batches.last.get(name.app, -1), fingerprint, batches.last.get(old_app or "", -1)

    last, fingerprint, last_of_old = log.look(look_up)
    last = max(last, last_of_old)
    if name.number > last:
        return False
    landed = None if fingerprint is None else BatchContent.from_text(fingerprint)
    # A batch that an older version landed has no fingerprint, and Spark repeats none but the last one.
    if content.repeats(landed) if landed is not None else name.number == last:
        _log.warning(
            "batch %d of %s is in the log already and is not written again; if it is a new one, its application's name "
            "was used before: choose another txnAppId",
            name.number,
            name.app,
        )
        return True
    error = InvalidRequestError(
        "another batch is in the log under this number, so this one was not written: the checkpoint was rewound or "
        "copied, or the application's name was used before. Go on with another name by the option txnAppId (messages "
        "that landed before may then come twice) or with a new checkpoint that starts behind them; changedBatch=skip "
        "leaves this batch out",
        app=name.app,
        batch=name.number,
        last=last,
        rows=content.rows,
        landed_rows="unknown" if landed is None else landed.rows,
    )
    if options.changed_batch == "error":
        raise error
    _log.warning("left out, as changedBatch=skip says: %s", error)
    return True


def _throw_away_repeated(log: CommitLog, parts: Sequence[Written]) -> None:
    files = [file.name for part in parts for file in part.files]
    try:
        discard(log, files)
    except RmqError as error:
        _log.warning("%d row files of a repeated batch were not deleted: %s", len(files), error)


def _ensure_topic(store: Store, options: WriteOptions, topic: str, queues: int, broker: str) -> None:
    config = store.find_topic(topic)
    if config is None:
        if not options.auto_create_topic:
            raise NotFoundError("the topic was deleted during the write, and autoCreateTopic is false", topic=topic)
        try:
            config = store.create_topic(topic, queues=max(queues, options.auto_create_queues), brokers=(broker,))
        except ExistsError:
            config = store.topic(topic)  # somebody was faster, with other queues
    there = config.writable_on(broker)
    if not there:
        raise no_queues(topic, broker, sorted(config.queues))
    if there < queues:
        raise InvalidRequestError(
            "the topic was created during the write with fewer queues than rows were put in; write again",
            topic=topic,
            queues=there,
            needed=queues,
        )


def _append(log: CommitLog, parts: Sequence[Written], app: SinkMark | None) -> AppendResult:
    if not any(part.files for part in parts) and sum(len(part.inline_rows) for part in parts) <= INLINE_BYTES_MAX:
        batch = MessageBatch(table=pa.concat_tables([from_bytes(part.inline_rows) for part in parts]))
        return _repeat(partial(log.append, batch, app=app), batch.num_rows)
    files: list[RowFile] = []
    for part in parts:
        files += part.files or [_row_file(log, from_bytes(part.inline_rows))]
    return _repeat(partial(log.append_files, files, app=app), sum(file.rows for file in files))


def _row_file(log: CommitLog, rows: pa.Table) -> RowFile:
    batch = MessageBatch(table=rows)
    nonce, block_bytes = log.clock.token(), log.settings.block_bytes
    return write_row_file(log.storage, log.root, batch, nonce=nonce, block_bytes=block_bytes)


def _repeat(append: Callable[[], AppendResult], rows: int) -> AppendResult:
    attempt = 0
    while True:
        attempt += 1
        try:
            # The same handle and the same rows: whatever became of an unclear try, they land once.
            result = append()
        except RmqError as error:
            if not error.retriable or attempt == ATTEMPTS:
                raise
            _log.warning("commit of %d rows is tried again: %s", rows, error)
        else:
            _log.info("%d rows committed; repeated: %s", rows, result.repeated)
            return result


def to_bytes(rows: pa.Table) -> bytes:
    """Rows as an Arrow stream, for `Written.inline_rows`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> pa.Table:
    """The rows that `to_bytes` has turned into `data`."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
