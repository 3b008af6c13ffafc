"""What all consumers share: an id, being open or closed, the guard against forks, and closing with the interpreter."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rmq_spark.client.observer import Observer
from rmq_spark.client.store import Store
from rmq_spark.client.trace_writer import TraceWriter
from rmq_spark.errors import ClosedError, RmqError
from rmq_spark.model import names
from rmq_spark.model.message_id import own_address

_log = logging.getLogger(__name__)


class ConsumerLife(ABC):
    """Base of the consumers. A context manager that closes.

    Args:
        store: an open store.
        group: the consumer group.
        room: the machine room that the consumer is in, for strategies that go by it; its id begins with it.
        trace: whether it writes message traces.

    Raises (on making):
        InvalidRequestError: an illegal name.
    """

    def __init__(self, store: Store, group: str, *, trace: bool, room: str = "") -> None:
        self._store = store
        self._clock = store.clock
        self._group = names.check_group(group)
        self._pid = os.getpid()
        self._client_id = f"{room}{'@' if room else ''}{own_address()}@{self._pid}#{store.clock.token()[-12:]}"
        self._traces = (TraceWriter(store),) if trace else ()
        self._ended = threading.Event()
        self._at_exit: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r}, {self._group!r})"

    @property
    def client_id(self) -> str:
        """How the other members of the group and tools see this consumer."""
        return self._client_id

    @abstractmethod
    def close(self) -> None:
        """End the consumer. Doing it again changes nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _observers(self) -> tuple[Observer, ...]:
        return (*self._traces, *self._store.observers)

    def _close_traces(self) -> None:
        for each in self._traces:
            each.close()

    @property
    def _is_forked(self) -> bool:
        """A fork has no threads to stop, and the group's membership is its parent's."""
        return os.getpid() != self._pid

    def _check_open(self) -> None:
        if self._is_forked:
            raise ClosedError(
                "the consumer was made before a fork; open the store and make a consumer in this process",
                group=self._group,
            )
        if self._ended.is_set():
            raise ClosedError("the consumer is closed; make a new one", group=self._group)

    def _close_at_exit(self) -> None:
        """Close when the interpreter ends, unless it was done before or nobody has the consumer any more."""
        self._at_exit = _closer(weakref.ref(self))
        atexit.register(self._at_exit)

    def _forget_exit(self) -> None:
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)


def _closer(reference: weakref.ref[ConsumerLife]) -> Callable[[], None]:
    def close() -> None:
        consumer = reference()
        if consumer is not None:
            try:
                consumer.close()
            except RmqError as error:
                _log.warning("a consumer could not be closed in order when the interpreter ended: %s", error)

    return close
