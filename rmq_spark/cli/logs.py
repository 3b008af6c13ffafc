"""Which logs a command works on: the cluster-wide one and each broker's, or those that were named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmq_spark.errors import NotFoundError, RmqError
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.client.store import Store
    from rmq_spark.log.commit_log import CommitLog


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A log's name, as results show it, and its directory."""

    name: str
    root: str

    def open(self, store: Store) -> CommitLog:
        """The handle on it.

        Raises:
            CorruptDataError: the log is damaged.
        """
        return store.nameserver if self.root == paths.NAMESERVER else store.log(self.name)


NAMESERVER = LogPlace(paths.NAMESERVER, paths.NAMESERVER)


def broker_place(broker: str) -> LogPlace:
    """The place of a broker's log.

    Raises:
        InvalidRequestError: no broker can have that name.
    """
    from rmq_spark.model import names

    return LogPlace(names.check_broker(broker), paths.broker_root(broker))


def chosen(store: Store, brokers: Sequence[str] | None, nameserver: bool) -> list[LogPlace]:
    """The logs that `--broker` and `--nameserver` name; all of them when neither is given.

    Raises:
        NotFoundError: a named broker has no queues and no files.
        CorruptDataError: the nameserver's log is damaged, so it is not known which brokers there are.
    """
    if nameserver or brokers:
        return named(store, brokers, nameserver)
    return [NAMESERVER, *map(broker_place, store.brokers())]


def named(store: Store, brokers: Sequence[str] | None, nameserver: bool) -> list[LogPlace]:
    """The logs that were named, each once.

    Raises:
        NotFoundError: a named broker has no queues and no files.
    """
    places = [broker_place(broker) for broker in dict.fromkeys(brokers or ())]
    for place in places:
        _check_known(store, place)
    return [NAMESERVER, *places] if nameserver else places


def salvaged_brokers(store: Store) -> tuple[list[str], RmqError | None]:
    """The brokers as far as the nameserver's log can be read, and the error that ended the reading."""
    from rmq_spark.client.store import DEFAULT_BROKER
    from rmq_spark.log.files import LogFiles
    from rmq_spark.log.view import LogView
    from rmq_spark.rules.topics import TopicConfigs

    view = LogView(LogFiles(store.storage, paths.NAMESERVER), paths.NAMESERVER, [TopicConfigs])
    failure: RmqError | None = None
    try:
        view.load()
    except RmqError as error:
        failure = error  # what was folded before the damage is genuine: every link was checked
    brokers = {DEFAULT_BROKER}
    for config in view.state.fold(TopicConfigs).configs.values():
        brokers.update(config["queues"])
    return sorted(brokers), failure


def _check_known(store: Store, place: LogPlace) -> None:
    """A mistyped broker would look like an empty log; one that lost its last topic still has files."""
    known, _ = salvaged_brokers(store)
    if place.name in known:
        return
    for directory in (paths.commitlog(place.root), paths.marks(place.root)):
        if next(iter(store.storage.list(directory)), None) is not None:
            return
    raise NotFoundError("no such broker", broker=place.name, known=known)
