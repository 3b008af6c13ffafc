"""Timers as pure decisions: whatever deliverers do in whatever order, each message goes out once and never early."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmq_spark.errors import InvalidRequestError, PreconditionFailedError
from rmq_spark.log import schema
from rmq_spark.log.fold import Records
from rmq_spark.log.state import LogState
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import delay, recall_handle, timer
from rmq_spark.rules.system_topics import TIMER_TOPIC
from rmq_spark.rules.timer import Copies, Progress, Recalled, TimerProgress
from rmq_spark.services.timer_index import Run, TimerIndex

NOW = 1_000_000


def state_at(now_ms: int = NOW) -> LogState:
    state = LogState([TimerProgress])
    state.now_ms = now_ms
    return state


def take_in(state: LogState, records) -> None:
    """Fold records as a landed commit does."""
    for topic, value in records:
        state.fold_of(topic).apply(Records(topic, [state.now_ms], [json.dumps(value).encode()]))


def copies(*rows: tuple[str, int]) -> Copies:
    """Copies of messages for the topic `orders`, by id and due time."""
    values = [MessageRow("orders", 0, name, None, None, b"x", 0, 0, 0, None, 0, []) for name, _ in rows]
    table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array(values, pa.struct(list(schema.ROWS))))])
    return Copies.of(table, table["topic"].combine_chunks(), np.array([due for _, due in rows], np.int64))


def nothing(state):
    return []


class TestDeliver:
    def test_holds_only_on_the_mark_that_the_deliverer_saw(self):
        state = state_at()
        rule = timer.deliver(Progress(), Progress(1, NOW - 5, 1, 9, 0), copies(("a", NOW - 5)), nothing)
        decision = rule(state)
        assert decision.answer == 1
        take_in(state, decision.records)
        with pytest.raises(PreconditionFailedError, match="faster"):
            rule(state)

    def test_a_message_that_is_not_due_by_the_logs_time_is_refused(self):
        rule = timer.deliver(Progress(), Progress(1, NOW, 1, 9, 0), copies(("a", NOW + 1)), nothing)
        with pytest.raises(PreconditionFailedError, match="not due"):
            rule(state_at())
        rule = timer.deliver(Progress(), Progress(1, NOW, 1, 9, 0), copies(("a", NOW)), nothing)
        assert rule(state_at()).answer == 1

    def test_a_recalled_message_is_left_out(self):
        state = state_at(NOW - 10)
        take_in(state, timer.recall(Recalled(NOW, "orders", "a"))(state).records)
        state.now_ms = NOW
        rule = timer.deliver(Progress(), Progress(1, NOW, 9, 9, 0), copies(("a", NOW), ("b", NOW)), nothing)
        decision = rule(state)
        assert decision.rows.table()["msgId"].to_pylist() == ["b"]


class TestRecall:
    """Facts 6.3."""

    def test_is_refused_when_the_message_is_due(self):
        with pytest.raises(PreconditionFailedError, match="is due"):
            timer.recall(Recalled(NOW, "orders", "a"))(state_at())

    def test_the_same_again_writes_nothing(self):
        state = state_at()
        rule = timer.recall(Recalled(NOW + 1, "orders", "a"))
        take_in(state, rule(state).records)
        assert not rule(state).records

    def test_lives_until_its_time_has_passed_and_the_position_too(self):
        state = state_at()
        state.offset = 50
        message = Recalled(NOW + 1, "orders", "a")
        take_in(state, timer.recall(message)(state).records)
        topic = TimerProgress.topics[0]
        take_in(state, [(topic, {"mark": [1, NOW + 120_000, 0, 40, 0]})])
        assert state.fold(TimerProgress).is_recalled(message), "the message may lie behind the position"
        take_in(state, [(topic, {"mark": [2, NOW + 120_000, 0, 60, 0]})])
        assert not state.fold(TimerProgress).is_recalled(message)

    def test_a_handle_names_the_message(self):
        row = MessageRow("orders", 1, "id 1", None, None, b"x", 0, 0, 0, None, 0, [])
        parked = delay.park(row, delay.Delay(deliver_ms=NOW + 5), NOW)
        assert parked.topic == TIMER_TOPIC
        handle = recall_handle.of_row("broker-0", parked)
        assert recall_handle.parse(handle) == ("broker-0", Recalled(NOW + 5, "orders", "id 1"))
        assert recall_handle.of_row("broker-0", delay.park(row, delay.Delay(level=1), NOW)) is None

    @pytest.mark.parametrize("handle", ["", "x", "djIgYSBiIDEgYw==", "YWJj"])
    def test_a_wrong_handle_is_refused(self, handle):
        with pytest.raises(InvalidRequestError, match="recall handle"):
            recall_handle.parse(handle)


class TestLevels:
    def test_changed_levels_count_from_their_place_in_the_log_on(self):
        state = state_at()
        state.offset = 70
        take_in(state, timer.change_levels([5_000])(state).records)
        levels = state.fold(TimerProgress).levels()
        assert [(offset, each.level_ms(3)) for offset, each in levels] == [(0, 10_000), (70, 5_000)]
        assert not timer.change_levels([5_000])(state).records

    def test_no_level_is_refused(self):
        with pytest.raises(InvalidRequestError):
            timer.change_levels([])


def test_the_fold_is_the_same_after_dump_and_load():
    state = state_at()
    take_in(state, timer.recall(Recalled(NOW + 1, "orders", "a"))(state).records)
    take_in(state, timer.change_levels([5_000])(state).records)
    take_in(state, [(TimerProgress.topics[0], {"mark": [3, 4, 5, 6, 2]})])
    fold, other = state.fold(TimerProgress), state_at().fold(TimerProgress)
    other.load(fold.dump(), 1)
    assert other.dump() == fold.dump()
    assert other.progress == Progress(3, 4, 5, 6, 2)


MESSAGES = st.lists(st.integers(0, 30), min_size=0, max_size=40)
"""Due time of each parked message; its place in the log is its number."""


@settings(max_examples=300, deadline=None)
@given(dues=MESSAGES, ends=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 5))))
@example(dues=[0, 2, 0, 1], ends=[(2, 2, 1), (4, 0, 1)])  # a time before the mark's
def test_whatever_is_seen_when_each_message_is_settled_once_and_never_early(dues, ends):
    """Deliverers that have indexed up to `end` at time `now` deliver up to `limit` at once, in any order of views."""
    due, commit = np.array(dues, np.int64), np.arange(len(dues), dtype=np.int64)
    mark, delivered = Progress(), []
    for end, now, limit in [*ends, *([(40, 40, 3)] * 40)]:
        end = max(min(end, len(dues)), mark.position)
        index = TimerIndex(None)
        order = np.lexsort((commit[:end], due[:end]))
        index._runs = [Run(0, end, due[:end][order], commit[:end][order])]
        index._runs[0].settle(mark)
        index._mark, index.frontier = mark, end
        step = index.due(now, limit)
        if step is None:
            continue
        assert len(step.commit) <= limit
        assert (step.due <= now).all(), "early"
        assert step.after.key >= mark.key
        assert step.after.due_ms <= now or step.after.due_ms == mark.due_ms
        newly = step.after.settled(due, commit) & ~mark.settled(due, commit)
        assert sorted(np.flatnonzero(newly)) == sorted(step.commit.tolist()), "the mark settles what goes out"
        delivered += step.commit.tolist()
        mark = step.after
    assert sorted(delivered) == list(range(len(dues)))
