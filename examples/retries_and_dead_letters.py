"""A listener that fails: the message comes again after a while, and when it fails too often it is a dead letter."""

import threading

from rmq_spark import ConsumeResult, LitePullConsumer, Message, Producer, PushConsumer, ReceivedMessage, Store
from rmq_spark.services.timer import set_delay_levels

attempts: list[int] = []
given_up = threading.Event()


def handle(message: ReceivedMessage) -> ConsumeResult:
    attempts.append(message.delivery_attempt)
    print(f"attempt {message.delivery_attempt} fails")
    if message.delivery_attempt == 3:
        given_up.set()
    return ConsumeResult.FAILURE


with Store.open("shop", create=True) as store:
    store.create_topic("payments", queues=1)
    set_delay_levels(store, " ".join(["1s"] * 18))  # by default 10 s, 30 s, 1 min and so on up to 2 h
    with PushConsumer(store, "billing", max_reconsume_times=2) as consumer:
        consumer.subscribe("payments").start(handle)
        sent = Producer(store).send(Message("payments", b"a card that is refused"))
        given_up.wait()

    with LitePullConsumer(store, "support", consume_from="earliest") as undertaker:
        undertaker.subscribe("%DLQ%billing")
        [dead] = undertaker.poll(60.0)
    print("dead letter:", dead.body.decode())

assert attempts == [1, 2, 3]
assert dead.msg_id == sent.msg_id
