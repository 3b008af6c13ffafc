"""Resets: exact, compared before they are written, refused while consumers are at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from group_store import QUEUES, SETTINGS, STEPS, TOPICS, act, again, batch, before_append, held, memory_store, send
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_spark.client.offsets import FORCED_TRIES, HEARTBEAT_EXPIRY_MS, GroupOffsets, OffsetChange, OffsetsOf
from rmq_spark.client.store import DEFAULT_BROKER, Store
from rmq_spark.client.time_search import QueueKey
from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError, NotFoundError, PreconditionFailedError
from rmq_spark.log.expire import expire
from rmq_spark.log.scan import Query

B = DEFAULT_BROKER
IDLE_SECONDS = HEARTBEAT_EXPIRY_MS / 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    """Topic t with two queues: queue 0 has messages at 0, 10, 20 s, queue 1 at 10 s; group g is idle at 2 and 1."""
    with memory_store(clock, retention_ms=10**9) as made:
        made.create_topic("t", queues=2)
        made.create_topic("u", queues=1)
        send(made, "t", 0)
        clock.advance(10)
        made.log().append(batch([("t", 0), ("t", 1)]))
        clock.advance(10)
        send(made, "t", 0)
        GroupOffsets(made).commit("g", {("t", B, 0): 2, ("t", B, 1): 1}, member="m")
        clock.advance(IDLE_SECONDS)
        yield made


def brief(changes: list[OffsetChange]) -> list[tuple[int, int | None, int, int, int]]:
    return [(each.queue, each.before, each.after, each.redelivered, each.skipped) for each in changes]


class TestTargets:
    @pytest.mark.parametrize(
        ("to", "expected"),
        [
            ("earliest", [(0, 2, 0, 2, 0), (1, 1, 0, 1, 0)]),
            ("latest", [(0, 2, 3, 0, 1), (1, 1, 1, 0, 0)]),
            ("skip", [(0, 2, 3, 0, 1), (1, 1, 1, 0, 0)]),
            (-1, [(0, 2, 3, 0, 1), (1, 1, 1, 0, 0)]),
            (10_000, [(0, 2, 1, 1, 0), (1, 1, 0, 1, 0)]),
            (10_001, [(0, 2, 2, 0, 0), (1, 1, 1, 0, 0)]),
            (0, [(0, 2, 0, 2, 0), (1, 1, 0, 1, 0)]),
            (10**9, [(0, 2, 3, 0, 1), (1, 1, 1, 0, 0)]),
            ({("t", B, 0): 3}, [(0, 2, 3, 0, 1)]),
            ({("t", B, 0): 0, ("t", B, 1): 1}, [(0, 2, 0, 2, 0), (1, 1, 1, 0, 0)]),
        ],
    )
    def test_each_is_reported_and_done(self, store: Store, to: Any, expected: list[tuple[int, ...]]) -> None:
        groups = GroupOffsets(store)
        before, position = groups.committed("g"), store.log().refresh().state.offset
        planned = groups.reset("g", to=to, dry_run=True)
        assert (groups.committed("g"), store.log().refresh().state.offset) == (before, position)
        changes = groups.reset("g", "t", to=to)
        assert brief(changes) == brief(planned) == expected
        assert groups.committed("g") == {**before, **{("t", B, each.queue): each.after for each in changes}}
        assert not any(each.changed for each in groups.reset("g", to=to))

    def test_nothing_is_written_when_nothing_changes(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.reset("g", to="latest")
        position = store.log().refresh().state.offset
        groups.reset("g", to="latest")
        assert store.log().refresh().state.offset == position

    def test_a_clone_takes_what_the_other_committed(self, store: Store, clock: ManualClock) -> None:
        groups = GroupOffsets(store)
        groups.commit("other", {("t", B, 0): 1, ("u", B, 0): 0})
        clock.advance(IDLE_SECONDS)
        assert brief(groups.reset("g", "t", to=OffsetsOf("other"))) == [(0, 2, 1, 1, 0)]
        assert groups.committed("g") == {("t", B, 0): 1, ("t", B, 1): 1}
        groups.reset("new", to=OffsetsOf("other"))
        assert groups.committed("new") == {("t", B, 0): 1, ("u", B, 0): 0}

    def test_a_clone_leaves_deleted_topics_behind(self, store: Store, clock: ManualClock) -> None:
        groups = GroupOffsets(store)
        groups.commit("other", {("t", B, 0): 1, ("u", B, 0): 0})
        store.delete_topic("u")
        groups.reset("new", to=OffsetsOf("other"))
        assert groups.committed("new") == {("t", B, 0): 1}

    def test_a_group_may_be_set_before_it_first_consumes(self, store: Store) -> None:
        groups = GroupOffsets(store)
        changes = groups.reset("new", "t", to=10_000)
        assert brief(changes) == [(0, None, 1, 0, 1), (1, None, 0, 0, 0)]
        assert groups.committed("new") == {("t", B, 0): 1, ("t", B, 1): 0}
        assert not groups.activity("new").active

    def test_other_topics_and_groups_stay(self, store: Store, clock: ManualClock) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("u", B, 0): 0})
        groups.commit("h", {("t", B, 0): 1})
        send(store, "u", 0, 5)
        clock.advance(IDLE_SECONDS)
        groups.reset("g", "t", to="earliest")
        assert groups.committed("g")["u", B, 0] == 0
        groups.reset("g", to="latest")
        assert groups.committed("g") == {("t", B, 0): 3, ("t", B, 1): 1, ("u", B, 0): 5}
        assert groups.committed("h") == {("t", B, 0): 1}

    def test_what_was_lag_on_a_queue_without_a_commit_is_skipped(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.commit("h", {("t", B, 0): 1})
        lags = [each.lag for each in groups.lag("h")]
        assert lags == [2, 1]
        changes = groups.reset("h", to="latest", force=True)
        assert brief(changes) == [(0, 1, 3, 0, 2), (1, None, 1, 0, 1)]
        assert [each.skipped for each in changes] == lags

    def test_messages_that_expired_are_not_counted(self, clock: ManualClock) -> None:
        with memory_store(clock, retention_ms=2_500, segment_span_ms=1) as store:
            store.create_topic("t", queues=1)
            for _ in range(6):
                send(store, "t", 0)
                clock.advance(1)
            groups = GroupOffsets(store)
            groups.commit("g", {("t", B, 0): 5})
            expire(store.log())
            assert held(store.log(), "t", 0)[0][0] == 4
            assert brief(groups.reset("g", to="earliest", force=True)) == [(0, 5, 4, 1, 0)]
            groups.commit("g", {("t", B, 0): 1})
            assert brief(groups.reset("g", to="latest", force=True)) == [(0, 1, 6, 0, 2)]
            assert brief(groups.reset("new", "t", to="latest")) == [(0, None, 6, 0, 2)]

    def test_several_brokers(self, clock: ManualClock) -> None:
        with memory_store(clock) as store:
            store.create_topic("t", queues=1, brokers=("x", "y"))
            for broker in ("x", "y", "y"):
                send(store, "t", 0, broker=broker)
                clock.advance(1)
            groups = GroupOffsets(store)
            changes = groups.reset("g", "t", to=1_500)
            assert [(each.broker, each.after) for each in changes] == [("x", 1), ("y", 1)]
            assert groups.committed("g") == {("t", "x", 0): 1, ("t", "y", 0): 1}


class TestRefused:
    @pytest.mark.parametrize(
        ("group", "topic", "to", "error", "said"),
        [
            ("no spaces", "t", "earliest", InvalidRequestError, "illegal character"),
            ("g", "nothing", "earliest", NotFoundError, "no such topic"),
            ("nobody", None, "earliest", NotFoundError, "no such consumer group"),
            ("g", None, OffsetsOf("nobody"), NotFoundError, "no such consumer group"),
            ("g", "nothing", OffsetsOf("g"), NotFoundError, "no such topic"),
            ("g", None, "yesterday", InvalidRequestError, "reset to earliest, latest"),
            ("g", None, True, InvalidRequestError, "reset to earliest, latest"),
            ("g", "u", {("t", B, 0): 1}, InvalidRequestError, "another topic"),
            ("g", None, {("t", B, 2): 1}, NotFoundError, "no such queue"),
            ("g", None, {("t", "x", 0): 1}, NotFoundError, "no such queue"),
            ("g", None, {("t", B, 0): 4}, InvalidRequestError, "outside of what the queue holds"),
            ("g", None, {("t", B, 0): -1}, InvalidRequestError, "from 0 on"),
            ("g", None, {("t", B, 0): 2**63}, InvalidRequestError, "from 0 on"),
        ],
    )
    def test_bad_requests_change_nothing(
        self, store: Store, group: str, topic: str | None, to: Any, error: type[Exception], said: str
    ) -> None:
        position = store.log().refresh().state.offset
        for dry_run in (True, False):
            with pytest.raises(error, match=said):
                GroupOffsets(store).reset(group, topic, to=to, dry_run=dry_run)
        assert store.log().refresh().state.offset == position

    def test_while_the_group_is_active(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("t", B, 0): 3}, member="me")
        before = groups.committed("g")
        assert groups.reset("g", to="earliest", dry_run=True), "a dry run may look"
        with pytest.raises(PreconditionFailedError, match="active") as raised:
            groups.reset("g", to="earliest")
        assert raised.value.context["member"] == "me"
        assert groups.committed("g") == before
        groups.reset("g", to="earliest", force=True)
        assert groups.committed("g") == {("t", B, 0): 0, ("t", B, 1): 0}


class Between:
    """Lets something happen between a reset's look and its write."""

    def __init__(self, groups: GroupOffsets, action: Callable[[], None]) -> None:
        times = groups._times
        search = times.search_queues
        self.count = 0

        def searched(*args: Any, **options: Any) -> Any:
            offsets = search(*args, **options)
            self.count += 1
            action()
            return offsets

        times.search_queues = searched  # type: ignore[method-assign]


class TestCompareAndAppend:
    def test_a_commit_that_came_in_between_is_not_overwritten(self, store: Store) -> None:
        groups = GroupOffsets(store)
        with again(store) as other:
            Between(groups, lambda: GroupOffsets(other).commit("g", {("t", B, 0): 3}) and None)
            with pytest.raises(PreconditionFailedError, match="active"):
                groups.reset("g", to=0)
            assert groups.committed("g") == {("t", B, 0): 3, ("t", B, 1): 1}

    def test_nor_is_another_reset(self, store: Store) -> None:
        groups = GroupOffsets(store)
        with again(store) as other:
            Between(groups, lambda: GroupOffsets(other).reset("g", to="latest") and None)
            with pytest.raises(PreconditionFailedError, match="committed while it was being reset") as raised:
                groups.reset("g", to=0)
            assert raised.value.context == {"group": "g", "broker": B, "done": []}
            assert groups.committed("g") == {("t", B, 0): 3, ("t", B, 1): 1}

    def test_a_commit_on_a_queue_that_would_not_change_counts_too(self, store: Store, clock: ManualClock) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("t", B, 0): 0})
        clock.advance(IDLE_SECONDS)
        with again(store) as other:
            Between(groups, lambda: GroupOffsets(other).reset("g", to={("t", B, 0): 2}) and None)
            with pytest.raises(PreconditionFailedError):
                groups.reset("g", to=0)
        assert groups.committed("g") == {("t", B, 0): 2, ("t", B, 1): 1}

    def test_a_consumer_that_starts_meanwhile_on_another_topic_is_noticed(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups = GroupOffsets(store)
        before_append(store, monkeypatch, lambda other: GroupOffsets(other).commit("g", {("u", B, 0): 0}))
        with pytest.raises(PreconditionFailedError, match="active"):
            groups.reset("g", "t", to="earliest")
        assert groups.committed("g") == {("t", B, 0): 2, ("t", B, 1): 1, ("u", B, 0): 0}

    def test_by_force_it_compares_anew(self, store: Store) -> None:
        groups = GroupOffsets(store)
        offsets = iter([3, 1])
        with again(store) as other:

            def commit() -> None:
                if (offset := next(offsets, None)) is not None:
                    GroupOffsets(other).commit("g", {("t", B, 0): offset})

            between = Between(groups, commit)
            changes = groups.reset("g", to=0, force=True)
        assert between.count == 3
        assert brief(changes) == [(0, 1, 0, 1, 0), (1, 1, 0, 1, 0)], "what it overwrote in the end"
        assert groups.committed("g") == {("t", B, 0): 0, ("t", B, 1): 0}

    def test_by_force_it_gives_up_at_last(self, store: Store) -> None:
        groups = GroupOffsets(store)
        numbers = iter(range(10**6))
        with again(store) as other:
            between = Between(groups, lambda: GroupOffsets(other).commit("g", {("t", B, 0): next(numbers)}) and None)
            with pytest.raises(PreconditionFailedError, match="committed while"):
                groups.reset("g", to=0, force=True)
        assert between.count == FORCED_TRIES

    def test_the_error_names_the_brokers_that_were_reset_before(
        self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with memory_store(clock) as store:
            store.create_topic("t", queues=1, brokers=("x", "y"))
            for broker in ("x", "y"):
                send(store, "t", 0, 2, broker)
            groups = GroupOffsets(store)
            before_append(store, monkeypatch, lambda other: GroupOffsets(other).reset("g", to={("t", "y", 0): 1}), "x")
            with pytest.raises(PreconditionFailedError, match="committed while") as raised:
                groups.reset("g", "t", to="latest")
            assert raised.value.context == {"group": "g", "broker": "y", "done": ["x"]}
            assert groups.committed("g") == {("t", "x", 0): 2, ("t", "y", 0): 1}
            groups.reset("g", "t", to="latest")
            assert groups.committed("g") == {("t", "x", 0): 2, ("t", "y", 0): 2}


def first_delivered(store: Store, group: str, topic: str, queue: int) -> tuple[int, int] | None:
    """(offset, storeTimestamp) of what a consumer that goes on from the committed offset is given first."""
    offset = GroupOffsets(store).committed(group)[topic, B, queue]
    query = Query(ranges={(topic, queue): (offset, 1 << 60)}, columns=("queueOffset", "storeTimestamp"))
    rows = [
        row
        for batch in store.log().scan(query)
        for row in zip(batch.column(0).to_pylist(), batch.column(1).cast(pa.int64()).to_pylist(), strict=True)
    ]
    return min(rows, default=None)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, given_settings=SETTINGS, back=st.integers(-5, 2_500))
def test_the_first_message_after_a_reset_is_the_first_at_that_moment(
    steps: list[Any], given_settings: dict[str, int], back: int
) -> None:
    with memory_store(**given_settings) as store:
        for topic in TOPICS:
            store.create_topic(topic, queues=QUEUES)
        for step in steps:
            act(store, step)
        ms = store.clock.now_ms() - back
        for topic in TOPICS:
            GroupOffsets(store).reset("g", topic, to=ms)
            for queue in range(QUEUES):
                expected = next((row for row in held(store.log(), topic, queue) if row[1] >= ms), None)
                assert first_delivered(store, "g", topic, queue) == expected


@settings(max_examples=40, deadline=None)
@given(
    befores=st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=2, max_size=2),
    afters=st.lists(st.integers(0, 10), min_size=2, max_size=2),
)
def test_what_is_redelivered_and_skipped_is_counted(befores: list[int | None], afters: list[int]) -> None:
    with memory_store(ManualClock(0)) as store:
        store.create_topic("t", queues=2)
        for queue in range(2):
            send(store, "t", queue, 10)
        groups = GroupOffsets(store)
        known: dict[QueueKey, int] = {("t", B, q): offset for q, offset in enumerate(befores) if offset is not None}
        groups.commit("g", known)
        changes = groups.reset("g", to={("t", B, q): offset for q, offset in enumerate(afters)}, force=True)
        for change, before, after in zip(changes, befores, afters, strict=True):
            # Every message is held: it was consumed if below `before`, and will be delivered if not below `after`.
            consumed = set() if before is None else set(range(before))
            delivered = set(range(after, 10))
            redelivered = {offset for offset in delivered if offset in consumed}
            skipped = set(range(10)) - consumed - delivered
            assert (change.before, change.after) == (before, after)
            assert change.skipped == len(skipped)
            assert change.redelivered == len(redelivered)
