"""Jobs that several workers share: receive, acknowledge, keep longer, and what comes back.

Run it with `python examples/simple_consumer.py`. It makes a store in a temporary directory.
"""

from __future__ import annotations

import tempfile

from rmq_spark import Message, Producer, SimpleConsumer, Store


def main() -> None:
    """Finish one job, take longer for one, and forget one, which comes again."""
    with tempfile.TemporaryDirectory() as directory, Store.create(f"{directory}/store") as store:
        store.create_topic("jobs", queues=2)
        Producer(store).send_batch([Message("jobs", b"resize picture %d" % number) for number in range(3)])

        with SimpleConsumer(store, "workers") as consumer:
            consumer.subscribe("jobs")

            # Nobody else gets these messages for the next second.
            messages = consumer.receive(max_messages=32, invisible_duration=1.0, await_duration=15.0)
            while len(messages) < 3:
                messages += consumer.receive(max_messages=32, invisible_duration=1.0, await_duration=15.0)
            done, slow, forgotten = messages
            consumer.ack(done)
            consumer.change_invisible_duration(slow, 3600.0)

            # What was not acknowledged in time is given back: by the services that every open store runs.
            (again,) = consumer.receive(await_duration=60.0)
            print(f"received {again.body.decode()!r} again; delivery {again.delivery_attempt}")
            assert (again.msg_id, again.delivery_attempt) == (forgotten.msg_id, 2)
            consumer.ack([again, slow])


if __name__ == "__main__":
    main()
