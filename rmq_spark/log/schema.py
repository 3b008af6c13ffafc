"""Column layout of the files and of what a scan returns.

Commits and row files hold `ROWS`. Offsets and the store time are not among them: they are base + position,
known only when the commit lands, so a lost race renumbers metadata and leaves the rows alone.
Segments hold `SEGMENT`: the same columns and the three that are settled by then, for engines that read the
files without this project. Every field is nullable because Spark declares its columns so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

ROWS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("msgId", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("flag", pa.int32()),
        pa.field("sysFlag", pa.int32()),
        pa.field("bornTimestamp", TIMESTAMP),
        pa.field("bornHost", pa.string()),
        pa.field("reconsumeTimes", pa.int32()),
        pa.field("properties", PROPERTIES),
    ]
)
"""Columns of a commit and of a row file."""

Row = tuple[Any, ...]
"""One message as Python values, in the order of `ROWS`."""

SEGMENT: Final = pa.schema(
    [
        pa.field("commitOffset", pa.int64()),
        pa.field("queueOffset", pa.int64()),
        pa.field("storeTimestamp", TIMESTAMP),
        *ROWS,
    ]
)
"""Columns of a segment."""

MESSAGE: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("brokerName", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("queueOffset", pa.int64()),
        pa.field("commitOffset", pa.int64()),
        pa.field("msgId", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("flag", pa.int32()),
        pa.field("sysFlag", pa.int32()),
        pa.field("bornTimestamp", TIMESTAMP),
        pa.field("bornHost", pa.string()),
        pa.field("storeTimestamp", TIMESTAMP),
        pa.field("reconsumeTimes", pa.int32()),
        pa.field("properties", PROPERTIES),
    ]
)
"""Columns of a message as a scan returns it."""


def no_messages(columns: Sequence[str]) -> pa.RecordBatch:
    """A batch of the given columns of `MESSAGE`, without rows."""
    part = pa.schema([MESSAGE.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in part.types], schema=part)
