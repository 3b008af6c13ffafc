"""A Delta table's log: read it once, follow it by name, add to it exclusively.

Why not through a library: a commit here is one `create_if_absent` on the storage that the message log itself stands
on. So it is exclusive and durable on every backend, carries rows, removals and the transaction mark in one step, and a
look for news costs one test of a name. delta-rs would rebase an append over a commit that it did not expect, which is
how a range could enter a table twice. docs/decisions/0008 has the argument; tests read every table with `deltalake`
and delta-spark, too.

A log is followed by name: version N + 1 is read when it is there. Versions only ever go forward, also over a drop,
which leaves a checkpoint behind. Where somebody has deleted a table by hand, a new one has other versions under the
same names; so, before version N + 1 is believed, version N must be the one that was read before. The same is asked
before version N + 1 is written, and after: a writer that slept while its table went must not add to another.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_spark.errors import CorruptDataError, ExistsError, NotFoundError, UnsupportedVersionError
from rmq_spark.storage.base import Storage
from rmq_spark.tables import delta_actions
from rmq_spark.tables.delta_actions import DataFile
from rmq_spark.tables.schemas import TableSpec

_JSON: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_HINT: Final = "_last_checkpoint"
_LOADS: Final = 5
_VAIN_COMMITS: Final = 5
VERSIONS_END: Final = 1 << 63
"""Numbers from here on are no versions: a foreign file has such a name."""


@dataclass(slots=True)
class Snapshot:
    """A table as of one version."""

    version: int = -1
    files: dict[str, DataFile] = field(default_factory=dict)
    """By path."""
    removed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Files that were taken out: path -> (when, size)."""
    transactions: dict[str, int] = field(default_factory=dict)
    """Application id -> version."""
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    checkpoint: int = -1
    """Version of the newest checkpoint that is known."""

    def mark(self, spec: TableSpec, broker: str) -> int | None:
        """How far the broker's log is in the table; None when nothing of it is."""
        return self.transactions.get(spec.app_id(broker))


class DeltaLog:
    """The log of one table. Not safe for use by two threads at once."""

    def __init__(self, storage: Storage, spec: TableSpec) -> None:
        self.storage = storage
        self.spec = spec
        self.snapshot: Snapshot | None = None
        """The newest version that was read; None while there is no table."""
        self._last_bytes = b""
        """The log entry of that version, to tell this table from one created after it."""
        self._vain = (-1, 0)
        """A version that could not be added because its name is taken, and how often in a row."""

    @property
    def directory(self) -> str:
        """Where the log's entries are."""
        return f"{self.spec.root}/_delta_log"

    def entry(self, version: int) -> str:
        """Path of the entry of a version."""
        return f"{self.directory}/{version:020d}.json"

    def refresh(self) -> Snapshot | None:
        """Read what was added since; None when there is no table.

        Raises:
            CorruptDataError: the log has a hole or cannot be parsed.
            UnsupportedVersionError: the table needs features that this project does not know.
        """
        if self.snapshot is None:
            return self._load()
        try:
            news = self._read_entry(self.snapshot.version + 1)
        except NotFoundError:
            return self.snapshot
        if not self._is_same_table():
            return self._load()
        while True:
            self._take(self.snapshot, self.snapshot.version + 1, news)
            try:
                news = self._read_entry(self.snapshot.version + 1)
            except NotFoundError:
                return self.snapshot

    def reload(self) -> Snapshot | None:
        """Forget what was read and read the log from its newest checkpoint."""
        self.snapshot = None
        return self._load()

    def commit(self, actions: list[dict[str, Any]], operation: str, now_ms: int, nonce: str) -> Snapshot:
        """Add the next version, which everybody sees as a whole; the snapshot must be fresh.

        Raises:
            ExistsError: somebody else added it first, or dropped the table; nothing was changed.
            CorruptDataError: its name is taken, time and again, by something that cannot be read as an entry.
            OutcomeUnknownError, UnavailableError: as `Storage.create_if_absent`.
        """
        if self.snapshot is None:
            self.snapshot = Snapshot()
            actions = [
                delta_actions.protocol(),
                delta_actions.metadata(self.spec, _uuid(nonce), now_ms),
                *actions,
            ]
        info = {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": {},
            "engineInfo": "rmq-spark",
            "txnId": _uuid(nonce),
        }
        lines = [{"commitInfo": info}, *actions]
        data = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines).encode()
        version = self.snapshot.version + 1
        if version and not self._is_still_there():
            raise self._dropped()
        try:
            self.storage.create_if_absent(self.entry(version), [data], durable=True)
        except BaseException as error:
            if version == 0:
                self.snapshot = None
            if isinstance(error, ExistsError):
                self._count_in_vain(version)
            raise
        if version and not self._is_still_there():
            # Dropped between the look and the create. The entry is a moment old, and nobody's: take it back.
            self.storage.delete(self.entry(version))
            raise self._dropped()
        self._take(self.snapshot, version, data)
        return self.snapshot

    def _count_in_vain(self, version: int) -> None:
        """Raise where a caller would look and try for ever: a name that is taken, and nothing to read under it."""
        self._vain = (version, self._vain[1] + 1 if self._vain[0] == version else 1)
        if self._vain[1] >= _VAIN_COMMITS:
            raise CorruptDataError("something that is no entry stands in a table's log", file=self.entry(version))

    def _is_still_there(self) -> bool:
        """Whether the table whose snapshot this is has been neither dropped nor recreated."""
        if self._last_bytes or self.snapshot is None:
            return self._is_same_table()
        # Its last entry was cleaned up, and the checkpoint alone was read: ask for the table's own id.
        newest = DeltaLog(self.storage, self.spec).refresh()
        mine = self.snapshot
        return newest is not None and newest.metadata["id"] == mine.metadata["id"] and newest.version >= mine.version

    def _dropped(self) -> ExistsError:
        self.snapshot = None
        return ExistsError("the table was dropped or recreated meanwhile", directory=self.directory)

    def write_checkpoint(self) -> None:
        """Write the whole state as one file, so that readers need not read every version."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.checkpoint == snapshot.version:
            return
        table = delta_actions.checkpoint_table(self._state(snapshot))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", store_schema=False)
        path = f"{self.directory}/{snapshot.version:020d}.checkpoint.parquet"
        with suppress(ExistsError):  # a checkpoint of this version, whoever wrote it, says the same
            self.storage.create_if_absent(path, [sink.getvalue()], durable=True)
        hint = {"version": snapshot.version, "size": table.num_rows}
        # It is a hint: a reader that finds none, or an old one, lists the directory.
        self.storage.delete(f"{self.directory}/{_HINT}")
        with suppress(ExistsError):
            self.storage.create_if_absent(f"{self.directory}/{_HINT}", [json.dumps(hint).encode()], durable=False)
        snapshot.checkpoint = snapshot.version

    def write_blank(self, now_ms: int, nonce: str) -> str:
        """Write a checkpoint of a table without rows and marks behind every version there is; returns its name.

        With a snapshot, which must be of an empty table then, it is one of that version; without, the log cannot be
        read, and it is one of the version behind the last.
        """
        snapshot = self.snapshot
        if snapshot is None:
            versions, checkpoints = self._list()
            snapshot = Snapshot(version=max([*versions, *checkpoints], default=-1) + 1)
            snapshot.protocol = delta_actions.protocol()["protocol"]
            snapshot.metadata = delta_actions.metadata(self.spec, _uuid(nonce), now_ms)["metaData"]
            self._last_bytes = b""
            self.snapshot = snapshot
        snapshot.transactions.clear()
        snapshot.removed.clear()
        self.write_checkpoint()
        return f"{snapshot.version:020d}.checkpoint.parquet"

    def _state(self, snapshot: Snapshot) -> Iterable[dict[str, Any]]:
        yield {"protocol": snapshot.protocol}
        yield {"metaData": snapshot.metadata}
        for app_id, version in sorted(snapshot.transactions.items()):
            yield {"txn": {"appId": app_id, "version": version}}
        for file in snapshot.files.values():
            yield file.add(data_change=False)
        for path, (when_ms, size) in snapshot.removed.items():
            gone = DataFile(path=path, size=size, modified_ms=0)
            yield gone.remove(data_change=False, now_ms=when_ms)

    # ------------------------------------------------------------ reading

    def _load(self) -> Snapshot | None:
        for _ in range(_LOADS):
            versions, checkpoints = self._list()
            if not versions and not checkpoints:
                self.snapshot = None
                return None
            try:
                snapshot = self._replay(versions, checkpoints)
            except NotFoundError:
                continue  # cleaned up or dropped between the listing and the reading
            self.snapshot = snapshot
            return snapshot
        raise CorruptDataError("a table's log changes faster than it can be read", directory=self.directory)

    def _list(self) -> tuple[list[int], list[int]]:
        names = [info.name for info in self.storage.list(self.directory)]
        return _numbers(_JSON, names), _numbers(_CHECKPOINT, names)

    def _replay(self, versions: list[int], checkpoints: list[int]) -> Snapshot:
        snapshot = Snapshot()
        self._last_bytes = b""
        if checkpoints:
            at = checkpoints[-1]
            path = f"{self.directory}/{at:020d}.checkpoint.parquet"
            self._apply_all(snapshot, self._read_checkpoint(path), path)
            snapshot.version = snapshot.checkpoint = at
            if at in versions:
                self._last_bytes = self._read_entry(at)
        for version in versions:
            if version <= snapshot.version:
                continue
            if version != snapshot.version + 1:
                raise CorruptDataError(
                    "a table's log has a hole; drop the table and build it again",
                    file=self.entry(snapshot.version + 1),
                )
            self._take(snapshot, version, self._read_entry(version))
        while True:
            # A listing may be stale.
            try:
                news = self._read_entry(snapshot.version + 1)
            except NotFoundError:
                break
            self._take(snapshot, snapshot.version + 1, news)
        if not snapshot.metadata or not snapshot.protocol:
            raise CorruptDataError("a table's log has no beginning; drop the table", directory=self.directory)
        return snapshot

    def _read_checkpoint(self, path: str) -> Iterable[dict[str, Any]]:
        data = self.storage.read(path)
        try:
            return delta_actions.checkpoint_actions(pq.ParquetFile(pa.BufferReader(data)).read())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptDataError("a table's checkpoint cannot be parsed", file=path, reason=str(error)) from error

    def _read_entry(self, version: int) -> bytes:
        return self.storage.read(self.entry(version))

    def _is_same_table(self) -> bool:
        if self.snapshot is None or not self._last_bytes:
            return False
        try:
            return self._read_entry(self.snapshot.version) == self._last_bytes
        except NotFoundError:
            return False

    def _take(self, snapshot: Snapshot, version: int, data: bytes) -> None:
        path = self.entry(version)
        try:
            actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise CorruptDataError("an entry of a table's log is no JSON", file=path) from error
        self._apply_all(snapshot, actions, path)
        snapshot.version = version
        self._last_bytes = data

    def _apply_all(self, snapshot: Snapshot, actions: Iterable[dict[str, Any]], path: str) -> None:
        try:
            for action in actions:
                for kind, value in action.items():
                    self._apply(snapshot, kind, value, path)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise CorruptDataError("an entry of a table's log cannot be read", file=path, reason=str(error)) from error

    def _apply(self, snapshot: Snapshot, kind: str, value: dict[str, Any], path: str) -> None:
        if kind == "add":
            file = delta_actions.data_file(value, self.spec, path)
            snapshot.files[file.path] = file
            snapshot.removed.pop(file.path, None)
        elif kind == "remove":
            gone = unquote(value["path"])
            snapshot.files.pop(gone, None)
            when, size = value.get("deletionTimestamp") or 0, value.get("size") or 0
            snapshot.removed[gone] = (delta_actions.number(when), delta_actions.number(size))
        elif kind == "txn":
            snapshot.transactions[value["appId"]] = delta_actions.number(value["version"])
        elif kind == "metaData":
            self._check_metadata(value, path)
            snapshot.metadata = _plain_maps(value)
        elif kind == "protocol":
            if value["minReaderVersion"] > delta_actions.READER_VERSION or value["minWriterVersion"] > (
                delta_actions.WRITER_VERSION
            ):
                raise UnsupportedVersionError(
                    "the table needs features of Delta that this project does not know; drop it and build it again",
                    file=path,
                    reader=value["minReaderVersion"],
                    writer=value["minWriterVersion"],
                )
            snapshot.protocol = {name: value[name] for name in ("minReaderVersion", "minWriterVersion")}

    def _check_metadata(self, value: dict[str, Any], path: str) -> None:
        fields = [field["name"] for field in json.loads(value["schemaString"])["fields"]]
        if fields != self.spec.schema.names or value.get("partitionColumns"):
            raise UnsupportedVersionError(
                "the table has other columns or partitions than this version makes; drop it and build it again",
                file=path,
                columns=fields,
            )


def check_mark(table: str, broker: str, mark: int | None, end: int) -> None:
    """Raise if a table knows more than its log has.

    Raises:
        CorruptDataError: it does: the log was cut by `rmq recover --force`, or the table is of another store.
    """
    if mark is not None and mark > end:
        raise CorruptDataError(
            "a table is ahead of its log; run `rmq tables drop`, then `rmq tables build`",
            table=table,
            broker=broker,
            mark=mark,
            log_end=end,
        )


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    """The versions that names of this form stand for, ascending."""
    versions = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
    return versions[: bisect_left(versions, VERSIONS_END)]


def _plain_maps(value: dict[str, Any]) -> dict[str, Any]:
    """Metadata with its maps as dictionaries: a checkpoint gives lists of pairs."""
    plain = dict(value)
    plain["configuration"] = dict(value.get("configuration") or {})
    provider = value.get("format") or {}
    plain["format"] = {**provider, "options": dict(provider.get("options") or {})}
    return plain


def _uuid(token: str) -> str:
    """32 hex digits in the form that other engines expect of an id."""
    return "-".join((token[:8], token[8:12], token[12:16], token[16:20], token[20:32]))
