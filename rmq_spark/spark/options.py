"""From Spark's option strings to two checked, picklable objects; made once, on the driver.

Nothing here imports pyspark or touches a store: what can be known to be wrong from the options alone fails here,
naming the option, and the rest is the planner's and the writer's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rmq_spark import filter as filters
from rmq_spark.client.store import AUTO_CREATE_QUEUES
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import names
from rmq_spark.rules import system_topics
from rmq_spark.spark import option_values as values
from rmq_spark.spark.bounds import (
    EARLIEST,
    LATEST,
    Bound,
    ByOffsets,
    ByTimestamp,
    Earliest,
    Group,
    Latest,
    TimestampsByQueue,
)
from rmq_spark.spark.option_table import Use, select

MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
"""How long `minOffsetsPerTrigger` holds messages back unless told, as Kafka's source."""

_CHOICES: Final = ("topic", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read; checked as far as that goes without the store."""

    store: str
    """URI of the store."""
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    """Settings of the storage backend; not shown, as they may hold secrets."""
    topics: tuple[str, ...] | None = None
    """Topics by name. Exactly one of `topics`, `pattern` and `assign` is set."""
    pattern: str | None = None
    """Regular expression that the whole name of a topic must match."""
    assign: dict[tuple[str, str | None], tuple[int, ...]] | None = None
    """(topic, broker or None for every broker) -> queue ids, ascending."""
    tags: str | None = None
    """Tag expression; None when every message matches."""
    sql: str | None = None
    """SQL92 expression over properties."""
    keys: tuple[str, ...] = ()
    """Only messages with one of these keys; all when empty."""
    msg_id: str | None = None
    """Only the message with this id."""
    starting: Bound
    """Where a new query starts."""
    ending: Bound
    """Where a batch ends (exclusive); `Latest` for streams."""
    by_timestamp_strategy: str = "error"
    """`error` or `latest`: what to do when a queue has no message at the starting time or later."""
    fail_on_data_loss: bool = True
    """Whether messages that retention took before they were read end the read."""
    max_offsets_per_trigger: int | None = None
    """Most messages of a micro-batch."""
    max_bytes_per_trigger: int | None = None
    """Most bytes of a micro-batch."""
    min_offsets_per_trigger: int | None = None
    """Messages to wait for before a micro-batch."""
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    """Longest wait for `min_offsets_per_trigger`."""
    min_partitions: int | None = None
    """Tasks to aim at by splitting queues."""
    max_records_per_partition: int | None = None
    """Most messages of a task."""
    consumer_group: str | None = None
    """Group whose progress is recorded and may be the start."""
    include_retry: bool = False
    """Whether the group's retry topic is read as well."""
    decompress: bool = True
    """Whether bodies are given as they were before compression."""

    @property
    def retry_topic(self) -> str | None:
        """The group's retry topic if it is to be read, else None."""
        return system_topics.retry_topic(self.consumer_group) if self.include_retry and self.consumer_group else None

    @property
    def has_filter(self) -> bool:
        """Whether not every message of the queues is wanted, so that most columns are read of some messages only."""
        return self.tags is not None or self.sql is not None or bool(self.keys) or self.msg_id is not None

    def selects(self, topic: str) -> bool:
        """Whether messages of `topic` are asked for, in some of its queues at least."""
        if topic == self.retry_topic:
            return True
        if self.topics is not None:
            return topic in self.topics
        if self.assign is not None:
            return any(topic == assigned for assigned, _ in self.assign)
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None

    def selects_queue(self, topic: str, broker: str | None, queue: int) -> bool:
        """Whether messages of this queue are asked for; without a broker: of the queue of that number on any."""
        if self.assign is None or topic == self.retry_topic:
            return self.selects(topic)
        if broker is None:
            return any(queue in queues for (assigned, _), queues in self.assign.items() if assigned == topic)
        return any(queue in self.assign.get((topic, at), ()) for at in (broker, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to write; checked as far as that goes without the store."""

    store: str
    """URI of the store."""
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    """Settings of the storage backend; not shown, as they may hold secrets."""
    topic: str | None = None
    """Where rows without a topic go."""
    broker_name: str | None = None
    """The broker that takes all rows; None: the first of `topic`, or the default one."""
    auto_create_topic: bool = True
    """Whether the commit creates topics that do not exist."""
    auto_create_queues: int = AUTO_CREATE_QUEUES
    """Queues of a topic that is created."""
    bad_records_topic: str | None = None
    """Where rows go that cannot be sent; None: they fail the write."""
    txn_app_id: str | None = None
    """Name of the writing application; None: the query's id, for a batch a new one."""
    txn_version: int | None = None
    """Number of a batch write of `txn_app_id`; None for streams."""
    changed_batch: str = "error"
    """`error` or `skip`: what to do with a batch whose number has landed with other rows."""
    checkpoint: str | None = None
    """Where a stream's checkpoint is; None when Spark was told by its configuration, and for batches."""
    compress_over_bytes: int | None = None
    """Compress bodies of at least so many bytes; None never does."""
    timer_max_delay_ms: int = 0
    """How far ahead a delivery time may be; 0: as far as one likes."""


def parse_read(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check the options of a read.

    Raises:
        InvalidRequestError: an option is unknown, missing, of no use here, or has a bad value; it is named.
    """
    _refuse_none(options)
    source_options, storage = select(options, Use.STREAM_READ if streaming else Use.BATCH_READ)
    group = values.checked(source_options, "consumerGroup", names.check_group)
    retry = values.boolean(source_options, "includeRetry", False)
    if retry and group is None:
        raise InvalidRequestError("includeRetry needs the group whose retry topic is meant; give consumerGroup")
    starting = _starting(source_options, streaming)
    ending = _bound(source_options, "ending", Latest())
    for name, bound in (("startingOffsets", starting), ("endingOffsets", ending)):
        if isinstance(bound, Group) and group is None:
            raise InvalidRequestError(f"{name}=group needs the group; give consumerGroup")
    least = values.number(source_options, "minOffsetsPerTrigger")
    most = values.number(source_options, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidRequestError(
            "minOffsetsPerTrigger is over maxOffsetsPerTrigger", minOffsetsPerTrigger=least, maxOffsetsPerTrigger=most
        )
    topics, pattern, assign = _selection(source_options)
    read = ReadOptions(
        store=_store(source_options),
        storage_options=_storage(source_options, storage),
        topics=topics,
        pattern=pattern,
        assign=assign,
        tags=_expression(source_options, "subExpression"),
        sql=_expression(source_options, "filter"),
        keys=values.words(source_options, "keys"),
        msg_id=values.text(source_options, "msgId"),
        starting=starting,
        ending=ending,
        by_timestamp_strategy=values.choice(source_options, "startingOffsetsByTimestampStrategy", ("error", "latest")),
        fail_on_data_loss=values.boolean(source_options, "failOnDataLoss", True),
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=values.size(source_options, "maxBytesPerTrigger"),
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=values.duration_ms(source_options, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        min_partitions=values.number(source_options, "minPartitions"),
        max_records_per_partition=values.number(source_options, "maxRecordsPerPartition"),
        consumer_group=group,
        include_retry=retry,
        decompress=values.boolean(source_options, "decompress", True),
    )
    _check_named_queues(read)
    return read


def parse_write(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Check the options of a write.

    Raises:
        InvalidRequestError: an option is unknown, missing, of no use here, or has a bad value; it is named.
    """
    sink_options, storage = select(options, Use.STREAM_WRITE if streaming else Use.BATCH_WRITE)
    app_id = values.text(sink_options, "txnAppId")
    version = values.number(sink_options, "txnVersion", least=0)
    if not streaming and (app_id is None) != (version is None):
        raise InvalidRequestError(
            "txnAppId and txnVersion name a batch write together; give both or none",
            txnAppId=app_id,
            txnVersion=version,
        )
    queues = values.number(sink_options, "autoCreateQueues")
    return WriteOptions(
        store=_store(sink_options),
        storage_options=_storage(sink_options, storage),
        topic=values.checked(sink_options, "topic", system_topics.check_sink),
        broker_name=values.checked(sink_options, "brokerName", names.check_broker),
        auto_create_topic=values.boolean(sink_options, "autoCreateTopic", True),
        auto_create_queues=AUTO_CREATE_QUEUES if queues is None else names.check_queues(queues),
        bad_records_topic=values.checked(sink_options, "badRecordsTopic", system_topics.check_sink),
        txn_app_id=app_id,
        txn_version=version,
        changed_batch=values.choice(sink_options, "changedBatch", ("error", "skip")),
        checkpoint=_checkpoint(options) if streaming else None,
        compress_over_bytes=values.size(sink_options, "compressOverBytes"),
        timer_max_delay_ms=values.duration_ms(sink_options, "timerMaxDelay", 0),
    )


def _checkpoint(options: Mapping[str, str]) -> str | None:
    """Spark's own option, which it hands over to the sink as well."""
    return next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)


def _refuse_none(options: Mapping[str, str]) -> None:
    """Without any option the cause is most likely a table of the catalog, whose options Spark does not pass on."""
    if not options:
        raise InvalidRequestError(
            "no store and no topic are named. Spark passes no option of CREATE TABLE on to a Python source: give them "
            "with the query, as in SELECT * FROM t WITH (store = '...', topic = '...'), or use CREATE TEMPORARY VIEW "
            "... USING rocketmq OPTIONS (...)"
        )


def _store(options: Mapping[str, str]) -> str:
    store = values.text(options, "store")
    if store is None:
        raise InvalidRequestError("no store is named; give the option store (or path)")
    return store


def _storage(options: Mapping[str, str], prefixed: dict[str, str]) -> dict[str, str]:
    """Both forms of storage options together; the same setting in both is an error unless it is equal."""
    merged = dict(prefixed)
    for name, value in values.json_object(options, "storageOptions").items():
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, str | int | float):
            text = str(value)
        else:
            raise InvalidRequestError("storageOptions is an object of texts and numbers", setting=name)
        if merged.setdefault(name, text) != text:
            raise InvalidRequestError("a storage setting is given twice with different values", setting=name)
    return merged


def _selection(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...] | None, str | None, dict[tuple[str, str | None], tuple[int, ...]] | None]:
    chosen = [name for name in _CHOICES if name in options]
    if len(chosen) != 1:
        what = f"{' and '.join(chosen)} exclude each other" if chosen else "no topic is named"
        raise InvalidRequestError(f"{what}; give exactly one of topic (or subscribe), subscribePattern, assign")
    if "topic" in options:
        listed = [name.strip() for name in options["topic"].split(",")]
        for name in listed:
            values.named("topic", name, names.check_topic)
        return tuple(dict.fromkeys(listed)), None, None
    if "subscribePattern" in options:
        pattern = options["subscribePattern"]
        if not pattern.strip():
            raise InvalidRequestError("subscribePattern is blank; `.*` reads every topic", value=pattern)
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidRequestError(
                "subscribePattern is not a regular expression", value=pattern, reason=str(error)
            ) from error
        return None, pattern, None
    return None, None, values.assigned_queues(options, "assign")


def _expression(options: Mapping[str, str], name: str) -> str | None:
    """The expression if it compiles; None when it lets everything through."""
    if name not in options:
        return None
    try:
        if name == "filter":
            filters.compile_sql(options[name])
        elif filters.compile_tags(options[name]).tags is None:
            return None
    except filters.FilterSyntaxError as error:
        near = error.context.get("near", "")
        raise filters.FilterSyntaxError(
            f"option {name}: {error.args[0]}", position=error.position, expected=error.expected, near=near
        ) from error
    return options[name]


def _starting(options: Mapping[str, str], streaming: bool) -> Bound:
    bound = _bound(options, "starting", Latest() if streaming else Earliest())
    plain = bound.otherwise if isinstance(bound, Group) else bound
    at_end = isinstance(plain, Latest) or (isinstance(plain, ByOffsets) and LATEST in plain.offsets.values())
    if at_end and not streaming:
        raise InvalidRequestError("a batch cannot start at latest; its end is there", option="startingOffsets")
    return bound


def _bound(options: Mapping[str, str], end: str, default: Bound) -> Bound:
    """One end of the read: a time beats times per queue, those beat offsets. Every option that is set is checked."""
    by_name = f"{end}Offsets"
    offsets = default
    if by_name in options:
        word = options[by_name].strip().lower()
        words: dict[str, Bound] = {"earliest": Earliest(), "latest": Latest(), "group": Group()}
        if end == "starting":
            words |= {"group,earliest": Group(Earliest()), "group,latest": Group(Latest())}
        word = ",".join(part.strip() for part in word.split(","))
        offsets = words[word] if word in words else ByOffsets(values.queue_offsets(options, by_name))
    at_start = isinstance(offsets, Earliest) or (
        isinstance(offsets, ByOffsets) and EARLIEST in offsets.offsets.values()
    )
    if end == "ending" and at_start:
        raise InvalidRequestError("a batch cannot end at earliest; its start is there", option=by_name)
    times = values.queue_times(options, f"{by_name}ByTimestamp")
    moment = values.time_ms(options, f"{end}Timestamp")
    if moment is not None:
        return ByTimestamp(moment)
    return offsets if times is None else TimestampsByQueue(times)


def _check_named_queues(read: ReadOptions) -> None:
    """Offsets and times for a queue that is not read are a mistake, most likely in a name."""
    for end, bound in (("starting", read.starting), ("ending", read.ending)):
        if isinstance(bound, ByOffsets):
            named, option = bound.offsets.keys(), f"{end}Offsets"
        elif isinstance(bound, TimestampsByQueue):
            named, option = bound.times.keys(), f"{end}OffsetsByTimestamp"
        else:
            continue
        for topic, broker, queue in sorted(named, key=str):
            if not read.selects_queue(topic, broker, queue):
                raise InvalidRequestError(
                    f"{option} names a queue that is not read", topic=topic, brokerName=broker, queueId=queue
                )
