"""Tag expressions: which messages match, by hash code and by text."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.filter import FilterSyntaxError, compile_tags
from rmq_spark.model.java_hash import java_hash


def batch_of(*tags: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"tags": pa.array(tags, pa.string())})


def test_listed_tags_match() -> None:
    compiled = compile_tags(" TagA ||TagB|| ")
    assert compiled.tags == {"TagA", "TagB"}
    assert compiled.codes == {2598919, 2598920}
    assert compiled.columns == {"tags"}
    assert compiled.mask(batch_of("TagA", None, "TagC", "TagB", "")).to_pylist() == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert compiled.matches({"TAGS": "TagB"})
    assert not compiled.matches({"TAGS": "TagC"})
    assert not compiled.matches({})


@pytest.mark.parametrize("expression", ["*", ""])
def test_star_and_nothing_match_every_message(expression: str) -> None:
    compiled = compile_tags(expression)
    assert compiled.codes is None
    assert compiled.columns == frozenset()
    assert compiled.mask(batch_of("TagA", None)).to_pylist() == [True, True]
    assert compiled.matches({})
    assert compiled.code_mask(np.array([0, 5])).tolist() == [True, True]


def test_star_among_tags_is_a_tag() -> None:
    assert compile_tags("* || A").tags == {"*", "A"}


def test_colliding_hash_passes_the_first_stage_only() -> None:
    assert java_hash("Aa") == java_hash("BB")
    compiled = compile_tags("Aa")
    assert compiled.code_mask(np.array([java_hash("BB"), 1], np.int64)).tolist() == [True, False]
    assert compiled.mask(batch_of("Aa", "BB")).to_pylist() == [True, False]
    assert not compiled.matches({"TAGS": "BB"})


def test_tag_with_hash_zero_does_not_match_messages_without_a_tag() -> None:
    zero = "f5a5a608"
    assert java_hash(zero) == 0
    compiled = compile_tags(zero)
    assert compiled.code_mask(np.array([0])).tolist() == [True]
    assert compiled.mask(batch_of(None, "", zero)).to_pylist() == [False, False, True]


def test_wide_codes_count_with_their_low_32_bits() -> None:
    code = java_hash("TagA")
    assert compile_tags("TagA").code_mask(np.array([code + (1 << 32), -code], np.int64)).tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize("expression", ["||", " ", " || ", "||||"])
def test_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(FilterSyntaxError) as raised:
        compile_tags(expression)
    assert raised.value.position == 0
    assert "tags" in raised.value.expected


def test_too_long_expression_is_refused() -> None:
    assert compile_tags("x" * 4096).tags == {"x" * 4096}
    with pytest.raises(FilterSyntaxError):
        compile_tags("x" * 4097)


def test_missing_column_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidRequestError, match="tags"):
        compile_tags("A").mask(pa.RecordBatch.from_pydict({"keys": pa.array(["A"])}))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_columns_of_any_text_type_are_read(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_pydict({"tags": pa.array(["A", None, "B"], pa.string()).cast(kind)})
    assert compile_tags("A").mask(batch).to_pylist() == [True, False, False]


def test_compiled_filter_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(compile_tags("A||B"))).tags == {"A", "B"}
