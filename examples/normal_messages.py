"""Normal messages: one at a time, without waiting, one way, from asyncio; and read back as a table."""

import asyncio

from rmq_spark import Message, Producer, Store

with Store.open("shop", create=True) as store, Producer(store, group="web") as producer:
    sent = producer.send(Message("orders", b"a book", tags="paid", keys="o-1", properties={"region": "eu"}))
    print(sent.status.name, sent.msg_id, sent.broker, sent.queue_id, sent.queue_offset)

    future = producer.send_async(Message("orders", b"a lamp", tags="new", keys="o-2"))
    print("sent without waiting:", future.result().msg_id)

    producer.send_oneway(Message("orders", b"a chair", tags="paid"))  # a failure is only logged
    producer.flush()

    async def from_asyncio() -> None:
        await producer.asend(Message("orders", b"a table", properties={"region": "us"}))

    asyncio.run(from_asyncio())

    paid = store.read("orders", tags="paid", columns=["body", "keys"])
    print(paid.to_pylist())
    assert sorted(paid["body"].to_pylist()) == [b"a book", b"a chair"]
    assert store.read("orders", sql="region = 'us'").num_rows == 1
    assert store.read("orders", keys="o-2")["body"].to_pylist() == [b"a lamp"]
