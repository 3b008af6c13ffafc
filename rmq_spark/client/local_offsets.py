"""Offsets of broadcasting consumers: every consumer gets every message, so each keeps its own offsets in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rmq_spark.errors import CorruptDataError
from rmq_spark.model.message_queue import MessageQueue


class LocalOffsets:
    """One consumer's offsets. Two consumers must not share a file.

    Args:
        path: `offsets.json`; it is made with its directory when something is stored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[MessageQueue, int]:
        """The offsets that were stored last; none if there is no file.

        Raises:
            CorruptDataError: the file is damaged.
        """
        try:
            rows = json.loads(self.path.read_bytes())["offsets"]
            return {MessageQueue(str(topic), str(broker), int(queue)): int(at) for topic, broker, queue, at in rows}
        except FileNotFoundError:
            return {}
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError(
                "the file with a broadcasting consumer's offsets is damaged; delete it to start anew", file=self.path
            ) from error

    def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the file: whole or not at all, whenever the process dies."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"offsets": [[*queue, offset] for queue, offset in sorted(offsets.items())]})
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
