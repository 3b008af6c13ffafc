"""What the proxy knows of topics, groups and brokers: read from the store, remembered for a few seconds."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from rmq_spark.client.group_settings import GroupSettings, group_settings
from rmq_spark.client.store import AUTO_CREATE_QUEUES, Store, Topic
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import Code, RefusedError
from rmq_spark.proxy.workers import Workers

KNOWN_SECONDS: Final = 5
KNOWN_MAX: Final = 10_000
"""Entries that are remembered; when there are more, all are read again."""

Value = TypeVar("Value")


class _Known(Generic[Value]):
    """Values by name, each for a while."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[int, Value]] = {}

    def get(self, name: str, now_ns: int) -> Value | None:
        known = self._values.get(name)
        return known[1] if known is not None and now_ns - known[0] < KNOWN_SECONDS * 1_000_000_000 else None

    def put(self, name: str, value: Value, now_ns: int) -> None:
        if len(self._values) >= KNOWN_MAX:
            self._values.clear()
        self._values[name] = (now_ns, value)


class Directory:
    """Topics, groups and brokers of a store. Used from one event loop; only what is not known costs a read."""

    def __init__(self, store: Store, settings: ProxySettings, workers: Workers) -> None:
        self._store = store
        self._settings = settings
        self._workers = workers
        self._topics: _Known[Topic] = _Known()
        self._groups: _Known[GroupSettings] = _Known()
        self._brokers: _Known[frozenset[str]] = _Known()

    def known_topic(self, name: str) -> Topic | None:
        """The topic, if it is remembered."""
        return self._topics.get(name, self._store.clock.elapsed_ns())

    async def topic(self, name: str, *, create: bool = False) -> Topic:
        """A topic.

        Args:
            name: its name.
            create: create it if there is none, and the settings allow that.

        Raises:
            RefusedError: there is none.
        """
        now = self._store.clock.elapsed_ns()
        known = self._topics.get(name, now)
        if known is None:
            known = await self._workers.run(self._read_topic, name, create)
            if known is None:
                raise RefusedError(Code.TOPIC_NOT_FOUND, "no such topic; create it first", topic=name)
            self._topics.put(name, known, now)
        return known

    async def group(self, name: str) -> GroupSettings:
        """The settings of a group; one without has the defaults."""
        now = self._store.clock.elapsed_ns()
        known = self._groups.get(name, now)
        if known is None:
            known = await self._workers.run(group_settings, self._store, name)
            self._groups.put(name, known, now)
        return known

    async def has_broker(self, name: str) -> bool:
        """Whether the store has a broker of this name."""
        now = self._store.clock.elapsed_ns()
        known = self._brokers.get("", now)
        if known is None:
            known = frozenset(await self._workers.run(self._store.brokers))
            self._brokers.put("", known, now)
        return name in known

    def _read_topic(self, name: str, create: bool) -> Topic | None:
        topic = self._store.find_topic(name)
        if topic is None and create and self._settings.auto_create_topics:
            topic = self._store.create_topic(name, queues=AUTO_CREATE_QUEUES)
        return topic
