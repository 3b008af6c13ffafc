"""Messages that several benchmarks append: bodies of 100 bytes and one key each, spread over queues."""

import numpy as np
import pyarrow as pa

TOPIC = "orders"
QUEUES = 8


def table(first, rows):
    number = np.arange(first, first + rows)
    return pa.table(
        {
            "topic": pa.repeat(TOPIC, rows),
            "queueId": pa.array((number % QUEUES).astype(np.int32)),
            "msgId": [f"7F0000010BAD{value:020X}" for value in number.tolist()],
            "keys": [f"order-{value}" for value in number.tolist()],
            "body": pa.repeat(pa.scalar(b"x" * 100, pa.binary()), rows),
            "bornTimestamp": pa.array(np.full(rows, 1_700_000_000_000)).cast(pa.timestamp("ms", "UTC")),
        }
    )
