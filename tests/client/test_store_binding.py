"""A log belongs to its store: files of another one are refused, even where nothing else vouches for the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.errors import CorruptDataError
from rmq_spark.log.marks import GENESIS, genesis
from rmq_spark.log.roll import roll
from rmq_spark.log.verify import verify
from rmq_spark.model.message import Message
from rmq_spark.storage import paths


def store_with(place: Path, body: bytes) -> Path:
    with Store.create(str(place)) as store, Producer(store) as producer:
        producer.send(Message(topic="t", body=body))
        assert verify(store.storage, store.log().root, store.log().broker).ok
    return place


def commits(place: Path) -> Path:
    return place / paths.commitlog(paths.broker_root("broker-0"))


def test_a_commit_of_another_store_in_place_of_the_only_commit_is_refused(tmp_path: Path) -> None:
    ours, theirs = store_with(tmp_path / "ours", b"ours"), store_with(tmp_path / "theirs", b"theirs")
    for name in commits(theirs).iterdir():
        if name.suffix == ".arrow":
            shutil.copy(name, commits(ours) / name.name)
    for snapshot in (ours / "brokers/broker-0").glob("snapshots/*.arrow"):
        snapshot.unlink()
    with Store.open(str(ours)) as store:
        with pytest.raises(CorruptDataError, match="another store"):
            store.log()
        report = verify(store.storage, paths.broker_root("broker-0"), "broker-0")
        assert not report.ok
        assert any("another store" in finding.problem for finding in report.findings)


def test_the_first_segment_of_another_store_is_found(tmp_path: Path) -> None:
    place = store_with(tmp_path / "ours", b"ours")
    with Store.open(str(place)) as store:
        roll(store.log(), min_commits=1)
        assert verify(store.storage, store.log().root, store.log().broker).ok
    other = store_with(tmp_path / "other", b"x")
    shutil.copy(other / paths.STORE_FILE, place / paths.STORE_FILE)
    with Store.open(str(place), read_only=True) as store:
        report = verify(store.storage, paths.broker_root("broker-0"), "broker-0")
    assert any("another store" in finding.problem for finding in report.findings)


def test_logs_of_one_store_and_of_two_begin_differently(tmp_path: Path) -> None:
    with Store.create(str(tmp_path / "a")) as one, Store.create(str(tmp_path / "b")) as two:
        begins = {genesis(store.storage, paths.broker_root(broker)) for store in (one, two) for broker in ("x", "y")}
    assert len(begins) == 4
    assert GENESIS not in begins
