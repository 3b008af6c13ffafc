"""`rmq verify`: check every bit of every log, and say what is damaged and what that costs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from rmq_spark.cli import exits, logs
from rmq_spark.cli.options import BrokersOption, ConfOption, JsonOption, NameserverOption, StoreOption, common
from rmq_spark.cli.output import Cell, Table, complain

if TYPE_CHECKING:
    from rmq_spark.client.store import Store
    from rmq_spark.log.verify import Finding, Report

_COUNTS = ("LOG", "OK", "COMMITS", "SEGMENTS", "ROW FILES", "MARKS", "SNAPSHOTS", "MESSAGES", "BYTES", "START", "END")
_FINDING = ("LOG", "KIND", "FILE", "LOST OFFSETS", "PROBLEM")
_WARNINGS_SHOWN = 10


def verify(
    ctx: typer.Context,
    *,
    broker: BrokersOption = None,
    nameserver: NameserverOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Check the logs from start to end; exit with 6 if anything is damaged."""
    from rmq_spark.log.verify import verify as verify_log

    options = common(ctx, store, json, conf)
    reports: list[tuple[str, Report]] = []
    with options.open(read_only=True) as opened:
        places, known = _places(opened, broker, nameserver)
        for place in places:
            with options.out.progress(f"verifying {place.name}", "files") as advance:
                reports.append((place.name, verify_log(opened.storage, place.root, place.name, advance)))
    damaged = sum(finding.damage for _, report in reports for finding in report.findings)
    document = {
        "ok": not damaged and known,
        "brokersKnown": known,
        "logs": [_document(name, report) for name, report in reports],
    }
    options.out.result(document, Table(_COUNTS, [_count_row(*report) for report in reports]), *_findings(reports))
    if not known:
        complain("the nameserver's log is damaged, so there may be more brokers; verify them with --broker NAME")
    if damaged:
        complain(f"damage was found ({damaged} findings)")
    if damaged or not known:
        raise typer.Exit(exits.DAMAGE)


def _places(store: Store, brokers: list[str] | None, nameserver: bool) -> tuple[list[logs.LogPlace], bool]:
    """The logs to check, and whether that is surely all that was asked for."""
    if brokers or nameserver:
        return logs.named(store, brokers, nameserver), True
    known, failure = logs.salvaged_brokers(store)
    return [logs.NAMESERVER, *map(logs.broker_place, known)], failure is None


def _document(name: str, report: Report) -> dict[str, Any]:
    return {
        "log": name,
        "ok": report.ok,
        "commits": report.commits,
        "segments": report.segments,
        "rowFiles": report.row_files,
        "marks": report.marks,
        "snapshots": report.snapshots,
        "messages": report.messages,
        "bytes": report.bytes,
        "logStart": report.log_start,
        "logEnd": report.log_end,
        "findings": [asdict(finding) for finding in report.findings],
    }


def _count_row(name: str, report: Report) -> tuple[Cell, ...]:
    counts = [value for key, value in _document(name, report).items() if key not in ("log", "ok", "findings")]
    return (name, "yes" if report.ok else "NO", *counts)


def _findings(reports: list[tuple[str, Report]]) -> list[Table | str]:
    """A table with all damage and the first warnings: files that wait for deletion may be thousands."""
    every = [(name, finding) for name, report in reports for finding in report.findings]
    warnings = [entry for entry in every if not entry[1].damage]
    shown = [entry for entry in every if entry[1].damage] + warnings[:_WARNINGS_SHOWN]
    if not shown:
        return []
    parts: list[Table | str] = [Table(_FINDING, [_finding_row(*entry) for entry in shown])]
    if len(warnings) > _WARNINGS_SHOWN:
        parts.append(f"and {len(warnings) - _WARNINGS_SHOWN:,} more warnings; --json has them all")
    return parts


def _finding_row(name: str, finding: Finding) -> tuple[Cell, ...]:
    lost = None
    if finding.first is not None:
        lost = f"{finding.first} to {'the end' if finding.end is None else finding.end - 1}"
    return (name, "damage" if finding.damage else "warning", finding.path, lost, finding.problem)
