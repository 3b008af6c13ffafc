"""Committed offsets: what is written, remembered, counted as lag, and forgotten."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from group_store import again, batch, before_append, memory_store, send
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.client.offsets import HEARTBEAT_EXPIRY_MS, GroupOffsets, QueueLag
from rmq_spark.client.store import DEFAULT_BROKER, Store
from rmq_spark.client.time_search import QueueKey
from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError, NotFoundError, PreconditionFailedError, ReadOnlyError
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.scan import Query
from rmq_spark.log.undo import Journal
from rmq_spark.log.verify import verify
from rmq_spark.rules.offsets import ConsumerOffsets, LastCommit
from rmq_spark.rules.topics import GroupConfigs
from rmq_spark.storage import paths

B = DEFAULT_BROKER

TOPIC_OFFSETS = st.dictionaries(
    st.sampled_from(["t", "u"]),
    st.dictionaries(st.integers(0, 3).map(str), st.integers(0), max_size=3),
    min_size=1,
    max_size=2,
)
LAST = st.one_of(
    st.none(),
    st.builds(
        LastCommit, st.integers(0), st.one_of(st.none(), st.text(max_size=5)), st.one_of(st.none(), st.integers(0))
    ),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with memory_store(clock, retention_ms=3_600_000) as made:
        made.create_topic("orders", queues=4)
        made.create_topic("events", queues=2)
        yield made


def end(store: Store, broker: str = B) -> int:
    return store.log(broker).refresh().state.offset


def by_queue(lags: list[QueueLag]) -> dict[QueueKey, QueueLag]:
    return {(lag.topic, lag.broker, lag.queue): lag for lag in lags}


class TestCommit:
    def test_what_was_committed_is_there_for_everybody(self, store: Store) -> None:
        groups = GroupOffsets(store)
        assert groups.committed("billing") == {}
        assert groups.commit("billing", {("orders", B, 0): 3, ("events", B, 1): 5})
        assert groups.commit("audit", {("orders", B, 0): 1})
        assert groups.committed("billing") == {("orders", B, 0): 3, ("events", B, 1): 5}
        assert groups.committed("audit") == {("orders", B, 0): 1}
        assert groups.groups() == ["audit", "billing"]
        with again(store, read_only=True) as other:
            assert GroupOffsets(other).committed("billing") == groups.committed("billing")
            with pytest.raises(ReadOnlyError):
                GroupOffsets(other).commit("billing", {("orders", B, 0): 4})

    def test_queues_that_are_not_named_keep_their_offsets_and_any_may_go_back(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("orders", B, 0): 3, ("orders", B, 1): 7})
        groups.commit("g", {("orders", B, 1): 2})
        assert groups.committed("g") == {("orders", B, 0): 3, ("orders", B, 1): 2}

    def test_all_topics_of_a_broker_are_one_commit(self, store: Store) -> None:
        store.create_topic("wide", queues=2, brokers=("x", B))
        GroupOffsets(store).commit(
            "g", {("orders", B, 0): 1, ("events", B, 1): 2, ("wide", B, 0): 3, ("wide", "x", 1): 4}
        )
        commits = {name: list(store.log(name).refresh().state.commits.firsts) for name in (B, "x")}
        assert commits == {B: [0], "x": [0]}
        assert (end(store), end(store, "x")) == (3 + 1, 1 + 1), "with the record that lists the fold"

    def test_what_has_not_changed_is_not_written(self, store: Store) -> None:
        groups = GroupOffsets(store)
        offsets: dict[QueueKey, int] = {("orders", B, queue): 5 for queue in range(4)}
        assert groups.commit("g", offsets)
        before = end(store)
        assert not groups.commit("g", offsets)
        assert not groups.commit("g", {})
        assert end(store) == before
        assert groups.commit("g", {**offsets, ("orders", B, 2): 6})
        query = Query(topics=frozenset(ConsumerOffsets.topics))
        record = list(store.log().scan(query))[-1].to_pylist()[-1]
        assert json.loads(record["body"]) == {"group": "g", "topic": "orders", "offsets": {"2": 6}}

    def test_unchanged_is_judged_by_what_others_wrote_too(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("orders", B, 0): 5})
        with again(store) as other:
            GroupOffsets(other).commit("g", {("orders", B, 0): 9})
        assert groups.commit("g", {("orders", B, 0): 5})
        assert groups.committed("g") == {("orders", B, 0): 5}

    @pytest.mark.parametrize(
        ("group", "key", "offset", "error"),
        [
            ("no spaces", ("orders", B, 0), 1, InvalidRequestError),
            ("", ("orders", B, 0), 1, InvalidRequestError),
            ("g", ("nothing", B, 0), 1, NotFoundError),
            ("g", ("orders", "elsewhere", 0), 1, NotFoundError),
            ("g", ("orders", B, 4), 1, NotFoundError),
            ("g", ("orders", B, -1), 1, NotFoundError),
            ("g", ("orders", B, 0), -1, InvalidRequestError),
            ("g", ("orders", B, 0), 2**63, InvalidRequestError),
            ("g", ("orders", B, 0), True, InvalidRequestError),
            ("g", ("orders", B, 0), 1.5, InvalidRequestError),
        ],
    )
    def test_bad_commits_write_nothing(
        self, store: Store, group: str, key: QueueKey, offset: int, error: type[Exception]
    ) -> None:
        groups = GroupOffsets(store)
        with pytest.raises(error):
            groups.commit(group, {("orders", B, 1): 3, key: offset})
        assert groups.groups() == []
        assert end(store) == 0

    def test_the_greatest_offset_is_one_that_tables_can_hold(self, store: Store) -> None:
        groups = GroupOffsets(store)
        assert groups.commit("g", {("orders", B, 0): 2**63 - 1})
        assert by_queue(groups.lag("g"))["orders", B, 0].lag == 0

    @pytest.mark.parametrize(
        "changed",
        [
            {"topic": ""},
            {"member": 7},
            {"member": True},
            {"offsets": {"0": True}},
            {"offsets": {"0": -1}},
            {"offsets": {"0": 2**63}},
            {"offsets": {str(2**31): 1}},
        ],
    )
    def test_records_that_could_not_be_read_back_are_refused(self, store: Store, changed: dict[str, object]) -> None:
        body = json.dumps({"group": "g", "topic": "orders", "offsets": {"0": 1}, **changed}).encode()
        record = MessageBatch.of(
            topic=ConsumerOffsets.topics[0], queue_id=0, msg_id="1", body=body, born_timestamp_ms=0
        )
        with pytest.raises(InvalidRequestError, match="not a state message"):
            store.log(B, ConsumerOffsets).append(record)

    def test_ten_thousand_queues_are_one_commit_each_time(self, clock: ManualClock) -> None:
        with memory_store(clock) as store:
            store.create_topic("wide", queues=8_000)
            for number in range(20):
                store.create_topic(f"narrow-{number}", queues=100)
            send(store, "wide", 7_999, 3)
            groups = GroupOffsets(store)
            keys: list[QueueKey] = [("wide", B, queue) for queue in range(8_000)]
            keys += [(f"narrow-{number}", B, queue) for number in range(20) for queue in range(100)]
            for step in (1, 2):
                assert groups.commit("g", dict.fromkeys(keys, step), member="m")
            assert len(store.log().refresh().state.commits.firsts) == 3
            assert groups.committed("g") == dict.fromkeys(keys, 2)
            lags = groups.lag("g")
            assert len(lags) == 10_000
            assert sum(lag.lag for lag in lags) == 1
            roll(store.log())
            with again(store) as other:
                assert GroupOffsets(other).committed("g") == dict.fromkeys(keys, 2)


class TestMemory:
    """A restart, snapshots, rolls and expiry change nothing."""

    def essence(self, store: Store) -> object:
        with again(store, read_only=True) as fresh:
            groups = GroupOffsets(fresh)
            names = groups.groups()
            return {name: (groups.committed(name), groups.activity(name)) for name in names}

    def filled(self, store: Store, clock: ManualClock) -> object:
        groups = GroupOffsets(store)
        groups.commit("idle", {("orders", B, 0): 1})
        clock.advance(500)
        send(store, "orders", 0, 4)
        groups.commit("billing", {("orders", B, 0): 2, ("events", B, 0): 0}, member="10.0.0.1@7")
        groups.reset("idle", to="latest")
        return self.essence(store)

    def test_restart(self, store: Store, clock: ManualClock) -> None:
        expected = self.filled(store, clock)
        assert expected == {
            "billing": (
                {("orders", B, 0): 2, ("events", B, 0): 0},
                GroupOffsets(store).activity("billing"),
            ),
            "idle": (
                {("orders", B, queue): 4 if queue == 0 else 0 for queue in range(4)},
                GroupOffsets(store).activity("idle"),
            ),
        }

    def test_snapshot_round_trip(self, store: Store, clock: ManualClock) -> None:
        expected = self.filled(store, clock)
        assert store.log().snapshot() is not None
        assert self.essence(store) == expected
        with again(store, read_only=True) as fresh:
            assert fresh.log().view.folded == 0, "it starts from the snapshot"
        report = verify(store.storage, store.log().root, B)
        assert report.findings == []
        assert report.snapshots == 1

    def test_roll_and_expiry(self, store: Store, clock: ManualClock) -> None:
        expected = self.filled(store, clock)
        roll(store.log())
        assert self.essence(store) == expected
        clock.advance(8 * 3600)
        store.log().append(batch([("orders", 0)]))
        roll(store.log(), min_commits=1)
        assert len(expire(store.log()).segments) == 1
        after = self.essence(store)
        assert isinstance(after, dict)
        assert isinstance(expected, dict)
        assert {name: value[0] for name, value in after.items()} == {n: value[0] for n, value in expected.items()}
        assert after["billing"][1].member == "10.0.0.1@7"

    def test_a_snapshot_of_an_older_version_loads(self) -> None:
        fold = ConsumerOffsets(Journal())
        fold.load({"g": {"t": {"0": 3}}}, 0)
        assert fold.of("g", "t") == {0: 3}
        assert fold.last == {}
        assert fold.dump() == {"g": {"t": {"0": 3}}}

    @settings(max_examples=50, deadline=None)
    @given(st.dictionaries(st.sampled_from(["g", "h", "%RETRY%x"]), st.tuples(TOPIC_OFFSETS, LAST), max_size=3))
    def test_dump_and_load_are_inverse_and_older_readers_see_only_topics(
        self, groups: dict[str, tuple[dict[str, dict[str, int]], LastCommit | None]]
    ) -> None:
        fold, copy = ConsumerOffsets(Journal()), ConsumerOffsets(Journal())
        for name, (topics, last) in groups.items():
            mine = fold.offsets.child(name)
            for topic, queues in topics.items():
                mine[topic] = fold.table({int(queue): offset for queue, offset in queues.items()})
            if last is not None:
                fold.last[name] = last
        dumped = json.loads(json.dumps(fold.dump()))
        copy.load(dumped, fold.version)
        assert (copy.offsets, copy.last) == (fold.offsets, fold.last)
        for name, (topics, _) in groups.items():
            # what a version without `last` did: it took the dump as it is, and asked for topics by name
            assert {topic: dumped[name][topic] for topic in topics} == topics


class TestLag:
    def test_messages_and_time(self, store: Store, clock: ManualClock) -> None:
        groups = GroupOffsets(store)
        for _ in range(5):
            send(store, "orders", 1, 2)
            clock.advance(10)
        send(store, "events", 0)
        groups.commit("g", {("orders", B, 1): 4, ("orders", B, 2): 0})
        committed_at = clock.now_ms()
        clock.advance(3)
        lags = by_queue(groups.lag("g"))
        assert set(lags) == {("orders", B, queue) for queue in range(4)}, "only topics where it committed, all queues"
        assert lags["orders", B, 1] == QueueLag(
            topic="orders",
            broker=B,
            queue=1,
            committed=4,
            first=0,
            end=10,
            lag=6,
            lag_ms=33_000,  # the third pair came 30 s before the commit
            missed=0,
            updated_ms=committed_at,
        )
        assert (lags["orders", B, 2].lag, lags["orders", B, 2].lag_ms) == (0, 0)
        assert lags["orders", B, 0].committed is None
        groups.commit("g", {("orders", B, 1): 10})
        assert by_queue(groups.lag("g"))["orders", B, 1].lag == 0
        assert by_queue(groups.lag("g"))["orders", B, 1].lag_ms == 0

    def test_a_queue_without_a_commit_counts_all_that_it_holds(self, store: Store, clock: ManualClock) -> None:
        send(store, "orders", 3, 7)
        GroupOffsets(store).commit("g", {("orders", B, 0): 0})
        clock.advance(2)
        lag = by_queue(GroupOffsets(store).lag("g"))["orders", B, 3]
        assert (lag.committed, lag.lag, lag.lag_ms, lag.missed) == (None, 7, 2_000, 0)

    def test_what_expired_is_missed_and_no_lag(self, clock: ManualClock) -> None:
        with memory_store(clock, retention_ms=2_000, segment_span_ms=1) as store:
            store.create_topic("t", queues=1)
            for _ in range(5):
                send(store, "t", 0)
                clock.advance(1)
            groups = GroupOffsets(store)
            groups.commit("g", {("t", B, 0): 1})
            clock.advance(0.5)
            expire(store.log())
            (lag,) = groups.lag("g")
            assert (lag.committed, lag.first, lag.end, lag.lag, lag.missed) == (1, 4, 5, 1, 3)
            assert lag.lag_ms == 1_500, "since the first that is left, stored a second before the commit"

    def test_an_offset_behind_the_end_is_no_negative_lag(self, store: Store) -> None:
        GroupOffsets(store).commit("g", {("orders", B, 0): 50})
        lag = by_queue(GroupOffsets(store).lag("g"))["orders", B, 0]
        assert (lag.lag, lag.lag_ms, lag.missed) == (0, 0, 0)

    def test_deleted_topics_are_left_out(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("orders", B, 0): 1, ("events", B, 0): 1})
        store.delete_topic("orders")
        assert {lag.topic for lag in groups.lag("g")} == {"events"}

    def test_an_unknown_group_is_an_error_that_names_the_nearest(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.commit("billing", {("orders", B, 0): 1})
        with pytest.raises(NotFoundError, match=r"no such consumer group \(group='biling', nearest='billing'\)"):
            groups.lag("biling")

    def test_several_brokers_have_their_own_times(self, store: Store, clock: ManualClock) -> None:
        store.create_topic("wide", queues=1, brokers=("x", "y"))
        groups = GroupOffsets(store)
        groups.commit("g", {("wide", "x", 0): 0})
        first = clock.now_ms()
        clock.advance(5)
        groups.commit("g", {("wide", "y", 0): 0})
        lags = by_queue(groups.lag("g"))
        assert lags["wide", "x", 0].updated_ms == first
        assert lags["wide", "y", 0].updated_ms == first + 5_000


class TestActivity:
    def test_the_last_commit_of_a_consumer_decides(self, store: Store, clock: ManualClock) -> None:
        groups = GroupOffsets(store)
        assert groups.activity("g").active is False
        groups.commit("g", {("orders", B, 0): 1}, member="one")
        groups.commit("g", {("orders", B, 1): 1}, member="two")
        activity = groups.activity("g")
        assert (activity.active, activity.member, activity.member_ms) == (True, "two", clock.now_ms())
        clock.advance(HEARTBEAT_EXPIRY_MS / 1000 - 0.001)
        assert groups.activity("g").active
        clock.advance(0.001)
        assert not groups.activity("g").active
        assert groups.activity("g").member == "two"

    def test_a_consumer_without_a_name_is_one(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("orders", B, 0): 1})
        assert (groups.activity("g").active, groups.activity("g").member) == (True, None)

    def test_an_administrator_neither_is_nor_hides_one(self, store: Store, clock: ManualClock) -> None:
        groups = GroupOffsets(store)
        groups.reset("new", "orders", to="earliest")
        assert not groups.activity("new").active
        assert groups.activity("new").updated_ms == clock.now_ms()
        groups.commit("g", {("orders", B, 0): 1}, member="one")
        seen = clock.now_ms()
        clock.advance(10)
        send(store, "orders", 0, 5)
        groups.reset("g", to="latest", force=True)
        activity = groups.activity("g")
        assert (activity.active, activity.member, activity.member_ms, activity.updated_ms) == (
            True,
            "one",
            seen,
            seen + 10_000,
        )

    def test_any_broker_counts(self, store: Store, clock: ManualClock) -> None:
        store.create_topic("wide", queues=1, brokers=("x", "y"))
        groups = GroupOffsets(store)
        groups.commit("g", {("wide", "y", 0): 1}, member="old")
        clock.advance(500)
        groups.commit("g", {("wide", "x", 0): 1}, member="new")
        assert (groups.activity("g").active, groups.activity("g").member) == (True, "new")


class TestDelete:
    def test_a_deleted_group_is_gone_for_everybody(self, store: Store, clock: ManualClock) -> None:
        store.create_topic("wide", queues=1, brokers=("x", B))
        groups = GroupOffsets(store)
        groups.commit("g", {("wide", "x", 0): 1, ("orders", B, 0): 2})
        groups.commit("h", {("orders", B, 0): 2})
        clock.advance(HEARTBEAT_EXPIRY_MS / 1000)
        groups.delete("g")
        with again(store) as other:
            assert GroupOffsets(other).groups() == ["h"]
            assert GroupOffsets(other).committed("g") == {}
            assert not GroupOffsets(other).activity("g").active
        with pytest.raises(NotFoundError, match="no such consumer group"):
            groups.delete("g")

    def test_settings_go_too(self, store: Store) -> None:
        body = json.dumps({"group": "g", "retryMaxTimes": 3}).encode()
        config = MessageBatch.of(topic=GroupConfigs.topics[0], queue_id=0, msg_id="1", body=body, born_timestamp_ms=0)
        store.nameserver.append(config)
        groups = GroupOffsets(store)
        assert groups.groups() == ["g"]
        assert groups.lag("g") == []
        groups.delete("g")
        assert groups.groups() == []

    def test_an_active_group_stays_unless_forced(self, store: Store) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("orders", B, 0): 2}, member="me")
        with pytest.raises(PreconditionFailedError, match="active") as raised:
            groups.delete("g")
        assert raised.value.context["member"] == "me"
        assert groups.committed("g")
        groups.delete("g", force=True)
        assert groups.groups() == []
        assert groups.activity("g").member_ms is None, "a group of that name starts anew"

    def test_only_brokers_that_know_it_are_written(self, store: Store) -> None:
        store.create_topic("wide", queues=1, brokers=("x", "y"))
        groups = GroupOffsets(store)
        groups.commit("g", {("wide", "x", 0): 1})
        groups.delete("g", force=True)
        assert [end(store, broker) for broker in (B, "x", "y")] == [0, 2 + 1, 0], "with the record that lists the fold"

    def test_a_consumer_that_starts_meanwhile_is_noticed(
        self, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups = GroupOffsets(store)
        groups.commit("g", {("orders", B, 0): 2})
        clock.advance(HEARTBEAT_EXPIRY_MS / 1000)
        before_append(store, monkeypatch, lambda other: GroupOffsets(other).commit("g", {("orders", B, 1): 1}))
        with pytest.raises(PreconditionFailedError, match="active"):
            groups.delete("g")
        assert groups.committed("g") == {("orders", B, 0): 2, ("orders", B, 1): 1}


class TestTogether:
    def test_two_handles_commit_their_queues_at_once(self, store: Store) -> None:
        """Nothing is lost and nothing of the other's is overwritten."""
        failures: list[BaseException] = []

        def work(queue: int) -> None:
            try:
                with again(store) as own:
                    groups = GroupOffsets(own)
                    for offset in range(1, 41):
                        groups.commit("g", {("orders", B, queue): offset}, member=f"m{queue}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(queue,)) for queue in (0, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert GroupOffsets(store).committed("g") == {("orders", B, 0): 40, ("orders", B, 3): 40}
        assert store.log().refresh().state.offset == 80 + 1, "with the record that lists the fold"

    def test_threads_share_one_handle(self, store: Store) -> None:
        groups = GroupOffsets(store)
        send(store, "orders", 0, 500)
        failures: list[BaseException] = []

        def work(queue: int) -> None:
            try:
                for offset in range(1, 61):
                    groups.commit(f"g{queue % 2}", {("orders", B, queue): offset})
                    assert groups.committed(f"g{queue % 2}")["orders", B, queue] == offset
                    groups.lag(f"g{queue % 2}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(queue,)) for queue in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert groups.committed("g1") == {("orders", B, 1): 60, ("orders", B, 3): 60}

    def test_records_are_ordinary_messages_of_the_brokers_log(self, store: Store) -> None:
        store.create_topic("wide", queues=1, brokers=("x",))
        GroupOffsets(store).commit("g", {("wide", "x", 0): 3}, member="me")
        row = next(store.log("x").scan()).to_pylist()[0]
        assert (row["topic"], row["queueId"]) == (ConsumerOffsets.topics[0], 0)
        assert json.loads(row["body"]) == {"group": "g", "topic": "wide", "offsets": {"0": 3}, "member": "me"}
        assert verify(store.storage, paths.broker_root("x"), "x").findings == []
