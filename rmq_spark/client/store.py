"""A store at a URI: its logs, its topics. The door that every client, job and command uses."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import (
    ClockSkewError,
    CorruptDataError,
    ExistsError,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
    UnsupportedVersionError,
)
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.folds import TopicConfigs, Truncations
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.state import LogState
from rmq_spark.model import names
from rmq_spark.model.settings import LogSettings
from rmq_spark.rules import system_topics
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage
from rmq_spark.storage.open import open_storage, probe

FORMAT: Final = 1
DEFAULT_BROKER: Final = "broker-0"
DEFAULT_QUEUES: Final = 8
"""What RocketMQ's `mqadmin updateTopic` gives a topic."""
AUTO_CREATE_QUEUES: Final = 4
"""What RocketMQ's auto-creation gives a topic: min(producer's 4, broker's 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic's settings. Queue numbers are per broker, as in RocketMQ."""

    name: str
    queues: Mapping[str, int]
    """Broker name -> number of queues there."""

    def message_queues(self) -> list[tuple[str, int]]:
        """Every (broker, queue id), in the order that routing uses."""
        return [(broker, queue) for broker in sorted(self.queues) for queue in range(self.queues[broker])]


class Store:
    """An open store. Safe to use from any thread; close it, or use it as a context manager.

    Example:
        >>> with Store.create("memory://example") as store:
        ...     store.create_topic("orders", queues=2).message_queues()
        [('broker-0', 0), ('broker-0', 1)]
    """

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock, *, read_only: bool) -> None:
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self._read_only = read_only
        self._lock = threading.Lock()
        self._logs: dict[str, CommitLog] = {}
        self.info = _read_info(storage)

    @classmethod
    def create(
        cls,
        uri: str,
        *,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Store:
        """Create a store at `uri` and open it.

        Raises:
            ExistsError: there is one already; nothing was changed.
            UnsafeStorageError: the storage cannot create names exclusively.
            ReadOnlyError, StorageFullError, UnavailableError: it could not be written.
        """
        clock = clock or SystemClock()
        storage = open_storage(uri, options=options, clock=clock)
        probe(storage, clock)
        info = {"format": FORMAT, "createdAt": clock.now_ms(), "nonce": clock.token()}
        try:
            storage.create_if_absent(paths.STORE_FILE, [json.dumps(info).encode()])
        except ExistsError as error:
            raise ExistsError("there is a store already; open it instead", uri=uri) from error
        return cls(storage, settings or LogSettings(), clock, read_only=False)

    @classmethod
    def open(
        cls,
        uri: str,
        *,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        options: Mapping[str, str] | None = None,
        read_only: bool = False,
    ) -> Store:
        """Open the store at `uri`. Writing handles first test that the storage creates names exclusively.

        Raises:
            NotFoundError: there is no store.
            UnsafeStorageError: the storage cannot create names exclusively (not for `read_only`).
            ClockSkewError: this machine's clock is too far ahead of the storage's.
        """
        clock = clock or SystemClock()
        settings = settings or LogSettings()
        storage = open_storage(uri, options=options, clock=clock)
        store = cls(storage, settings, clock, read_only=read_only)
        if not read_only:
            ahead = -probe(storage, clock).clock_skew_ms
            if ahead > settings.clock_ahead_max_ms:
                raise ClockSkewError(
                    "this machine's clock is ahead of the storage's; correct it before writing",
                    clock_ms=clock.now_ms(),
                    storage_ms=clock.now_ms() - ahead,
                    limit_ms=settings.clock_ahead_max_ms,
                )
        return store

    # ------------------------------------------------------------ logs

    def log(self, broker: str = DEFAULT_BROKER) -> CommitLog:
        """The handle on a broker's log; opened when first asked for."""
        names.check_broker(broker)
        return self._open_log(broker, paths.broker_root(broker))

    @property
    def nameserver(self) -> CommitLog:
        """The handle on the cluster-wide log."""
        return self._open_log(paths.NAMESERVER, paths.NAMESERVER)

    def brokers(self) -> list[str]:
        """Brokers that hold or held queues of any topic, and the default one."""
        return sorted({DEFAULT_BROKER} | self.nameserver.refresh().state.fold(TopicConfigs).brokers)

    def _open_log(self, name: str, root: str) -> CommitLog:
        with self._lock:
            log = self._logs.get(root)
            if log is None:
                log = self._logs[root] = CommitLog(
                    self.storage,
                    root,
                    name,
                    settings=self.settings,
                    clock=self.clock,
                    read_only=self._read_only,
                )
            return log

    # ------------------------------------------------------------ topics

    def create_topic(
        self, name: str, *, queues: int = DEFAULT_QUEUES, brokers: tuple[str, ...] = (DEFAULT_BROKER,)
    ) -> Topic:
        """Create a topic with `queues` queues on each broker. The same again is no error.

        Raises:
            ExistsError: it exists with other queues.
            InvalidRequestError: an illegal name or number.
        """

        def is_absent(state: LogState) -> str | None:
            return "topic was created meanwhile" if name in state.fold(TopicConfigs).configs else None

        system_topics.check_sendable(name)
        wanted = {names.check_broker(broker): names.check_queues(queues) for broker in brokers}
        found = self.find_topic(name)
        if found is None:
            try:
                config = {"topic": name, "queues": wanted, "perm": 6}
                self.nameserver.append(self._state_message(TopicConfigs.topic, config), expect=is_absent)
            except PreconditionFailedError:
                found = self.find_topic(name)
        if found is not None and dict(found.queues) != wanted:
            raise ExistsError("topic exists with other queues", topic=name, queues=dict(found.queues))
        return Topic(name=name, queues=wanted)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and hide its messages; retention frees their room.

        A topic created later under the same name goes on with the offsets, as no offset is ever used twice. If it
        fails, delete again. Messages that are sent while it runs may outlive it.

        Raises:
            NotFoundError: there is no such topic.
        """
        topic = self.topic(name)
        gone = self._state_message(TopicConfigs.topic, {"topic": name, "deleted": True})
        for broker in topic.queues:
            self.log(broker).append(self._state_message(Truncations.topic, {"topic": name}))
        # The topic goes last: if something fails before, it is still there to be deleted again.
        self.nameserver.append(gone)

    def find_topic(self, name: str) -> Topic | None:
        """The topic, or None."""
        config = self._configs().get(name)
        return None if config is None else Topic(name=name, queues=dict(config["queues"]))

    def topic(self, name: str) -> Topic:
        """The topic.

        Raises:
            NotFoundError: there is none of that name.
        """
        found = self.find_topic(name)
        if found is None:
            raise NotFoundError("no such topic", topic=name)
        return found

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return [Topic(name=name, queues=dict(config["queues"])) for name, config in sorted(self._configs().items())]

    def _configs(self) -> dict[str, dict[str, Any]]:
        return self.nameserver.refresh().state.fold(TopicConfigs).configs

    def _state_message(self, topic: str, value: dict[str, Any]) -> MessageBatch:
        return MessageBatch.of(
            topic=topic,
            queue_id=0,
            msg_id=self.clock.token().upper(),
            body=json.dumps(value, separators=(",", ":")).encode(),
            born_timestamp_ms=self.clock.now_ms(),
        )

    # ------------------------------------------------------------ life

    def is_still_there(self) -> bool:
        """Whether the store that was opened is the one at its URI now; one made anew in its place is another."""
        try:
            return _read_info(self.storage) == self.info
        except NotFoundError:
            return False

    def flush(self) -> None:
        """Make everything appended through this store's handles durable."""
        for log in list(self._logs.values()):
            log.flush()

    def close(self) -> None:
        """Flush and close every handle; raises what failed first, after all of them were closed."""
        failed: BaseException | None = None
        for log in list(self._logs.values()):
            try:
                log.close()
            except BaseException as error:  # noqa: BLE001 - raised below, when nothing is left open
                failed = failed or error
        try:
            self.storage.close()
        finally:
            if failed is not None:
                raise failed

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_info(storage: Storage) -> dict[str, Any]:
    try:
        data = storage.read(paths.STORE_FILE)
    except NotFoundError as error:
        raise NotFoundError("no store here; create one with `rmq init`", uri=storage.uri) from error
    try:
        info: dict[str, Any] = json.loads(data)
        version = info["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("store.json is damaged", uri=storage.uri) from error
    if version != FORMAT:
        raise UnsupportedVersionError("store has another format; upgrade rmq-spark", format=version, known=FORMAT)
    if not isinstance(info, dict):
        raise InvalidRequestError("store.json is not an object", uri=storage.uri)
    return info
