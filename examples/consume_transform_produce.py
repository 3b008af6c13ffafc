"""Consume, transform, produce: what was consumed and what came of it land in one commit, exactly once."""

import json

from rmq_spark import LitePullConsumer, Message, Producer, Store

with Store.open("shop", create=True) as store:
    store.create_topic("sales", queues=2)
    store.create_topic("invoices", queues=1)
    producer = Producer(store)
    for number in range(6):
        producer.send(Message("sales", json.dumps({"amount": number}).encode(), keys=f"s-{number}"))

    with LitePullConsumer(store, "invoicing", consume_from="earliest", auto_commit=False) as consumer:
        consumer.subscribe("sales")

        try:
            with consumer.transaction() as tx:
                for message in consumer.poll():
                    tx.send(Message("invoices", b"half done", keys=message.keys))
                raise RuntimeError("the printer is on fire")
        except RuntimeError as error:
            print(f"{error}: nothing was sent, and nothing counts as consumed")
        assert store.read("invoices").num_rows == 0

        done = 0
        while done < 6:
            with consumer.transaction() as tx:
                messages = consumer.poll()
                for message in messages:
                    amount = json.loads(message.body)["amount"]
                    tx.send(Message("invoices", f"pay {amount}".encode(), keys=message.keys))
            done += len(messages)

    invoices = store.read("invoices")
    print(sorted(zip(invoices["keys"].to_pylist(), invoices["body"].to_pylist(), strict=True)))
    assert sorted(invoices["keys"].to_pylist()) == [f"s-{number}" for number in range(6)]
