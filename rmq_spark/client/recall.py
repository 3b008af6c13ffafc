"""Taking back a message that waits for its delivery time."""

from __future__ import annotations

from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError
from rmq_spark.rules import recall_handle, timer


def recall(store: Store, handle: str | None) -> None:
    """Keep the message that `handle` names from being delivered; see `Producer.recall`.

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
    store.log(broker, timer.TimerProgress).decide(timer.recall(recalled))
