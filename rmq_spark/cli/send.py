"""`rmq send`: one message, lines of standard input, or made-up load."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmq_spark.cli.consent import require_consent
from rmq_spark.cli.message_lines import Defaults, LineFormat, read_messages
from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, checked_text, common, split_property
from rmq_spark.cli.output import Advance, Output
from rmq_spark.errors import InvalidRequestError, RmqError, StorageFullError
from rmq_spark.model.settings import Flush
from rmq_spark.model.times import parse_duration, parse_instant

if TYPE_CHECKING:
    from rmq_spark.client.producer import Producer, SendResult
    from rmq_spark.client.store import Store

LINES_BATCH: Final = 1_000
LOAD_BATCH: Final = 10_000
SIZE: Final = 100
"""Body bytes of a made-up message."""
COUNT_MAX: Final = 10**12
"""The body of a made-up message starts with its number, in twelve digits."""
OVERHEAD_BYTES: Final = 100
"""What a made-up message takes besides its body: id, host, times and its part of the metadata."""
ASK_BYTES: Final = 10 * 10**9
"""Made-up load that takes more than this needs consent."""
SHOWN_MAX: Final = 100
"""Up to so many messages are listed one by one; beyond it there is a summary."""


CountOption = Annotated[
    int | None, typer.Option("--count", min=1, max=COUNT_MAX, help="Send so many made-up messages.")
]
SizeOption = Annotated[int | None, typer.Option("--size", min=1, max=4 << 20, help="Body bytes with --count; 100.")]
KeysOption = Annotated[
    list[str] | None, typer.Option("--keys", help="A key, may be repeated; with --count a prefix to numbers.")
]
PropertyOption = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; may be repeated.")
]
ShardingOption = Annotated[str | None, typer.Option("--sharding-key", help="Messages with the same one share a queue.")]
PriorityOption = Annotated[
    int | None, typer.Option("--priority", min=0, help="Consumers get higher ones first; for PRIORITY topics.")
]
DelayOption = Annotated[
    str | None, typer.Option("--delay", metavar="TIME", help="Deliver it so much later: 90 (seconds), 500ms, 5m.")
]
DeliverAtOption = Annotated[
    str | None, typer.Option("--deliver-at", metavar="TIME", help="Deliver it at this time: ISO 8601 or ms.")
]
DelayLevelOption = Annotated[
    int | None, typer.Option("--delay-level", min=1, help="Deliver it after RocketMQ's level: 3 is 10 s.")
]


@dataclass(slots=True)
class Tally:
    """What was sent so far: every message counted here was acknowledged."""

    topic: str
    sent: int = 0
    bytes: int = 0
    commits: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)

    def add(self, count: int, size: int, results: list[SendResult]) -> None:
        """Count one commit; its single results are kept up to `SHOWN_MAX` messages."""
        self.sent += count
        self.bytes += size
        self.commits += 1
        if self.sent <= SHOWN_MAX:
            self.results += map(_document, results)

    def document(self, seconds: float) -> dict[str, Any]:
        """The result as JSON; `results` is null when there are too many or they were not looked at."""
        return {
            "topic": self.topic,
            "sent": self.sent,
            "bytes": self.bytes,
            "commits": self.commits,
            "seconds": round(seconds, 3),
            "results": self.results if len(self.results) == self.sent else None,
        }


def send(
    ctx: typer.Context,
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to; created with 4 queues if new.")],
    body: Annotated[str | None, typer.Option("--body", help="Send one message with this body.")] = None,
    count: CountOption = None,
    size: SizeOption = None,
    tags: Annotated[str | None, typer.Option("--tags", help="The messages' tag.")] = None,
    keys: KeysOption = None,
    properties: PropertyOption = None,
    sharding_key: ShardingOption = None,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Send to exactly this queue.")] = None,
    priority: PriorityOption = None,
    delay: DelayOption = None,
    deliver_at: DeliverAtOption = None,
    delay_level: DelayLevelOption = None,
    line_format: Annotated[
        LineFormat, typer.Option("--format", help="How lines of standard input are read.")
    ] = LineFormat.AUTO,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Messages a commit.")] = None,
    flush: Annotated[Flush | None, typer.Option("--flush", help="When a message counts as sent.")] = None,
    no_create: Annotated[bool, typer.Option("--no-create", help="Fail if the topic does not exist.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --count fills gigabytes.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Send one message (--body), lines of standard input, or made-up load (--count).

    A line is a body, or a JSON object with "body" (or "bodyBase64") and, if wanted, "tags", "keys", "properties",
    "shardingKey", "queueId", "priority" and one of "delay" (seconds), "deliver_at" and "delay_level". Each --batch of
    messages is one commit, sent when it is full.
    """
    options = common(ctx, store, json, conf)
    _check_kind(body, count, size)
    waits = {"--delay": delay, "--deliver-at": deliver_at, "--delay-level": delay_level}
    _check_delivery(count, {"--priority": priority, **waits})
    defaults = Defaults(
        topic=topic,
        tags=None if tags is None else checked_text(tags, "--tags"),
        keys=[checked_text(key, "--keys") for key in keys or ()],
        properties=dict(map(split_property, properties or ())),
        sharding_key=None if sharding_key is None else checked_text(sharding_key, "--sharding-key"),
        queue_id=queue,
        priority=priority,
        delay_level=delay_level or 0,
        delay_seconds=None if delay is None else parse_duration(delay, "--delay") / 1000,
        deliver_at=None if deliver_at is None else parse_instant(deliver_at, "--deliver-at", round_up=True),
    )
    started = time.monotonic()
    with options.open(read_only=False, flush=flush) as opened, options.out.progress("sending", "messages") as advance:
        _check_level(opened, delay_level)
        work = Sending(opened, defaults, no_create, advance, Tally(topic))
        try:
            if body is not None:
                # Arguments that are not UTF-8 arrive escaped; this gives their bytes back.
                work.one(os.fsencode(body))
            elif count is not None:
                _check_room(opened, count, size or SIZE, yes)
                work.load(count, size or SIZE, batch or LOAD_BATCH)
            else:
                work.lines(_stdin(options.out), line_format, batch or LINES_BATCH)
            opened.flush()
        except RmqError as error:
            if body is None:
                error.context.setdefault("sent_before", work.tally.sent)
            raise
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(f"{work.tally.sent} messages were sent before") from error
    _show(options.out, work.tally, time.monotonic() - started, single=body is not None)


@dataclass(slots=True)
class Sending:
    """The three ways of sending; what landed is in `tally`, also when one of them fails."""

    store: Store
    defaults: Defaults
    no_create: bool
    advance: Advance
    tally: Tally

    def one(self, body: bytes) -> None:
        """Send one message."""
        message = self.defaults.message(body)
        self.tally.add(1, len(body), [self._producer().send(message)])

    def lines(self, lines: Iterator[bytes], line_format: LineFormat, batch: int) -> None:
        """Send each `batch` of messages as one commit, after all of its lines were found good."""
        producer = self._producer()
        messages = read_messages(lines, line_format, self.defaults)
        while part := list(islice(messages, batch)):
            wanted = [message for _, message in part]
            try:
                results = producer.send_batch(wanted)
            except RmqError as error:
                error.context.setdefault("lines", f"{part[0][0]}-{part[-1][0]}")
                raise
            self.tally.add(len(part), sum(len(message.body) for message in wanted), results)
            self.advance(self.tally.sent, None)

    def load(self, count: int, size: int, batch: int) -> None:
        """Make messages up and send them."""
        from rmq_spark.cli.made_up_load import Load, batches
        from rmq_spark.client.store import AUTO_CREATE_QUEUES
        from rmq_spark.rules import system_topics

        store, name = self.store, self.defaults.topic
        load = Load(count=count, size=size, batch=batch, defaults=self.defaults)
        system_topics.check_sendable(name)
        topic = store.topic(name) if self.no_create else store.find_topic(name)
        topic = topic or store.create_topic(name, queues=AUTO_CREATE_QUEUES)
        for broker, made in batches(load, topic, store.clock):
            store.log(broker).append(made)
            self.tally.add(made.num_rows, made.num_rows * size, [])
            self.advance(self.tally.sent, count)

    def _producer(self) -> Producer:
        from rmq_spark.client.producer import Producer

        return Producer(self.store, auto_create=not self.no_create)


def _check_kind(body: str | None, count: int | None, size: int | None) -> None:
    if body is not None and count is not None:
        raise InvalidRequestError("give either --body or --count")
    if size is not None and count is None:
        raise InvalidRequestError("--size goes with --count")


def _check_delivery(count: int | None, options: Mapping[str, object]) -> None:
    """Refuse options on when and in which order a message is delivered that do not go together."""
    wanted = [name for name, value in options.items() if value is not None]
    if count is not None and wanted:
        raise InvalidRequestError(f"{wanted[0]} does not go with --count; send lines of standard input instead")
    waits = [name for name in wanted if name != "--priority"]
    if len(waits) > 1:
        raise InvalidRequestError(f"give either {' or '.join(waits)}: a message has one delivery time")


def _check_level(store: Store, level: int | None) -> None:
    """Refuse a delay level that the store does not have; a producer would take its last one.

    Raises:
        InvalidRequestError: there is no such level.
    """
    levels = len(store.cluster_settings().delay_levels_ms)
    if level is not None and level > levels:
        raise InvalidRequestError(f"the store has delay levels 1 to {levels}; give one of them", level=level)


def _check_room(store: Store, count: int, size: int, yes: bool) -> None:
    """Refuse made-up load that has no room, and ask before it takes a lot.

    Raises:
        StorageFullError: it would fill the disk beyond the use at which appends are refused.
        InvalidRequestError: consent was refused, or could not be asked for; nothing was sent.
    """
    needed = count * (size + OVERHEAD_BYTES)
    if (usage := store.storage.disk_usage()) is not None:
        room = int(usage[1] * store.settings.disk_full_ratio) - usage[0]
        if needed > room:
            raise StorageFullError(
                "so many messages do not fit; give a smaller --count or --size", needed_bytes=needed, room_bytes=room
            )
    if needed > ASK_BYTES:
        what = f"{count:,} messages take about {needed / 1e9:,.0f} GB"
        require_consent(yes, f"{what}; send them?", f"{what}; pass --yes to send them")


def _stdin(out: Output) -> Iterator[bytes]:
    if sys.stdin is None:
        return iter(())
    if sys.stdin.isatty():
        out.note("reading messages from the terminal, one a line; end with Ctrl-D")
    return iter(sys.stdin.buffer)


def _show(out: Output, tally: Tally, seconds: float, *, single: bool) -> None:
    document = tally.document(seconds)
    if single:
        out.result(tally.results[0], _line(tally.results[0]))
        return
    if document["results"] and not out.json:
        out.lines(map(_line, tally.results))
        return
    rate = tally.sent / seconds if seconds > 0 else 0.0
    out.result(
        document,
        f"sent {tally.sent:,} messages ({tally.bytes:,} bytes) to {tally.topic} "
        f"in {tally.commits:,} commits and {seconds:.1f} s: {rate:,.0f} messages/s",
    )


def _line(result: dict[str, Any]) -> str:
    offset = f"offset {result['queueOffset']}"
    if result["queueOffset"] is None:
        offset = "not in the log yet" if result["commitOffset"] is None else "waits until it is due"
    return f"{result['msgId']}  {result['topic']}  {result['brokerName']}  queue {result['queueId']}  {offset}"


def _document(result: SendResult) -> dict[str, Any]:
    """A result under the names that the message's columns have."""
    return {
        "msgId": result.msg_id,
        "topic": result.topic,
        "brokerName": result.broker,
        "queueId": result.queue_id,
        "queueOffset": result.queue_offset,
        "commitOffset": result.commit_offset,
        "storeTimestamp": result.store_timestamp_ms,
    }
