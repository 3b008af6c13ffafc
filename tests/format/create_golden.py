"""Write the golden store of the current format version: `python tests/format/create_golden.py`.

Run once for each format version, by hand. It refuses to replace what is there: golden files are written once and stay,
because they stand for the stores that users have.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import sample_log

from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.file_layout import VERSION
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage

GOLDEN = Path(__file__).parent / "golden"
NAME = "golden"


def build() -> MemoryStorage:
    """A store with every kind of file, the same at each call."""
    MemoryStorage.forget(NAME)
    clock = ManualClock(sample_log.START_MS)
    with Store.create(f"memory://{NAME}", clock=clock, settings=sample_log.SETTINGS) as store:
        store.create_topic("orders", queues=5)
        clock.advance(1)
        store.create_topic("gone", queues=1)
        sample_log.build(store.storage, clock, large_rows=80)
        log = store.log()
        row: dict[str, Any] = {"topic": "gone", "queue_id": 0, "body": b"hidden", "born_timestamp_ms": clock.now_ms()}
        log.append(MessageBatch.of(msg_id="F" * 32, **row))
        store.delete_topic("gone")
        offsets = {"group": "billing", "topic": "orders", "offsets": {"0": 3, "1": 5}}
        body = json.dumps(offsets).encode()
        state = {"topic": "rmq_sys_consumer_offset", "queue_id": 0, "body": body, "born_timestamp_ms": clock.now_ms()}
        log.use(ConsumerOffsets)
        log.append(MessageBatch.of(msg_id="E" * 32, **state))
    storage = MemoryStorage(NAME, clock=clock)
    MemoryStorage.forget(NAME)
    return storage


def files(storage: MemoryStorage) -> dict[str, bytes]:
    """Every file of a store in memory, by path."""
    roots = (paths.NAMESERVER, sample_log.ROOT)
    found = [paths.STORE_FILE]
    for root in roots:
        for name in sample_log.DIRECTORIES:
            found += [f"{root}/{name}/{info.name}" for info in storage.list(f"{root}/{name}")]
    return {path: storage.read(path) for path in sorted(found)}


def messages(log: CommitLog) -> list[dict[str, Any]]:
    """Every message of a log in a form that JSON keeps."""
    rows = []
    for batch in log.scan():
        times = {name: batch.column(name).cast(pa.int64()).to_pylist() for name in ("bornTimestamp", "storeTimestamp")}
        for index, row in enumerate(batch.to_pylist()):
            plain = {
                **row,
                "body": base64.b64encode(row["body"]).decode(),
                "properties": [list(p) for p in row["properties"]],
            }
            rows.append({**plain, **{name: values[index] for name, values in times.items()}})
    return rows


def main() -> int:
    target = GOLDEN / f"v{VERSION}"
    if target.exists():
        sys.stderr.write(f"{target} exists; golden files are written once\n")
        return 1
    storage = build()
    for path, content in files(storage).items():
        place = target / "store" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    expected = {}
    with Store.open(str(target / "store"), read_only=True) as store:
        for name, log in (("nameserver", store.nameserver), ("broker-0", store.log())):
            expected[name] = messages(log)
    parts = []
    for name, rows in expected.items():
        lines = ",\n".join(json.dumps(row) for row in rows)  # one message a line
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
    (target / "messages.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
