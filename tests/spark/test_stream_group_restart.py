"""A driver that died between the checkpoint's commit and the group's: its successor notes what was done."""

from __future__ import annotations

import pytest
from micro_batches import Checkpoint, Killed, Query, run_once
from store_world import World

from rmq_spark.client.offsets import GroupOffsets


def lag(world: World) -> dict[tuple[str, int], int]:
    return {(queue.broker, queue.queue): queue.lag for queue in GroupOffsets(world.store).lag("g")}


def test_a_restart_without_new_messages_notes_the_last_batch() -> None:
    world = World.create()
    world.store.create_topic("t", queues=2, brokers=("broker-0", "broker-1"))
    for broker in ("broker-0", "broker-1"):
        world.send("t", 0, 0, broker=broker)
    options = world.options(topic="t", startingOffsets="earliest", consumerGroup="g", maxOffsetsPerTrigger=2)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    assert sum(lag(world).values()) > 0, "nobody was there to note the last batch"
    query = Query(options, checkpoint)
    assert not query.trigger()
    assert lag(world) == {(broker, queue): 0 for broker in ("broker-0", "broker-1") for queue in (0, 1)}
    end = world.log().refresh().state.offset
    assert not query.trigger()
    assert world.log().refresh().state.offset == end, "once is enough"
    query.stop()


def test_a_batch_that_is_not_done_is_not_noted() -> None:
    world = World.create()
    world.store.create_topic("t", queues=1)
    world.send("t", 0, 0)
    options = world.options(topic="t", startingOffsets="earliest", consumerGroup="g")
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    world.send("t", 0, 0, 0)
    query = Query(options, checkpoint)
    with pytest.raises(Killed):
        query.trigger(die="sunk")
    assert lag(world) == {("broker-0", 0): 3}
