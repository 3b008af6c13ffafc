"""A process that runs the services of a store, for tests that kill it."""

from __future__ import annotations

import sys
import time

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules.transaction import CheckSettings, TransactionState
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.timer import TimerService
from rmq_spark.services.transaction_check import TransactionCheckService


def checker(message: StoredMessage) -> TransactionState:
    """The body says what is to become of it."""
    return TransactionState.COMMIT if message.body.startswith(b"yes") else TransactionState.ROLLBACK


def main() -> None:
    """Serve until killed."""
    with Store.open(sys.argv[1], services="off") as store:
        checks = TransactionCheckService(store, CheckSettings(interval_ms=200))
        with Producer(store, group="shop", checker=checker), ServiceRunner([TimerService(store), checks], store.clock):
            while True:
                time.sleep(1)


if __name__ == "__main__":
    main()
