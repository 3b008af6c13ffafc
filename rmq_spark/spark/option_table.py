"""Every option of `format("rocketmq")`: one table, from which look-up, errors and docs/options.md are made.

Spark hands option names over in lower case, so names are compared without regard to case. What a value means is
decided in `options.py`; this file only knows names, and where each of them may be used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rmq_spark.errors import InvalidRequestError


class Use(StrEnum):
    """What a DataFrame reader or writer is used for; the value is how errors name it."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a stream read"
    BATCH_WRITE = "a batch write"
    STREAM_WRITE = "a stream write"


READ: Final = frozenset({Use.BATCH_READ, Use.STREAM_READ})
WRITE: Final = frozenset({Use.BATCH_WRITE, Use.STREAM_WRITE})
BATCH_READ: Final = frozenset({Use.BATCH_READ})
STREAM_READ: Final = frozenset({Use.STREAM_READ})
BATCH_WRITE: Final = frozenset({Use.BATCH_WRITE})
EVERYWHERE: Final = READ | WRITE

STORAGE_PREFIX: Final = "storage."
"""Options with this prefix go to the storage backend, without it."""
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark itself reads and hands over to a stream's sink as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option as users see it."""

    name: str
    """As it is written in the docs."""
    uses: frozenset[Use]
    """Where it may be given."""
    kind: str
    """What its value is: text, number, boolean, size, duration, time, JSON."""
    default: str
    """The value when it is not given, or what happens then."""
    meaning: str
    """One line, for the docs."""
    example: str
    """A value that is accepted."""
    aliases: tuple[str, ...] = ()
    """Other names of the same option."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, the documented one first."""
        return (self.name, *self.aliases)


STORE: Final = (
    Option(
        name="store",
        aliases=("path",),
        uses=EVERYWHERE,
        kind="URI",
        default="required",
        meaning="Where the store is; `load(path)`, `save(path)` and `start(path)` name it too",
        example="/var/lib/rmq",
    ),
    Option(
        name="storage.*",
        uses=EVERYWHERE,
        kind="text",
        default="none",
        meaning="Settings of the storage backend, each under its own name (in lower case)",
        example="storage.region = eu-central-1",
    ),
    Option(
        name="storageOptions",
        uses=EVERYWHERE,
        kind="JSON",
        default="none",
        meaning="The same as one object, for backend settings whose names have capitals",
        example='{"dfs.client.use.datanode.hostname": "true"}',
    ),
)

MESSAGES: Final = (
    Option(
        name="topic",
        aliases=("subscribe",),
        uses=READ,
        kind="text",
        default="one of topic, subscribePattern, assign",
        meaning="Topics to read, separated by commas",
        example="orders,payments",
    ),
    Option(
        name="subscribePattern",
        uses=READ,
        kind="regex",
        default="one of topic, subscribePattern, assign",
        meaning="Topics whose whole name matches; topics created later are read when they appear",
        example="orders_.*",
    ),
    Option(
        name="assign",
        uses=READ,
        kind="JSON",
        default="one of topic, subscribePattern, assign",
        meaning="Queues to read: per topic their numbers (on every broker), or per topic and broker",
        example='{"orders": [0, 1], "payments": {"broker-0": [3]}}',
    ),
    Option(
        name="subExpression",
        uses=READ,
        kind="text",
        default="*",
        meaning="Tags to read, separated by two bars; files and runs without them are not read at all",
        example="created || paid",
    ),
    Option(
        name="filter",
        uses=READ,
        kind="SQL92",
        default="none",
        meaning="RocketMQ's SQL92 over message properties",
        example="region = 'EU' AND amount > 10",
    ),
    Option(
        name="keys",
        uses=READ,
        kind="text",
        default="none",
        meaning="Only messages with one of these keys; separated by spaces or commas",
        example="order-17 order-18",
    ),
    Option(
        name="msgId",
        uses=READ,
        kind="text",
        default="none",
        meaning="Only the message with this id",
        example="7F0000010A3C4B1D2E00000000000001",
    ),
    Option(
        name="decompress",
        uses=READ,
        kind="boolean",
        default="true",
        meaning="Give bodies as they were before compression; `false` gives the stored bytes, `sysFlag` tells",
        example="false",
    ),
)

RANGE: Final = (
    Option(
        name="startingOffsets",
        uses=READ,
        kind="word or JSON",
        default="latest for streams, earliest for batches",
        meaning="`earliest`, `latest` (streams only), `group`, or offsets per topic, broker and queue; "
        "-2 is earliest, -1 latest. Queues not named start at earliest. `group` needs a group that has committed "
        "offsets of these topics; a new one starts by `group,earliest` or `group,latest`. Only for a query without "
        "checkpoint",
        example='{"orders": {"broker-0": {"0": 12, "1": -2}}}',
    ),
    Option(
        name="startingTimestamp",
        uses=READ,
        kind="time",
        default="none",
        meaning="Start at the first message stored at this time or later; beats the two other starts",
        example="2026-01-31T12:00:00Z",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        uses=READ,
        kind="JSON",
        default="none",
        meaning="Times per topic (broker) and queue; beats `startingOffsets`",
        example='{"orders": {"0": 1767225600000, "1": "2026-01-01T00:00:00Z"}}',
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        uses=READ,
        kind="error or latest",
        default="error",
        meaning="What happens when a queue has no message at its time or later, or when a stream's time has not come "
        "yet: stop, or start at the end",
        example="latest",
    ),
    Option(
        name="endingOffsets",
        uses=BATCH_READ,
        kind="word or JSON",
        default="latest",
        meaning="`latest`, `group`, or offsets as for `startingOffsets`; the end is not included, -2 is not allowed. "
        "Queues not named end at latest",
        example='{"orders": {"0": 50, "1": -1}}',
    ),
    Option(
        name="endingTimestamp",
        uses=BATCH_READ,
        kind="time",
        default="none",
        meaning="End before the first message stored at this time or later; beats the two other ends",
        example="1769860800000",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        uses=BATCH_READ,
        kind="JSON",
        default="none",
        meaning="Times per topic (broker) and queue; beats `endingOffsets`",
        example='{"orders": {"broker-0": {"0": 1769860800000}}}',
    ),
    Option(
        name="failOnDataLoss",
        uses=READ,
        kind="boolean",
        default="true",
        meaning="Stop when retention has deleted what would be read; `false` warns and goes on",
        example="false",
    ),
)

PACE: Final = (
    Option(
        name="maxOffsetsPerTrigger",
        aliases=("maxMessagesPerTrigger",),
        uses=STREAM_READ,
        kind="number",
        default="none",
        meaning="Most messages of a micro-batch",
        example="1000000",
    ),
    Option(
        name="maxBytesPerTrigger",
        uses=STREAM_READ,
        kind="size",
        default="none",
        meaning="Most bytes of a micro-batch; a single message that is larger is still read",
        example="256m",
    ),
    Option(
        name="minOffsetsPerTrigger",
        uses=STREAM_READ,
        kind="number",
        default="none",
        meaning="Wait until so many messages are there, but not longer than `maxTriggerDelay`",
        example="10000",
    ),
    Option(
        name="maxTriggerDelay",
        uses=STREAM_READ,
        kind="duration",
        default="15m",
        meaning="How long `minOffsetsPerTrigger` may hold messages back",
        example="30s",
    ),
    Option(
        name="minPartitions",
        uses=READ,
        kind="number",
        default="none",
        meaning="Split queues until there are so many tasks; without it a queue is read by one task, in order",
        example="16",
    ),
    Option(
        name="maxRecordsPerPartition",
        uses=READ,
        kind="number",
        default="none",
        meaning="Split queues so that no task reads more messages than this",
        example="500000",
    ),
)

GROUP: Final = (
    Option(
        name="consumerGroup",
        uses=READ,
        kind="text",
        default="none",
        meaning="The group whose progress a stream records, and where `group` starts",
        example="billing",
    ),
    Option(
        name="includeRetry",
        uses=READ,
        kind="boolean",
        default="false",
        meaning="Read the group's retry topic `%RETRY%<group>` as well; needs `consumerGroup`",
        example="true",
    ),
)

SINK: Final = (
    Option(
        name="topic",
        uses=WRITE,
        kind="text",
        default="none",
        meaning="Where rows go that have no `topic` of their own",
        example="orders",
    ),
    Option(
        name="brokerName",
        uses=WRITE,
        kind="text",
        default="the first broker of `topic`, else broker-0",
        meaning="The one broker whose log takes all rows; a commit is atomic within one log",
        example="broker-1",
    ),
    Option(
        name="autoCreateTopic",
        uses=WRITE,
        kind="boolean",
        default="true",
        meaning="Create topics that do not exist, just before the commit; `false` makes them bad rows",
        example="false",
    ),
    Option(
        name="autoCreateQueues",
        uses=WRITE,
        kind="number",
        default="4",
        meaning="Queues of a topic that is created",
        example="8",
    ),
    Option(
        name="badRecordsTopic",
        uses=WRITE,
        kind="text",
        default="none: bad rows fail the write",
        meaning="Where rows go that cannot be sent, in the same commit, with the reason in their properties",
        example="orders_bad",
    ),
    Option(
        name="compressOverBytes",
        uses=WRITE,
        kind="size",
        default="none",
        meaning="Compress bodies of at least this size, as RocketMQ's producers do from 4k on",
        example="4k",
    ),
    Option(
        name="timerMaxDelay",
        uses=WRITE,
        kind="duration",
        default="none",
        meaning="How far ahead a `deliverTimestamp` may be (RocketMQ: 3d); as `timer_max_delay_ms` for producers",
        example="3d",
    ),
    Option(
        name="txnAppId",
        uses=WRITE,
        kind="text",
        default="the query's id; for a batch none",
        meaning="Name of the writing application. A batch of the same name, number and option `topic` is written once "
        "to a broker; with the query's id as well",
        example="nightly-load",
    ),
    Option(
        name="txnVersion",
        uses=BATCH_WRITE,
        kind="number",
        default="none",
        meaning="Number of a batch write, given together with `txnAppId`; streams use their batch id. Numbers rise",
        example="20260131",
    ),
    Option(
        name="changedBatch",
        uses=WRITE,
        kind="error or skip",
        default="error",
        meaning="What happens to a batch whose number has landed with other content, or is lower than the last one and "
        "not remembered: stop, or warn and do not write it",
        example="skip",
    ),
)

SECTIONS: Final[Mapping[str, tuple[Option, ...]]] = {
    "The store": STORE,
    "Which messages": MESSAGES,
    "From where to where": RANGE,
    "Pace and partitions": PACE,
    "Consumer groups": GROUP,
    "Writing": SINK,
}
"""All options by their section of docs/options.md."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "nameserver": "there is no name server to connect to; name the store with 'store'",
    "kafka.bootstrap.servers": "there are no servers to connect to; name the store with 'store'",
    "group": "the group is named by 'consumerGroup'",
    "kafka.group.id": "the group is named by 'consumerGroup'",
    "groupidprefix": "the group is named by 'consumerGroup'",
    "pullbatchsize": "tasks read whole blocks; there is nothing to set",
    "pulltimeoutms": "tasks read files; storage timeouts are set by 'storage.timeout'",
    "includeheaders": "the column 'properties' is always there; select it or not",
}
"""Options of RocketMQ's and Kafka's connectors (in lower case) that have no twin, and what to do instead."""


def all_options() -> Iterator[Option]:
    """Every option, in the order of the docs."""
    for section in SECTIONS.values():
        yield from section


def select(options: Mapping[str, str], use: Use) -> tuple[dict[str, str], dict[str, str]]:
    """Split options into those of the table, by their documented name, and those of the storage backend.

    Raises:
        InvalidRequestError: an option is unknown (the nearest is named), is not for this use, or was given by
            two of its names.
    """
    known = {name.lower(): option for option in all_options() if use in option.uses for name in option.names}
    values: dict[str, str] = {}
    spellings: dict[str, str] = {}
    storage: dict[str, str] = {}
    for spelling, value in options.items():
        name = spelling.lower()
        if name.startswith(STORAGE_PREFIX) and name != STORAGE_PREFIX:
            storage[name.removeprefix(STORAGE_PREFIX)] = value
            continue
        option = known.get(name)
        if option is None:
            if name in _SPARKS_OWN and use is Use.STREAM_WRITE:
                continue
            raise _unknown(spelling, use)
        if option.name in values:
            twice = " and ".join(sorted((spellings[option.name], spelling)))
            raise InvalidRequestError(f"{twice} are names of one option; give one of them", option=option.name)
        values[option.name], spellings[option.name] = value, spelling
    return values, storage


def _unknown(spelling: str, use: Use) -> InvalidRequestError:
    name = spelling.lower()
    others = [option for option in all_options() if name in map(str.lower, option.names)]
    if others:
        where = " or ".join(sorted({str(other) for option in others for other in option.uses}))
        return InvalidRequestError(f"option {others[0].name} is not for {use}; it is for {where}", option=spelling)
    if name in ELSEWHERE:
        return InvalidRequestError(f"option {spelling} does not exist here: {ELSEWHERE[name]}", option=spelling)
    fitting = {
        text.lower(): text
        for option in all_options()
        if use in option.uses
        for text in option.names
        if not text.endswith("*")
    }
    near = difflib.get_close_matches(name, fitting, n=1, cutoff=0.0)
    return InvalidRequestError(
        f"unknown option {spelling} for {use}; did you mean {fitting[near[0]]}?", option=spelling
    )


def markdown(section: Iterable[Option]) -> str:
    """The section's table as it stands in docs/options.md."""
    lines = ["| Option | For | Type | Default | Meaning | Example |", "| --- | --- | --- | --- | --- | --- |"]
    for option in section:
        names = ", ".join(f"`{name}`" for name in option.names)
        cells = (names, _short(option.uses), option.kind, option.default, option.meaning, f"`{option.example}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _short(uses: frozenset[Use]) -> str:
    whole = {EVERYWHERE: "all", READ: "read", WRITE: "write"}
    return whole.get(uses) or ", ".join(sorted(str(use).removeprefix("a ") for use in uses))
