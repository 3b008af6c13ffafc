"""`rmq info` and `rmq conf`: what a store is and holds, and the settings in use."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import typer

from rmq_spark.cli import logs
from rmq_spark.cli.conf import load_conf
from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, common
from rmq_spark.cli.output import Cell, Table, moment

if TYPE_CHECKING:
    from rmq_spark.model.settings import LogSettings

_LOGS = ("LOG", "START", "END", "MESSAGES", "SEGMENTS", "COMMITS", "FIRST STORED", "LAST STORED", "FILES", "BYTES")


def info(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Show what a store is and holds: its id, topics, groups, logs, sizes, times, and the settings in use."""
    from rmq_spark.cli.sizes import log_size, messages_of
    from rmq_spark.client.offsets import GroupOffsets

    options = common(ctx, store, json, conf)
    settings, _ = load_conf(options.conf)
    with options.open(read_only=True) as opened:
        topics = opened.topics()
        usage = opened.storage.disk_usage()
        document: dict[str, Any] = {
            "uri": opened.storage.uri,
            "id": opened.info["nonce"],
            "format": opened.info["format"],
            "createdAt": opened.info["createdAt"],
            "brokers": opened.brokers(),
            "topics": len(topics),
            "groups": len(GroupOffsets(opened).groups()),
            "messages": sum(messages_of(opened, topic) for topic in topics),
            "diskUsed": None if usage is None else usage[0],
            "diskTotal": None if usage is None else usage[1],
            "logs": [log_size(place.open(opened)) for place in logs.chosen(opened, None, nameserver=False)],
            "settings": _values(settings),
        }
    rows = [_log_row(log) for log in document["logs"]]
    options.out.result(document, *_lines(document), Table(_LOGS, rows), _settings_table(settings))


def conf(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Show every setting with its value, and whether it is the default or comes from the conf file."""
    options = common(ctx, store, json, conf)
    settings, storage_options = load_conf(options.conf)
    # Names only: values may be passwords.
    storage_names = sorted(storage_options or {})
    document = {
        "file": None if options.conf is None else str(options.conf),
        "settings": _values(settings),
        "changed": _changed(settings),
        "storage": storage_names,
    }
    lines = [f"storage options set: {', '.join(storage_names)}"] if storage_names else []
    options.out.result(document, _settings_table(settings), *lines)


def _values(settings: LogSettings) -> dict[str, str | int | float]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def _changed(settings: LogSettings) -> list[str]:
    return [field.name for field in fields(settings) if getattr(settings, field.name) != field.default]


def _settings_table(settings: LogSettings) -> Table:
    """Values as a conf file has them, so that they can be copied there."""
    changed = _changed(settings)
    rows = [
        (name, f'"{value}"' if isinstance(value, str) else str(value), "conf file" if name in changed else "default")
        for name, value in _values(settings).items()
    ]
    return Table(("SETTING", "VALUE", "FROM"), rows)


def _lines(document: dict[str, Any]) -> list[str]:
    disk = ""
    if document["diskTotal"]:
        share = document["diskUsed"] / document["diskTotal"]
        disk = f"; the disk is {share:.0%} full"
    return [
        f"store {document['uri']}",
        f"id {document['id']}, format {document['format']}, created {moment(document['createdAt'])}",
        f"{document['topics']} topics with {document['messages']:,} messages, {document['groups']} groups, "
        f"{len(document['brokers'])} brokers, {sum(log['bytes'] for log in document['logs']):,} bytes{disk}",
    ]


def _log_row(log: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        log["log"],
        log["logStart"],
        log["logEnd"],
        log["messages"],
        log["segments"],
        log["commits"],
        moment(log["firstTimestamp"]),
        moment(log["lastTimestamp"]),
        log["files"],
        log["bytes"],
    )
