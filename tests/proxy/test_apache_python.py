"""Apache's own Python client, unchanged, against the proxy: producers, simple and push consumers, filters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from proxy_process import HERE, ProxyProcess, apache, environment, make_fifo

from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.store import Store


def test_sync_sends_arrive_once_with_all_their_fields(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("sync", queues=4)
    told = apache("send_sync", proxy, home, topic="sync", group="sync-group")
    assert told["got"] == told["sent"]
    assert told["bodies"] == [f"m{i}" for i in range(10)]
    assert told["fields"] == [["a", f"k{i}", str(i)] for i in range(10)]
    assert (told["corrupted"], told["attempts"], told["rest"]) == ([], [1], 0)
    assert store.read("sync").num_rows == 10


def test_async_sends_arrive_once(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("async", queues=4)
    told = apache("send_async", proxy, home, topic="async", group="async-group")
    assert told["got"] == told["sent"]
    assert len(set(told["got"])) == 200


def test_a_namespace_parts_topics_and_groups(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("team%sync", queues=2)
    told = apache("send_sync", proxy, home, topic="sync", group="sync-group", namespace="team")
    assert told["got"] == told["sent"]
    assert store.read("team%sync").num_rows == 10


def test_a_message_that_is_not_settled_holds_its_queue_in_a_fifo_group(
    proxy: ProxyProcess, store: Store, home: Path
) -> None:
    store.create_topic("ordered", queues=4)
    make_fifo(store, "fifo-group")
    told = apache("fifo", proxy, home, topic="ordered", group="fifo-group")
    assert told["first"] == ["a0", "a1", "a2"]
    assert told["again"] == ["a1", "a2", "a3", "a4", "a5"]
    assert told["groups"] == ["a"]


def test_a_delayed_message_is_never_early(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("delayed", queues=2)
    told = apache("delay", proxy, home, topic="delayed", group="delay-group")
    assert told == {"early": False, "past first": True, "handles": [True, False]}


def test_a_recalled_message_is_not_delivered(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("recalled", queues=2)
    told = apache("recall", proxy, home, topic="recalled", group="recall-group")
    assert told == {"recalled": True, "got": ["comes"], "late": 40000}


def test_transactions_are_committed_rolled_back_and_asked_about(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("paid", queues=2)
    told = apache("transaction", proxy, home, topic="paid", group="paid-group")
    assert told["before"] == []
    assert sorted(told["got"]) == ["committed", "left open"]
    assert (told["rest"], told["asked"], told["twice"]) == ([], ["left open"], 40008)


def test_an_unsettled_message_comes_again_and_a_nack_brings_it_sooner(
    proxy: ProxyProcess, store: Store, home: Path
) -> None:
    store.create_topic("again", queues=2)
    told = apache("redelivery", proxy, home, topic="again", group="again-group")
    assert told == {"attempts": [1, 2, 3], "stale": 40013, "rest": 0, "same": True}


def test_tag_and_sql_filters_choose_messages(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("filtered", queues=2)
    told = apache("filters", proxy, home, topic="filtered", group="filter-group")
    assert told == {"tags": [["m0", "m2", "m3", "m5"], 0], "sql": [["m4"], 0], "bad": 40010}


def test_a_push_consumer_gets_all_messages_and_slow_ones_once(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("pushed", queues=4)
    # Slower than the time for which the proxy claims messages: only its renewals keep the message from coming again.
    told = apache("push", proxy, home, topic="pushed", group="push-group", slow=9)
    expected = [["fails", 1], ["fails", 2], *([f"m{i}", 1] for i in range(10)), ["slow", 1]]
    assert told["seen"] == sorted(expected)


def test_a_fifo_push_consumer_keeps_the_order_and_gives_up_what_fails(
    proxy: ProxyProcess, store: Store, home: Path
) -> None:
    store.create_topic("pushed-fifo", queues=2)
    make_fifo(store, "push-fifo-group", retryMaxTimes=1)
    told = apache("push_fifo", proxy, home, topic="pushed-fifo", group="push-fifo-group")
    assert told["seen"] == ["a0", "a1", "a2", "a2", "a3", "a4"]
    assert store.read("%DLQ%push-fifo-group").column("body").to_pylist() == [b"a2"]


def test_a_client_that_disappears_gives_its_messages_back(proxy: ProxyProcess, store: Store, home: Path) -> None:
    store.create_topic("dropped", queues=1)
    options = json.dumps({"topic": "dropped", "group": "drop-group"})
    client = subprocess.Popen(
        [sys.executable, str(HERE / "apache_stories.py"), "hold", proxy.address, options],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(home),
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "holds held\n"
    client.kill()
    client.wait()
    client.stdout.close()
    with SimpleConsumer(store, "drop-group").subscribe("dropped") as consumer:
        messages = consumer.receive(1, invisible_duration=60, await_duration=60)
        assert [(each.body, each.delivery_attempt) for each in messages] == [(b"held", 2)]
        consumer.ack(messages)
