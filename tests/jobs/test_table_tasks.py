"""What Spark's tasks do, without Spark: parts of a range, and the files and rows that are made of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_messages import RealClock, Sample, as_rows

from rmq_spark.errors import DataExpiredError, RmqError
from rmq_spark.spark.table_tasks import Part, Place, cut, spark_schema, write_files
from rmq_spark.tables import data_files
from rmq_spark.tables.delta_actions import data_file
from rmq_spark.tables.schemas import TABLES


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Segments first, then commits: small ones, large ones, and some with row files."""
    sample = Sample.new(5, str(tmp_path_factory.mktemp("tasks") / "store"), clock=RealClock()).grow(40)
    sample.roll()
    return sample.grow(40)


def parts_of(sample: Sample, start: int, end: int, messages: int) -> list[Part]:
    parts = cut(sample.store.log("broker-0"), Place(sample.store.storage.uri), start, end, messages)
    return pickle.loads(pickle.dumps(parts))  # as Spark moves them


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parts_give_exactly_the_rows_of_their_range(sample: Sample, data: st.DataObject) -> None:
    last = sample.bounds()[1]
    start = data.draw(st.integers(0, last - 1), label="start")
    end = data.draw(st.integers(start + 1, last), label="end")
    parts = parts_of(sample, start, end, data.draw(st.sampled_from((1, 7, 40, 300, 10**6)), label="messages"))
    assert parts[0].start == start
    assert parts[-1].end == end
    assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]

    tables = ("consumequeue", "index")
    expected = {"consumequeue": (sample.consumequeue(), 4), "index": (sample.index(), 4)}
    written: dict[str, list[tuple[object, ...]]] = {name: [] for name in tables}
    for answer in write_files(parts, tables):
        assert not isinstance(answer, RmqError)
        spec = TABLES[answer[0]]
        file = data_file(answer[1], spec, "")
        rows = data_files.read(sample.store.storage, spec, file)
        assert (file.rows, file.broker) == (rows.num_rows, "broker-0")
        written[spec.name] += as_rows(rows)
        assert data_files.in_order(rows, spec) is rows or data_files.in_order(rows, spec).equals(rows)
    for name, (rows_of_all, place) in expected.items():
        assert sorted(written[name]) == [row for row in rows_of_all if start <= row[place] < end]


def test_large_commits_are_shared_out_and_small_ones_put_together(sample: Sample) -> None:
    last = sample.bounds()[1]
    assert len(parts_of(sample, 0, last, 10**9)) == 1
    single = parts_of(sample, 0, last, 10)
    assert len(single) > 50
    assert all(part.end - part.start < 20 for part in single if part.sources[0].kind == "commit")


def test_a_range_that_has_expired_is_an_answer_and_not_a_failed_task(tmp_path: Path) -> None:
    sample = Sample.new(6, str(tmp_path / "store"), clock=RealClock()).grow(60)
    sample.roll()
    parts = parts_of(sample, 0, 10, 1000)
    assert sample.expire() > 10
    answers = list(write_files(parts, ("index",)))
    assert [type(answer) for answer in answers] == [DataExpiredError]


def test_columns_as_spark_declares_them() -> None:
    assert spark_schema(TABLES["index"]) == (
        "`topic` string, `key` string, `keyHash` int, `kind` string, `commitOffset` long, `queueId` int, "
        "`queueOffset` long, `storeTimestamp` timestamp, `brokerName` string"
    )
