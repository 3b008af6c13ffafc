"""Java's String.hashCode: known values, and the column form against the scalar one."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.model.java_hash import java_hash, java_hashes

TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("\u4e2d\u6587", 646394),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_known_hashes(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert java_hashes(pa.array([text])).tolist() == [expected]


@given(TEXTS, st.integers(0, 5))
def test_column_equals_scalar(texts: list[str | None], skipped: int) -> None:
    expected = [java_hash(text or "") for text in texts]
    column = pa.array(texts, pa.string())
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert java_hashes(column.cast(kind)).tolist() == expected
    assert java_hashes(column.slice(skipped)).tolist() == expected[skipped:]
    assert java_hashes(column.dictionary_encode()).tolist() == expected
    assert java_hashes(pa.chunked_array([column, column])).tolist() == expected * 2


def test_texts_are_hashed_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_spark.model.java_hash._CHUNK_BYTES", 16)
    texts = ["a", "x" * 50, "", "\u00e9" * 30, "b", "c" * 15, "", "d" * 16, "ee", ""]
    assert java_hashes(pa.array(texts)).tolist() == [java_hash(text) for text in texts]
    assert java_hashes(pa.array(texts[::-1])).tolist() == [java_hash(text) for text in texts[::-1]]


def test_hashes_are_32_bits_wide_and_null_gives_zero() -> None:
    hashes = java_hashes(pa.array([None, "TagA"]))
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [0, 2598919]


def test_many_distinct_texts_are_hashed_without_a_loop() -> None:
    column = pa.array([f"tag-{i}" for i in range(100_000)])
    start = time.perf_counter()
    java_hashes(column)
    # 10 ms when alone; a Python loop needs over 100 ms.
    assert time.perf_counter() - start < 2.0
