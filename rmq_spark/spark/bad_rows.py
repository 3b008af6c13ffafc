"""Rows that cannot be sent: why, and what becomes of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.arrow_columns import bytes_of, offsets_of

BOOL = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]

BAD_REASON: Final = "BAD_REASON"
"""Property of a row in the topic of bad records: why it could not be sent."""
BAD_TOPIC: Final = "BAD_TOPIC"
"""Where it should have gone; absent if it named no topic."""
BAD_TAGS: Final = "BAD_TAGS"
"""Its tag, cut to 255 characters."""
BAD_KEYS: Final = "BAD_KEYS"
"""Its keys, cut to 255 characters."""
BAD_QUEUE_ID: Final = "BAD_QUEUE_ID"
"""The queue it asked for."""

NAMES: Final = frozenset({BAD_REASON, BAD_TOPIC, BAD_TAGS, BAD_KEYS, BAD_QUEUE_ID})

SHOWN_CHARACTERS: Final = 255
SHOWN_BODY_BYTES: Final = 64


class Faults:
    """Why rows of a batch cannot be sent; the first reason that is found counts."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._codes: npt.NDArray[np.int32] | None = None
        self._reasons: list[str] = [""]

    def mark(self, bad: Any, reason: str) -> None:
        """Note `reason` for the rows where `bad` is true (an Arrow or numpy mask; null is false)."""
        mask = bad if isinstance(bad, np.ndarray) else pc.fill_null(bad, False).to_numpy(zero_copy_only=False)
        if not mask.any():
            return
        if self._codes is None:
            self._codes = np.zeros(self._rows, np.int32)
        self._reasons.append(reason)
        self._codes[mask & (self._codes == 0)] = len(self._reasons) - 1

    @property
    def any(self) -> bool:
        """Whether some row is bad."""
        return self._codes is not None

    def good(self) -> BOOL:
        """Where rows are good."""
        return np.ones(self._rows, np.bool_) if self._codes is None else self._codes == 0

    def bad_rows(self) -> I64:
        """Numbers of the bad rows."""
        return np.flatnonzero(~self.good())

    def reasons(self) -> pa.Array:
        """The reason of each bad row."""
        codes = np.zeros(0, np.int32) if self._codes is None else self._codes[self._codes > 0]
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(self._reasons)).cast(pa.string())

    def error(self, columns: dict[str, pa.Array], default_topic: str | None) -> InvalidRequestError:
        """The error that names the first bad row's values."""
        rows = self.bad_rows()
        row = int(rows[0])
        shown: dict[str, object] = {"topic": _value(columns, "topic", row) or default_topic}
        for name in ("tags", "keys", "queueId"):
            shown[name] = _value(columns, name, row)
        body = columns["body"][row]
        shown["body"] = bytes(memoryview(body.as_buffer())[:SHOWN_BODY_BYTES]) if body.is_valid else None
        return InvalidRequestError(
            f"a row cannot be sent: {self.reasons()[0].as_py()}; correct it, or name a topic for such rows by "
            "badRecordsTopic",
            **shown,
            bad_rows=len(rows),
        )


def _value(columns: dict[str, pa.Array], name: str, row: int) -> object:
    if name not in columns:
        return None
    value = columns[name][row].as_py()
    return value[:SHOWN_CHARACTERS] if isinstance(value, str) else value


def shown_text(texts: pa.Array) -> pa.Array:
    """Texts cut to what a property of a bad row may hold; blank ones become null."""
    cut = pc.utf8_slice_codeunits(texts, 0, SHOWN_CHARACTERS)
    return pc.if_else(is_blank(cut), pa.scalar(None, pa.string()), cut)


def is_plain(texts: pa.Array) -> bool:
    """Whether no text is null or empty, and all bytes are ASCII and not white space. No says nothing.

    One quick pass, and a yes saves the slow looks for what is blank or not UTF-8.
    """
    if texts.null_count or not len(texts):
        return False
    offsets = offsets_of(texts)
    # As signed numbers, bytes that are not ASCII are below zero.
    return not (offsets[1:] == offsets[:-1]).any() and int(bytes_of(texts).view(np.int8).min()) > ord(" ")


def is_blank(texts: pa.Array) -> pa.Array:
    """Where a text has nothing but white space, or nothing at all; null stays null."""
    return pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts))


def repair_text(texts: pa.Array) -> tuple[pa.Array, BOOL] | None:
    """Texts with every byte replaced that is not UTF-8, and where that was; None when there is nothing to do.

    Spark lets such strings pass; Arrow calls them strings and then fails on them.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        # Rare enough to look at each value.
        raw: list[bytes | None] = texts.cast(pa.binary()).to_pylist()
        repaired = [None if value is None else value.decode("utf-8", "replace") for value in raw]
        changed = [text is not None and text.encode() != value for text, value in zip(repaired, raw, strict=True)]
        return pa.array(repaired, pa.string()), np.array(changed, np.bool_)
    return None
