"""The mains as far as they need no Spark: help, arguments, exit codes, and jobs that the driver does alone."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.cli import exits
from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.jobs.lag_report import lag_report
from rmq_spark.jobs.maintenance import expire, roll
from rmq_spark.jobs.reput import consumer_offsets, rebuild, reput
from rmq_spark.model.message import Message
from rmq_spark.spark import table_engine
from rmq_spark.spark.table_tasks import Place
from rmq_spark.tables import engine

REPOSITORY = Path(__file__).parents[2]
Main = Callable[[Sequence[str]], int]
MAINS: dict[str, Main] = {
    "reput": reput,
    "rebuild": rebuild,
    "consumer_offsets": consumer_offsets,
    "roll": roll,
    "expire": expire,
    "lag_report": lag_report,
}


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Ten commits of one message, and a group that has consumed three of them."""
    uri = str(tmp_path / "store")
    with Store.create(uri) as store:
        store.create_topic("orders", queues=1)
        producer = Producer(store)
        for number in range(10):
            producer.send(Message(topic="orders", body=b"%d" % number))
        GroupOffsets(store).commit("billing", {("orders", "broker-0", 0): 3})
    return uri


def test_every_main_is_a_file_and_every_file_a_main() -> None:
    assert {path.stem for path in (REPOSITORY / "jobs").glob("*.py")} == set(MAINS)
    page = (REPOSITORY / "jobs" / "README.md").read_text()
    assert [name for name in MAINS if f"[{name}.py]" not in page] == []


@pytest.mark.parametrize("name", MAINS)
def test_help_shows_examples_and_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert MAINS[name](["--help"]) == exits.OK
    shown = capsys.readouterr().out
    assert f"python -m rmq_spark.jobs.{name} --store" in shown
    assert f"spark-submit jobs/{name}.py --store" in shown
    assert exits.table() in shown


def test_a_main_runs_as_a_file() -> None:
    done = subprocess.run([sys.executable, "jobs/roll.py"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == exits.USAGE
    assert done.stderr == "roll: no store is named; give --store URI or set RMQ_STORE\n"


@pytest.mark.parametrize("name", MAINS)
def test_every_main_runs_as_a_module_and_tells_its_errors(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "nope"
    done = run_module(name, "--store", str(missing), env=dict(os.environ))
    assert done.returncode == exits.NOT_FOUND
    assert done.stderr == f"{name}: no store here; create one with `rmq init` (uri='{missing}')\n"


def run_module(name: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"rmq_spark.jobs.{name}", *arguments]
    return subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_jobs_need_neither_typer_nor_rich(store: str, tmp_path: Path) -> None:
    for package in ("typer", "rich"):
        (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('no', name={package!r})\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    conf = ("--store", store, "--conf", "conf/store.toml")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rmq_spark.jobs.roll", *conf]
    done = subprocess.run(command, env=env, cwd=REPOSITORY, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert (done.returncode, done.stderr) == (exits.OK, b"")
    assert "broker-0" in shown
    for name in MAINS:
        assert run_module(name, "--help", env=env).returncode == exits.OK


def test_the_wheel_has_every_main(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert {f"rmq_spark/jobs/{name}.py" for name in MAINS} <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("name", MAINS)
def test_wrong_arguments_and_missing_stores_have_their_codes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RMQ_STORE", raising=False)
    assert MAINS[name](["--no-such-thing"]) == exits.USAGE
    assert MAINS[name](["--once", "--continuous"]) == exits.USAGE
    capsys.readouterr()
    for seconds in ("0", "inf", "nan", "1e300"):
        assert MAINS[name](["--interval", seconds]) == exits.USAGE
        assert "--interval" in capsys.readouterr().err.splitlines()[-1]
    assert MAINS[name]([]) == exits.USAGE
    capsys.readouterr()
    assert MAINS[name](["--store", str(tmp_path / "none")]) == exits.NOT_FOUND
    assert capsys.readouterr().err.startswith(f"{name}: no store")
    assert not (tmp_path / "none").exists()


def test_fewer_commits_than_one_are_refused_as_rmq_roll_does(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    for commits in ("0", "-5", "many"):
        assert MAINS["roll"](["--store", store, "--once", "--min-commits", commits]) == exits.USAGE
        assert "--min-commits" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--wait", "--lease"])
@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300", "-1"])
def test_seconds_are_a_time_that_comes_to_an_end(
    store: str, option: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for main in (reput, rebuild):
        assert main(["--store", store, option, seconds]) == exits.USAGE
        assert option in capsys.readouterr().err


def test_a_stream_needs_a_checkpoint_and_a_rebuild_is_none(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reput(["--store", store, "--continuous"]) == exits.USAGE
    assert "--checkpoint" in capsys.readouterr().err
    assert rebuild(["--store", store, "--continuous"]) == exits.USAGE


def test_lag_is_reported_queue_by_queue(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lag_report(["--store", store, "--json"]) == exits.OK
    (row,) = json.loads(capsys.readouterr().out)
    assert row["lagMs"] >= 0
    assert row["updatedAt"] <= row["reportedAt"]
    assert {name: row[name] for name in ("group", "topic", "brokerName", "queueId")} == {
        "group": "billing",
        "topic": "orders",
        "brokerName": "broker-0",
        "queueId": 0,
    }
    offsets = [row[name] for name in ("committedOffset", "minOffset", "maxOffset", "lag", "missed")]
    assert offsets == [3, 0, 10, 7, 0]
    assert lag_report(["--store", store]) == exits.OK
    assert "7 messages behind in all" in capsys.readouterr().out
    assert lag_report(["--store", store, "--group", "nobody"]) == exits.NOT_FOUND


def test_one_log_is_rolled_and_expired_by_the_driver(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert roll(["--store", store, "--broker", "broker-0", "--json"]) == exits.OK
    (rolled,) = json.loads(capsys.readouterr().out)
    assert (rolled["log"], rolled["commits"], rolled["segments"]) == ("broker-0", 11, 1)
    assert (
        expire(["--store", store, "--broker", "broker-0", "--json", "--before", "1990-01-01T00:00:00Z", "-y"])
        == exits.OK
    )
    (kept,) = json.loads(capsys.readouterr().out)
    assert (kept["segments"], kept["logStart"]) == (0, 0)
    assert (
        expire(["--store", store, "--broker", "broker-0", "--json", "--before", "2990-01-01T00:00:00Z", "-y"])
        == exits.OK
    )
    (newest,) = json.loads(capsys.readouterr().out)
    # The newest segment stays whatever its age: it carries the state of the log.
    assert (newest["segments"], newest["messages"], newest["logStart"]) == (0, 0, 0)
    assert expire(["--store", store, "--before", "yesterday-ish"]) == exits.USAGE
    assert roll(["--store", store, "--broker", "nobody"]) == exits.NOT_FOUND


def test_expire_before_a_time_needs_consent_and_a_dry_run_changes_nothing(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ["--store", store, "--broker", "broker-0", "--before", "2990-01-01"]
    files = sorted(path for path in Path(store).rglob("*") if path.is_file())
    assert expire([*before]) == exits.USAGE
    assert capsys.readouterr().err.startswith("expire: this cannot be undone; pass --yes")
    assert expire([*before, "--dry-run", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == [{"log": "broker-0", "dryRun": True, "messages": 12, "forced": False}]
    assert sorted(path for path in Path(store).rglob("*") if path.is_file()) == files
    assert expire([*before, "--dry-run", "--scheduled"]) == exits.USAGE
    assert expire([*before, "--yes", "--json"]) == exits.OK


def test_settings_come_from_conf_as_for_rmq(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "store.toml"
    conf.write_text("segment_bytes = 1000\n")
    assert roll(["--store", store, "--broker", "broker-0", "--conf", str(conf), "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out)[0]["segments"] > 1
    conf.write_text("segment_byte = 1000\n")
    for main in MAINS.values():
        assert main(["--store", store, "--conf", str(conf)]) == exits.USAGE
        assert "unknown setting; did you mean 'segment_bytes'?" in capsys.readouterr().err
        assert main(["--store", "memory://gone"]) == exits.USAGE
        assert "a memory:// store ends with the command that made it" in capsys.readouterr().err


def test_wrong_arguments_are_noticed_before_a_rebuild_empties_anything(store: str) -> None:
    no_session: Any = None
    wrong: list[dict[str, Any]] = [{"part_messages": 0}, {"writer": "nobody"}, {"place": Place("memory://elsewhere")}]
    with Store.open(store) as opened:
        engine.reput(opened)
        for options in wrong:
            with pytest.raises(InvalidRequestError):
                table_engine.rebuild(no_session, opened, **options)
        assert engine.read_table(opened, "consumequeue").num_rows == 10


def test_a_mistyped_broker_is_noticed_before_anything_is_done(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(store) as opened:
        assert engine.reput(opened).rows["consumequeue"] == 10
    for main in (reput, rebuild, consumer_offsets):
        assert main(["--store", store, "--broker", "nope"]) == exits.NOT_FOUND
        assert "no such broker (broker='nope', known=['broker-0'])" in capsys.readouterr().err
    no_session: Any = None
    with Store.open(store) as opened:
        for advance in (table_engine.reput, table_engine.rebuild):
            with pytest.raises(NotFoundError, match="no such broker"):
                advance(no_session, opened, brokers=["nope"])
        assert engine.read_table(opened, "consumequeue").num_rows == 10
