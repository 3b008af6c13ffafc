"""What Kafka's source and sink call the columns, for hints to people who come from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KAFKA_NAMES: Final[Mapping[str, str]] = {
    "value": "body",
    "key": "keys",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "headers": "properties",
}
"""Kafka's name of a column -> ours, for hints: no spelling is near to these."""
