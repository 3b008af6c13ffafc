"""How fast the proxy is, with Apache's own Python client and with plain gRPC calls.

    python benchmarks/proxy.py            # everything
    python benchmarks/proxy.py raw        # one part: raw, apache, memory, floor
    python benchmarks/proxy.py peer       # raw and apache on RocketMQ 5.5's broker and proxy (Java, 2 GB of memory)

The proxy, Apache's client and the load generator each are a process of their own. The store is on a local disk and
flushes each commit (`sync`). `raw`: 64 calls of SendMessage in flight, 100 B each, and the share of a core that the
proxy took meanwhile. `apache`: one producer that waits for each answer, one with 256 sends in flight, and a simple
consumer that acknowledges each message by itself; in brackets RocketMQ 5.5's proxy, measured once on a quieter machine.
`floor`: the calls of `raw` to a gRPC server that stores nothing: what gRPC for Python takes by itself. RocketMQ answers
before the disk has a message (its default); this proxy answers after.

`RMQ_BENCH_DIR` is where stores are made. On ext4 without a journal (`ls /proc/fs/jbd2` shows nothing) name a directory
that was just made below `/`: next to files that were deleted within the last minutes, creating one takes 1 ms of a core
instead of 0.02 ms.
"""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BODY = b"x" * 100
SECONDS = float(os.environ.get("RMQ_BENCH_SECONDS", "10"))
IN_FLIGHT = 64

PROXY = """
import json, sys
from rmq_spark.client.store import Store
from rmq_spark.proxy import ProxySettings, serve
with Store.open(sys.argv[1], create=True) as store:
    store.create_topic("orders", queues=8)
    serve(store, ProxySettings(listen="127.0.0.1:0"), ready=lambda proxy: print(proxy.port, flush=True))
"""

APACHE = """
import json, sys, time
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import SimpleConsumer
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer

address, seconds = sys.argv[1], float(sys.argv[2])
configuration = ClientConfiguration(address, Credentials())

def message():
    made = Message()
    made.topic, made.body = "orders", b"x" * 100
    return made

producer = Producer(configuration, ("orders",))
producer.startup()
for _ in range(200):
    producer.send(message())
times, end = [], time.perf_counter() + seconds
while time.perf_counter() < end:
    began = time.perf_counter()
    producer.send(message())
    times.append(time.perf_counter() - began)
sync = len(times) / sum(times)
waiting, sent, began = [], 0, time.perf_counter()
while time.perf_counter() - began < seconds:
    waiting.append(producer.send_async(message()))
    if len(waiting) == 256:
        for each in waiting:
            each.result()
        sent, waiting = sent + 256, []
in_flight = sent / (time.perf_counter() - began)
consumer = SimpleConsumer(configuration, "jobs", {"orders": FilterExpression()}, await_duration=5)
consumer.startup()
for attempt in range(20):
    try:
        first = consumer.receive(32, 60)
        break
    except Exception:  # RocketMQ's proxy fails (50001) a receive that comes before it has read the consumer's settings
        time.sleep(0.5)
for each in first:
    consumer.ack(each)
got, began = 0, time.perf_counter()
while time.perf_counter() - began < seconds:
    for each in consumer.receive(32, 60):
        consumer.ack(each)
        got += 1
acked = got / (time.perf_counter() - began)
print(json.dumps({"sync": sync, "p50": sorted(times)[len(times) // 2] * 1e3, "async": in_flight, "acked": acked}))
consumer.shutdown()
producer.shutdown()
"""

FLOOR = """
import asyncio, grpc
from rmq_spark.proxy import wire
from rmq_spark.proxy.status import OK

async def send(request, context):
    return wire.SendMessageResponse(status=OK)

async def serve():
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        send, wire.message_class("SendMessageRequest").FromString, wire.SendMessageResponse.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, {"SendMessage": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()

asyncio.run(serve())
"""


class ProxyProcess:
    def __init__(self, place):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROXY, str(place / "store")], stdout=subprocess.PIPE, text=True
        )
        self.address = f"127.0.0.1:{int(self.process.stdout.readline())}"

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def report(name, value, unit, wanted):
    print(f"  {name:<58} {value:>12,.2f} {unit:<12} wanted {wanted}", flush=True)


async def load(address, seconds):
    """Keep calls in flight; returns how many were answered a second."""
    import grpc

    from rmq_spark.proxy import wire

    request = wire.message_class("SendMessageRequest")()
    one = request.messages.add(body=BODY)
    one.topic.name = "orders"
    one.system_properties.message_type = 1
    one.system_properties.body_encoding = 1
    metadata = (("x-mq-client-id", "load"),)
    async with grpc.aio.insecure_channel(address) as channel:
        send = channel.unary_unary(
            f"/{wire.SERVICE}/SendMessage",
            request_serializer=type(request).SerializeToString,
            response_deserializer=wire.SendMessageResponse.FromString,
        )
        done = 0

        async def sender(number):
            nonlocal done
            mine = type(request)()
            mine.CopyFrom(request)
            i = 0
            while time.perf_counter() < end:
                mine.messages[0].system_properties.message_id = f"{number}-{i}"
                answer = await send(mine, metadata=metadata)
                i += 1
                if answer.status.code != 42900:  # RocketMQ's broker, while it is cold: "broker busy"
                    assert answer.status.code == 20000, answer
                    done += 1

        began = time.perf_counter()
        end = began + seconds
        await asyncio.gather(*(sender(number) for number in range(IN_FLIGHT)))
        return done / (time.perf_counter() - began)


def raw(place):
    proxy = ProxyProcess(place)
    asyncio.run(load(proxy.address, 2))
    cpu, began = proxy.cpu_seconds(), time.perf_counter()
    rate = asyncio.run(load(proxy.address, SECONDS))
    share = (proxy.cpu_seconds() - cpu) / (time.perf_counter() - began)
    report("64 sends in flight by plain gRPC", rate, "messages/s", "4,000")
    report("cores that the proxy took", share, "cores", "1")
    report("sends for each second of a core", rate / share, "messages", "4,000")
    proxy.stop()


def apache(place):
    proxy = ProxyProcess(place)
    report_apache(proxy.address, place)
    proxy.stop()


def report_apache(address, place):
    done = subprocess.run(
        [sys.executable, "-c", APACHE, address, str(SECONDS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(place)},
    )
    if done.returncode:
        sys.exit(f"Apache's client failed:\n{done.stderr[-3000:]}")
    told = json.loads(done.stdout)
    report("Apache's client: sync sends", told["sync"], "messages/s", "527 (527)")
    report("Apache's client: sync send, median", told["p50"], "ms", "1.64 (1.64)")
    report("Apache's client: async sends", told["async"], "messages/s", "950 (950)")
    report("Apache's client: simple consumer with acks", told["acked"], "messages/s", "800 (400)")


def peer(place):
    from rmq_spark.testing.rocketmq_server import rocketmq_server

    key, certificate = place / "key.pem", place / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with rocketmq_server(certificate, key) as server:
        server.create_topic("orders", "NORMAL", queues=8)
        server.create_group("jobs")
        asyncio.run(load(server.proxy, SECONDS))  # Java is slow at first
        report("64 sends in flight by plain gRPC", asyncio.run(load(server.proxy, SECONDS)), "messages/s", "-")
        report_apache(server.proxy, place)


def floor(place):
    with subprocess.Popen([sys.executable, "-c", FLOOR], stdout=subprocess.PIPE, text=True) as server:
        address = f"127.0.0.1:{int(server.stdout.readline())}"
        asyncio.run(load(address, 2))
        report(
            "64 calls in flight to a gRPC server that stores nothing",
            asyncio.run(load(address, SECONDS)),
            "calls/s",
            "-",
        )
        server.kill()


def memory(place):
    proxy = ProxyProcess(place)
    report("memory of an idle proxy", proxy.resident_bytes() / 1e6, "MB", "under 150 (600)")
    proxy.stop()


if __name__ == "__main__":
    parts = {"raw": raw, "apache": apache, "memory": memory}
    asked = {**parts, "peer": peer, "floor": floor}
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory(dir=os.environ.get("RMQ_BENCH_DIR")) as folder:
            asked[name](Path(folder))
