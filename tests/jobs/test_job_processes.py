"""Jobs as users start them: by spark-submit and by Python, with delta-spark, as streams, and killed."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import deltalake
import pytest
from job_process import kill, python, running, submit
from sample_messages import RealClock, Sample, as_rows

from rmq_spark.cli import exits
from rmq_spark.client.store import Store
from rmq_spark.query.messages import MessageQuery
from rmq_spark.spark.table_engine import DELTA_SETTINGS
from rmq_spark.tables import engine
from rmq_spark.tables.schemas import TABLES
from rmq_spark.testing.jars import ensure_jars

pytestmark = [pytest.mark.spark, pytest.mark.java]
CONF = Path(__file__).parents[2] / "conf" / "spark-delta.conf"


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    sample = Sample.new(8, str(tmp_path / "store"), clock=RealClock()).grow(25)
    sample.roll()
    return sample.grow(15)


def uri(sample: Sample) -> str:
    return sample.store.storage.uri


def check(sample: Sample, brokers: tuple[str, ...] = ("broker-0",)) -> None:
    expected = sample.expected(brokers)
    for name in TABLES:
        assert as_rows(engine.read_table(sample.store, name)) == expected[name], name


def test_the_conf_file_has_what_the_writer_needs() -> None:
    lines = [line.split() for line in CONF.read_text().splitlines() if line and not line.startswith("#")]
    assert dict(lines) == DELTA_SETTINGS


def test_delta_spark_and_the_in_process_engine_go_on_with_each_others_tables(sample: Sample) -> None:
    jars = ensure_jars("delta")
    spark_arguments = ("--properties-file", str(CONF), "--jars", ",".join(map(str, jars)))
    done = submit("reput", "--store", uri(sample), "--writer", "delta", "--json", spark=spark_arguments)
    assert done.returncode == exits.OK, done.stderr
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["rows"] == {name: len(rows) for name, rows in sample.expected().items()}
    check(sample)
    assert not list(Path(uri(sample).removeprefix("file://")).glob("tables/*/_delta_log/.*.crc"))

    engine.reput(sample.grow(8).store, range_messages=60)
    check(sample)
    sample.grow(8)
    assert engine.drop(sample.store) == list(TABLES)  # what it leaves is a table for delta-spark, too
    done = python("reput", "--store", uri(sample), "--writer", "delta", "--delta-jars", str(jars[0].parent))
    assert done.returncode == exits.OK, done.stderr
    engine.reput(sample.store)
    check(sample)
    for name, spec in TABLES.items():
        table = deltalake.DeltaTable(f"{uri(sample)}/tables/{name}")
        assert as_rows(table.to_pyarrow_table().cast(spec.schema)) == sample.expected()[name]
        assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
        assert table.transaction_version(spec.app_id("broker-0")) == sample.bounds()[1]
    query = MessageQuery(sample.store)
    for one in random.Random(1).sample([one for one in sample.visible() if one.kind != 0xC], 10):
        assert one.commit_offset in query.by_id(one.msg_id).messages["commitOffset"].to_pylist()


def test_a_stream_follows_the_log_and_ends_when_asked_to(sample: Sample, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    checkpoint = str(tmp_path / "checkpoint")
    arguments = ("--store", uri(sample), "--continuous", "--checkpoint", checkpoint, "--interval", "0.5")
    for _ in range(2):
        with running("reput", *arguments, log=log) as process:
            for _ in range(2):
                wait_for_marks(sample, log)
                check(sample)
                sample.grow(5)
            wait_for_marks(sample, log)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == exits.OK, log.read_text()
        check(sample)
        assert all(one.lease is None for one in engine.status(sample.store))
        sample.grow(5)


def wait_for_marks(sample: Sample, log: Path) -> None:
    deadline = time.monotonic() + 300
    while any(one.behind or one.lease for one in engine.status(sample.store)):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def test_logs_of_several_brokers_are_rolled_by_tasks(tmp_path: Path) -> None:
    brokers = ("broker-0", "broker-1")
    sample = Sample.new(9, str(tmp_path / "store"), clock=RealClock())
    sample.store.create_topic("orders", queues=3, brokers=brokers)
    sample.grow(12, brokers)
    done = python("roll", "--store", uri(sample), "--json")
    assert done.returncode == exits.OK, done.stderr
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert [entry["log"] for entry in answer] == ["nameserver", *brokers]
    for entry in answer[1:]:
        assert entry["segments"] == 1
        with Store.open(uri(sample), read_only=True) as store:
            mark = store.log(entry["log"]).look(lambda view: view.mark)
            assert mark.floor == sample.bounds(entry["log"])[1]


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["files", "delta"])
def test_jobs_that_are_killed_double_and_lose_nothing(sample: Sample, tmp_path: Path, writer: str) -> None:
    draw = random.Random(writer)
    jars = str(ensure_jars("delta")[0].parent)
    arguments = ("--store", uri(sample), "--writer", writer, "--delta-jars", jars, "--lease", "2", "--wait", "30")
    for number in range(12):
        sample.grow(20)
        with running("reput", *arguments, "--part-messages", "15", log=tmp_path / "job.log") as process:
            started = engine.status(sample.store)[0].version
            deadline = time.monotonic() + 300
            while engine.status(sample.store)[0].version == started and process.poll() is None:
                assert time.monotonic() < deadline, (tmp_path / "job.log").read_text()[-2000:]
                time.sleep(0.05)
            time.sleep(draw.random() * 2)
            kill(process)
        if number % 3 == 2:
            engine.reput(sample.store, end=sample.bounds()[1] - 30, range_messages=100, wait_s=30)
    done = python("reput", *arguments)
    assert done.returncode == exits.OK, done.stderr
    check(sample)
