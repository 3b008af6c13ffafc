"""Offsets of broadcasting consumers: every consumer gets every message, so each keeps its own offsets in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rmq_spark.errors import CorruptDataError, UnavailableError
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
            UnavailableError: it cannot be read.
        """
        try:
            rows = json.loads(self.path.read_bytes())["offsets"]
            return {MessageQueue(str(topic), str(broker), int(queue)): int(at) for topic, broker, queue, at in rows}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unavailable("read", error) from error
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError(
                "the file with a broadcasting consumer's offsets is damaged; delete it to start over", file=self.path
            ) from error

    def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the file: whole or not at all, whenever the process dies.

        Raises:
            UnavailableError: it cannot be written.
        """
        text = json.dumps({"offsets": [[*queue, offset] for queue, offset in sorted(offsets.items())]})
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
        except OSError as error:
            raise self._unavailable("written", error) from error

    def _unavailable(self, act: str, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"a broadcasting consumer's offsets cannot be {act}; give it another offsets_home",
            file=self.path,
            cause=error,
        )
