"""Messages of any content, as rows of `schema.ROWS`, for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROW = st.tuples(
    TEXT,
    st.integers(0, 65_535),
    TEXT,
    st.none() | TEXT,
    st.none() | TEXT,
    st.binary(max_size=40),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | TEXT,
    st.integers(0, 2**31 - 1),
    st.lists(st.tuples(TEXT, TEXT), max_size=4),
)
