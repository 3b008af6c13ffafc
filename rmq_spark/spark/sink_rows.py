"""From the rows of a DataFrame to the rows of a file: checked, routed to queues, given ids. Knows no pyspark.

Everything works on whole columns; the only Python loops are over distinct topics and over bodies to compress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.compression import compress_column
from rmq_spark.client.hex_ids import hex_ids
from rmq_spark.clock import Clock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import has_byte, offsets_of, repeated
from rmq_spark.model import limits, properties
from rmq_spark.model.message_id import UniqueIds, own_address
from rmq_spark.rules import delay, routing, system_topics
from rmq_spark.spark import bad_rows, pairs
from rmq_spark.spark.bad_rows import Faults, is_blank, is_plain, repair_text
from rmq_spark.spark.options import WriteOptions
from rmq_spark.spark.pairs import Pairs
from rmq_spark.spark.sink_columns import Columns, numbers_of
from rmq_spark.spark.sink_plan import SinkPlan

BOOL = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]

BAD_PROPERTIES_BYTES_MAX: Final = 16_384
"""A bad row keeps its own properties if they have no more than this: the rest is for what is said about it."""

_PAIRS_BYTES: Final = 12
"""What a tag and keys need in RocketMQ's property string beside themselves: their names and the marks between."""
_RESERVED: Final = pa.array(sorted(properties.RESERVED), pa.string())
_NOT_KEPT: Final = pa.array(sorted(properties.RESERVED | bad_rows.NAMES), pa.string())
"""Of a bad row's properties; what it was bad for before is not why it is bad now."""
_SPARK_MS_MAX: Final = (1 << 63) // 1000 - 1
"""Spark counts microseconds: a later time could be stored, and no read of the topic would get past it."""
_TEXTS: Final = ("topic", "tags", "keys", "shardingKey")


@dataclass(frozen=True, slots=True)
class Targets:
    """The topics of a batch."""

    topics: list[str]
    """Distinct topics."""
    code: npt.NDArray[np.int32]
    """Which of them each row is for."""


class RowMaker:
    """Makes message rows for one task. Not for several threads.

    `used` tells which queues have got rows: topic -> highest queue id + 1.
    """

    def __init__(self, options: WriteOptions, plan: SinkPlan, clock: Clock, partition: int) -> None:
        self._options = options
        self._plan = plan
        self._clock = clock
        self._delays = delay.DelaySettings(
            levels_ms=plan.delay_levels_ms, delay_max_ms=options.timer_max_delay_ms or None
        )
        self._first_turn = plan.turn + partition
        self._turns: dict[str, int] = {}
        self._ids = UniqueIds(clock)
        self._host = own_address()
        self.used: dict[str, int] = {}

    def make(self, columns: Columns) -> pa.Table:
        """Turn columns (see `sink_columns.to_columns`) into rows of `schema.ROWS`.

        Rows of one queue keep their order. Rows that cannot be sent become rows of the topic of bad records.

        Raises:
            InvalidRequestError: a row cannot be sent and there is no topic for such rows; its values are named.
        """
        count = len(columns["body"])
        faults = Faults(count)
        columns = dict(columns)
        doubtful = [name for name in _TEXTS if name in columns and not is_plain(columns[name])]
        _check_texts(columns, doubtful, faults)
        _check_values(columns, doubtful, faults)
        now = self._clock.now_ms()
        _check_delays(columns, now, self._delays, faults)
        user_pairs = _user_pairs(columns, faults)
        targets = self._targets(columns, faults)
        queue = self._route(columns, targets, _sharding(columns, user_pairs), faults)
        stored = self._place(columns, targets, queue, user_pairs, faults, now=now)
        if faults.any and self._options.bad_records_topic is None:
            raise faults.error(columns, self._options.topic)
        self._note_queues(targets, queue, faults)
        if not faults.any:
            return self._finish(stored)
        good = self._finish(stored.filter(pa.array(faults.good())))
        return pa.concat_tables([good, self._bad(columns, user_pairs, faults)])

    # ------------------------------------------------------------ where rows go

    def _targets(self, columns: Columns, faults: Faults) -> Targets:
        """The topic of each row; marks those that may not go there."""
        count = len(columns["body"])
        default = self._options.topic
        column = columns.get("topic")
        if column is None or column.null_count == count:
            if default is None:
                faults.mark(np.ones(count, np.bool_), "it has no topic, and the option topic is not given")
            topics, code = [default or ""], np.zeros(count, np.int32)
        else:
            encoded = (column if default is None else pc.fill_null(column, default)).dictionary_encode()
            if encoded.indices.null_count:
                faults.mark(encoded.indices.is_null(), "it has no topic, and the option topic is not given")
            topics = encoded.dictionary.to_pylist()
            code = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
        for number, topic in enumerate(topics):
            if reason := self._refuses(topic):
                faults.mark(code == number, reason)
        return Targets(topics, code)

    def _refuses(self, topic: str) -> str | None:
        """Why no row may go to `topic`; None when rows may."""
        if topic == "":
            return "its topic is empty"
        try:
            system_topics.check_sink(topic)
        except InvalidRequestError as error:
            return str(error.args[0])
        if topic not in self._plan.queues:
            return None if self._options.auto_create_topic else "there is no such topic, and autoCreateTopic is false"
        if self._plan.queues[topic] == 0:
            return f"its topic has no queues on {self._plan.broker}; name another broker by the option brokerName"
        return None

    def _queues(self, topic: str) -> int:
        return self._plan.queues.get(topic, self._options.auto_create_queues) or 1

    def _route(self, columns: Columns, targets: Targets, sharding: pa.Array | None, faults: Faults) -> I64:
        """The queue of each row: the one it asks for, by its sharding key's hash, or dealt out."""
        code = targets.code
        queues = np.array([self._queues(topic) for topic in targets.topics], np.int64)
        if len(queues) == 1 and sharding is None and "queueId" not in columns and not faults.any:
            return self._slices(targets.topics[0], int(queues[0]), len(code))
        queue = np.zeros(len(code), np.int64)
        free = np.ones(len(code), np.bool_)
        if sharding is not None and sharding.null_count < len(code):
            keyed = sharding.is_valid().to_numpy(zero_copy_only=False)
            queue = np.where(keyed, routing.queues_for_keys(sharding, queues[code]), 0)
            free &= ~keyed
        if (asked := columns.get("queueId")) is not None and asked.null_count < len(code):
            named = asked.is_valid().to_numpy(zero_copy_only=False)
            number = pc.fill_null(asked, 0).to_numpy(zero_copy_only=False)
            beyond = named & ((number < 0) | (number >= queues[code]))
            faults.mark(beyond, "its topic has no such queue")
            queue = np.where(named & ~beyond, number, queue)
            free &= ~named
        free &= faults.good()
        if free.any():
            self._deal(targets, queues, free, queue)
        return queue

    def _deal(self, targets: Targets, queues: I64, free: BOOL, queue: I64) -> None:
        """Deal rows out evenly, going on where the last ones ended; sets `queue` where `free`."""
        topics = targets.topics
        rows = np.flatnonzero(free)
        if len(topics) == 1:
            queue[rows] = self._slices(topics[0], int(queues[0]), len(rows))
            return
        starts = np.array([self._turns.get(topic, self._first_turn) for topic in topics], np.int64)
        queue[rows], turns = routing.deal_out(targets.code[rows], queues, starts)
        self._turns.update(zip(topics, turns.tolist(), strict=True))

    def _slices(self, topic: str, queues: int, count: int) -> I64:
        start = self._turns.get(topic, self._first_turn)
        self._turns[topic] = start + count
        return routing.even_slices(count, queues, start)

    def _note_queues(self, targets: Targets, queue: I64, faults: Faults) -> None:
        highest = np.full(len(targets.topics), -1, np.int64)
        if len(targets.topics) == 1 and not faults.any:
            highest[0] = queue.max(initial=-1)
        else:
            good = faults.good()
            np.maximum.at(highest, targets.code[good], queue[good])
        for topic, high in zip(targets.topics, highest.tolist(), strict=True):
            if high >= 0:
                self.used[topic] = max(self.used.get(topic, 0), high + 1)

    # ------------------------------------------------------------ what is stored

    def _place(
        self, columns: Columns, targets: Targets, queue: I64, user_pairs: Pairs | None, faults: Faults, *, now: int
    ) -> pa.Table:
        """The rows as they are stored: those with a delay are parked in a topic of the engine."""
        count = len(queue)
        if len(targets.topics) == 1:
            topic = repeated(targets.topics[0], count)
        else:
            topic = pa.DictionaryArray.from_arrays(pa.array(targets.code), pa.array(targets.topics)).cast(pa.string())
        parts = [] if user_pairs is None else [user_pairs]
        if "shardingKey" in columns:
            parts.append(pairs.constant(properties.SHARDING_KEY, columns["shardingKey"]))
        level = numbers_of(columns, "delayTimeLevel")
        timed = numbers_of(columns, "deliverTimestamp") is not None
        if level is not None or timed:
            deliver = columns["deliverTimestamp"] if timed else None
            parked = delay.park_columns(topic, queue, level=level, deliver=deliver, now_ms=now, settings=self._delays)
            topic, queue = parked.topic, parked.queue
            parts += [pairs.constant(added.name, added.values, added.rows) for added in parked.added]
        stored = pairs.join(parts)
        _check_size(columns, stored, count, faults)
        return self._table(columns, topic, queue, pairs.to_maps(stored, count), now)

    def _table(self, columns: Columns, topic: pa.Array, queue: I64, props: pa.MapArray, now: int) -> pa.Table:
        count = len(topic)
        zeros = pa.array(np.zeros(count, np.int32))
        none = pa.nulls(count, pa.string())
        flag = numbers_of(columns, "flag")
        born = columns.get("bornTimestamp")
        prefix, first = self._ids.reserve(count)
        arrays = {
            "topic": topic,
            "queueId": pa.array(queue.astype(np.int32)),
            "msgId": hex_ids(prefix, first, count),
            "tags": columns.get("tags", none),
            "keys": columns.get("keys", none),
            "body": columns["body"],
            "flag": zeros if flag is None else pa.array(flag.astype(np.int32)),
            "sysFlag": zeros,
            "bornTimestamp": (
                pa.repeat(pa.scalar(now, pa.int64()), count) if born is None else pc.fill_null(born, now)
            ).cast(schema.TIMESTAMP),
            "bornHost": repeated(self._host, count),
            "reconsumeTimes": zeros,
            "properties": props,
        }
        return pa.Table.from_arrays([arrays[name] for name in schema.ROWS.names], schema=schema.ROWS)

    def _finish(self, rows: pa.Table) -> pa.Table:
        over = self._options.compress_over_bytes
        if over is None or rows.num_rows == 0:
            return rows
        at, flag_at = schema.ROWS.get_field_index("body"), schema.ROWS.get_field_index("sysFlag")
        bodies = rows.column(at).combine_chunks()
        if isinstance(bodies, pa.ChunkedArray):
            bodies = pa.concat_arrays(bodies.chunks)
        made, flags = compress_column(bodies, over)
        rows = rows.set_column(at, schema.ROWS.field(at), made)
        return rows.set_column(flag_at, schema.ROWS.field(flag_at), pa.array(flags))

    # ------------------------------------------------------------ bad rows

    def _bad(self, columns: Columns, user_pairs: Pairs | None, faults: Faults) -> pa.Table:
        """Bad rows as rows of the topic for them: the body is kept, properties say what was wrong."""
        target = self._options.bad_records_topic
        assert target is not None  # noqa: S101 - `make` has raised otherwise
        rows = faults.bad_rows()
        indices = pa.array(rows)
        count = len(rows)
        bad = {name: column.take(indices) for name, column in columns.items() if name != "properties"}
        queue = np.zeros(count, np.int64)
        queues = np.array([self._queues(target)], np.int64)
        self._deal(Targets([target], np.zeros(count, np.int32)), queues, np.ones(count, np.bool_), queue)
        self.used[target] = max(self.used.get(target, 0), int(queue.max()) + 1)
        parts = [_kept_pairs(user_pairs, rows, len(columns["body"]))] if user_pairs is not None else []
        parts.append(pairs.constant(bad_rows.BAD_REASON, faults.reasons()))
        for property_name, column in (
            (bad_rows.BAD_TOPIC, "topic"),
            (bad_rows.BAD_TAGS, "tags"),
            (bad_rows.BAD_KEYS, "keys"),
        ):
            texts = bad.get(column, pa.nulls(count, pa.string()))
            if column == "topic" and self._options.topic is not None:
                texts = pc.fill_null(texts, self._options.topic)
            parts.append(pairs.constant(property_name, bad_rows.shown_text(texts)))
        if "queueId" in bad:
            parts.append(pairs.constant(bad_rows.BAD_QUEUE_ID, bad["queueId"].cast(pa.string())))
        body = pc.fill_null(bad["body"], b"")
        if (pc.binary_length(body).to_numpy(zero_copy_only=False) > limits.BODY_BYTES_MAX).any():
            body = pc.binary_slice(body, 0, limits.BODY_BYTES_MAX)
        kept = {"body": body}
        if "bornTimestamp" in bad:
            kept["bornTimestamp"] = pc.if_else(_is_no_time(bad["bornTimestamp"]), None, bad["bornTimestamp"])
        topic = repeated(target, count)
        return self._table(kept, topic, queue, pairs.to_maps(pairs.join(parts), count), self._clock.now_ms())


def _check_texts(columns: Columns, doubtful: Sequence[str], faults: Faults) -> None:
    """Mark what is not UTF-8, and make it so: it could not even be shown otherwise."""
    for name in doubtful:
        if (repaired := repair_text(columns[name])) is not None:
            columns[name], changed = repaired
            faults.mark(changed, f"its {name} is not valid UTF-8")


def _is_no_time(milliseconds: pa.Array) -> pa.Array:
    return pc.or_(pc.greater(milliseconds, _SPARK_MS_MAX), pc.less(milliseconds, -_SPARK_MS_MAX))


def _check_values(columns: Columns, doubtful: Sequence[str], faults: Faults) -> None:
    body = columns["body"]
    if body.null_count:
        faults.mark(body.is_null(), "its body is null")
    if body.nbytes > limits.BODY_BYTES_MAX:
        faults.mark(pc.greater(pc.binary_length(body), limits.BODY_BYTES_MAX), f"its {limits.BODY_TOO_LARGE}")
    if (tags := columns.get("tags")) is not None:
        if "tags" in doubtful:
            faults.mark(is_blank(tags), f"its {limits.TAG_BLANK}")
        if has_byte(tags, "|"):
            faults.mark(pc.match_substring(tags, "|"), f"its {limits.TAG_HAS_BAR}")
    for name in ("keys", "shardingKey"):
        if name in doubtful:
            faults.mark(is_blank(columns[name]), f"its {name} is blank; leave it null")
    if (flag := numbers_of(columns, "flag")) is not None:
        faults.mark(flag != flag.astype(np.int32), f"its {limits.FLAG_TOO_LARGE}")
    if (born := columns.get("bornTimestamp")) is not None:
        faults.mark(_is_no_time(born), "its bornTimestamp is no time in milliseconds")


def _check_delays(columns: Columns, now: int, settings: delay.DelaySettings, faults: Faults) -> None:
    """Mark rows that cannot be parked. A level that RocketMQ would cut to its highest is a mistake in a column."""
    level = numbers_of(columns, "delayTimeLevel")
    if level is not None:
        highest = len(settings.levels_ms)
        faults.mark(delay.no_such_level(level, settings), f"its delayTimeLevel is not 0 (no delay) to {highest}")
    deliver = numbers_of(columns, "deliverTimestamp")
    if deliver is not None:
        faults.mark(delay.too_far_ahead(level, deliver, now, settings), "its delivery is too far ahead")


def _user_pairs(columns: Columns, faults: Faults) -> Pairs | None:
    """The properties that rows bring along; a sharding key of their own column replaces one among them."""
    maps = columns.get("properties")
    if maps is None or maps.null_count == len(maps):
        return None
    user_pairs = pairs.of_maps(maps)
    if not len(user_pairs.rows):
        return None
    count = len(maps)
    for what in ("names", "values"):
        if (repaired := repair_text(getattr(user_pairs, what))) is not None:
            faults.mark(_rows_with(user_pairs, repaired[1], count), f"its property {what} are not valid UTF-8")
            user_pairs = Pairs(
                user_pairs.rows,
                *((repaired[0], user_pairs.values) if what == "names" else (user_pairs.names, repaired[0])),
            )
    encoded = user_pairs.names.dictionary_encode()
    distinct = encoded.dictionary
    which = encoded.indices.to_numpy(zero_copy_only=False)

    def having(mask: pa.Array) -> BOOL:
        hits: BOOL = mask.to_numpy(zero_copy_only=False)[which] if pc.any(mask).as_py() else np.zeros(0, np.bool_)
        return hits

    faults.mark(_rows_with(user_pairs, having(is_blank(distinct)), count), f"a {limits.PROPERTY_NAME_BLANK}")
    reserved = pc.is_in(distinct, _RESERVED)
    if pc.any(reserved).as_py():
        shown = ", ".join(sorted(distinct.filter(reserved).to_pylist())[:5])
        faults.mark(_rows_with(user_pairs, having(reserved), count), f"a {limits.PROPERTY_NAME_RESERVED} ({shown})")
    blank = is_blank(user_pairs.values).to_numpy(zero_copy_only=False)
    faults.mark(_rows_with(user_pairs, blank, count), f"a {limits.PROPERTY_VALUE_BLANK}")
    keyed = having(pc.equal(distinct, properties.SHARDING_KEY))
    if keyed.any() and "shardingKey" in columns:
        replaced = columns["shardingKey"].is_valid().to_numpy(zero_copy_only=False)[user_pairs.rows]
        user_pairs = user_pairs.filter(~(keyed & replaced))
    return user_pairs


def _rows_with(user_pairs: Pairs, hits: BOOL, count: int) -> BOOL:
    """Rows that have a pair where `hits` is true."""
    mask = np.zeros(count, np.bool_)
    if hits.any():
        mask[user_pairs.rows[hits]] = True
    return mask


def _sharding(columns: Columns, user_pairs: Pairs | None) -> pa.Array | None:
    """What routes rows: the column shardingKey, else the property that it is stored as (copies of messages have it)."""
    column = columns.get("shardingKey")
    if user_pairs is None:
        return column
    keyed = pc.equal(user_pairs.names, properties.SHARDING_KEY)
    if not pc.any(keyed).as_py():
        return column
    count = len(columns["body"])
    at = np.full(count, -1, np.int64)
    hits = np.flatnonzero(keyed.to_numpy(zero_copy_only=False))
    at[user_pairs.rows[hits]] = hits
    stored = user_pairs.values.take(pa.array(at, mask=at < 0))
    return stored if column is None else pc.coalesce(column, stored)


def _check_size(columns: Columns, stored: Pairs, count: int, faults: Faults) -> None:
    """Mark rows whose properties, tag and keys do not fit RocketMQ's property string together."""
    texts = [columns[name] for name in ("tags", "keys") if name in columns]
    total = stored.names.nbytes + stored.values.nbytes + sum(text.nbytes for text in texts)
    if total + _PAIRS_BYTES <= limits.PROPERTIES_BYTES_MAX:
        return
    if not len(stored.rows) and _PAIRS_BYTES + sum(_longest(text) for text in texts) <= limits.PROPERTIES_BYTES_MAX:
        return
    sizes: Any = stored.sizes(count) + _PAIRS_BYTES
    for text in texts:
        sizes = sizes + pc.fill_null(pc.binary_length(text), 0).to_numpy(zero_copy_only=False)
    faults.mark(sizes > limits.PROPERTIES_BYTES_MAX, f"its {limits.PROPERTIES_TOO_LARGE}")


def _longest(texts: pa.Array) -> int:
    offsets = offsets_of(texts)
    return int((offsets[1:] - offsets[:-1]).max(initial=0))


def _kept_pairs(user_pairs: Pairs, rows: I64, count: int) -> Pairs:
    """The properties that bad rows keep, renumbered: those that are legal, unless they are too many."""
    bad = np.full(count, -1, np.int64)
    bad[rows] = np.arange(len(rows))
    legal = pc.and_not(
        pc.and_not(pc.invert(is_blank(user_pairs.names)), is_blank(user_pairs.values)),
        pc.is_in(user_pairs.names, _NOT_KEPT),
    ).to_numpy(zero_copy_only=False)
    small = (user_pairs.sizes(count) <= BAD_PROPERTIES_BYTES_MAX)[user_pairs.rows]
    kept = user_pairs.filter((bad[user_pairs.rows] >= 0) & legal & small)
    return Pairs(bad[kept.rows], kept.names, kept.values)
