"""Targets and results of `rmq group reset`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rmq_spark.cli.options import INT64_MAX
from rmq_spark.cli.output import Table
from rmq_spark.errors import InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from rmq_spark.client.offsets import OffsetChange
    from rmq_spark.client.store import Store
    from rmq_spark.client.time_search import QueueKey


def reset_result(name: str, changes: list[OffsetChange], dry_run: bool) -> tuple[dict[str, Any], str, Table]:
    """What a reset did, or would do: the document, a line and a table."""
    queues: list[dict[str, Any]] = [
        {
            "topic": change.topic,
            "brokerName": change.broker,
            "queueId": change.queue,
            "before": change.before,
            "after": change.after,
            "redelivered": change.redelivered,
            "skipped": change.skipped,
        }
        for change in changes
    ]
    again, skipped = sum(change.redelivered for change in changes), sum(change.skipped for change in changes)
    document = {"group": name, "dryRun": dry_run, "redelivered": again, "skipped": skipped, "queues": queues}
    moved = sum(change.changed for change in changes)
    verb = "would set" if dry_run else "set"
    text = f"{verb} {name} on {moved} of {len(changes)} queues: {again:,} messages again, {skipped:,} skipped"
    headers = ("TOPIC", "BROKER", "QUEUE", "BEFORE", "AFTER", "AGAIN", "SKIPPED")
    return document, text, Table(headers, [tuple(queue.values()) for queue in queues])


def parse_offsets(text: str, store: Store) -> dict[QueueKey, int]:
    """Offsets as RocketMQ's Spark connector writes them; a topic on one broker may leave the broker out.

    Raises:
        InvalidRequestError: it is not of that form.
        NotFoundError: there is no such topic or queue.
    """
    problem = '--to-offsets takes {"TOPIC": {"BROKER": {"QUEUE": OFFSET}}}'
    try:
        topics = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(problem, reason=str(error)) from error
    offsets: dict[QueueKey, int] = {}
    for topic, brokers in _object(topics, problem).items():
        places = _object(brokers, problem)
        if places and all(isinstance(value, int) for value in places.values()):
            known = sorted(store.topic(topic).queues)
            if len(known) != 1:
                raise InvalidRequestError("name the broker: the topic is on several", topic=topic, brokers=known)
            places = {known[0]: places}
        for broker, queues in places.items():
            for queue, offset in _object(queues, problem).items():
                if not (queue.isascii() and queue.isdigit() and len(queue) <= 5):
                    raise NotFoundError("no such queue", topic=topic, broker=broker, queue=queue)
                if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
                    raise InvalidRequestError(problem, topic=topic, broker=broker, queue=queue, offset=offset)
                if (topic, broker, int(queue)) in offsets:
                    raise InvalidRequestError("a queue is named twice", topic=topic, broker=broker, queue=queue)
                offsets[topic, broker, int(queue)] = offset
    if not offsets:
        raise InvalidRequestError("--to-offsets names no queue", value=text)
    return offsets


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; one that has a name twice is refused: which of its values was meant is ambiguous."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"a name stands twice: {sorted(name for name, _ in pairs)}")
    return dict(pairs)


def _object(value: Any, problem: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError(problem, value=value)
    return value
