"""Priorities: a queue each, and consumers take what is urgent first."""

from rmq_spark import Message, MessageType, Producer, SimpleConsumer, Store

with Store.open("shop", create=True) as store:
    store.create_topic("tickets", queues=3, message_type=MessageType.PRIORITY)
    producer = Producer(store)
    for number in range(3):
        producer.send(Message("tickets", f"a question ({number})".encode(), priority=0))
    producer.send(Message("tickets", b"the shop is slow", priority=1))
    producer.send(Message("tickets", b"the shop is down", priority=9))  # above the last queue: the highest

    order: list[bytes] = []
    with SimpleConsumer(store, "support") as consumer:
        consumer.subscribe("tickets")
        while len(order) < 5:
            messages = consumer.receive(max_messages=1)
            order += [message.body for message in messages]
            consumer.ack(messages)

print(*[body.decode() for body in order], sep="\n")
assert order[:2] == [b"the shop is down", b"the shop is slow"]
