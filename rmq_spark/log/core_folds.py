"""The folds that the log itself needs; every handle has them. All others are declared (`rmq_spark/rules/`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.undo import Journal


class FoldList(Fold):
    """Which folds have records in this log, as their first writer said.

    Whoever deletes old messages must keep the state of all of them, so it must know all of them.
    """

    name: ClassVar[str] = "folds"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_fold",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.topics_of = self.table(dict[str, tuple[str, ...]]())
        """Fold name -> the topics that it reads."""

    def apply(self, records: Records) -> None:
        for value in records.values():
            name = need(value["fold"], str, "fold")
            self.topics_of[name] = tuple(need(topic, str, "topics") for topic in need(value["topics"], list, "topics"))

    def dump(self) -> Any:
        return {name: list(topics) for name, topics in sorted(self.topics_of.items())}

    def load(self, value: Any, version: int) -> None:
        self.topics_of = self.table({name: tuple(topics) for name, topics in value.items()})


class Truncations(Fold):
    """Topics whose messages so far were deleted: their queues start anew at the offset they had reached.

    The effect is on the log's queues; the names are kept for the state to carry out when the commit is applied.
    """

    name: ClassVar[str] = "truncations"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_truncate",)

    def apply(self, records: Records) -> None:
        self.names(records)

    @staticmethod
    def names(records: Records) -> list[str]:
        """The topics that are truncated."""
        return [need(value["topic"], str, "topic") for value in records.values()]

    def dump(self) -> Any:
        return None

    def load(self, value: Any, version: int) -> None:
        return None  # the effect is in the queues' own dump


class RowFiles(Fold):
    """Row files in `data/`: which ones commits refer to, and which ones the collector has claimed.

    A claimed file may not be referred to any more; a file that is referred to is deleted only after its commit
    was rolled. Both sets forget a file when a record says that it is gone.
    """

    name: ClassVar[str] = "row_files"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_collect",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.claimed = self.table(dict[str, None]())
        self.referenced = self.table(dict[str, int]())
        """File name -> offset of the commit that refers to it."""

    def apply(self, records: Records) -> None:
        for value in records.values():
            claim, gone = (_texts(value.get(field, []), field) for field in ("claim", "gone"))
            for name in claim:
                self.claimed[name] = None
            for name in gone:
                self.claimed.discard(name)
                self.referenced.discard(name)

    def refer(self, names: Iterable[str], offset: int) -> None:
        """A commit at `offset` refers to these files."""
        for name in names:
            self.referenced[name] = offset

    def dump(self) -> Any:
        return {"claimed": sorted(self.claimed), "referenced": dict(self.referenced)}

    def load(self, value: Any, version: int) -> None:
        self.claimed = self.table(dict.fromkeys(value["claimed"]))
        self.referenced = self.table(value["referenced"])


SinkMark = tuple[str, int] | tuple[str, int, str]
"""What names a sink's batch in its commit: application id, batch number and, since the sink writes one, a fingerprint.

The log keeps a fingerprint and never reads it: what makes two batches the same is the sink's affair."""

FINGERPRINTS_KEPT: Final = 10
"""Of so many last batches of an application the fingerprints are kept."""


class SinkBatches(Fold):
    """Last batch of each sink application, and what the last few of them held."""

    name: ClassVar[str] = "sink_batches"
    version: ClassVar[int] = 2
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_sink_batch",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.last = self.table(dict[str, int]())
        """Application -> greatest batch."""
        self.fingerprints = self.table(dict[str, tuple[tuple[int, str], ...]]())
        """Application -> (batch, fingerprint) of its last batches; one that an older version landed has none."""

    def apply(self, records: Records) -> None:
        for value in records.values():
            self.land(need(value["app"], str, "app"), need(value["batch"], int, "batch"))

    def land(self, app: str, batch: int, fingerprint: str | None = None) -> None:
        """Note that `batch` of `app` is in the log."""
        self.last[app] = max(batch, self.last.get(app, -1))
        if fingerprint is not None:
            known = {**dict(self.fingerprints.get(app, ())), batch: fingerprint}
            self.fingerprints[app] = tuple(sorted(known.items())[-FINGERPRINTS_KEPT:])

    def dump(self) -> Any:
        return {"last": dict(self.last), "fingerprints": dict(self.fingerprints)}

    def load(self, value: Any, version: int) -> None:
        if version < 2:  # application -> greatest batch, and nothing else
            value = {"last": value, "fingerprints": {}}
        self.last = self.table(value["last"])
        kept = value["fingerprints"].items()
        self.fingerprints = self.table({app: tuple((pair[0], pair[1]) for pair in pairs) for app, pairs in kept})


CORE_FOLDS: Final[tuple[type[Fold], ...]] = (FoldList, Truncations, RowFiles, SinkBatches)


def _texts(values: Any, field: str) -> list[str]:
    return [need(value, str, field) for value in need(values, list, field)]
