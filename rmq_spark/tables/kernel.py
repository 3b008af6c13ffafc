"""From messages to rows of `consumequeue` and `index`: pure functions on Arrow batches, the same for every engine.

What RocketMQ's dispatcher does with each message (rocketmq-facts 2.1 to 2.3) is done here with whole columns:

- a ConsumeQueue entry unless the message is a prepared or rolled-back transactional one; `size` is the length that the
  message has as a record of RocketMQ's CommitLog, `tagsCode` the tag's hash (in the schedule topic: the time of
  delivery, as there);
- an index entry for each of its keys and one for its id (UNIQ_KEY), unless it is a rolled-back one. `keyHash` is
  RocketMQ's: Java's hash of `topic#key` without its sign.

State messages of the engine itself (topics `rmq_sys_…`) get neither (`rules/system_topics.py`).
Messages that wait in the topics of RocketMQ's schedule, half-message and timer services do, under that topic, as in
RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.log import scan
from rmq_spark.log.message_batch import property_sizes, text_sizes
from rmq_spark.model.java_hash import java_hash, java_hashes
from rmq_spark.model.limits import PAIR_MARKS_BYTES
from rmq_spark.model.properties import DELAY_LEVEL, KEYS, TAGS, UNIQ_KEY
from rmq_spark.rules import delay, sys_flag, system_topics
from rmq_spark.tables.schemas import CONSUMEQUEUE, INDEX, TIMESTAMP

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

KEYS_KIND: Final = "KEYS"
"""`kind` of a row that stands for one of a message's keys."""
ID_KIND: Final = "UNIQ_KEY"
"""`kind` of a row that stands for a message's id."""

_PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset", "commitOffset", "storeTimestamp")
CONSUMEQUEUE_COLUMNS: Final = (*_PLACE, "msgId", "tags", "keys", "body", "sysFlag", "properties")
"""Message columns that `consumequeue_rows` looks at."""
INDEX_COLUMNS: Final = (*_PLACE, "msgId", "keys", "sysFlag")
"""Message columns that `index_rows` looks at."""
COLUMNS: Final = CONSUMEQUEUE_COLUMNS
"""Message columns that both need."""

# totalSize, magic, bodyCRC, queueId, flag: 4 each; queueOffset, physicalOffset: 8; sysFlag 4; bornTimestamp 8,
# bornHost 8; storeTimestamp 8, storeHost 8; reconsumeTimes 4; preparedTransactionOffset 8; lengths of body 4,
# topic 1, properties 2.
_RECORD_BYTES: Final = 91
_IPV6_MORE: Final = 12
_LONG_TOPIC: Final = 127
# Columns of a batch without payload: bytes of the record so far, and the delay level of messages that wait.
_PAYLOAD: Final = "payloadBytes"
_LEVEL: Final = "delayLevel"


def is_queued(sys_flags: I32) -> BOOL:
    """Which messages have a ConsumeQueue entry, so that a consumer sees them."""
    kind = sys_flags & sys_flag.TRANSACTION_MASK
    queued: BOOL = (kind == sys_flag.Transaction.NONE) | (kind == sys_flag.Transaction.COMMIT)
    return queued


def is_indexed(sys_flags: I32) -> BOOL:
    """Which messages can be found by key and id."""
    indexed: BOOL = (sys_flags & sys_flag.TRANSACTION_MASK) != sys_flag.Transaction.ROLLBACK
    return indexed


def key_hash(topic: str, key: str) -> int:
    """The index's `keyHash` of one key (or message id): 0 to 2^31 - 1."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


def read_range(
    log: CommitLog,
    start: int,
    end: int,
    *,
    topics: frozenset[str] | None = None,
    columns: tuple[str, ...] = COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the log range [start, end), of all topics or only of `topics`.

    Messages of deleted topics are among them: what a range gives must not depend on what came after it.

    Raises:
        DataExpiredError: retention deleted a part of it meanwhile.
        CorruptDataError: a file is damaged.
    """
    query = scan.Query(start=start, end=end, topics=topics, columns=columns)
    planned = log.look(lambda view: scan.plan(view, query))
    planned.bounds = {}
    return scan.run(log, planned)


def without_payload(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the lengths of bodies and properties instead of themselves: all that the kernel needs of them.

    A range's messages can be held in memory this way, and the kernel run once over all of them.
    """
    flags = _numbers(batch, "sysFlag")
    sizes = np.full(batch.num_rows, _RECORD_BYTES, np.int64)
    sizes += _IPV6_MORE * ((flags & sys_flag.BORN_IPV6 != 0).astype(np.int64) + (flags & sys_flag.STORE_IPV6 != 0))
    sizes += text_sizes(batch.column("body"))
    sizes += property_sizes(batch.column("properties"))
    arrays = {_PAYLOAD: pa.array(sizes), _LEVEL: _delay_levels(batch)}
    names = [name for name in batch.schema.names if name not in ("body", "properties")]
    return pa.RecordBatch.from_arrays([*map(batch.column, names), *arrays.values()], names=[*names, *arrays])


def consumequeue_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of `consumequeue`. Texts that repeat are dictionaries.

    `batch` has at least `CONSUMEQUEUE_COLUMNS`, or is what `without_payload` made of such a one.
    """
    if _PAYLOAD not in batch.schema.names:
        batch = without_payload(batch)
    batch, topics = _wanted(batch, is_queued(_numbers(batch, "sysFlag")))
    columns = {
        "topic": topics,
        "brokerName": batch.column("brokerName").dictionary_encode(),
        "size": pa.array(_record_sizes(batch, topics).astype(np.int32)),
        "tagsCode": pa.array(_tags_codes(batch)),
        "storeTimestamp": batch.column("storeTimestamp").cast(TIMESTAMP),
    }
    return _assemble(CONSUMEQUEUE, columns, batch)


def index_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of `index`; `batch` has at least `INDEX_COLUMNS`. Texts that repeat are dictionaries."""
    batch, topics = _wanted(batch, is_indexed(_numbers(batch, "sysFlag")))
    rows, keys = _single_keys(batch.column("keys"))
    ids = batch.column("msgId")
    some = text_sizes(ids) > 0
    if not some.all():  # a message without an id cannot be found by it
        ids = ids.filter(pa.array(some))
    texts = pa.concat_arrays([keys, ids])
    kinds = np.repeat(np.array([0, 1], np.int8), [len(keys), len(ids)])

    def spread(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A value of each message for each of its rows; copying is faster where every message has one key."""
        first = values if len(rows) == len(values) and rows_are_all else values[rows]
        return np.concatenate([first, values if some.all() else values[some]])

    rows_are_all = len(rows) == batch.num_rows and bool((np.diff(rows) == 1).all())
    topic = spread(_small(topics))
    brokers = batch.column("brokerName").dictionary_encode()
    columns = {
        "topic": pa.DictionaryArray.from_arrays(pa.array(topic), topics.dictionary),
        "key": texts,
        "keyHash": pa.array(_key_hashes(texts, topic, topics.dictionary.to_pylist())),
        "kind": pa.DictionaryArray.from_arrays(pa.array(kinds), pa.array([KEYS_KIND, ID_KIND])),
        "storeTimestamp": pa.array(spread(_store_ms(batch) * 1000)).cast(TIMESTAMP),
        "brokerName": pa.DictionaryArray.from_arrays(pa.array(spread(_small(brokers))), brokers.dictionary),
    }
    for name in ("commitOffset", "queueId", "queueOffset"):
        columns[name] = pa.array(spread(_numbers_of(batch.column(name))))
    return _assemble(INDEX, columns, batch)


def plain(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.RecordBatch | pa.Table:
    """The same rows with exactly the table's schema: no dictionaries, which Spark's workers refuse."""
    return rows.cast(schema)


# ------------------------------------------------------------ rows and topics


def _wanted(batch: pa.RecordBatch, keep: BOOL) -> tuple[pa.RecordBatch, pa.DictionaryArray]:
    """The rows that are kept and enter the tables, and their topics as a dictionary."""
    topics = batch.column("topic").dictionary_encode()
    known = np.array([system_topics.has_table_rows(topic) for topic in topics.dictionary.to_pylist()] or [True])
    if not known.all():
        keep = keep & known[_numbers_of(topics.indices)]
    if keep.all():
        return batch, topics
    mask = pa.array(keep)
    return batch.filter(mask), topics.filter(mask)


def _assemble(schema: pa.Schema, columns: dict[str, pa.Array], batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [columns[name] if name in columns else batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def _numbers(batch: pa.RecordBatch, name: str) -> I32:
    return _numbers_of(batch.column(name).fill_null(0))


def _small(texts: pa.DictionaryArray) -> npt.NDArray[Any]:
    """The indices in as few bytes as they need."""
    return _numbers_of(texts.indices).astype(np.int8 if len(texts.dictionary) <= 127 else np.int32)


def _numbers_of(array: pa.Array) -> npt.NDArray[np.int32]:
    numbers: I32 = array.to_numpy(zero_copy_only=False)
    return numbers


# ------------------------------------------------------------ ConsumeQueue


def _record_sizes(batch: pa.RecordBatch, topics: pa.DictionaryArray) -> I64:
    """Bytes of each message as a record of RocketMQ's CommitLog."""
    lengths = np.array([len(topic) + (len(topic) > _LONG_TOPIC) for topic in topics.dictionary.to_pylist()] or [0])
    sizes = _numbers_of(batch.column(_PAYLOAD)) + lengths[_numbers_of(topics.indices)]
    for name, column in ((TAGS, "tags"), (KEYS, "keys"), (UNIQ_KEY, "msgId")):
        texts = batch.column(column)
        sizes += text_sizes(texts)
        sizes += (len(name) + PAIR_MARKS_BYTES) * _is_some(texts)
    record_sizes: I64 = sizes
    return record_sizes


def _is_some(values: pa.Array) -> BOOL:
    return np.ones(len(values), np.bool_) if not values.null_count else _numbers_of(values.is_valid()).astype(np.bool_)


def _delay_levels(batch: pa.RecordBatch) -> pa.Array:
    """Delay level of the messages in the schedule topic, 1 or more; null where there is none."""
    scheduled = pc.equal(batch.column("topic"), system_topics.SCHEDULE_TOPIC)
    if not pc.any(scheduled).as_py():
        return pa.nulls(batch.num_rows, pa.int64())
    from rmq_spark.filter.properties_column import text_column  # the parsers behind it take a while to load

    texts = text_column(batch, DELAY_LEVEL).array
    # At most nine digits: a number of any kind, and nothing that overflows.
    good = pc.and_(scheduled, pc.match_substring_regex(texts, "^[0-9]{1,9}$"))
    levels = pc.if_else(good.fill_null(False), texts, None).cast(pa.int64())
    return pc.if_else(pc.greater(levels, 0), levels, None)


def _tags_codes(batch: pa.RecordBatch) -> I64:
    codes = java_hashes(batch.column("tags").dictionary_encode()).astype(np.int64)
    levels = batch.column(_LEVEL)
    if levels.null_count < len(levels):
        parked = _is_some(levels)
        codes[parked] = delay.due_after_levels(_store_ms(batch)[parked], levels.drop_null().to_numpy())
    return codes


def _store_ms(batch: pa.RecordBatch) -> I64:
    times: I64 = batch.column("storeTimestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return times


# ------------------------------------------------------------ index


def _single_keys(keys: pa.StringArray) -> tuple[I64, pa.StringArray]:
    """Every single key with the row that it is of; a key that a message names twice counts once."""
    if keys.null_count == len(keys):
        return np.empty(0, np.int64), pa.array([], pa.string())
    if not _has_space(keys):
        some = text_sizes(keys) > 0
        return np.flatnonzero(some), keys if some.all() else keys.filter(pa.array(some))
    lists = pc.split_pattern(keys, " ")
    rows, texts = pc.list_parent_indices(lists), pc.list_flatten(lists)
    some = pc.greater(pc.binary_length(texts), 0)
    pairs = pa.table({"row": rows.cast(pa.int64()), "key": texts}).filter(some)
    pairs = pairs.group_by(["row", "key"], use_threads=False).aggregate([]).combine_chunks()
    if not pairs.num_rows:
        return np.empty(0, np.int64), pa.array([], pa.string())
    return _numbers_of(pairs["row"]).astype(np.int64), pairs["key"].chunk(0)


def _has_space(texts: pa.StringArray) -> bool:
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    low, high = int(offsets[texts.offset]), int(offsets[texts.offset + len(texts)])
    return low < high and bool((np.frombuffer(texts.buffers()[2], np.uint8)[low:high] == ord(" ")).any())


def _key_hashes(texts: pa.StringArray, topic: npt.NDArray[Any], topics: list[str]) -> I32:
    """`key_hash` of each text: hash("topic#key") = hash("topic#") * 31^length(key) + hash(key)."""
    if not len(texts):
        return np.zeros(0, np.int32)
    lengths = _java_lengths(texts)
    powers = np.full(int(lengths.max()) + 1, 31, np.uint32)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint32)
    prefixes = np.array([java_hash(f"{name}#") for name in topics], np.int64).astype(np.uint32)
    hashes = (prefixes[topic] * powers[lengths] + java_hashes(texts).view(np.uint32)).view(np.int32)
    positive: I32 = np.abs(hashes)
    positive[positive < 0] = 0
    return positive


def _java_lengths(texts: pa.StringArray) -> I64:
    """Length of each text as Java counts: in units of UTF-16."""
    count = len(texts)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
    lengths: I64 = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return lengths
    data = np.frombuffer(texts.buffers()[2], np.uint8)[first:last]
    if int(data.max()) < 0x80:
        return lengths
    # A continuation byte adds none; the first byte of a four-byte character stands for a pair.
    units = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    ends = np.concatenate(([0], np.cumsum(units)))[offsets - first]
    return np.diff(ends)
