"""Hypothesis drives two handles on one log through any sequence of calls, beside a model of plain lists."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmq_spark.clock import ManualClock
from rmq_spark.errors import PreconditionFailedError
from rmq_spark.log.collect import collect
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.scan import Query
from rmq_spark.log.verify import verify
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage.memory import MemoryStorage

ROOT, BROKER = "brokers/b", "b"
PLACES = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3)), min_size=1, max_size=6)


def only_at(end, batch):
    """Append `batch` if the log ends at `end`."""

    def decide(state):
        if state.offset != end:
            raise PreconditionFailedError("moved")
        return Decision(None, batch)

    return decide


class LogMachine(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([1, 20_000, 10_000_000]), snapshots=st.sampled_from([1, 3, 1000]))
    def start(self, segment_bytes, snapshots):
        self.clock = ManualClock()
        self.storage = MemoryStorage(None, clock=self.clock)
        self.settings = LogSettings(
            segment_bytes=segment_bytes, snapshot_every_commits=snapshots, delete_grace_ms=0, retention_ms=60_000
        )
        self.logs = [self.open(), self.open()]
        self.queues = {}  # (topic, queue) -> list of (commit offset, body, store ms)
        self.count = 0
        self.start_offset = 0

    def open(self):
        return CommitLog(self.storage, ROOT, BROKER, settings=self.settings, clock=self.clock)

    def batch(self, places):
        parts, bodies = [], []
        for topic, queue in places:
            self.count += 1
            bodies.append(f"m{self.count}".encode())
            parts.append(
                MessageBatch.of(
                    topic=topic,
                    queue_id=queue,
                    msg_id=f"{self.count:032d}",
                    body=bodies[-1],
                    keys=f"k{self.count % 7} x{self.count}",
                    tags=f"t{self.count % 3}",
                    born_timestamp_ms=0,
                )
            )
        return MessageBatch.merge(parts), bodies

    def note(self, places, bodies, result):
        for place, body, queue_offset, offset in zip(
            places, bodies, result.queue_offsets.tolist(), result.commit_offsets.tolist(), strict=True
        ):
            queue = self.queues.setdefault(place, [])
            assert queue_offset == len(queue)
            queue.append((offset, body, result.store_ms))

    @rule(handle=st.integers(0, 1), places=PLACES, seconds=st.sampled_from([0, 0.5, 20, -30]))
    def append(self, handle, places, seconds):
        self.clock.wall_ms += int(seconds * 1000)
        batch, bodies = self.batch(places)
        # One batch of Python rows keeps its order within each queue.
        self.note(places, bodies, self.logs[handle].append(batch))

    @rule(handle=st.integers(0, 1), places=PLACES)
    def append_arrow(self, handle, places):
        batch, bodies = self.batch(places)
        self.note(places, bodies, self.logs[handle].append(MessageBatch.from_arrow(batch.record_batch())))

    @rule(handle=st.integers(0, 1), parts=st.lists(PLACES, min_size=1, max_size=3))
    def append_row_files(self, handle, parts):
        files, given, bodies = [], [], []
        for places in parts:
            batch, names = self.batch(places)
            files.append(
                write_row_file(
                    self.storage, ROOT, batch, nonce=self.clock.token(), block_bytes=self.settings.block_bytes
                )
            )
            order = sorted(range(len(places)), key=places.__getitem__)  # a row file is sorted by topic and queue
            given += [places[row] for row in order]
            bodies += [names[row] for row in order]
        self.note(given, bodies, self.logs[handle].append_files(files))

    @rule(handle=st.integers(0, 1), places=PLACES)
    def append_with_a_condition_that_holds_only_at_the_end(self, handle, places):
        end = self.logs[handle].refresh().state.offset
        batch, bodies = self.batch(places)
        self.note(
            places,
            bodies,
            self.logs[handle].decide(only_at(end, batch)).result,
        )
        with pytest.raises(PreconditionFailedError, match="moved"):
            other, _ = self.batch(places)
            self.logs[1 - handle].decide(only_at(end, other))

    @rule(handle=st.integers(0, 1), app=st.sampled_from(["x", "y"]), number=st.integers(0, 3), places=PLACES)
    def append_as_a_sink(self, handle, app, number, places):
        done = getattr(self, "apps", {})
        batch, bodies = self.batch(places)
        result = self.logs[handle].append(batch, app=(app, number))
        if number <= done.get(app, -1):
            assert result.repeated
        else:
            self.note(places, bodies, result)
            self.apps = {**done, app: number}

    @rule(handle=st.integers(0, 1), minimum=st.integers(1, 3))
    def roll(self, handle, minimum):
        roll(self.logs[handle], min_commits=minimum)

    @rule(handle=st.integers(0, 1), seconds=st.sampled_from([0, 30, 120]))
    def expire(self, handle, seconds):
        self.clock.advance(seconds)
        self.start_offset = expire(self.logs[handle]).log_start

    @rule(handle=st.integers(0, 1))
    def collect(self, handle):
        collect(self.logs[handle], orphan_age_ms=0)

    @rule(handle=st.integers(0, 1))
    def snapshot(self, handle):
        self.logs[handle].refresh()
        self.logs[handle].snapshot()

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle):
        self.logs[handle].close()
        self.logs[handle] = self.open()

    @precondition(lambda self: self.queues)
    @rule(handle=st.integers(0, 1), data=st.data())
    def read_one_queue(self, handle, data):
        place = data.draw(st.sampled_from(sorted(self.queues)))
        model = self.queues[place]
        low = data.draw(st.integers(0, len(model)))
        high = data.draw(st.integers(low, len(model) + 1))
        query = Query(ranges={place: (low, high)})
        rows = [row for batch in self.logs[handle].scan(query) for row in batch.to_pylist()]
        expected = [
            (index, *model[index][:2])
            for index in range(low, min(high, len(model)))
            if model[index][0] >= self.start_offset
        ]
        assert [(row["queueOffset"], row["commitOffset"], row["body"]) for row in rows] == expected

    @precondition(lambda self: self.queues)
    @rule(handle=st.integers(0, 1), data=st.data())
    def read_a_time_range(self, handle, data):
        times = sorted({stamp for model in self.queues.values() for _, _, stamp in model})
        low = data.draw(st.sampled_from(times)) + data.draw(st.integers(-1, 1))
        high = low + data.draw(st.sampled_from([1, 1000, 100_000]))
        found = {
            row["commitOffset"]
            for batch in self.logs[handle].scan(Query(from_ms=low, to_ms=high))
            for row in batch.to_pylist()
            if row["topic"] in "abc"
        }
        assert found == {
            offset
            for model in self.queues.values()
            for offset, _, stamp in model
            if low <= stamp < high and offset >= self.start_offset
        }

    @precondition(lambda self: self.queues)
    @rule(handle=st.integers(0, 1), number=st.integers(1, 60))
    def read_by_key(self, handle, number):
        query = Query(keys=frozenset({f"x{number}"}), columns=("body", "commitOffset"))
        found = [row["body"] for batch in self.logs[handle].scan(query) for row in batch.to_pylist()]
        expected = [
            body
            for model in self.queues.values()
            for offset, body, _ in model
            if body == f"m{number}".encode() and offset >= self.start_offset
        ]
        assert found == expected

    @invariant()
    def the_log_verifies(self):
        if hasattr(self, "logs"):
            report = verify(self.storage, ROOT, BROKER)
            assert report.ok, report.findings

    def teardown(self):
        if hasattr(self, "logs"):
            fresh = self.open()
            stamps = [
                row["storeTimestamp"]
                for batch in fresh.scan(Query(columns=("commitOffset", "storeTimestamp")))
                for row in batch.to_pylist()
            ]
            assert len(stamps) == fresh.view.state.offset - self.start_offset


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
