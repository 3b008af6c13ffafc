"""Apache's own Python client on a store that is just files.

Run it against a proxy:

pip install "rmq-spark[cli,proxy]" rocketmq-python-client
rmq --store orders-store init
rmq --store orders-store topic create orders
rmq --store orders-store proxy --listen 127.0.0.1:8081 &
python orders.py 127.0.0.1:8081
"""

import sys

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import SimpleConsumer
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer


def main(address: str) -> None:
    configuration = ClientConfiguration(address, Credentials())
    producer = Producer(configuration, ("orders",))
    producer.startup()
    for number in range(3):
        message = Message()
        message.topic = "orders"
        message.tag = "book"
        message.keys = f"order-{number}"
        message.body = f"order {number}".encode()
        producer.send(message)
    producer.shutdown()

    consumer = SimpleConsumer(configuration, "billing", {"orders": FilterExpression("book")}, await_duration=5)
    consumer.startup()
    billed: set[str] = set()
    while len(billed) < 3:
        for message in consumer.receive(32, 30):
            billed.add(message.body.decode())
            consumer.ack(message)
    consumer.shutdown()
    print("billed:", ", ".join(sorted(billed)))


if __name__ == "__main__":
    main(sys.argv[1])
