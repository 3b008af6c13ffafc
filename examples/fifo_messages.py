"""FIFO messages: those with one sharding key share a queue, and a FIFO group receives them in order, batch by batch."""

from rmq_spark import Admin, Message, Producer, SimpleConsumer, Store

STEPS = (b"created", b"paid", b"shipped")

with Store.open("shop", create=True) as store, Producer(store) as producer:
    store.create_topic("steps", queues=4)
    Admin(store).update_group("warehouse", orderly=True)
    orders = [f"o-{number}" for number in range(5)]
    for step in STEPS:
        for order in orders:
            producer.send(Message("steps", step, keys=order, sharding_key=order))

    seen: dict[str, list[bytes]] = {order: [] for order in orders}
    with SimpleConsumer(store, "warehouse") as consumer:
        consumer.subscribe("steps")
        while sum(map(len, seen.values())) < len(STEPS) * len(orders):
            # Of each queue one batch is in flight: the next comes when all of it is acknowledged.
            messages = consumer.receive(max_messages=4, invisible_duration=30.0)
            for message in messages:
                seen[message.keys or ""].append(message.body)
            consumer.ack(messages)

    print(seen)
    assert all(tuple(steps) == STEPS for steps in seen.values())
