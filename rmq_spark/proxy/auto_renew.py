"""Messages that the proxy keeps for push consumers: it renews their invisible time until the client settles them.

A client knows the receipt that it was given first; a renewal makes a new one, which the proxy remembers. When the
client goes, its messages are given back at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rmq_spark.clock import Clock
from rmq_spark.errors import RmqError
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.pop import Held, Pop
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.workers import Workers
from rmq_spark.rules.receipt import Receipt, parse_receipt

LOOK_SECONDS: Final = 5.0
RENEW_BEFORE_SECONDS: Final = 10.0
"""What ends within so long is renewed."""
RENEW_SECONDS: Final = (60, 180, 300, 600, 1800, 3600)
"""Invisible times of the first renewal, the second, and so on; the last one stays."""
FAILURES_MAX: Final = 3
"""After so many failures in a row a message is left to itself."""
GIVE_BACK_MS: Final = 1_000
"""When a client goes, its messages are visible again after so long (RocketMQ)."""
TOGETHER_MAX: Final = 1_000
"""Messages of one decision."""

_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Group, and the receipt as the client knows it."""


@dataclass(slots=True, eq=False)
class Kept:
    """A message that a client has not settled."""

    client_id: str
    key: Key
    topic: str
    """That it was read from."""
    receipt: Receipt
    """The one that counts now."""
    began_ns: int
    due_ns: int
    """When it is visible again, by this machine's own time."""
    renewals: int = 0
    failures: int = 0
    renewing: asyncio.Future[None] | None = None

    @property
    def held(self) -> Held:
        return self.key[0], self.topic, self.receipt


class AutoRenew:
    """Keeps messages for push consumers. Used from one event loop."""

    def __init__(self, pop: Pop, settings: ProxySettings, clock: Clock, workers: Workers, metrics: Metrics) -> None:
        self._pop = pop
        self._settings = settings
        self._clock = clock
        self._workers = workers
        self._metrics = metrics
        self._kept: dict[Key, Kept] = {}
        self._by_client: dict[str, dict[Key, Kept]] = {}

    def keep(self, client_id: str, group: str, messages: Iterable[StoredMessage]) -> None:
        """Renew these messages from now on, which `client_id` has received for `group`."""
        now = self._clock.elapsed_ns()
        for message in messages:
            if message.receipt is None:
                continue
            receipt = parse_receipt(message.receipt)
            key = (group, message.receipt)
            due = now + receipt.invisible_ms * 1_000_000
            self._add(Kept(client_id, key, receipt.real_topic(group, message.topic), receipt, now, due))

    async def take(self, group: str, handle: str) -> Kept | None:
        """Stop to renew a message that a client settles; what was kept of it, or None."""
        kept = self._kept.get((group, handle))
        if kept is None:
            return None
        while kept.renewing is not None:
            await kept.renewing
        self._remove(kept)
        return kept

    def restore(self, kept: Kept) -> None:
        """Renew a message again that could not be settled: the client will try again, by the receipt that it knows."""
        self._add(kept)

    async def give_back(self, client_id: str) -> None:
        """Let messages of a client that has gone be visible again soon."""
        mine = list(self._by_client.get(client_id, {}).values())
        for kept in mine:
            while kept.renewing is not None:
                await kept.renewing
            self._remove(kept)
        for part in _parts(mine):
            try:
                await self._workers.run(self._pop.change, [kept.held for kept in part], GIVE_BACK_MS, client_id)
            except RmqError as error:
                _log.warning("messages of a client that has gone come back later, when their time is over: %s", error)

    async def give_back_all(self) -> None:
        """Give back what all clients hold: the proxy ends, and nobody would renew it."""
        for client_id in list(self._by_client):
            await self.give_back(client_id)

    async def watch(self) -> None:
        """Renew what ends soon, until cancelled."""
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, self._settings.renew_invisible_seconds / 6))
            await self.renew_due()

    async def renew_due(self) -> None:
        """Renew what ends soon; give back what was kept too long."""
        now = self._clock.elapsed_ns()
        before = min(RENEW_BEFORE_SECONDS, self._settings.renew_invisible_seconds / 3)
        due = [kept for kept in self._kept.values() if kept.due_ns - now < before * 1e9]
        old = [kept for kept in due if now - kept.began_ns > self._settings.renew_seconds_max * 1e9]
        for part in _parts(old):
            for kept in part:
                self._remove(kept)
            await self._renew(part, GIVE_BACK_MS)
        by_step: dict[int, list[Kept]] = {}
        for kept in due:
            if kept.key in self._kept:
                by_step.setdefault(min(kept.renewals, len(RENEW_SECONDS) - 1), []).append(kept)
        for step, mine in by_step.items():
            seconds = (
                max(RENEW_SECONDS[step], 0)
                if self._settings.renew_invisible_seconds >= RENEW_SECONDS[0]
                else (self._settings.renew_invisible_seconds)
            )
            for part in _parts(mine):
                await self._renew(part, round(seconds * 1000))

    async def _renew(self, kept: Sequence[Kept], invisible_ms: int) -> None:
        """Renew messages together; those that are not held any more are forgotten."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for each in kept:
            each.renewing = done
        try:
            held = [each.held for each in kept]
            changed = await self._workers.run(self._pop.change, held, invisible_ms, kept[0].client_id)
        except RmqError as error:
            _log.warning("messages of push consumers could not be renewed, trying again: %s", error)
            for each in kept:
                each.failures += 1
                if each.failures >= FAILURES_MAX:
                    self._remove(each)
        else:
            now = self._clock.elapsed_ns()
            for each, receipt in zip(kept, changed, strict=True):
                if isinstance(receipt, Receipt):
                    each.receipt, each.failures = receipt, 0
                    each.renewals += 1
                    each.due_ns = now + invisible_ms * 1_000_000
                else:
                    self._remove(each)
        finally:
            for each in kept:
                each.renewing = None
            done.set_result(None)

    def _add(self, kept: Kept) -> None:
        self._kept[kept.key] = kept
        self._by_client.setdefault(kept.client_id, {})[kept.key] = kept
        self._metrics.held.set(len(self._kept))

    def _remove(self, kept: Kept) -> None:
        if self._kept.get(kept.key) is kept:
            del self._kept[kept.key]
        mine = self._by_client.get(kept.client_id, {})
        mine.pop(kept.key, None)
        if not mine:
            self._by_client.pop(kept.client_id, None)
        self._metrics.held.set(len(self._kept))


def _parts(kept: Sequence[Kept]) -> list[Sequence[Kept]]:
    return [kept[at : at + TOGETHER_MAX] for at in range(0, len(kept), TOGETHER_MAX)]
