"""Stories that Apache's Python client tells of a proxy: `python apache_stories.py STORY HOST:PORT GIVEN` (JSON)."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import PushConsumer, SimpleConsumer
from rocketmq.v5.consumer.push import ConsumeResult, MessageListener
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer, TransactionChecker

PATIENCE = 60.0

SQL = 2
COMMIT = 1
ROLLBACK = 2


def message(topic: str, body: str, **fields: Any) -> Message:
    made = Message()
    made.topic = topic
    made.body = body.encode()
    for name, value in fields.pop("properties", {}).items():
        made.add_property(name, value)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@contextmanager
def running(client: Any) -> Iterator[Any]:
    client.startup()
    try:
        yield client
    finally:
        client.shutdown()


class Story:
    """One run against one proxy."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.options = options
        self.topic: str = options.get("topic", "orders")
        self.group: str = options.get("group", "billing")
        self.tls = bool(options.get("tls"))
        self.configuration = ClientConfiguration(
            address, Credentials(), namespace=options.get("namespace", ""), request_timeout=30
        )

    def producer(self, checker: Any = None) -> Any:
        return running(Producer(self.configuration, (self.topic,), checker=checker, tls_enable=self.tls))

    def simple(self, expression: FilterExpression | None = None, await_duration: int = 2) -> Any:
        wanted = {self.topic: expression or FilterExpression()}
        return running(
            SimpleConsumer(self.configuration, self.group, wanted, await_duration=await_duration, tls_enable=self.tls)
        )

    def receive(self, consumer: Any, count: int, invisible: int = 30, ack: bool = True) -> list[Any]:
        """`count` messages, however long it takes (up to a limit)."""
        got: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while len(got) < count and time.monotonic() < deadline:
            for each in consumer.receive(32, invisible):
                got.append(each)
                if ack:
                    consumer.ack(each)
        return got

    # ------------------------------------------------------------ producers

    def send_sync(self) -> Any:
        with self.producer() as producer, self.simple() as consumer:
            sent = [
                producer.send(message(self.topic, f"m{i}", tag="a", keys=f"k{i}", properties={"n": str(i)}))
                for i in range(10)
            ]
            got = self.receive(consumer, 10)
            rest = consumer.receive(32, 30)
        return {
            "sent": sorted(each.message_id for each in sent),
            "got": sorted(each.message_id for each in got),
            "bodies": sorted(each.body.decode() for each in got),
            "fields": sorted([[each.tag, *each.keys, each.properties["n"]] for each in got]),
            "corrupted": [each.corrupted for each in got if each.corrupted],
            "attempts": sorted({each.delivery_attempt for each in got}),
            "rest": len(rest),
        }

    def send_async(self) -> Any:
        with self.producer() as producer, self.simple() as consumer:
            futures = [producer.send_async(message(self.topic, f"m{i}")) for i in range(200)]
            sent = sorted(each.result(PATIENCE).message_id for each in futures)
            got = sorted(each.message_id for each in self.receive(consumer, 200))
        return {"sent": sent, "got": got}

    def fifo(self) -> Any:
        """In a FIFO group the messages of a message group come in order; a message that is not settled holds them."""
        with self.producer() as producer, self.simple() as consumer:
            for i in range(6):
                producer.send(message(self.topic, f"a{i}", message_group="a"))
            first = consumer.receive(3, 2)
            held = consumer.receive(3, 2) if self.options.get("look") else []
            consumer.ack(first[0])
            again = self.receive(consumer, 5)
        return {
            "first": [each.body.decode() for each in first],
            "held": [each.body.decode() for each in held],
            "again": [each.body.decode() for each in again],
            "groups": sorted({each.message_group for each in again}),
        }

    def delay(self) -> Any:
        with self.producer() as producer, self.simple() as consumer:
            due = int(time.time()) + 3
            sent = producer.send(message(self.topic, "later", delivery_timestamp=due))
            past = producer.send(message(self.topic, "past", delivery_timestamp=int(time.time()) - 10))
            got = {}
            deadline = time.monotonic() + PATIENCE
            while len(got) < 2 and time.monotonic() < deadline:
                for each in consumer.receive(32, 30):
                    got[each.body.decode()] = time.time()
                    consumer.ack(each)
        return {
            "early": got["later"] < due,
            "past first": got["past"] < got["later"],
            "handles": [sent.recall_handle is not None, past.recall_handle is not None],
        }

    def recall(self) -> Any:
        with self.producer() as producer, self.simple() as consumer:
            due = int(time.time()) + 4
            sent = producer.send(message(self.topic, "never", delivery_timestamp=due))
            other = producer.send(message(self.topic, "comes", delivery_timestamp=due))
            recalled = [producer.recall_message(self.topic, sent.recall_handle) for _ in range(2)]
            got = [each.body.decode() for each in self.receive(consumer, 1)]
            rest = [each.body.decode() for each in consumer.receive(32, 30)]
            try:
                producer.recall_message(self.topic, other.recall_handle)
                late = None
            except Exception as error:
                late = getattr(error, "code", str(error))
        return {"recalled": recalled == [sent.message_id] * 2, "got": got + rest, "late": late}

    def transaction(self) -> Any:
        """Commit, roll back, and leave one to the check, which commits it."""
        asked: list[str] = []

        class Checker(TransactionChecker):
            def check(self, half: Message) -> Any:
                asked.append(half.body.decode())
                return COMMIT

        with self.producer(Checker()) as producer, self.simple() as consumer:
            done = producer.begin_transaction()
            producer.send(message(self.topic, "committed"), done)
            before = [each.body.decode() for each in consumer.receive(32, 30)]
            done.commit()
            undone = producer.begin_transaction()
            producer.send(message(self.topic, "rolled back"), undone)
            undone.rollback()
            try:
                undone.commit()
                twice = None
            except Exception as error:
                twice = getattr(error, "code", str(error))
            left = producer.begin_transaction()
            producer.send(message(self.topic, "left open"), left)
            got = [each.body.decode() for each in self.receive(consumer, 2)]
            rest = [each.body.decode() for each in consumer.receive(32, 30)]
        return {"before": before, "got": got, "rest": rest, "asked": sorted(set(asked)), "twice": twice}

    # ------------------------------------------------------------ consumers

    def redelivery(self) -> Any:
        """A message that is not acknowledged comes again after its time, one that is nacked sooner."""
        with self.producer() as producer, self.simple() as consumer:
            producer.send(message(self.topic, "again"))
            attempts = []
            first = self.receive(consumer, 1, 2, ack=False)[0]
            attempts.append(first.delivery_attempt)
            second = self.receive(consumer, 1, 60, ack=False)[0]
            attempts.append(second.delivery_attempt)
            try:
                consumer.ack(first)
                stale = None
            except Exception as error:
                stale = getattr(error, "code", str(error))
            consumer.change_invisible_duration(second, 1)
            third = self.receive(consumer, 1, 60, ack=False)[0]
            attempts.append(third.delivery_attempt)
            consumer.change_invisible_duration(third, 120)
            consumer.ack(third)
            consumer.ack(third)
            rest = consumer.receive(32, 30)
        return {"attempts": attempts, "stale": stale, "rest": len(rest), "same": first.message_id == third.message_id}

    def push(self) -> Any:
        """A push consumer gets every message; what its listener fails on comes again; slow ones come once."""
        seen: list[list[Any]] = []
        done = threading.Event()
        options = self.options

        class Listener(MessageListener):
            def consume(self, received: Message) -> ConsumeResult:
                body = received.body.decode()
                seen.append([body, received.delivery_attempt])
                if body == "slow":
                    time.sleep(options["slow"])
                if len({each[0] for each in seen}) == 12 and ["fails", 2] in seen:
                    done.set()
                failed = body == "fails" and received.delivery_attempt == 1
                return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS

        consumer = PushConsumer(self.configuration, self.group, Listener(), {self.topic: FilterExpression()})
        with self.producer() as producer, running(consumer):
            for i in range(10):
                producer.send(message(self.topic, f"m{i}"))
            producer.send(message(self.topic, "fails"))
            producer.send(message(self.topic, "slow"))
            done.wait(PATIENCE)
            time.sleep(options["slow"])
        return {"seen": sorted(seen)}

    def push_fifo(self) -> Any:
        """A FIFO push consumer gets messages of a message group in order; what fails goes to the dead letters."""
        seen: list[str] = []
        done = threading.Event()

        class Listener(MessageListener):
            def consume(self, received: Message) -> ConsumeResult:
                body = received.body.decode()
                seen.append(body)
                if body == "a4":
                    done.set()
                return ConsumeResult.FAILURE if body == "a2" else ConsumeResult.SUCCESS

        consumer = PushConsumer(self.configuration, self.group, Listener(), {self.topic: FilterExpression()})
        with self.producer() as producer, running(consumer):
            for i in range(5):
                producer.send(message(self.topic, f"a{i}", message_group="a"))
            done.wait(PATIENCE)
            time.sleep(1)
        return {"seen": seen}

    def hold(self) -> Any:
        """A push consumer whose listener never ends; killed by the test."""

        class Listener(MessageListener):
            def consume(self, received: Message) -> ConsumeResult:
                print("holds", received.body.decode(), flush=True)
                time.sleep(3600)
                return ConsumeResult.SUCCESS

        consumer = PushConsumer(self.configuration, self.group, Listener(), {self.topic: FilterExpression()})
        with self.producer() as producer, running(consumer):
            producer.send(message(self.topic, "held"))
            time.sleep(3600)

    def filters(self) -> Any:
        with self.producer() as producer:
            for i in range(6):
                producer.send(message(self.topic, f"m{i}", tag="abc"[i % 3], properties={"n": str(i)}))
            received = {}
            for name, expression in {
                "tags": FilterExpression("a || c"),
                "sql": FilterExpression("n > 3 AND TAGS <> 'c'", SQL),
            }.items():
                self.group = f"{self.options['group']}-{name}"
                with self.simple(expression) as consumer:
                    got = self.receive(consumer, 4 if name == "tags" else 1)
                    rest = consumer.receive(32, 30)
                received[name] = [sorted(each.body.decode() for each in got), len(rest)]
            self.group = f"{self.options['group']}-bad"
            with self.simple(FilterExpression("n >", SQL)) as consumer:
                try:
                    consumer.receive(32, 30)
                except Exception as error:
                    received["bad"] = getattr(error, "code", str(error))
        return received


if __name__ == "__main__":
    told = getattr(Story(sys.argv[2], json.loads(sys.argv[3])), sys.argv[1])()
    print(json.dumps(told), flush=True)
