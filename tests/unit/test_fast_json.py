"""The document's JSON: the same bytes from either library, and a log that works without the optional one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.log.fast import json_text, plain_text

REPOSITORY = Path(__file__).parents[2]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def test_the_quick_library_is_used_where_it_is_installed() -> None:
    assert json_text is not plain_text


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=6))
def test_both_libraries_give_the_same_bytes(doc: dict[str, Any]) -> None:
    text = json_text(doc)
    assert text == plain_text(doc)
    assert json.loads(text) == doc


@pytest.mark.parametrize(
    "value",
    ["Bestellung für Köln", "\x7f", "\x00\x1f\n", "\ud800", '"\\/', 1 << 64, -(1 << 63), "\U0001f600"],
    ids=repr,
)
def test_what_the_libraries_might_write_in_two_ways(value: object) -> None:
    text = json_text({"ids": [value]})
    assert text == plain_text({"ids": [value]})
    assert text.isascii()
    assert json.loads(text) == {"ids": [value]}


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        json_text({"base": b"bytes"})


WITHOUT = """
import sys
sys.modules["orjson"] = None  # what an import of a package that is not installed comes to
from rmq_spark.log import fast
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.storage.local import LocalStorage

assert fast.json_text is fast.plain_text
with CommitLog(LocalStorage(sys.argv[1]), "brokers/b", "b") as log:
    log.append(MessageBatch.of(topic="orders", queue_id=0, msg_id="\\u00fc", body=b"x", born_timestamp_ms=0))
"""


def test_a_log_works_without_the_quick_library_and_goes_on_with_it(tmp_path: Path) -> None:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.message_batch import MessageBatch
    from rmq_spark.storage.local import LocalStorage

    command = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    with CommitLog(LocalStorage(tmp_path), "brokers/b", "b") as log:
        log.append(MessageBatch.of(topic="orders", queue_id=0, msg_id="ö", body=b"y", born_timestamp_ms=0))
    with CommitLog(LocalStorage(tmp_path), "brokers/b", "b", read_only=True) as log:
        assert [row["msgId"] for batch in log.scan() for row in batch.to_pylist()] == ["ü", "ö"]
