"""The demonstration without Spark (`make demo-store`): a store from nothing to verified, in one process.

It uses only what a user would: `Store`, `Producer`, filters, `scan` and `verify`. With `DEMO_STORE` set the store is
kept there and grows with each run; else it lives in a temporary directory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.filter import Filter, compile_sql, compile_tags
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.scan import Query
from rmq_spark.log.verify import verify
from rmq_spark.model.message import Message
from rmq_spark.storage import paths

TOPICS: Final = {"orders": 4, "payments": 2}
TAGS: Final = ("created", "paid", "shipped")
CUSTOMERS: Final = 5


def main() -> int:
    """Run the demonstration; the exit code is 1 if the store does not verify."""
    kept = os.environ.get("DEMO_STORE")
    if kept:
        return run(kept)
    with tempfile.TemporaryDirectory(prefix="rmq-demo-") as directory:
        return run(str(Path(directory) / "store"))


def run(uri: str) -> int:
    """Create (or open) the store at `uri`, send, read back, verify, and print what there is."""
    is_there = Path(uri).joinpath(paths.STORE_FILE).exists()
    with Store.open(uri) if is_there else Store.create(uri) as store:
        for topic, queues in TOPICS.items():
            store.create_topic(topic, queues=queues)
        sent = send(Producer(store))
        log = store.log()
        say(f"store {uri}")
        say(f"sent {sent} messages; read back:")
        show_table(("topic", "queue", "offsets", "messages", "tags"), summarize(log))
        for shown in (compile_tags("paid || shipped"), compile_sql("amount > 150 AND region = 'eu'")):
            say(f"filter {shown.expression!r}: {count(log, 'orders', shown)} messages of orders")
        report = verify(store.storage, log.root, log.broker)
    say(f"verify: {report.commits} commits, {report.messages} messages, {report.bytes} bytes")
    for finding in report.findings:
        say(f"  {'damage' if finding.damage else 'warning'}: {finding.path}: {finding.problem}")
    say("verify OK" if report.ok else "verify FAILED")
    return 0 if report.ok else 1


def send(producer: Producer) -> int:
    """Send one order at a time, then payments as one atomic commit; return how many messages that was."""
    orders = [
        Message(
            topic="orders",
            body=f'{{"order": {number}}}'.encode(),
            tags=TAGS[number % len(TAGS)],
            keys=f"order-{number}",
            sharding_key=f"customer-{number % CUSTOMERS}",
            properties={"amount": str(number * 10), "region": "eu" if number % 2 else "us"},
        )
        for number in range(24)
    ]
    for order in orders:
        producer.send(order)
    payments = [Message(topic="payments", body=b"ok", keys=f"order-{number}") for number in range(6)]
    return len(orders) + len(producer.send_batch(payments))


def summarize(log: CommitLog) -> list[tuple[str, ...]]:
    """One row for each queue: its offsets [first, next), messages, and how often each tag occurs."""
    columns = ("topic", "queueId", "queueOffset", "tags")
    query = Query(topics=frozenset(TOPICS), columns=columns)
    table = pa.Table.from_batches(log.scan(query))
    queues = table.group_by(["topic", "queueId"]).aggregate([("queueOffset", "min"), ("queueOffset", "max")])
    tags = table.group_by(["topic", "queueId", "tags"]).aggregate([([], "count_all")]).to_pylist()
    rows: list[tuple[str, ...]] = []
    for queue in queues.sort_by([("topic", "ascending"), ("queueId", "ascending")]).to_pylist():
        first, after = queue["queueOffset_min"], queue["queueOffset_max"] + 1
        mine = sorted(
            (tag["tags"] or "(none)", tag["count_all"])
            for tag in tags
            if (tag["topic"], tag["queueId"]) == (queue["topic"], queue["queueId"])
        )
        shown = ", ".join(f"{name} {count}" for name, count in mine)
        rows.append((queue["topic"], str(queue["queueId"]), f"[{first}, {after})", str(after - first), shown))
    return rows


def count(log: CommitLog, topic: str, wanted: Filter) -> int:
    """How many messages of `topic` the filter lets through."""
    query = Query(
        topics=frozenset({topic}),
        predicate=lambda batch: wanted.mask(batch).to_numpy(zero_copy_only=False),
        predicate_columns=tuple(sorted(wanted.columns)),
        columns=("queueOffset",),
    )
    return sum(batch.num_rows for batch in log.scan(query))


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def show_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, with frames where rich is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        # The core installs without rich: the same table, plain.
        for row in (header, *rows):
            say("  ".join(f"{cell:<10}" for cell in row).rstrip())
        return
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
