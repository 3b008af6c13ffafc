"""Tasks that die and are tried again by a real Spark: every row lands once, attempts leave orphans only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sink_tasks import row_files, stored

from rmq_spark.client.store import Store
from rmq_spark.log.collect import collect
from rmq_spark.log.core_folds import RowFiles
from rmq_spark.log.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_tasks_that_die_twice_are_written_once(tmp_path: Path) -> None:
    with Store.create(str(tmp_path / "store")) as store:
        main = Path(__file__).with_name("sink_retry_main.py")
        command = [sys.executable, str(main), str(tmp_path / "store"), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        for topic, count in (("t", 40_000), ("s", 20_000)):
            assert sorted(int(row["body"]) for row in stored(store, topic)) == list(range(count))
        collect(store.log(), orphan_age_ms=-1)
        assert set(row_files(store)) == store.log().refresh().state.fold(RowFiles).referenced.keys()
        assert verify(store.storage, "brokers/broker-0", "broker-0").ok
