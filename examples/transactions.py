"""Transactions: messages of two topics that become visible together with a change in your own database.

Run it with `python examples/transactions.py`. It makes a store in a temporary directory.
"""

from __future__ import annotations

import tempfile
import time

from rmq_spark import Message, Producer, Store, TransactionState
from rmq_spark.log.scan import Query

paid: set[str] = set()
"""Stands for your database. Every producer of the group must see it: any of them may be asked."""


def has_been_paid(message: object) -> TransactionState:
    """Tell what has become of a transaction that was left open, from its first message."""
    keys = getattr(message, "keys", None)
    return TransactionState.COMMIT if keys in paid else TransactionState.UNKNOWN


def visible(store: Store) -> list[bytes]:
    """Bodies of the messages that a reader of both topics sees."""
    batches = store.log().scan(Query(topics=frozenset({"orders", "invoices"}), columns=("body",)))
    return sorted(body for batch in batches for body in batch.column("body").to_pylist())


def main() -> None:
    """Commit one, roll one back, and forget one that the check finds."""
    with tempfile.TemporaryDirectory() as directory, Store.create(f"{directory}/store") as store:
        with Producer(store, group="shop", checker=has_been_paid, check_immunity=0.2) as producer:
            with producer.begin_transaction() as tx:
                producer.send(Message("orders", b"order 1", keys="o-1"), transaction=tx)
                producer.send(Message("invoices", b"invoice 1", keys="o-1"), transaction=tx)
                paid.add("o-1")
                print("before the commit:", visible(store))
                tx.commit()
            print("after it:", visible(store))

            try:
                with producer.begin_transaction() as tx:
                    producer.send(Message("orders", b"order 2", keys="o-2"), transaction=tx)
                    raise RuntimeError("the card was refused")
            except RuntimeError as error:
                print("rolled back:", error, visible(store))

            with producer.begin_transaction() as tx:
                producer.send(Message("orders", b"order 3", keys="o-3"), transaction=tx)
                paid.add("o-3")  # and then the process forgets to commit
            while len(visible(store)) < 3:
                time.sleep(0.05)
            print("found by the check:", visible(store))


if __name__ == "__main__":
    main()
