"""The key filter: two builders that agree, and never a key that it denies."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.log import bloom

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1, max_size=40)


@given(st.lists(texts, max_size=30))
def test_the_hash_of_a_column_is_the_hash_of_each_text(values: list[str]) -> None:
    assert bloom.hash_strings(pa.array(values, pa.string())).tolist() == [bloom.hash_text(text) for text in values]


@given(st.lists(texts, min_size=1, max_size=20), st.data())
def test_a_sliced_column_hashes_like_its_texts(values: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values)))
    hashes = bloom.hash_strings(pa.array(values, pa.string()).slice(start))
    assert hashes.tolist() == [bloom.hash_text(text) for text in values[start:]]


def test_the_hash_is_the_one_the_format_states() -> None:
    """Numbers worked out from docs/format.md; they may never change."""
    assert bloom.hash_text("") == 0
    assert bloom.hash_strings(pa.array([""])).tolist() == [0]
    assert {text: f"{bloom.hash_text(text):016x}" for text in ("a", "order-1", "12345678", "123456789", "é中🙂")} == {
        "a": "f33c116bf186039d",
        "order-1": "f7df7f35c2885fe3",
        "12345678": "9359358676ee2c8c",
        "123456789": "4ccdf7dd7e4c0551",
        "é中🙂": "d8f8a64dcb5737e3",
    }


@settings(deadline=None)
@given(st.lists(keys, max_size=60))
def test_both_builders_give_the_same_filter_and_find_every_key(values: list[str]) -> None:
    built = bloom.build(pa.array(values, pa.string()))
    assert built == bloom.build_few(values)
    assert all(bloom.may_contain(built, key) for key in values)
    assert bool(built) == bool(values)


@given(st.lists(st.none() | st.lists(keys, min_size=1, max_size=4).map(" ".join), max_size=20))
def test_each_of_several_keys_of_a_message_is_found(column: list[str | None]) -> None:
    single = [key for cell in column if cell for key in cell.split(" ")]
    built = bloom.build(pa.array(column, pa.string()))
    assert built == bloom.build_few(single)
    assert all(bloom.may_contain(built, key) for key in single)


def test_an_empty_filter_holds_nothing() -> None:
    assert bloom.build(pa.array([None, None], pa.string())) == b""
    assert bloom.build_few([]) == b""
    assert not bloom.may_contain(b"", "anything")


def test_about_one_in_a_hundred_absent_keys_is_a_false_alarm() -> None:
    for count in (10, 1_000, 26_000):  # 26,000 keys are the fullest a filter gets: ten bits for each
        built = bloom.build(pa.array([f"order-{number}" for number in range(count)]))
        alarms = sum(bloom.may_contain(built, f"absent-{number}") for number in range(10_000))
        assert alarms < 250, f"{count} keys: {alarms} false alarms in 10,000"


def test_the_size_is_a_power_of_two_of_at_least_eight_bytes() -> None:
    sizes = [len(bloom.build_few([str(number) for number in range(count)])) for count in (1, 8, 9, 16, 17, 100)]
    assert sizes == [8, 8, 16, 16, 32, 128]
