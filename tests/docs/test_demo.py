"""The demonstration of `make demo` does what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_spark import demo, demo_spark


def test_the_demo_ends_verified_and_shows_every_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.run(str(tmp_path / "store")) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("verify OK\n")
    assert "sent 30 messages" in printed
    assert "filter 'paid || shipped': 16 messages of orders" in printed


def test_a_store_that_is_kept_grows_with_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEMO_STORE", str(tmp_path / "kept"))
    assert demo.main() == demo.main() == 0
    assert "verify: 50 commits, 60 messages" in capsys.readouterr().out


def test_it_prints_a_plain_table_without_rich(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rich", "rich.console", "rich.table"):
        monkeypatch.setitem(sys.modules, name, None)
    assert demo.run(str(tmp_path / "store")) == 0
    assert "topic       queue       offsets     messages    tags" in capsys.readouterr().out


@pytest.mark.spark
def test_the_spark_demo_adds_up(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo_spark.run(tmp_path, orders=120, seconds=1.0, spark=spark) == 0
    printed = capsys.readouterr().out
    assert "verify OK" in printed
    assert "eu" in printed and "cancelled" in printed
    assert "a push consumer of group parcels got 30 shipped orders" in printed
