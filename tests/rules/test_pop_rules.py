"""POP's decisions one by one: who gets what, which receipts count, what comes back and where (facts 8)."""

from __future__ import annotations

from typing import Any

import pytest
from pop_world import DLQ, GROUP, RETRY, TOPIC, PopWorld, offsets_of, receipts_of

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model import properties
from rmq_spark.rules import pop_decisions
from rmq_spark.rules.pop import expand, runs_of
from rmq_spark.rules.pop_decisions import Fifo


@pytest.fixture
def world() -> PopWorld:
    return PopWorld()


class TestReceive:
    def test_messages_are_taken_from_the_next_offset_on_up_to_the_number_asked_for(self, world: PopWorld) -> None:
        world.send(5)
        assert offsets_of(world.take(2)) == [0, 1]
        assert offsets_of(world.take(2)) == [2, 3]
        assert offsets_of(world.take(2)) == [4]
        assert world.take(2) == []

    def test_two_consumers_that_read_the_same_range_get_different_messages(self, world: PopWorld) -> None:
        world.send(6)
        seen = world.candidates()
        first = world.receive(seen, count=4, consumer="a")
        second = world.receive(seen, count=4, consumer="b")
        assert offsets_of(receipts_of(first)) == [0, 1, 2, 3]
        assert offsets_of(receipts_of(second)) == [4, 5]

    def test_a_range_that_the_next_offset_has_left_is_to_be_read_again(self, world: PopWorld) -> None:
        world.send(4)
        seen = world.candidates(rows=2)
        world.receive(seen)
        late = world.receive(seen)
        assert (late.claimed, late.moved) == ((), ((TOPIC, 0),))

    def test_a_range_behind_an_offset_that_was_set_back_is_to_be_read_again(self, world: PopWorld) -> None:
        world.send(4)
        world.take(2)
        seen = world.candidates()
        world.decide(pop_decisions.reset(GROUP, {(TOPIC, 0): 0}))
        assert world.receive(seen).moved == ((TOPIC, 0),)

    def test_messages_that_do_not_match_are_passed_over_for_good(self, world: PopWorld) -> None:
        for tags in "abab":
            world.send(tags=tags)
        assert offsets_of(receipts_of(world.receive(world.candidates(tags="b"), count=1))) == [1]
        assert world.committed() == 3
        world.receive(world.candidates(tags="b"))
        assert world.committed() == 4

    def test_a_range_without_a_match_moves_the_offset_and_claims_nothing(self, world: PopWorld) -> None:
        world.send(3, tags="a")
        assert world.receive(world.candidates(tags="b")).claimed == ()
        assert world.committed() == 3

    def test_several_queues_fill_one_batch_in_the_order_given(self, world: PopWorld) -> None:
        world.send(2, queue=0)
        world.send(2, queue=1)
        received = world.receive(world.candidates(queue=1), world.candidates(queue=0), count=3)
        assert [(each.queue, list(each.offsets)) for each in received.claimed] == [(1, [0, 1]), (0, [0])]

    def test_a_group_gets_its_first_offset_even_when_there_is_nothing_to_receive(self, world: PopWorld) -> None:
        world.send(3)
        seen = pop_decisions.Candidates(topic=TOPIC, queue=0, low=3, high=3, offsets=(), is_start=True)
        world.receive(seen)
        assert world.committed() == 3

    def test_the_first_offset_is_noted_although_the_batch_is_full(self, world: PopWorld) -> None:
        world.send(2, queue=0)
        world.send(2, queue=1)
        world.receive(world.candidates(queue=0), world.candidates(queue=1), count=1)
        assert world.committed(queue=1) == 0

    def test_an_offset_that_retention_has_passed_goes_on_at_the_first_message(self, world: PopWorld) -> None:
        world.send(5)
        world.take(1)
        world.expire(3)
        assert offsets_of(world.take()) == [3, 4]

    def test_lag_follows_what_was_received_as_in_rocketmq(self, world: PopWorld) -> None:
        """8.3: the offset moves right after the pop; what is in flight is counted beside it."""
        world.send(5)
        taken = world.take(3)
        assert (world.committed(), world.pop.in_flight(GROUP)) == (3, {(TOPIC, 0): 3})
        world.ack(*taken)
        assert (world.committed(), world.pop.in_flight(GROUP)) == (3, {})


class TestAck:
    def test_acknowledged_messages_leave_no_state(self, world: PopWorld) -> None:
        world.send(100)
        for _ in range(10):
            assert set(world.ack(*world.take(10))) == {"OK"}
        assert world.pop.dump() == []

    def test_acknowledging_again_changes_nothing(self, world: PopWorld) -> None:
        world.send(2)
        one, two = world.take()
        assert world.ack(one) == ["OK"]
        assert world.ack(one, two) == ["NOT_HELD", "OK"]

    def test_an_ack_after_the_time_counts_until_somebody_revives(self, world: PopWorld) -> None:
        """8.3: an ack after expiry is accepted, and is without effect once revive has run."""
        world.send(2)
        one, two = world.take()
        world.now_ms += 30_000
        assert world.ack(one) == ["OK"]
        assert world.revive().retried == 1
        assert world.ack(two) == ["EXPIRED"]
        assert world.ids(RETRY) == ["m2"]

    def test_a_message_that_is_not_there_is_unknown(self, world: PopWorld) -> None:
        world.send(1)
        ((topic, receipt),) = world.take()
        beyond = type(receipt)(
            start_offset=0, pop_ms=receipt.pop_ms, invisible_ms=1, broker="b", queue_id=0, queue_offset=7
        )
        assert world.ack((topic, beyond)) == ["UNKNOWN"]


class TestChange:
    def test_rule_31_a_renewed_receipt_makes_the_old_one_stale(self, world: PopWorld) -> None:
        world.send(2)
        old, other = world.take()
        world.now_ms += 1
        status, new = world.change(old, 60_000)
        assert status == "OK" and new is not None
        assert world.change(old, 1) == ("STALE", None)
        assert world.ack(old) == ["STALE"]
        assert world.ack(new, other) == ["OK", "OK"]

    def test_a_message_that_is_kept_longer_is_not_revived_at_its_first_time(self, world: PopWorld) -> None:
        world.send(2)
        old, _ = world.take()
        world.change(old, 60_000)
        world.now_ms += 30_000
        assert world.revive().retried == 1
        assert world.ids(RETRY) == ["m2"]
        world.now_ms += 30_000
        world.revive()
        assert world.ids(RETRY) == ["m2", "m1"]

    def test_a_short_time_gives_a_message_back_soon(self, world: PopWorld) -> None:
        world.send(1)
        world.change(world.take()[0], 1_000)
        world.now_ms += 1_000
        assert world.revive().retried == 1

    def test_what_was_given_back_cannot_be_kept(self, world: PopWorld) -> None:
        world.send(1)
        (receipt,) = world.take()
        world.now_ms += 30_000
        world.revive()
        assert world.change(receipt, 1_000) == ("EXPIRED", None)


class TestRevive:
    def test_rule_30_messages_come_back_through_the_retry_topic(self, world: PopWorld) -> None:
        world.send(1, queue=3)
        world.receive(world.candidates(queue=3))
        world.now_ms += 29_999
        assert world.revive().retried == 0
        world.now_ms += 1
        assert world.revive().retried == 1
        (copy,) = world.queues[RETRY, 0]
        assert (copy.msg_id, copy.reconsume_times, copy.delivery_attempt) == ("m1", 1, 2)
        assert copy.properties[properties.RETRY_TOPIC] == TOPIC
        assert copy.properties[properties.FIRST_POP_MS] == str(world.now_ms - 30_000)
        assert offsets_of(receipts_of(world.receive(world.candidates(RETRY)))) == [0]

    def test_copies_of_a_retry_topic_go_to_the_same_one_and_keep_the_first_time(self, world: PopWorld) -> None:
        world.send(1)
        world.take()
        first_ms = world.now_ms
        for times in range(1, 4):
            world.now_ms += 30_000
            world.revive()
            copy = world.queues[RETRY, 0][-1]
            assert (copy.reconsume_times, copy.properties[properties.FIRST_POP_MS]) == (times, str(first_ms))
            world.receive(world.candidates(RETRY))

    def test_rule_32_whoever_revives_moves_a_message_to_the_dlq_after_17_deliveries(self, world: PopWorld) -> None:
        world.send(1)
        deliveries = 0
        while not world.ids(DLQ):
            taken = world.take() or receipts_of(world.receive(world.candidates(RETRY)))
            deliveries += len(taken)
            world.now_ms += 30_000
            world.revive()
        assert deliveries == 17
        (dead,) = world.queues[DLQ, 0]
        assert (dead.msg_id, dead.reconsume_times) == ("m1", 17)
        assert len(world.ids(RETRY)) == 16

    def test_two_revivers_that_saw_the_same_give_back_one_copy(self, world: PopWorld) -> None:
        world.send(3)
        world.take()
        world.now_ms += 30_000
        ((place, overdue),) = world.overdue().items()
        rules = [pop_decisions.revive(place, overdue, retry_max_times=16) for _ in range(2)]
        assert [world.decide(rule).retried for rule in rules] == [3, 0]
        assert world.ids(RETRY) == ["m1", "m2", "m3"]

    def test_a_reviver_whose_clock_is_ahead_of_the_log_gives_nothing_back(self, world: PopWorld) -> None:
        world.send(1)
        world.take()
        world.now_ms += 30_000
        ((place, overdue),) = world.overdue().items()
        world.now_ms -= 1
        assert world.decide(pop_decisions.revive(place, overdue, retry_max_times=16)).retried == 0

    def test_what_was_acknowledged_or_kept_since_the_look_is_not_given_back(self, world: PopWorld) -> None:
        world.send(3)
        one, two, _ = world.take()
        world.now_ms += 30_000
        ((place, overdue),) = world.overdue().items()
        world.ack(one)
        world.change(two, 1_000)
        world.decide(pop_decisions.revive(place, overdue, retry_max_times=16))
        assert world.ids(RETRY) == ["m3"]

    def test_a_message_that_retention_took_ends_its_claim(self, world: PopWorld) -> None:
        world.send(3)
        world.take()
        world.expire(2)
        world.now_ms += 30_000
        done = world.revive()
        assert (done.retried, done.lost, world.pop.dump()) == (1, 2, [])


class TestFifo:
    """8.5: one batch in flight for each queue, again as a whole from its first message that is not acknowledged."""

    def take(self, world: PopWorld, count: int = 3, attempt: str | None = None, **named: Any) -> list[Any]:
        return receipts_of(world.receive(count=count, fifo=Fifo(attempt_id=attempt, **named)))

    def test_a_queue_is_blocked_while_its_batch_is_in_flight(self, world: PopWorld) -> None:
        world.send(6)
        batch = self.take(world)
        assert world.receive(fifo=Fifo()).blocked == ((TOPIC, 0),)
        world.ack(*batch[:2])
        assert world.receive(fifo=Fifo()).blocked == ((TOPIC, 0),)
        world.ack(batch[2])
        assert offsets_of(self.take(world)) == [3, 4, 5]

    def test_acks_in_any_order_move_the_offset_to_the_first_message_that_is_not_acknowledged(
        self, world: PopWorld
    ) -> None:
        world.send(3)
        one, two, three = self.take(world)
        assert world.committed() == 0
        world.ack(two)
        assert world.committed() == 0
        world.ack(one)
        assert world.committed() == 2
        world.ack(three)
        assert (world.committed(), world.pop.dump()) == (3, [])

    def test_rule_30_the_whole_batch_comes_again_at_the_same_offsets_from_the_first_that_is_not_acknowledged(
        self, world: PopWorld
    ) -> None:
        world.send(4)
        one, two, three = self.take(world)
        world.ack(one, three)
        world.now_ms += 30_000
        assert world.revive() == pop_decisions.Revived()
        received = world.receive(count=3, fifo=Fifo())
        assert [(list(each.offsets), list(each.reconsume_times or ())) for each in received.claimed] == [
            ([1, 2, 3], [1, 1, 0])
        ]
        assert world.ack(two) == ["STALE"]
        assert world.ids(RETRY) == []

    def test_the_queue_stays_blocked_while_any_message_of_the_batch_is_invisible(self, world: PopWorld) -> None:
        world.send(2)
        one, _ = self.take(world)
        world.change(one, 60_000)
        world.now_ms += 30_000
        assert world.receive(fifo=Fifo()).blocked == ((TOPIC, 0),)
        world.now_ms += 30_000
        assert offsets_of(self.take(world)) == [0, 1]

    def test_the_same_attempt_gets_the_same_batch_again_without_waiting(self, world: PopWorld) -> None:
        world.send(4)
        self.take(world, attempt="a")
        world.now_ms += 5
        again = world.receive(count=3, fifo=Fifo(attempt_id="a"))
        assert [(list(each.offsets), list(each.reconsume_times or ())) for each in again.claimed] == [
            ([0, 1, 2], [0, 0, 0])
        ]
        assert world.receive(fifo=Fifo(attempt_id="b")).blocked == ((TOPIC, 0),)

    def test_messages_that_do_not_match_are_passed_over_when_the_batch_is_done(self, world: PopWorld) -> None:
        for tags in "aabab":
            world.send(tags=tags)
        batch = receipts_of(world.receive(world.candidates(tags="b"), count=1, fifo=Fifo()))
        assert (offsets_of(batch), world.committed()) == ([2], 2)
        world.ack(*batch)
        assert world.committed() == 4

    def test_rule_32_a_message_that_was_delivered_too_often_leaves_the_batch_for_the_dlq(self, world: PopWorld) -> None:
        world.send(2)
        for _ in range(3):
            batch = self.take(world, count=2, retry_max_times=2)
            assert offsets_of(batch) == [0, 1]
            world.now_ms += 30_000
        world.ack(batch[1])
        assert world.receive(fifo=Fifo(retry_max_times=2)).blocked == ((TOPIC, 0),)
        assert world.revive(maximum=2).dead == 1
        (dead,) = world.queues[DLQ, 0]
        assert (dead.msg_id, dead.reconsume_times, world.committed()) == ("m1", 3, 2)
        world.send(1)
        assert offsets_of(self.take(world)) == [2]

    def test_a_reset_ends_the_batch(self, world: PopWorld) -> None:
        world.send(6)
        batch = self.take(world)
        world.decide(pop_decisions.reset(GROUP, {(TOPIC, 0): 4}))
        assert offsets_of(self.take(world)) == [4, 5]
        assert world.ack(batch[0]) == ["NOT_HELD"]
        assert world.committed() == 4

    def test_an_offset_that_was_set_without_a_reset_of_the_batch_counts(self, world: PopWorld) -> None:
        world.send(6)
        self.take(world)
        records = [("rmq_sys_consumer_offset", {"group": GROUP, "topic": TOPIC, "offsets": {"0": 5}})]
        world.decide(lambda _: pop_decisions.Decision(None, records=records))
        assert offsets_of(self.take(world)) == [5]
        assert world.pop.in_flight(GROUP) == {(TOPIC, 0): 1}

    def test_a_group_that_becomes_fifo_loses_nothing_that_is_in_flight(self, world: PopWorld) -> None:
        world.send(4)
        world.take(2)
        self.take(world, count=2)
        world.now_ms += 30_000
        assert world.revive().retried == 2
        assert world.ids(RETRY) == ["m1", "m2"]

    def test_a_group_that_is_fifo_no_longer_gets_its_batch_again_when_its_time_is_over(self, world: PopWorld) -> None:
        world.send(4)
        self.take(world, count=2)
        assert world.receive().blocked == ((TOPIC, 0),)
        world.now_ms += 30_000
        assert offsets_of(world.take()) == [0, 1, 2, 3]


class TestReset:
    def test_late_acks_of_what_was_held_before_a_reset_do_nothing(self, world: PopWorld) -> None:
        """8.3: resetOffset clears what is in flight."""
        world.send(3)
        before = world.take(2)
        world.decide(pop_decisions.reset(GROUP, {(TOPIC, 0): 0}))
        assert world.ack(before[0]) == ["NOT_HELD"]
        world.now_ms += 1
        after = world.take(2)
        assert offsets_of(after) == [0, 1]
        assert world.ack(*before) == ["STALE", "STALE"]
        assert world.pop.in_flight(GROUP) == {(TOPIC, 0): 2}

    def test_a_message_that_is_received_again_after_its_offset_was_set_back_has_one_holder(
        self, world: PopWorld
    ) -> None:
        world.send(2)
        before = world.take(invisible_ms=10_000)
        records = [("rmq_sys_consumer_offset", {"group": GROUP, "topic": TOPIC, "offsets": {"0": 0}})]
        world.decide(lambda _: pop_decisions.Decision(None, records=records))
        world.take(invisible_ms=20_000)
        assert world.ack(*before) == ["STALE", "STALE"]
        world.now_ms += 10_000
        assert world.revive().retried == 0


class TestRecords:
    @pytest.mark.parametrize("offsets", [[], [0], [3, 4, 5, 9, 11, 12]])
    def test_runs_give_the_offsets_back(self, offsets: list[int]) -> None:
        assert expand(runs_of(offsets)) == offsets

    @pytest.mark.parametrize(
        "body",
        [
            b"{}",
            b'{"do":"dance","group":"g","topic":"t","queue":0}',
            b'{"do":"claim","group":"g","topic":"t","queue":0,"start":0,"invisible":1,"offsets":[0],"consumer":"c"}',
            b'{"do":"claim","group":"g","topic":"t","queue":0,"start":0,"invisible":1,"offsets":[0,9999999999],"consumer":"c"}',
            b'{"do":"claim","group":"g","topic":"t","queue":-1,"start":0,"invisible":1,"offsets":[0,1],"consumer":"c"}',
            b'{"do":"claim","group":"g","topic":"t","queue":0,"start":0,"invisible":"1","offsets":[0,1],"consumer":"c"}',
            b'{"do":"end","group":1,"topic":"t","queue":0,"offsets":[0,1]}',
            b'{"do":"change","group":"g","topic":"t","queue":0,"offset":true,"invisible":1,"consumer":"c"}',
        ],
    )
    def test_a_record_that_could_not_be_read_back_is_refused(self, world: PopWorld, body: bytes) -> None:
        world.state.open_trial(1)
        with pytest.raises(InvalidRequestError, match="can be read back"):
            world.state.admit(
                MessageBatch.of(topic="rmq_sys_pop", queue_id=0, msg_id="r", body=body, born_timestamp_ms=0)
            )
        assert world.pop.dump() == []

    def test_a_whole_group_can_be_cleared(self, world: PopWorld) -> None:
        world.send(1)
        world.send(1, queue=1)
        world.receive(world.candidates(), world.candidates(queue=1))
        records = [("rmq_sys_pop", {"do": "clear", "group": GROUP})]
        world.decide(lambda _: pop_decisions.Decision(None, records=records))
        assert world.pop.dump() == []
