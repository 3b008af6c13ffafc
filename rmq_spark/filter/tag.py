"""RocketMQ's tag expressions: `*`, or tags between `||`.

RocketMQ matches in two stages: the broker compares hash codes, which may collide, and the client compares the
real text. Here `codes` and `code_mask` are the first stage, for indexes that hold nothing but hash codes, and
`mask` and `matches` are the second: the texts decide alone, since equal texts have equal codes.

A `*` between other tags is a tag of that name, as in RocketMQ. Where this differs: an expression that names
no tag at all (blanks, or blanks between `||`) is refused; RocketMQ refuses only `||` and delivers nothing for
the others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.filter.java_values import BLANKS
from rmq_spark.filter.properties_column import column_of, text_column
from rmq_spark.filter.syntax_error import check_length, syntax_error
from rmq_spark.model.java_hash import java_hash
from rmq_spark.model.properties import TAGS

ALL: Final = "*"
"""The expression that every message matches, with a tag or without; the empty expression means the same."""
_SEPARATOR: Final = "||"
_FEW_TAGS: Final = 3
"""Up to so many tags, comparing a column with each is quicker than looking its values up among them."""


class TagFilter:
    """A compiled tag expression; see `Filter` for what its methods promise."""

    __slots__ = ("_choices", "codes", "columns", "expression", "tags")

    def __init__(self, expression: str) -> None:
        check_length(expression)
        self.expression = expression
        self.tags: frozenset[str] | None = None
        """The tags it names; None when every message matches."""
        self.codes: frozenset[int] | None = None
        """Their hash codes: a message with another code cannot match. None when every message matches."""
        self.columns: frozenset[str] = frozenset()
        if expression in ("", ALL):
            return
        self.tags = frozenset(filter(None, (tag.strip(BLANKS) for tag in expression.split(_SEPARATOR))))
        if not self.tags:
            raise syntax_error("no tag is named", expression, 0, "'*', or tags with '||' between them")
        self.codes = frozenset(map(java_hash, self.tags))
        self.columns = frozenset((column_of(TAGS),))
        self._choices = pa.array(sorted(self.tags), pa.string())

    def code_mask(self, codes: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """Return where a message with that hash code may match; wider codes count with their low 32 bits."""
        if self.codes is None:
            return np.ones(len(codes), np.bool_)
        return np.isin(codes.astype(np.int32), np.array(sorted(self.codes), np.int32))

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        if self.tags is None:
            return pa.array(np.ones(batch.num_rows, np.bool_))
        texts = text_column(batch, TAGS).array
        if len(self._choices) > _FEW_TAGS:
            return pc.is_in(texts, value_set=self._choices)
        has_tag = functools.reduce(pc.or_, [pc.equal(texts, tag) for tag in self._choices])
        return has_tag.fill_null(False) if has_tag.null_count else has_tag

    def matches(self, properties: Mapping[str, str]) -> bool:
        return self.tags is None or properties.get(TAGS) in self.tags

    def __reduce__(self) -> tuple[Any, ...]:
        return TagFilter, (self.expression,)

    def __repr__(self) -> str:
        return f"TagFilter({self.expression!r})"


def compile_tags(expression: str) -> TagFilter:
    """Compile a tag expression.

    Raises:
        FilterSyntaxError: it names no tag, or is over 4096 bytes.
    """
    return TagFilter(expression)
