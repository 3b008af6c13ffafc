"""Sizes of property strings: columns and single messages agree."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.log import schema
from rmq_spark.log.message_batch import property_sizes
from rmq_spark.model import limits

maps = st.one_of(st.none(), st.dictionaries(st.text(max_size=4), st.one_of(st.none(), st.text(max_size=4)), max_size=4))


@given(st.lists(maps, max_size=10), st.integers(0, 3))
def test_a_column_has_the_sizes_of_its_maps(values: list[dict[str, str | None] | None], skipped: int) -> None:
    column = pa.array([None if one is None else list(one.items()) for one in values], schema.PROPERTIES)[skipped:]
    expected = [
        limits.property_bytes([(name, value) for name, value in (one or {}).items() if value is not None])
        for one in values[skipped:]
    ]
    assert property_sizes(column).tolist() == expected


def test_a_tag_and_keys_count_with_their_names() -> None:
    assert limits.property_bytes([("é", "x")], "tag", "k1 k2") == (2 + 1 + 2) + (4 + 3 + 2) + (4 + 5 + 2)
