"""Stores with a history for the tests of groups and of time search, and the plain answers that they compare with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from rmq_spark.client.store import DEFAULT_BROKER, Store
from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.scan import Query
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage.memory import MemoryStorage

TOPICS = ("a", "b")
QUEUES = 3
RETENTION_MS = 1_000
_numbers = itertools.count()

Places = Iterable[tuple[str, int]]
"""Topic and queue of each message."""


@contextmanager
def memory_store(clock: ManualClock | None = None, **settings: Any) -> Iterator[Store]:
    """An empty store of its own in memory."""
    name = f"groups-{next(_numbers)}"
    log_settings = LogSettings(**{"delete_grace_ms": 0, "retention_ms": RETENTION_MS, **settings})
    try:
        with Store.create(f"memory://{name}", clock=clock or ManualClock(), settings=log_settings) as store:
            yield store
    finally:
        MemoryStorage.forget(name)


def again(store: Store, **options: Any) -> Store:
    """A second handle on the same store."""
    return Store.open(store.storage.uri, clock=store.clock, settings=store.settings, **options)


def batch(places: Places, size: int = 1) -> MessageBatch:
    """One message for each place."""
    return MessageBatch.merge(
        [
            MessageBatch.of(
                topic=topic, queue_id=queue, msg_id=f"{next(_numbers):032d}", body=b"x" * size, born_timestamp_ms=0
            )
            for topic, queue in places
        ]
    )


def send(store: Store, topic: str, queue: int, count: int = 1, broker: str = DEFAULT_BROKER) -> None:
    """So many messages in one commit."""
    store.log(broker).append(batch([(topic, queue)] * count))


PLACES = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, QUEUES - 1), st.sampled_from([1, 1, 2, 40])),
    min_size=1,
    max_size=4,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), PLACES),
        st.tuples(st.just("send"), PLACES),
        st.tuples(st.just("files"), st.lists(PLACES, min_size=1, max_size=3)),
        st.tuples(st.just("wait"), st.sampled_from([1, 2, 10, RETENTION_MS])),
        st.tuples(st.just("roll"), st.integers(1, 3)),
        st.tuples(st.just("expire"), st.none()),
        st.tuples(st.just("recreate"), st.sampled_from(TOPICS)),
    ),
    max_size=20,
)
"""What happens to a store, step by step."""
SETTINGS = st.fixed_dictionaries(
    {
        "block_bytes": st.sampled_from([500, 5_000, 200_000]),
        "segment_bytes": st.sampled_from([1, 20_000, 10_000_000]),
        "segment_span_ms": st.sampled_from([5, 10_000]),
    }
)


def spread(places: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Each place as often as it says."""
    return [(topic, queue) for topic, queue, count in places for _ in range(count)]


def act(store: Store, step: tuple[str, Any]) -> None:
    """Carry out one step of a history."""
    word, value = step
    log = store.log()
    clock = store.clock
    assert isinstance(clock, ManualClock)
    if word == "send":
        log.append(batch(spread(value), 20))
    elif word == "files":
        files = [
            write_row_file(log.storage, log.root, batch(spread(places)), nonce=clock.token(), block_bytes=5_000)
            for places in value
        ]
        log.append_files(files)
    elif word == "wait":
        clock.advance(value / 1000)
    elif word == "roll":
        roll(log, min_commits=value)
    elif word == "expire":
        expire(log)
    else:
        store.delete_topic(value)
        store.create_topic(value, queues=QUEUES)


def held(log: CommitLog, topic: str, queue: int) -> list[tuple[int, int]]:
    """(offset, storeTimestamp) of every message that a queue holds, by reading all of them."""
    query = Query(
        topics=frozenset({topic}), queues=frozenset({queue}), columns=("queueOffset", "storeTimestamp", "commitOffset")
    )
    rows = []
    for record_batch in log.scan(query):
        rows += zip(
            record_batch.column(0).to_pylist(), record_batch.column(1).cast(pa.int64()).to_pylist(), strict=True
        )
    return sorted(rows)


def end_of(log: CommitLog, topic: str, queue: int) -> int:
    return log.refresh().state.queues.bounds(topic, queue)[1]


def before_append(
    store: Store, monkeypatch: pytest.MonkeyPatch, action: Callable[[Store], object], broker: str = DEFAULT_BROKER
) -> None:
    """Let `action` happen on another handle just before the next decision of this one in a broker's log."""
    log = store.log(broker)
    decide = log.decide

    def late(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        with again(store) as other:
            action(other)
        return decide(*args, **options)

    monkeypatch.setattr(log, "decide", late)
