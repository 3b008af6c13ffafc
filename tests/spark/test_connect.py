"""Classic Spark and Spark Connect give the same: reads, SQL, mistakes, streams and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark_modes import story
from store_world import World

from rmq_spark.log.scan import Query

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("spark_modes.py")
LIMIT_S = 600


def run_connect(world: World, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), world.uri, str(folder)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


@pytest.mark.parametrize("mode", ["classic", "connect"])
def test_both_kinds_of_session_give_the_same(tmp_path: Path, mode: str, request: pytest.FixtureRequest) -> None:
    world = World.create(str(tmp_path / "store"))
    for topic in ("t", "written", "streamed"):
        world.store.create_topic(topic, queues=2)
    for number in range(4):
        world.send("t", 0, 1, tags="a" if number % 2 else "b", properties=[("n", str(number))])
    if mode == "connect":
        answer = run_connect(world, tmp_path)
    else:
        answer = story(request.getfixturevalue("spark"), world.uri, tmp_path)
    assert answer["kind"] == ("pyspark.sql.connect.session" if mode == "connect" else "pyspark.sql.session")
    plain = [row for batch in world.log().scan(Query(topics=frozenset({"t"}))) for row in batch.to_pylist()]
    plain.sort(key=lambda row: (row["queueId"], row["queueOffset"]))
    names = [part.split(":")[0] for part in answer["schema"].removeprefix("struct<").split(",")][:16]
    assert names == list(plain[0])
    as_text = [
        [
            value.decode() if isinstance(value, bytes) else str(dict(value)) if isinstance(value, list) else str(value)
            for name, value in row.items()
            if not name.endswith("Timestamp")
        ]
        for row in plain
    ]
    times = [index for index, name in enumerate(names) if name.endswith("Timestamp")]
    for kind in ("all", "streamed"):
        assert [[v for index, v in enumerate(row) if index not in times] for row in answer[kind]] == as_text, kind
    assert [[row[index] for index in times] for row in answer["all"]] == [
        [f"{row[names[index]].replace(tzinfo=None):%Y-%m-%d %H:%M:%S.%f}" for index in times] for row in plain
    ]
    assert answer["narrow"] == [["broker-0", "0", "3", "m7"], ["broker-0", "1", "3", "m8"]]
    assert answer["counts"] == [4, 8]
    assert answer["view"] == [["a", 4], ["b", 4]]
    assert answer["mistake"] is True
    if mode == "classic":  # a Connect client has no progress reports of a query that has ended
        assert answer["batches"] == 2
    for topic in ("written", "streamed"):
        query = Query(topics=frozenset({topic}), columns=("queueId", "queueOffset", "body", "tags"))
        copied = [tuple(row.values()) for batch in world.log().scan(query) for row in batch.to_pylist()]
        assert sorted(copied) == [(row["queueId"], row["queueOffset"], row["body"], row["tags"]) for row in plain], (
            topic
        )
