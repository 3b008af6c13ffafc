"""`rmq stats`: messages in and out a second, and what is left to consume, by topic and group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, common
from rmq_spark.cli.output import Output, Table, duration, finish, table_of

if TYPE_CHECKING:
    from rmq_spark.client.traffic import Traffic


def stats(
    ctx: typer.Context,
    *,
    once: Annotated[bool, typer.Option("--once", help="Measure one interval and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=3600, help="How long to measure.")
    ] = 2.0,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show rates of topics and groups and how far groups are behind, again and again, until interrupted."""
    from rmq_spark.client.traffic import between, count

    given = common(ctx, store, json, conf)
    with given.open(read_only=True) as opened:
        before = count(opened)
        while True:
            opened.clock.sleep(interval)
            after = count(opened)
            _show(given.out, between(before, after), now_ms=opened.clock.now_ms(), live=not once)
            if once:
                return
            before = after


def _show(out: Output, traffic: Traffic, *, now_ms: int, live: bool) -> None:
    document: dict[str, Any] = {
        "at": now_ms,
        "seconds": round(traffic.seconds, 3),
        "topics": [
            {"topic": one.topic, "messages": one.messages, "inPerSecond": round(one.in_per_second, 1)}
            for one in traffic.topics
        ],
        "groups": [
            {
                "group": one.group,
                "topic": one.topic,
                "lag": one.lag,
                "lagMs": one.lag_ms,
                "outPerSecond": round(one.out_per_second, 1),
            }
            for one in traffic.groups
        ],
    }
    if live and not out.json:
        out.clear()
    topics = table_of(document["topics"], {"TOPIC": "topic", "MESSAGES": "messages", "IN/S": "inPerSecond"})
    groups = table_of(
        [{**each, "age": duration(each["lagMs"])} for each in document["groups"]],
        {"GROUP": "group", "TOPIC": "topic", "LAG": "lag", "AGE": "age", "OUT/S": "outPerSecond"},
    )
    parts: list[str | Table] = [topics, "", groups] if document["groups"] else [topics]
    out.result(document, *parts)
    finish()
