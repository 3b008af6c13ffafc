"""How the rows of the index may lie in a file, and what each way costs: the measurements behind docs/tables.md.

    python benchmarks/table_layout.py [messages]     # 500,000 unless given

For each layout: bytes a message, seconds to write a million messages, and what one look-up in the file costs: bytes
that are read (the hashes of a row group, then the places of one hit) and microseconds.
"""

import io
import sys
import time
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmq_spark.log import schema
from rmq_spark.query.index_files import IndexFiles, LookupStats
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.tables import data_files, kernel
from rmq_spark.tables.delta_actions import describe
from rmq_spark.tables.schemas import TABLES

SPEC = TABLES["index"]
PRODUCERS = 4
COMMIT = 10_000
DELTA = "DELTA_BINARY_PACKED"
BASE = {
    "row_group": 8192,
    "key": "DELTA_BYTE_ARRAY",
    "hash": "PLAIN",
    "places": DELTA,
    "level": 1,
    "sorted": True,
}
LAYOUTS = {
    "as the engine writes it": {},
    "key text plain": {"key": "PLAIN"},
    "key text by length": {"key": "DELTA_LENGTH_BYTE_ARRAY"},
    "hash by delta": {"hash": DELTA},
    "places plain": {"places": "PLAIN"},
    "zstd level 3": {"level": 3},
    "row groups of 2,048": {"row_group": 2048},
    "row groups of 32,768": {"row_group": 32_768},
    "row groups of 131,072": {"row_group": 131_072},
    "in the order of the log": {"sorted": False},
}


def messages(count, kind):
    numbers = np.arange(count)
    if kind == "order":
        keys = [f"order-{number * 387_420_489 % 999_999_937:09d}" for number in range(count)]
    else:
        draw = np.random.default_rng(1)
        keys = [str(uuid.UUID(bytes=draw.bytes(16))) for _ in range(count)]
    commits = numbers // COMMIT
    ids = [
        f"7F0000011234{commit % PRODUCERS:02X}34ABCD{(commit << 20) + number:012X}"
        for number, commit in zip(range(count), commits.tolist(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat("orders", count),
            pa.repeat("broker-0", count),
            pa.array((numbers % 8).astype(np.int32)),
            pa.array(numbers // 8),
            pa.array(numbers),
            pa.array(1_760_000_000_000 + commits * 20).cast(schema.TIMESTAMP),
            pa.array(ids),
            pa.array(keys),
            pa.array(np.zeros(count, np.int32)),
        ],
        names=list(kernel.INDEX_COLUMNS),
    )


def write(rows, row_group, key, hash, places, level, sorted):
    sink = io.BytesIO()
    names = SPEC.schema.names
    plain = ("keyHash",) if hash == "PLAIN" else ()
    start = time.process_time()
    pq.write_table(
        data_files.in_order(rows, SPEC) if sorted else rows,
        sink,
        row_group_size=row_group,
        compression={name: "none" if name in plain else "zstd" for name in names},
        compression_level={name: level for name in names if name not in plain},
        use_dictionary=list(SPEC.dictionary),
        column_encoding={"key": key, "keyHash": hash, "commitOffset": places, "queueOffset": places},
        write_statistics=["keyHash"],
        sorting_columns=[pq.SortingColumn(names.index("keyHash"))] if sorted else None,
        store_schema=False,
    )
    return sink.getvalue(), time.process_time() - start


def look_up(data, rows, rounds=200):
    storage = MemoryStorage()
    storage.create_if_absent(f"{SPEC.root}/file.parquet", [data])
    files = IndexFiles(storage)
    file = describe("file.parquet", len(data), 0, rows, SPEC)
    draw = np.random.default_rng(2)
    hashes = rows["keyHash"].to_numpy()
    files.find([file], {0: {"orders"}}, LookupStats())
    stats = LookupStats()
    start = time.process_time()
    for value in draw.choice(hashes, rounds).tolist():
        assert len(files.find([file], {value: {"orders"}}, stats).commit)
    return stats.bytes_read / rounds, (time.process_time() - start) / rounds * 1e6


def main(count):
    for kind in ("order", "uuid"):
        rows = pa.Table.from_batches([kernel.index_rows(messages(count, kind))])
        print(f"{count:,} messages, one key each: {rows['key'][0]}")
        print(f"  {'layout':<28}{'B/message':>10}{'s/million':>11}{'B/look-up':>12}{'us/look-up':>12}")
        for name, changes in LAYOUTS.items():
            data, seconds = write(rows, **{**BASE, **changes})
            read, micros = look_up(data, rows, 200 if changes.get("sorted", True) else 3)
            size = len(data) / count
            print(f"  {name:<28}{size:>10.1f}{seconds / count * 1e6:>11.2f}{read:>12,.0f}{micros:>12,.0f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500_000)
