"""Taking back a message that waits for its delivery time."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_spark.client.observer import Observer, tell
from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError
from rmq_spark.rules import recall_handle, timer


def recall(store: Store, handle: str | None, *, group: str = "", observers: Sequence[Observer] = ()) -> None:
    """Keep the message that `handle` names from being delivered, and tell observers; see `Producer.recall`.

    Raises:
        InvalidRequestError: there is no handle, or it is none.
        PreconditionFailedError: the message is due, so it may have been delivered.
    """
    if handle is None:
        raise InvalidRequestError(
            "the message cannot be recalled; only those that were sent with delay or deliver_at can, until then"
        )
    broker, recalled = recall_handle.parse(handle)
    if broker not in store.brokers():
        raise InvalidRequestError("the recall handle names an unknown broker", broker=broker)
    succeeded = False
    try:
        store.log(broker, timer.TimerProgress).decide(timer.recall(recalled))
        succeeded = True
    finally:
        tell(observers, lambda each: each.recalled(group, recalled.topic, recalled.msg_id, succeeded))
