"""The caller asks for messages, as values or as a table, and seeks where it wants."""

import json

import pyarrow.compute as pc

from rmq_spark import LitePullConsumer, Message, Producer, Store

with Store.open("shop", create=True) as store:
    store.create_topic("sales", queues=2)
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

    # As values, of queues that the caller has chosen.
    queues = [("sales", "broker-0", queue) for queue in range(2)]
    with LitePullConsumer(store, "audit", consume_from="earliest") as pull:
        pull.assign(queues)
        amounts = [json.loads(message.body)["amount"] for message in pull.poll()]
        while len(amounts) < 10:
            amounts += [json.loads(message.body)["amount"] for message in pull.poll()]
        pull.seek(queues[0], "earliest")
        again = pull.poll(max_messages=1)
        print("the first message of queue 0 again:", again[0].queue_offset)
    assert sorted(amounts) == list(range(10))
    assert (again[0].queue_id, again[0].queue_offset) == (0, 0)
