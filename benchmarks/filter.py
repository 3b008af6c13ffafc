"""How fast the filters are: rows per second of the mask, and how many times the row predicate's that is.

Run: python benchmarks/filter.py [rows]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from rmq_spark.filter import Filter, compile_sql, compile_tags
from rmq_spark.model.java_hash import java_hash, java_hashes

FILTERS: list[tuple[str, Filter]] = [
    ("tag, 1 of 100", compile_tags("Tag7")),
    ("tag, 5 of 100", compile_tags("Tag1 || Tag2 || Tag3 || Tag4 || Tag5")),
    ("SQL, text", compile_sql("region = 'eu' AND TAGS <> 'Tag7'")),
    ("SQL, few numbers", compile_sql("amount BETWEEN 10 AND 500 AND region IN ('eu', 'us')")),
    ("SQL, many numbers", compile_sql("price > 250.5 AND region = 'eu'")),
    ("SQL, search", compile_sql("region STARTSWITH 'e' OR color CONTAINS 'ee'")),
]


def messages(rows: int) -> tuple[list[dict[str, str]], pa.RecordBatch]:
    draw = random.Random(7)
    made = [
        {
            "TAGS": f"Tag{draw.randrange(100)}",
            "region": draw.choice(("eu", "us", "ap", "sa")),
            "color": draw.choice(("red", "green", "blue")),
            "amount": str(draw.randrange(1_000)),
            "price": f"{draw.random() * 1_000:.6f}",
        }
        for _ in range(rows)
    ]
    maps = [[item for item in row.items() if item[0] != "TAGS"] for row in made]
    columns = {
        "tags": pa.array([row["TAGS"] for row in made], pa.string()),
        "properties": pa.array(maps, pa.map_(pa.string(), pa.string())),
    }
    return made, pa.RecordBatch.from_pydict(columns)


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Median of `rounds`."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def main(rows: int) -> None:
    made, batch = messages(rows)
    print(f"{rows:,} rows, 4 properties and a tag each; medians")
    print(f"{'filter':<20}{'hits':>8}{'mask rows/s':>16}{'row rows/s':>14}{'ratio':>8}")
    for name, compiled in FILTERS:
        hits = compiled.mask(batch).true_count
        assert hits == sum(map(compiled.matches, made))
        mask = rows / seconds(lambda c=compiled: c.mask(batch), 9)
        predicate = rows / seconds(lambda c=compiled: sum(map(c.matches, made)), 3)
        print(f"{name:<20}{hits / rows:>8.1%}{mask:>16,.0f}{predicate:>14,.0f}{mask / predicate:>8.1f}")
    texts = [f"key-{i}" for i in range(rows)]
    column = pa.array(texts)
    hashes = rows / seconds(lambda: java_hashes(column), 9)
    scalar = rows / seconds(lambda: [java_hash(text) for text in texts], 3)
    print(f"{'hash, all distinct':<28}{hashes:>16,.0f}{scalar:>14,.0f}{hashes / scalar:>8.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
