"""`rmq stats`: messages in and out a second, what is left to consume, and how far services are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, a_number, common
from rmq_spark.cli.output import Output, Table, duration, finish, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rmq_spark.client.traffic import Traffic
    from rmq_spark.services.behind import ServiceLag


def stats(
    ctx: typer.Context,
    *,
    once: Annotated[bool, typer.Option("--once", help="Measure one interval and end.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.1, max=3600, callback=a_number, help="How long to measure."
        ),
    ] = 2.0,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show rates of topics and groups, and how far groups and services are behind, until interrupted."""
    from rmq_spark.client.traffic import between, count
    from rmq_spark.services.behind import services_behind

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        before = count(opened)
        while True:
            opened.clock.sleep(interval)
            after = count(opened)
            lags = services_behind(opened)
            _show(options.out, between(before, after), lags, now_ms=opened.clock.now_ms(), live=not once)
            if once:
                return
            before = after


def _show(out: Output, traffic: Traffic, lags: Sequence[ServiceLag], *, now_ms: int, live: bool) -> None:
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
        "services": [
            {"service": one.service, "log": one.log, "pending": one.pending, "behindMs": one.behind_ms} for one in lags
        ],
    }
    if live and not out.json:
        out.clear()
    topics = table_of(document["topics"], {"TOPIC": "topic", "MESSAGES": "messages", "IN/S": "inPerSecond"})
    groups = table_of(
        [{**each, "age": duration(each["lagMs"])} for each in document["groups"]],
        {"GROUP": "group", "TOPIC": "topic", "LAG": "lag", "AGE": "age", "OUT/S": "outPerSecond"},
    )
    services = table_of(
        [{**each, "age": duration(each["behindMs"])} for each in document["services"]],
        {"SERVICE": "service", "LOG": "log", "PENDING": "pending", "BEHIND": "age"},
    )
    parts: list[str | Table] = [topics, ""]
    if document["groups"]:
        parts += [groups, ""]
    out.result(document, *parts, services)
    finish()
