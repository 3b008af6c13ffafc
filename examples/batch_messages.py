"""Many messages by one call, in one commit: all of them or none; and a table whose rows are messages."""

import pyarrow as pa

from rmq_spark import Message, Producer, Store

with Store.open("shop", create=True) as store, Producer(store) as producer:
    results = producer.send_batch([Message("clicks", b"click %d" % number) for number in range(1000)])
    print(f"{len(results)} messages, the last one in queue {results[-1].queue_id}")

    table = pa.table({"body": [b"view 1", b"view 2", b"view 3"], "tags": ["eu", "eu", "us"], "queueId": [0, 0, 0]})
    print(producer.send_table("clicks", table), "rows were sent as messages")

    assert store.read("clicks").num_rows == 1003
    assert store.read("clicks", tags="eu || us", queue=0)["body"].to_pylist() == [b"view 1", b"view 2", b"view 3"]
