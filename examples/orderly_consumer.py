"""Messages with one sharding key share a queue, and an orderly listener gets them one after the other."""

import threading

from rmq_spark import ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage, Store

STEPS = ("created", "paid", "shipped")
seen: dict[str, list[str]] = {}
left = threading.Semaphore(0)
failed_once = False


def handle(message: ReceivedMessage) -> ConsumeResult:
    global failed_once
    order, step = message.keys or "", message.body.decode()
    if step == "paid" and not failed_once:
        failed_once = True
        print(f"{order} {step}: failed; the queue waits a second, and then goes on with this message")
        return ConsumeResult.FAILURE
    seen.setdefault(order, []).append(step)
    print(f"{order} {step}")
    left.release()
    return ConsumeResult.SUCCESS


with Store.open("shop", create=True) as store:
    producer = Producer(store)
    orders = [f"o-{number}" for number in range(3)]
    for step in STEPS:
        for order in orders:
            producer.send(Message("steps", step.encode(), keys=order, sharding_key=order))

    with PushConsumer(store, "warehouse", orderly=True) as consumer:
        consumer.subscribe("steps").start(handle)
        for _ in range(len(STEPS) * len(orders)):
            left.acquire()

assert seen == {order: list(STEPS) for order in orders}
