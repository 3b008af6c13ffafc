"""Contended writers help each other: who waits announces its rows, and whoever has the turn lands them with its own.

Each commit costs every other writer a fold, so N processes that land one message each do N times the work. With
announcements more writers make larger commits instead of more rounds.

An announcement is a small file in `announced/`, named after the log's time when it was made and a token. Whoever lands
it names the token in its commit; the state remembers the tokens for a while. Landed at most once, because:
- a commit may only name a token that the state before it does not know;
- a commit may only name a token that is younger than `LANDABLE_MS`, by the time that the commit itself has;
- the state remembers a token for longer than that. A helper that slept finds it too old, or known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError, OutcomeUnknownError, RmqError, UnsupportedVersionError
from rmq_spark.log.file_encoder import Encoded
from rmq_spark.log.file_format import parse
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import LANDABLE_MS, Offer, Outcome, Request
from rmq_spark.log.rows import prepare
from rmq_spark.log.schema import Row
from rmq_spark.log.small_commits import decode_small, is_small
from rmq_spark.model import names
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

SWEPT_MS: Final = 60_000
"""So old, the file of an announcement belongs to a writer that died: whoever rolls deletes it."""
BYTES_MAX: Final = 20 * 1024
"""Larger groups of messages make a commit that is worth its round."""
HELPED_MAX: Final = 256
"""A commit takes in so many announcements at most."""

Announced = tuple[str, str, int]
"""Path, token and time of an announcement."""

_NAME: Final = re.compile(r"([0-9]{15})-([0-9a-f]{32})\.arrow")


@dataclass(frozen=True, slots=True)
class Helped:
    """An announcement of another process, as its rows."""

    token: str
    announced_ms: int
    batch: MessageBatch


def announce(storage: Storage, root: str, batch: MessageBatch, offer: Offer) -> bool:
    """Put the rows of `batch` where whoever has the turn finds them; False if they cannot be offered."""
    rows = prepare(batch, BYTES_MAX, "rows")
    encoded = Encoded(rows.blocks, {**rows.doc, "nonce": offer.token})
    if encoded.tail.file_size > 2 * BYTES_MAX or "blocks" in encoded.tail.doc:
        offer.settle(Outcome.LOST)
        return False
    offer.order = [] if rows.order is None else rows.order.tolist()
    offer.path = f"{paths.announced(root)}/{offer.announced_ms:015d}-{offer.token}.arrow"
    try:
        storage.create_if_absent(offer.path, encoded, durable=False)
    except OutcomeUnknownError:
        return True
    except RmqError:
        offer.settle(Outcome.LOST)
        return False
    return True


def helped_batches(
    storage: Storage, listed: Sequence[Announced], known: Collection[str], now_ms: int
) -> Iterator[Helped]:
    """Those of the listed announcements that a commit of the time `now_ms` may land."""
    helped = 0
    for path, token, announced_ms in listed:
        if token in known or now_ms - announced_ms >= LANDABLE_MS or helped >= HELPED_MAX:
            continue
        try:
            data = storage.read(path)
            meta = parse(path, data, len(data))
            if meta.kind != "rows" or not is_small(meta) or names.STATE_TOPICS.intersection(meta.doc["topics"]):
                continue
            batch = MessageBatch(_rows(decode_small([meta])))
        except (NotFoundError, CorruptDataError, UnsupportedVersionError):
            continue  # its owner has withdrawn it; one that is damaged or of another version is the owner's to land
        helped += 1
        yield Helped(token, announced_ms, batch)


def past_announcements(storage: Storage, root: str, now_ms: int) -> list[str]:
    """Paths of announcements that no commit may land any more: their writers have died."""
    return [path for path, _, announced_ms in list_announced(storage, root) if now_ms - announced_ms > SWEPT_MS]


def list_announced(storage: Storage, root: str) -> list[Announced]:
    """The announcements there are, the oldest first."""
    place = paths.announced(root)
    matches = [_NAME.fullmatch(info.name) for info in storage.list(place)]
    return sorted((f"{place}/{match[0]}", match[2], int(match[1])) for match in matches if match is not None)


def _rows(batch: pa.RecordBatch) -> list[Row]:
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in batch.columns
    ]
    columns[-1] = [list(pairs or ()) for pairs in columns[-1]]
    return list(zip(*columns, strict=True))


def is_offerable(todo: Sequence[Request]) -> bool:
    """Whether others may land these requests: plain messages, few, no state among them, and not offered before."""
    if sum([each.weight[1] for each in todo]) > BYTES_MAX // 2:
        return False
    for each in todo:
        if each.batch is None or each.app is not None or each.offer is not None:
            return False
        if names.STATE_TOPICS.intersection(each.batch.topics()):
            return False
    return True
