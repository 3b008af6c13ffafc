"""The pins of the Java archives, and what happens when a fetched file is not the pinned one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_spark.errors import CorruptDataError, InvalidRequestError
from rmq_spark.testing import jars


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "jars.lock"
    monkeypatch.setattr(jars, "LOCK_FILE", path)
    monkeypatch.setenv("RMQ_CACHE", str(tmp_path / "cache"))
    jars.jar_sets.cache_clear()
    yield path
    jars.jar_sets.cache_clear()


def test_every_set_is_pinned_with_its_files() -> None:
    sets = jars.jar_sets()
    assert set(sets) == {"hdfs", "rocketmq-filter", "delta", "spark-kafka", "kafka", "rocketmq-client", "rocketmq"}
    assert sets["delta"].files["delta-spark_4.2_2.13-4.4.0.jar"].startswith("27d4fd8b")
    assert len({jar_set.directory for jar_set in sets.values()}) == len(sets)


@pytest.mark.parametrize("line", ["stray", "[Set]", "0" * 63 + "  g:a:1", "0" * 64 + "  g:a", "0" * 64 + " g:a:1"])
def test_a_line_that_is_no_pin_is_refused(lock: Path, line: str) -> None:
    lock.write_text(f"[set]\n{line}\n")
    with pytest.raises(CorruptDataError, match="no pin"):
        jars.jar_sets()


def test_an_unknown_set_names_the_known_ones(lock: Path) -> None:
    lock.write_text("[one]\n[two]\n")
    with pytest.raises(InvalidRequestError, match="known: one, two"):
        jars.ensure_jars("three")


@pytest.mark.parametrize("fault", [None, "other bytes", "missing", "unpinned"])
def test_only_the_pinned_files_are_kept(lock: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None) -> None:
    lock.write_text(f"# a comment\n[set]\n{hashlib.sha256(b'jar').hexdigest()}  group:name:1.0\n")

    def resolve(jar_set: jars.JarSet, scratch: Path, target: Path) -> None:
        target.mkdir()
        if fault != "missing":
            (target / "name-1.0.jar").write_bytes(b"changed" if fault == "other bytes" else b"jar")
        if fault == "unpinned":
            (target / "more-1.0.jar").write_bytes(b"jar")

    monkeypatch.setattr(jars, "_resolve", resolve)
    if fault is None:
        assert [path.read_bytes() for path in jars.ensure_jars("set")] == [b"jar"]
        return
    with pytest.raises(CorruptDataError, match="nothing was kept"):
        jars.ensure_jars("set")
    assert list((lock.parent / "cache" / "jars").iterdir()) == []
