"""What every filter offers, whatever language its expression is written in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa


class Filter(Protocol):
    """A compiled expression. Immutable, usable from any thread, picklable (it is compiled again)."""

    @property
    def expression(self) -> str:
        """The text it was compiled from."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns that `mask` reads; empty when it needs none."""

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return one boolean per row of `batch`, never null: does the message match?

        Raises:
            InvalidRequestError: `batch` lacks one of `columns`, or it has another type.
        """

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties matches; TAGS, KEYS and UNIQ_KEY are among them."""
