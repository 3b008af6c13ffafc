"""`kill -9` of a Spark driver at every point of a batch: what it copies from topic to topic arrives once, in order.

Also of single Python processes, which Spark notices: it repeats a task, or gives the query up.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from spark_driver import QUERY_FAILED
from spark_story import CHECKPOINT, GROUP, Story, archive_classes

from rmq_spark.client.offsets import GroupOffsets

pytestmark = [pytest.mark.spark, pytest.mark.java]

POINTS = (
    # before the plan: start and end of the batch are looked up, written to the checkpoint, cut into tasks
    *("start-end", "latest-begin", "latest-end", "source-commit-begin", "source-commit-end"),
    *("plan-begin", "plan-end", "sink-plan-begin"),
    # during tasks
    *("read-begin", "read-batch", "write-batch", "file-begin", "file-end"),
    # after a task, and before the log's commit
    *("write-end", "commit-begin", "append-begin"),
    # after the log's commit, and before and after the checkpoint's
    *("commit-end", CHECKPOINT, "progress-begin"),
)
SHAPES: tuple[dict[str, Any], ...] = (
    {"as_files": True},
    {"trigger": "0 seconds"},
    {"as_files": True, "trigger": "200 milliseconds", "brokers": 2, "queues": 2},
    {"brokers": 2, "limit": 100},
    {"as_files": True, "queues": 8, "limit": 15},
    {"trigger": "0 seconds", "queues": 1, "limit": 7},
)


class Tell(Protocol):
    def __call__(self, seed: int, **settings: Any) -> Story: ...


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive_classes(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def tell(quick_path: Path, classes: Path) -> Iterator[Tell]:
    """Begins a story; whatever it started is gone after the test."""
    begun: list[Story] = []

    def begin(seed: int, **settings: Any) -> Story:
        place = quick_path / f"story-{len(begun)}"
        place.mkdir()
        begun.append(Story(place, seed, java_options=f"-XX:SharedArchiveFile={classes}", **settings))
        return begun[-1]

    yield begin
    for story in begun:
        story.close()


def seed_of_run() -> int:
    seed = int(os.environ.get("RMQ_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    return seed


def test_a_kill_at_each_point_of_a_batch(tell: Tell) -> None:
    story = tell(seed_of_run(), as_files=True)
    story.send(60)
    for point in ("file-end", "commit-begin", "commit-end", CHECKPOINT):  # `test_many_kills` has the others
        story.kill_at(point, story.rng.choice((1, 2)))
    story.finish()
    story.check()
    assert story.kills.total() == 4
    assert story.check_no_leftovers() > 0  # the row files of batches that were killed before their commit


def test_single_processes_that_die(tell: Tell) -> None:
    """Tasks are repeated; a committer that dies after its commit makes Spark abort a batch that is in the log."""
    story = tell(seed_of_run(), as_files=True)
    story.send(110)
    driver = story.die_at(("read-batch", 1), ("write-batch", 2), ("file-end", 3), ("commit-end", 2))
    driver.end(QUERY_FAILED)
    assert driver.calls("abort-end") == 1
    story.finish()
    story.check()
    story.check_no_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(len(SHAPES)))
def test_many_kills(tell: Tell, part: int) -> None:
    """The parts with row files together meet each point once, and so do the others."""
    story = tell(seed_of_run() + part, **SHAPES[part])
    points = [point for point in POINTS if story.as_files or not point.startswith("file")][part // 2 :: 3]
    story.rng.shuffle(points)
    points.sort(key=lambda point: point != "start-end")  # looked up until the first batch is done, and never again
    story.send(60)
    for point in points:
        story.kill_at(point, story.rng.choice((1, 2, 3)) if point != "start-end" else 1)
        if story.rng.random() < 0.3:
            story.maintain()
    story.finish()
    story.check()
    story.check_no_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_kills_at_any_time(tell: Tell, part: int) -> None:
    story = tell(seed_of_run() + part, **SHAPES[part])
    for _ in range(6):
        story.kill_some_time()
    story.finish()
    story.check()


@pytest.mark.slow
def test_kills_in_the_first_batch_after_latest(tell: Tell) -> None:
    """`latest` is another place each time it is looked up; the first batch's record says which one counts."""
    story = tell(seed_of_run(), starting="latest", trigger="0 seconds")
    story.send(30, is_expected=False)
    driver = story.start(("latest-begin", 1, "stop"), ("plan-begin", 1, "stop"))
    driver.reach("latest-begin", 1)
    assert driver.calls("start-end") > 0
    story.send(50)  # behind the start, before the first batch's end
    driver.release("latest-begin", 1)
    driver.reach("plan-begin", 1)
    driver.kill()
    story.kills["plan-begin"] += 1
    story.send(20)
    for point in ("plan-end", "write-batch", "commit-begin", "commit-end"):
        story.kill_at(point)
    story.finish()
    story.check()


@pytest.mark.slow
def test_kills_of_a_query_that_starts_where_its_group_is(tell: Tell) -> None:
    story = tell(seed_of_run(), starting="group")
    for _ in range(10):
        story.send(20)
    done = {("in", broker, queue): len(bodies) // 3 for (broker, queue), bodies in story.expected.items()}
    GroupOffsets(story.store).commit(GROUP, done)
    for (_, broker, queue), offset in done.items():
        del story.expected[broker, queue][:offset]
    for point in ("plan-begin", "append-begin", "commit-end", "source-commit-begin", "source-commit-end"):
        story.kill_at(point)
    story.finish()
    story.check()


@pytest.mark.slow
@pytest.mark.parametrize("as_files", [True, False])
def test_committers_that_outlive_their_driver(tell: Tell, as_files: bool) -> None:
    """A late commit of a batch lands before that of the driver's successor, or after it: in either case once."""
    story = tell(seed_of_run(), as_files=as_files)
    for point in ("commit-begin", "commit-end", "append-begin"):
        story.send(2 * story.limit)
        old = story.start(("append-begin", 1, "orphan"))
        orphan = old.reach("append-begin", 1)
        old.kill(spare=orphan)
        story.kills["append-begin"] += 1
        new = story.start((point, 1, "stop"))
        new.reach(point, 1)
        assert not old.is_gone()
        old.release("append-begin", 1)
        new.wait_for(old.is_gone, "the orphan's end")
        assert old.calls("append-end") == 1
        new.release(point, 1)
        story.finish(new)
    story.check()
    story.check_no_leftovers()


@pytest.mark.slow
def test_queries_that_lose_a_process(tell: Tell) -> None:
    """The query fails, and its successor goes on."""
    story = tell(seed_of_run(), as_files=True)
    for point in ("latest-end", "plan-end", "sink-plan-begin", "commit-begin", "append-begin", "append-end"):
        story.fail_at(point, 2)
    story.finish()
    story.check()
    story.check_no_leftovers()


@pytest.mark.slow
def test_the_last_batch_is_done_and_the_group_does_not_know(tell: Tell) -> None:
    """Killed behind the checkpoint's commit, with nothing new afterwards: the group's lag is 0 all the same."""
    story = tell(seed_of_run())
    story.send(story.limit + 20)
    driver = story.start(("progress-begin", 2, "stop"))
    driver.reach("progress-begin", 2)
    driver.kill()
    story.kills["progress-begin"] += 1
    story.finish()
    story.check()
