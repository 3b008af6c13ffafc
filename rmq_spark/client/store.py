"""A store at a URI: its logs, its topics. The door that every client, job and command uses."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

import pyarrow as pa

from rmq_spark.client.delays import adopt_levels
from rmq_spark.client.embedding import EmbeddedServices, ServiceMode, mode_of
from rmq_spark.client.observer import Observer
from rmq_spark.client.reading import Time, nearest, scan_topic
from rmq_spark.client.store_file import new_store_file, read_store_file
from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import (
    ClockSkewError,
    ExistsError,
    InvalidRequestError,
    NotFoundError,
    StorageFullError,
)
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.core_folds import Truncations
from rmq_spark.log.fold import Fold
from rmq_spark.log.request import Decision
from rmq_spark.log.view import LogView
from rmq_spark.model import names
from rmq_spark.model.settings import LogSettings
from rmq_spark.rules import topic_decisions
from rmq_spark.rules.all_folds import NAMESERVER_FOLDS
from rmq_spark.rules.cluster import ClusterConfig, ClusterSettings
from rmq_spark.rules.message_type import MessageType
from rmq_spark.rules.topic_decisions import TopicChange
from rmq_spark.rules.topics import Topic, TopicConfigs, topic_of
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage
from rmq_spark.storage.open import open_storage, probe

__all__ = [
    "AUTO_CREATE_QUEUES",
    "DEFAULT_BROKER",
    "DEFAULT_QUEUES",
    "NAMESERVER_FOLDS",
    "Store",
    "Topic",
    "append_records",
]

DEFAULT_BROKER: Final = "broker-0"
DEFAULT_QUEUES: Final = 8
"""What RocketMQ's `mqadmin updateTopic` gives a topic."""
AUTO_CREATE_QUEUES: Final = 4
"""What RocketMQ's auto-creation gives a topic: min(producer's 4, broker's 8)."""


class Store:
    """An open store. Safe to use from any thread; close it, or use it as a context manager.

    Example:
        >>> with Store.create("memory://example") as store:
        ...     store.create_topic("orders", queues=2).message_queues()
        [('broker-0', 0), ('broker-0', 1)]
    """

    def __init__(
        self,
        storage: Storage,
        settings: LogSettings,
        clock: Clock,
        *,
        read_only: bool,
        services: ServiceMode = ServiceMode.OFF,
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self._read_only = read_only
        self._lock = threading.Lock()
        self._logs: dict[str, CommitLog] = {}
        # A clock that a test moves by hand would stand still for threads that wait, or run away with them.
        by_themselves = not read_only and isinstance(clock, SystemClock)
        self._services = EmbeddedServices(services if by_themselves else ServiceMode.OFF)
        self.observers: list[Observer] = []
        """Are told what every client of this object does; see `rmq_spark.metrics`."""
        self.info = read_store_file(storage)

    @classmethod
    def create(
        cls,
        uri: str,
        *,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        options: Mapping[str, str] | None = None,
        services: str = ServiceMode.AUTO,
    ) -> Store:
        """Create a store at `uri` and open it. Arguments are as those of `open`.

        Raises:
            ExistsError: there is one already; nothing was changed.
            UnsafeStorageError: the storage cannot create names exclusively.
            ReadOnlyError, StorageFullError, UnavailableError: it could not be written.
        """
        mode = mode_of(services)
        clock = clock or SystemClock()
        storage = open_storage(uri, options=options, clock=clock)
        probe(storage, clock)
        try:
            storage.create_if_absent(paths.STORE_FILE, [new_store_file(clock)])
        except ExistsError as error:
            raise ExistsError("there is a store already; open it instead", uri=uri) from error
        storage.keep_reserve()
        return cls(storage, settings or LogSettings(), clock, read_only=False, services=mode)

    @classmethod
    def open(
        cls,
        uri: str,
        *,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        options: Mapping[str, str] | None = None,
        read_only: bool = False,
        create: bool = False,
        services: str = ServiceMode.AUTO,
    ) -> Store:
        """Open the store at `uri`. Writing handles first test that the storage creates names exclusively.

        On a full disk that test is left out, so that old messages can be expired.

        Args:
            uri: a path or a URI.
            settings: of the logs; they are not stored.
            clock: for tests.
            options: of the storage, as credentials.
            read_only: only read; nothing is tested, nothing can be changed.
            create: create the store if there is none.
            services: what this process does for the store beside its own work, in threads that the first producer or
                consumer starts and `close` ends. `auto`: deliver delayed messages, check transactions, give back
                messages that POP consumers left, and keep the log's files few. It deletes no message. `all`: retention,
                which deletes old messages as `settings` say, and tables, too. `off`: nothing. Stores that are opened
                for reading only, or with a clock of a test, run none.

        Raises:
            NotFoundError: there is no store, and `create` is off.
            InvalidRequestError: both `create` and `read_only`, or no such `services`.
            UnsafeStorageError: the storage cannot create names exclusively (not for `read_only`).
            ClockSkewError: this machine's clock is too far ahead of the storage's.
        """
        if create and read_only:
            raise InvalidRequestError("a store that is opened for reading only cannot be created", uri=uri)
        mode = mode_of(services)
        clock = clock or SystemClock()
        settings = settings or LogSettings()
        storage = open_storage(uri, options=options, clock=clock)
        try:
            store = cls(storage, settings, clock, read_only=read_only, services=mode)
        except NotFoundError:
            if not create:
                raise
            try:
                return cls.create(uri, settings=settings, clock=clock, options=options, services=mode)
            except ExistsError:  # another process was quicker
                store = cls(storage, settings, clock, read_only=read_only, services=mode)
        if not read_only:
            try:
                ahead = -probe(storage, clock).clock_skew_ms
            except StorageFullError:
                # Whoever expires old segments must get in. The storage was tested when the store was created, and
                # nothing is appended before there is room.
                ahead = 0
            storage.keep_reserve()
            if ahead > settings.clock_ahead_max_ms:
                raise ClockSkewError(
                    "this machine's clock is ahead of the storage's; correct it before writing",
                    clock_ms=clock.now_ms(),
                    storage_ms=clock.now_ms() - ahead,
                    limit_ms=settings.clock_ahead_max_ms,
                )
        return store

    # ------------------------------------------------------------ logs

    def log(self, broker: str = DEFAULT_BROKER, *folds: type[Fold]) -> CommitLog:
        """The handle on a broker's log, opened when first asked for, with at least these folds."""
        names.check_broker(broker)
        return self._open_log(broker, paths.broker_root(broker), folds)

    @property
    def nameserver(self) -> CommitLog:
        """The handle on the cluster-wide log, with topics, groups and leases."""
        return self._open_log(paths.NAMESERVER, paths.NAMESERVER, NAMESERVER_FOLDS)

    def brokers(self) -> list[str]:
        """Brokers that were added, that hold or held queues of any topic, and the default one."""
        known = self.nameserver.look(
            lambda view: {*view.state.fold(TopicConfigs).brokers, *view.state.fold(ClusterConfig).brokers}
        )
        return sorted({DEFAULT_BROKER, *known})

    def _open_log(self, name: str, root: str, folds: Sequence[type[Fold]]) -> CommitLog:
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
                    folds=folds,
                )
        log.use(*folds)
        return log

    # ------------------------------------------------------------ topics

    def create_topic(
        self,
        name: str,
        *,
        queues: int = DEFAULT_QUEUES,
        brokers: tuple[str, ...] = (DEFAULT_BROKER,),
        message_type: str = MessageType.UNSPECIFIED,
    ) -> Topic:
        """Create a topic with `queues` queues on each broker. The same again is no error. `Admin` can do more.

        Args:
            name: of the topic.
            queues: on each broker.
            brokers: where it gets queues; a broker that is not known yet comes into being.
            message_type: the only type of messages that it takes: NORMAL, FIFO, DELAY, TRANSACTION or PRIORITY. Without
                one it takes all but PRIORITY.

        Raises:
            ExistsError: it exists with other queues, or another type.
            InvalidRequestError: an illegal name, number or type.
        """
        wanted = TopicChange(read_queues=queues, brokers=brokers, message_type=message_type)
        topic = self.find_topic(name)
        if topic is None:
            adopt_levels(self, brokers)
            topic = self.nameserver.decide(topic_decisions.create(name, wanted, queues)).answer[0]
        if dict(topic.queues) != dict.fromkeys(brokers, queues):
            raise ExistsError("topic exists with other queues", topic=name, queues=dict(topic.queues))
        if topic.message_type != message_type:
            raise ExistsError("topic exists with another type", topic=name, message_type=str(topic.message_type))
        return topic

    def auto_create_topic(self, name: str, *, with_priorities: bool = False) -> Topic:
        """Create a topic that a message was sent to, or return the one that is there: 4 queues, as RocketMQ does.

        It gets them on the default broker, or on all others if that is read-only. `with_priorities` makes its queues
        priorities.
        """
        read_only = self.nameserver.look(lambda view: view.state.fold(ClusterConfig).read_only())
        brokers = [DEFAULT_BROKER] if DEFAULT_BROKER not in read_only else self.brokers()
        kind = MessageType.PRIORITY if with_priorities else MessageType.UNSPECIFIED
        wanted = TopicChange(brokers=tuple(each for each in brokers if each not in read_only), message_type=kind)
        return self.nameserver.decide(topic_decisions.create(name, wanted, AUTO_CREATE_QUEUES)).answer[0]

    def update_topic(self, name: str, *, queues: int) -> Topic:
        """Give a topic `queues` queues on each of its brokers: more than it has, or as many. `Admin` can do more.

        Producers use the new queues within the time that they remember routes for. Sharding keys map to other queues
        from then on, so messages with one key keep their order before the change and after it, not across it.

        Raises:
            NotFoundError: there is no such topic.
            InvalidRequestError: an illegal number, or fewer than it has on a broker.
        """
        self.topic(name)  # an unknown name is an error that names the nearest
        wanted = TopicChange(read_queues=queues, write_queues=queues)
        return self.nameserver.decide(topic_decisions.update(name, wanted)).answer

    def ensure_queues(self, name: str, broker: str, *, queues: int = 1) -> None:
        """Make sure that a topic exists with at least `queues` queues on a broker; what it has elsewhere stays.

        For topics that come into being where they are needed: retry and dead-letter topics.

        Raises:
            InvalidRequestError: an illegal name or number.
        """
        self.nameserver.decide(topic_decisions.ensure_queues(name, broker, queues))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and hide its messages; retention frees their room.

        A topic created later under the same name goes on with the offsets, as no offset is ever used twice. If it
        fails, delete again. Messages that are sent while it runs may outlive it.

        Raises:
            NotFoundError: there is no such topic.
        """
        topic = self.topic(name)
        for broker in topic.queues:
            append_records(self.log(broker), Truncations, {"topic": name})
        # The topic goes last: if something fails before, it is still there to be deleted again.
        append_records(self.nameserver, TopicConfigs, {"topic": name, "deleted": True})

    def find_topic(self, name: str) -> Topic | None:
        """The topic, or None."""

        def find(view: LogView) -> Topic | None:
            config = view.state.fold(TopicConfigs).configs.get(name)
            return None if config is None else topic_of(config, view.state.fold(ClusterConfig))

        return self.nameserver.look(find)

    def topic(self, name: str) -> Topic:
        """The topic.

        Raises:
            NotFoundError: there is none of that name.
        """
        topic = self.find_topic(name)
        if topic is None:
            raise NotFoundError("no such topic", topic=name, **nearest(name, [each.name for each in self.topics()]))
        return topic

    def topics(self) -> list[Topic]:
        """All topics, by name."""

        def list_(view: LogView) -> list[Topic]:
            configs, cluster = view.state.fold(TopicConfigs).configs, view.state.fold(ClusterConfig)
            return [topic_of(config, cluster) for _, config in sorted(configs.items())]

        return self.nameserver.look(list_)

    def cluster_settings(self) -> ClusterSettings:
        """Settings that every client of the store follows; `Admin.update_settings` changes them."""
        return self.nameserver.look(lambda view: view.state.fold(ClusterConfig).settings())

    # ------------------------------------------------------------ reading

    def scan(
        self,
        topic: str,
        *,
        tags: str | None = None,
        sql: str | None = None,
        keys: str | Sequence[str] | None = None,
        since: Time | None = None,
        until: Time | None = None,
        queue: int | Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a topic as record batches: in order per queue, one broker after the other.

        Every argument narrows it. The end is what is there when a broker's log is first read. Bodies are decompressed.

        Args:
            topic: a topic, or a retry or dead-letter topic.
            tags: with one of these: `"a || b"`.
            sql: with properties for which this is true, in SQL92.
            keys: with this key, or one of these.
            since: stored at this time or later: a `datetime`, ISO text or milliseconds.
            until: stored before this time.
            queue: of this queue id, or these.
            columns: of the message schema; all by default.

        Raises:
            NotFoundError: there is no such topic or queue; the error names the nearest.
            InvalidRequestError: an unknown column, an expression or a time that cannot be read.
            CorruptDataError: a file is damaged or missing.
        """
        return scan_topic(
            self, topic, tags=tags, sql=sql, keys=keys, since=since, until=until, queue=queue, columns=columns
        )[1]

    def read(
        self,
        topic: str,
        *,
        tags: str | None = None,
        sql: str | None = None,
        keys: str | Sequence[str] | None = None,
        since: Time | None = None,
        until: Time | None = None,
        queue: int | Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return what `scan` yields as one table.

        Raises:
            as `scan`.
        """
        schema, batches = scan_topic(
            self, topic, tags=tags, sql=sql, keys=keys, since=since, until=until, queue=queue, columns=columns
        )
        return pa.Table.from_batches(batches, schema=schema)

    # ------------------------------------------------------------ life

    def is_still_there(self) -> bool:
        """Whether the store that was opened is the one at its URI now; one recreated in its place is another."""
        try:
            return read_store_file(self.storage) == self.info
        except NotFoundError:
            return False

    def flush(self) -> None:
        """Make everything appended through this store's handles durable."""
        for log in list(self._logs.values()):
            log.flush()

    @property
    def embeds_services(self) -> bool:
        """Whether this process runs services for the store beside its own work."""
        return self._services.mode is not ServiceMode.OFF

    def start_services(self) -> None:
        """Start the services that this store embeds, if they do not run yet. Every producer and consumer calls it."""
        self._services.start(self)

    def close(self) -> None:
        """End the services, flush and close every handle; raises what failed first, after all of them were closed."""
        failed: BaseException | None = None
        self._services.close()
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

    def __repr__(self) -> str:
        return f"Store({self.storage.uri!r}{', read_only=True' if self._read_only else ''})"

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def append_records(log: CommitLog, fold: type[Fold], *values: Mapping[str, Any]) -> None:
    """Append records of a fold, whatever the state.

    Raises:
        as `CommitLog.append`.
    """
    log.decide(lambda _: Decision(None, records=[(fold.topics[0], value) for value in values]))
