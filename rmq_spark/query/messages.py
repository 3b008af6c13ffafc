"""Finding messages: by key, by id, by queue and offset, by time; newest first, at most 64 unless told otherwise.

An answer is the index up to its mark and the log behind it, and every message is read from the log and compared with
what was asked: the key itself, never its hash. So an answer does not depend on how far the tables have come. Without
tables the same question reads more of the log, and finds the same messages.

Queues and times need no table: the run index of the log's own files is a ConsumeQueue already.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from rmq_spark.client.compression import decompress
from rmq_spark.client.store import DEFAULT_BROKER, Store
from rmq_spark.errors import CorruptDataError, InvalidRequestError, NotFoundError, UnsupportedVersionError
from rmq_spark.log import schema
from rmq_spark.log.point_read import Places
from rmq_spark.model import names
from rmq_spark.model.message_id import parse_offset_id
from rmq_spark.query.broker_query import Asked, BrokerQuery, Index, QueryStats
from rmq_spark.query.index_files import IndexFiles, IndexHits
from rmq_spark.rules import system_topics
from rmq_spark.rules.topics import TopicConfigs
from rmq_spark.tables import kernel
from rmq_spark.tables.delta_log import DeltaLog
from rmq_spark.tables.schemas import TABLES

if TYPE_CHECKING:
    from rmq_spark.log.view import LogView

_log = logging.getLogger(__name__)
_MEND: Final = "run `rmq tables drop`, then `rmq tables build`"

LIMIT: Final = 64
"""How many messages a query returns at most: RocketMQ's `maxMsgsNumBatch`."""
LIMIT_MAX: Final = 2**63 - 1
_LOOKS: Final = 5
_FAR: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Answer:
    """Messages, newest first, and what it cost to find them."""

    messages: pa.Table
    """Columns of `schema.MESSAGE`; bodies are plain, whether they were compressed or not."""
    stats: QueryStats


class MessageQuery:
    """Queries on an open store. Safe to use from any thread; keep it, because it remembers metadata that it has read.

    Example:
        >>> from rmq_spark.client.producer import Producer
        >>> from rmq_spark.model.message import Message
        >>> with Store.create("memory://query-example") as store:
        ...     sent = Producer(store).send(Message(topic="orders", body=b"hello", keys="order-1"))
        ...     MessageQuery(store).by_key("orders", "order-1").messages["body"].to_pylist()
        [b'hello']
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._delta = DeltaLog(store.storage, TABLES["index"])
        self._files = IndexFiles(store.storage)
        self._brokers: dict[str, BrokerQuery] = {}

    # ------------------------------------------------------------ questions

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = LIMIT,
        from_ms: int | None = None,
        to_ms: int | None = None,
        broker: str | None = None,
    ) -> Answer:
        """Messages of `topic` that have `key` among their keys, stored in [from_ms, to_ms).

        Raises:
            InvalidRequestError: a key that no message can have, or a bad limit.
            NotFoundError: no such topic or broker.
            CorruptDataError: the log is damaged. (A damaged index is warned of, and not used.)
        """
        if not key or " " in key:
            raise InvalidRequestError("a key is not empty and has no space", key=key)
        _check_text(key, "a key")
        asked = Asked(key, False, topic, _checked(limit), from_ms, to_ms)
        return self._find(asked, self._brokers_of(topic, broker))

    def by_id(self, msg_id: str, *, topic: str | None = None, limit: int = LIMIT, broker: str | None = None) -> Answer:
        """Messages with the id: a producer's id (UNIQ_KEY), in one topic or in all; or a place (offset id) if none has.

        An offset id's address says nothing here, as no broker runs anywhere; its log offset is looked up on the
        brokers that are asked. Messages of the engine's own topics are found only where the topic is named.

        Raises:
            as `by_key`.
        """
        if not msg_id:
            raise InvalidRequestError("an id is not empty")
        _check_text(msg_id, "an id")
        brokers = self._brokers_of(topic, broker)
        answer = self._find(Asked(msg_id, True, topic, _checked(limit)), brokers)
        if answer.messages.num_rows:
            return answer
        try:
            _, port, offset = parse_offset_id(msg_id)
        except InvalidRequestError:
            return answer
        if not 0 < port < 1 << 16:
            return answer  # a producer's id: its process id and random digits stand where a port would
        return self._at_offset(offset, topic, limit, brokers, answer.stats)

    def by_queue(
        self, topic: str, queue: int, start: int, end: int, *, broker: str | None = None, limit: int = LIMIT
    ) -> Answer:
        """Messages of one queue with queue offsets in [start, end), the highest first.

        Raises:
            InvalidRequestError: no broker is named and the topic is on several.
            and as `by_key`.
        """
        brokers = self._brokers_of(topic, broker)
        if len(brokers) > 1:
            raise InvalidRequestError("the topic is on several brokers; name one", topic=topic, brokers=brokers)
        stats = QueryStats()
        batches = [self._on(name).queue_range(topic, queue, (start, end), _checked(limit), stats) for name in brokers]
        return self._answer(batches, limit, stats)

    def by_time(
        self,
        topic: str,
        from_ms: int | None = None,
        to_ms: int | None = None,
        *,
        limit: int = LIMIT,
        broker: str | None = None,
    ) -> Answer:
        """Messages of `topic` stored in [from_ms, to_ms).

        Raises:
            as `by_key`.
        """
        stats = QueryStats()
        brokers = self._brokers_of(topic, broker)
        batches = [self._on(name).time_range(topic, from_ms, to_ms, _checked(limit), stats) for name in brokers]
        return self._answer(batches, limit, stats)

    # ------------------------------------------------------------ inner works

    def _brokers_of(self, topic: str | None, broker: str | None) -> list[str]:
        """The brokers to ask.

        Raises:
            NotFoundError: no such topic or broker.
        """

        def configured(view: LogView) -> tuple[set[str], dict[str, Any] | None]:
            topics = view.state.fold(TopicConfigs)
            return {DEFAULT_BROKER, *topics.brokers}, topics.configs.get(topic or "")

        known, config = self._store.nameserver.look(configured)
        if broker is not None and broker not in known:
            raise NotFoundError("no such broker", broker=broker, known=sorted(known))
        if topic is None:
            return [broker] if broker is not None else sorted(known)
        names.check_topic(topic)
        if config is not None:
            places = sorted(config["queues"])
        else:
            # Topics of the engine and of consumer groups are configured nowhere; they are where their messages are.
            places = [name for name in sorted(known) if self._on(name).has(topic)]
            if not places:
                raise NotFoundError("no such topic", topic=topic)
        return [name for name in places if broker in (None, name)]

    def _on(self, broker: str) -> BrokerQuery:
        with self._lock:
            broker_query = self._brokers.get(broker)
            if broker_query is None:
                broker_query = self._brokers[broker] = BrokerQuery(self._store.log(broker))
            return broker_query

    def _find(self, asked: Asked, brokers: Sequence[str]) -> Answer:
        stats = QueryStats()
        batches = []
        for name in brokers:
            mine = self._on(name)
            for look in range(_LOOKS):
                try:
                    batches.append(mine.find(asked, self._index_of(name, mine, asked, stats), stats))
                    break
                except _IndexChangedError as error:
                    if look == _LOOKS - 1 or not self._reload_index():
                        _log.warning("the log is read without its index, which is damaged; %s: %s", _MEND, error)
                        batches.append(mine.find(asked, Index(None, _no_hits), stats))
                        break
        return self._answer(batches, asked.limit, stats)

    def _index_of(self, broker: str, mine: BrokerQuery, asked: Asked, stats: QueryStats) -> Index:
        """What the index knows: its mark, and a way to ask it."""
        if asked.topic is not None and not system_topics.has_table_rows(asked.topic):
            return Index(None, _no_hits)  # it never has rows of this topic, however far it has come
        with self._lock:
            try:
                snapshot = self._delta.refresh()
            except (CorruptDataError, UnsupportedVersionError) as error:
                raise _IndexChangedError(str(error)) from error
            mark = snapshot.mark(TABLES["index"], broker) if snapshot else None
            files = [file for file in snapshot.files.values() if file.broker in (None, broker)] if snapshot else []

        def look_up() -> IndexHits:
            low, high = asked.from_ms or 0, asked.to_ms - 1 if asked.to_ms is not None else _FAR
            chosen = [file for file in files if file.may_hold("storeTimestamp", low, high)]
            topics = mine.topics() if asked.topic is None else [asked.topic]
            hashes: dict[int, set[str]] = {}
            for topic in topics:
                hashes.setdefault(kernel.key_hash(topic, asked.text), set()).add(topic)
            with self._lock:
                try:
                    return self._files.find(chosen, broker, hashes, stats.index)
                except (NotFoundError, CorruptDataError) as error:
                    raise _IndexChangedError(str(error)) from error

        return Index(mark, look_up)

    def _reload_index(self) -> bool:
        """Reload the index's log; False if that cannot be done."""
        with self._lock:
            try:
                self._delta.reload()
            except (CorruptDataError, UnsupportedVersionError):
                return False
            return True

    def _at_offset(
        self, offset: int, topic: str | None, limit: int, brokers: Sequence[str], stats: QueryStats
    ) -> Answer:
        batches = []
        for name in brokers:
            batch = self._on(name).fetch(Places(np.array([offset], np.int64)), stats)
            topics = batch.column("topic").to_pylist()
            keep = [system_topics.has_table_rows(name) if topic is None else name == topic for name in topics]
            batches.append(batch.filter(pa.array(keep, pa.bool_())))
        return self._answer(batches, limit, stats)

    def _answer(self, batches: Iterable[pa.RecordBatch], limit: int, stats: QueryStats) -> Answer:
        parts = [decompress(_flagged(batch)) for batch in batches if batch.num_rows]
        table = pa.Table.from_batches(parts, schema.MESSAGE)
        if len(parts) > 1:
            order = [("storeTimestamp", "descending"), ("brokerName", "ascending"), ("commitOffset", "descending")]
            table = table.sort_by(order)
        return Answer(table.slice(0, limit), stats)


class _IndexChangedError(Exception):
    """The index cannot be used as it was read: it was changed or dropped since, or is damaged."""


def _flagged(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with flags of 0 where messages have none: what reads them takes numbers only."""
    at = batch.schema.get_field_index("sysFlag")
    if not batch.column(at).null_count:
        return batch
    return batch.set_column(at, batch.schema.field(at), batch.column(at).fill_null(0))


def _no_hits() -> IndexHits:
    none = np.empty(0, np.int64)
    return IndexHits(none, none, none, ())


def _checked(limit: int) -> int:
    if limit < 1:
        raise InvalidRequestError("a limit is at least 1", limit=limit)
    if limit > LIMIT_MAX:
        raise InvalidRequestError("a limit is at most 2^63 - 1", limit=limit)
    return limit


def _check_text(text: str, what: str) -> None:
    """Refuse what no message can have; arguments of a command can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{what} is text that UTF-8 can hold; this has half of a surrogate pair") from error
