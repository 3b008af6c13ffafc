"""The services on S3 and on HDFS: two copies at once, every delayed message once, and the log is rolled."""

from __future__ import annotations

import time
import uuid
from collections import Counter

import pytest

from rmq_spark.client.producer import Producer
from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import stored_messages
from rmq_spark.log.scan import Query
from rmq_spark.model.message import Message
from rmq_spark.services.catalog import all_services
from rmq_spark.services.rolling import RollService
from rmq_spark.services.runner import ServiceRunner

pytestmark = pytest.mark.server
GIVE_UP_SECONDS = 180


def serve_twice(uri: str, options: dict[str, str] | None) -> None:
    place = f"{uri}/services-{uuid.uuid4().hex[:8]}"
    with (
        Store.create(place, options=options, services="off") as store,
        Store.open(place, options=options, services="off") as other,
    ):
        producer = Producer(store)
        rolling = RollService(store, roll_commits=10)
        services = [service for service in all_services(store) if service.name != rolling.name]
        due: dict[bytes, int] = {}
        with (
            ServiceRunner([*services, rolling], store.clock) as first,
            ServiceRunner(all_services(other), other.clock) as second,
        ):
            for number in range(20):
                body, ms = b"%d" % number, store.clock.now_ms() + 50 * number
                producer.send(Message("delayed", body, deliver_at=ms))
                due[body] = ms
            producer.send(Message("work", b"left"))
            with SimpleConsumer(other, "jobs", consume_from="earliest").subscribe("work") as consumer:
                assert len(consumer.receive(1, 0.3, GIVE_UP_SECONDS)) == 1
                [again] = consumer.receive(1, 30.0, GIVE_UP_SECONDS)
                assert again.reconsume_times == 1
            until = time.monotonic() + GIVE_UP_SECONDS
            while store.read("delayed").num_rows < len(due) or not rolling.rolled:
                assert time.monotonic() < until, (store.read("delayed").num_rows, first.status(), second.status())
                time.sleep(0.1)
            assert [each.last_error for each in (*first.status(), *second.status()) if each.failures] == []
        messages = [
            message
            for batch in store.log().scan(Query(topics=frozenset({"delayed"})))
            for message in stored_messages(batch)
        ]
        assert Counter(message.body for message in messages) == Counter(list(due))
        assert all(message.store_ms >= due[message.body] for message in messages)


def test_on_s3(s3_uri: str, s3_options: dict[str, str]):
    serve_twice(s3_uri, s3_options)


def test_on_hdfs(hdfs_uri: str):
    serve_twice(hdfs_uri, None)
