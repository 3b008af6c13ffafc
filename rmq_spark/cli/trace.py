"""`rmq trace`: one message's life, from the half message to the dead-letter topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, common
from rmq_spark.cli.output import Table
from rmq_spark.errors import NotFoundError
from rmq_spark.model.times import format_ms
from rmq_spark.rules.trace_record import TraceRecord, TraceType


def trace(
    ctx: typer.Context,
    *,
    msg_id: Annotated[str, typer.Option("--id", metavar="MSGID", help="The message's id (UNIQ_KEY).")],
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show every copy of a message in every topic, oldest first, and which groups have consumed it.

    Then what producers and consumers with `trace=True` have said about it.
    """
    from rmq_spark.query.messages import MessageQuery
    from rmq_spark.query.trace import client_traces
    from rmq_spark.query.trace import trace as trace_message

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        query = MessageQuery(opened)
        steps = trace_message(opened, msg_id, query=query)
        traces = client_traces(opened, msg_id, query=query)
    if not steps and not traces:
        raise NotFoundError("no message has this id", id=msg_id)
    document: list[dict[str, object]] = [
        {
            "stage": step.stage,
            "topic": step.topic,
            "realTopic": step.real_topic,
            "brokerName": step.broker,
            "queueId": step.queue,
            "queueOffset": step.queue_offset,
            "commitOffset": step.commit_offset,
            "storeTimestamp": step.store_ms,
            "reconsumeTimes": step.reconsume_times,
            "group": step.group,
            "consumedBy": list(step.consumed_by),
            "waitedForBy": list(step.waited_for_by),
            "heldBy": list(step.held_by),
        }
        for step in steps
    ]
    headers = (
        "TIME",
        "STAGE",
        "TOPIC",
        "BROKER",
        "QUEUE",
        "OFFSET",
        "TRIES",
        "CONSUMED BY",
        "WAITED FOR BY",
        "HELD BY",
    )
    rows = [
        (
            format_ms(step.store_ms),
            step.stage,
            step.topic if step.real_topic is None else f"{step.topic} (for {step.real_topic})",
            step.broker,
            step.queue,
            step.queue_offset,
            step.reconsume_times,
            ", ".join(step.consumed_by) or None,
            ", ".join(step.waited_for_by) or None,
            ", ".join(step.held_by) or None,
        )
        for step in steps
    ]
    document += [_client_record(record) for record in traces]
    options.out.result(document, Table(headers, rows), *([_client_table(traces)] if traces else []))


def _client_record(record: TraceRecord) -> dict[str, object]:
    return {
        "stage": str(record.type),
        "timestamp": record.ms,
        "group": record.group,
        "topic": record.topic or None,
        "success": record.success,
        "costMs": record.cost_ms,
        "reconsumeTimes": record.retry_times,
        "requestId": record.request_id or None,
        "transactionState": record.transaction_state or None,
        "fromCheck": record.from_check,
    }


def _client_table(records: Sequence[TraceRecord]) -> Table:
    rows = [
        (
            format_ms(record.ms),
            str(record.type),
            record.group,
            _result(record),
            None if record.type is TraceType.SUB_BEFORE else record.cost_ms,
        )
        for record in records
    ]
    return Table(("TIME", "CLIENT", "GROUP", "RESULT", "COST MS"), rows)


def _result(record: TraceRecord) -> str | None:
    if record.type is TraceType.SUB_BEFORE:
        return None
    if record.type is TraceType.END_TRANSACTION:
        return record.transaction_state.removesuffix("_MESSAGE").lower() + (" by check" if record.from_check else "")
    return "ok" if record.success else "failed"
