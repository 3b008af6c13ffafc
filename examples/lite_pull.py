"""The caller asks for messages, as values or as a table; outputs and offsets land in one commit."""

import json

import pyarrow.compute as pc

from rmq_spark import LitePullConsumer, Message, Producer, Store

with Store.open("shop", create=True) as store:
    store.create_topic("sales", queues=2)
    store.create_topic("totals", queues=1)
    producer = Producer(store)
    for number in range(10):
        producer.send(Message("sales", json.dumps({"amount": number}).encode(), tags="eu" if number % 2 else "us"))

    # As a table.
    with LitePullConsumer(store, "reports", consume_from="earliest") as pull:
        pull.subscribe("sales")
        table = pull.poll_table()
        print(table.select(["tags", "queueId", "queueOffset"]).slice(0, 3).to_pylist())
        assert pc.sum(pc.binary_length(table["body"])).as_py() > 0
        assert table.num_rows == 10

    # Consume, transform, produce: exactly once, whatever crashes.
    with LitePullConsumer(store, "sums", consume_from="earliest", auto_commit=False) as pull:
        pull.subscribe("sales", tags="eu")
        with pull.transaction() as tx:
            total = sum(json.loads(message.body)["amount"] for message in pull.poll())
            tx.send(Message("totals", str(total).encode()))

    assert store.read("totals")["body"].to_pylist() == [b"25"]
