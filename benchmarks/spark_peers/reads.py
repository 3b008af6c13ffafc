"""What is measured on messages that are there already: all columns, two columns, a stream, a tag, a time slice."""

import functools
import itertools
import logging

from pyspark.sql import functions as F
from pyspark_rocketmq import DefaultSource

from rmq_spark.log import schema
from spark_peers.data import TOPIC
from spark_peers.measure import Aim, Scenario

OURS = {"commits": "rocketmq, commits", "rolled": "rocketmq, rolled"}
TWO_COLUMNS = "queueOffset long, tags string"
KAFKA_COLUMNS = (
    "topic string, queueId int, queueOffset long, tags string, keys string, body binary, storeTimestamp timestamp"
)
"""What corresponds to Kafka's topic, partition, offset, key, value and timestamp (the key holds tag and keys)."""
KAFKA_HEADERS = "kafka, headers"
"""Kafka with what it has no column for in headers: the same data."""
DELTA_TUNED = "delta, tuned"
"""Delta works on its own log in 50 pieces, which is meant for clusters. On two cores two are several times quicker."""
PEERS = ("parquet", "delta", DELTA_TUNED, "kafka")
SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"

_numbers = itertools.count()


def ours(world, data, layout, *, columns=None, **options):
    reader = world.spark.read.format("rocketmq").option("store", data.stores[layout]).option("topic", TOPIC)
    return (reader.schema(columns) if columns else reader).options(**options).load()


def kafka(world, data, **options):
    reader = world.spark.read.format("kafka").option("kafka.bootstrap.servers", world.kafka.address)
    return reader.option("subscribe", data.topic).options(**options).load()


def frames(world, data):
    """Peer -> a function that loads all of it anew."""
    spark = world.spark
    found = {name: functools.partial(ours, world, data, layout) for layout, name in OURS.items()}
    found["parquet"] = functools.partial(spark.read.parquet, data.parquet)
    found["delta"] = lambda: spark.read.format("delta").load(data.delta)
    found[DELTA_TUNED] = lambda: spark.read.format("delta").load(data.delta_tuned)
    if world.kafka is not None:
        found["kafka"] = functools.partial(kafka, world, data)
    return found


def check_equal(world, data):
    """Every peer has the same bodies; a figure for other data would mean nothing."""
    sums = {}
    for peer, load in frames(world, data).items():
        body = "value" if peer == "kafka" else "body"
        row = load().agg(F.count(F.lit(1)), F.sum(F.crc32(body)), F.sum(F.length(body))).first()
        sums[peer] = tuple(row)
    assert len(set(sums.values())) == 1 and next(iter(sums.values()))[0] == data.rows, sums


def tuned(world, runs):
    """The runs, with Delta set for two cores while the one of that name runs."""
    run = runs[DELTA_TUNED]

    def with_setting():
        world.spark.conf.set(SNAPSHOT_PARTITIONS, "2")
        try:
            run()
        finally:
            world.spark.conf.unset(SNAPSHOT_PARTITIONS)

    return {**runs, DELTA_TUNED: with_setting}


def drain(frame):
    frame.write.format("noop").mode("overwrite").save()


def read(world, data):
    runs = {peer: (lambda load=load: drain(load())) for peer, load in frames(world, data).items()}
    aims = [
        Aim(of=name, than=than, least=least)
        for name in OURS.values()
        for than, least in (("kafka", 2.5), ("parquet", 0.6))
    ]
    return Scenario(name=f"batch read, all columns, {data.label}", rows=data.rows, runs=tuned(world, runs), aims=aims)


def columns(world, data):
    runs = {
        name: (lambda layout=layout: drain(ours(world, data, layout, columns=TWO_COLUMNS)))
        for layout, name in OURS.items()
    }
    all_frames = frames(world, data)
    for peer in ("parquet", "delta", DELTA_TUNED):
        runs[peer] = lambda load=all_frames[peer]: drain(load().select("queueOffset", "tags"))
    if "kafka" in all_frames:
        runs["kafka"] = lambda: drain(all_frames["kafka"]().select("offset", "key"))
    aims = [Aim(of=name, than="kafka", least=7) for name in OURS.values()]
    return Scenario(name=f"batch read, two columns, {data.label}", rows=data.rows, runs=tuned(world, runs), aims=aims)


def stream(world, data):
    """All columns: sixteen here and in Delta. Kafka's connector has seven, and an eighth if it is asked for headers.

    Without headers its messages lack id, time and host of birth; with them everybody returns the same data.
    """
    return _stream(world, data, "all columns", None)


def stream_same(world, data):
    """The same work for everybody: what Kafka's connector returns, and of the others what corresponds to it."""
    return _stream(world, data, "Kafka's columns", KAFKA_COLUMNS)


def _stream(world, data, what, columns):
    def streamed(name, schema=None, select=("*",), **options):
        reader = world.spark.readStream.format(name).options(**options)
        source = (reader.schema(schema) if schema else reader).load().select(*select)
        place = str(world.place / "checkpoints" / f"stream-{next(_numbers)}")
        query = source.writeStream.format("noop").option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        seen = sum(progress.numInputRows for progress in query.recentProgress)
        assert seen == data.rows, (name, seen, data.rows)

    select = [column.split()[0] for column in columns.split(", ")] if columns else ["*"]
    runs = {
        name: functools.partial(
            streamed, "rocketmq", columns, store=data.stores[layout], topic=TOPIC, startingOffsets="earliest"
        )
        for layout, name in OURS.items()
    }
    runs["delta"] = functools.partial(streamed, "delta", select=select, path=data.delta)
    runs[DELTA_TUNED] = functools.partial(streamed, "delta", select=select, path=data.delta_tuned)
    if world.kafka is not None:
        options = {"kafka.bootstrap.servers": world.kafka.address, "startingOffsets": "earliest"}
        runs["kafka"] = functools.partial(streamed, "kafka", subscribe=data.topic, **options)
        if columns is None:
            runs[KAFKA_HEADERS] = functools.partial(
                streamed, "kafka", subscribe=data.topic_with_headers, includeHeaders="true", **options
            )
    aims = [
        Aim(of=name, than=than, least=least)
        for name in OURS.values()
        for than, least in (("kafka", 2.5), (KAFKA_HEADERS, 2.5), ("delta", 1.5))
    ]
    return Scenario(name=f"stream, {what}, {data.label}", rows=data.rows, runs=tuned(world, runs), aims=aims)


def counted(make, wanted):
    def run():
        found = make().count()
        assert found == wanted, (found, wanted)

    return run


def tag(world, data):
    all_frames = frames(world, data)
    makes = {
        name: functools.partial(ours, world, data, layout, columns="tags string", subExpression="rare")
        for layout, name in OURS.items()
    }
    makes |= {
        f"{name}, no schema": functools.partial(ours, world, data, layout, subExpression="rare")
        for layout, name in OURS.items()
    }
    for peer in ("parquet", "delta", DELTA_TUNED):
        makes[peer] = lambda load=all_frames[peer]: load().where("tags = 'rare'")
    if "kafka" in all_frames:
        makes["kafka"] = lambda: all_frames["kafka"]().where("startswith(key, cast('rare ' as binary))")
    notes = []
    for layout, name in OURS.items():
        options = {"store": data.stores[layout], "topic": TOPIC, "subExpression": "rare"}
        seen, _ = scanned(options, ["tags"])
        _, needed = scanned({**options, "subExpression": "*"}, ["tags"])
        notes.append(
            f"{name}: {seen:,} bytes read for the count, {seen / needed:.2f} times the column `tags` (aim <= 1.2)"
        )
    return Scenario(
        name=f"count of a tag, 1 %, {data.label}",
        rows=data.rows,
        runs=tuned(world, {peer: counted(make, data.rare) for peer, make in makes.items()}),
        aims=[Aim(of=name, than=than, least=1) for name in OURS.values() for than in PEERS],
        notes=notes,
    )


def time_slice(world, data):
    all_frames = frames(world, data)
    low, high = data.slice_ms
    span = {"startingTimestamp": str(low), "endingTimestamp": str(high)}
    makes = {
        name: functools.partial(ours, world, data, layout, columns="queueOffset long", **span)
        for layout, name in OURS.items()
    }
    makes |= {
        f"{name}, no schema": functools.partial(ours, world, data, layout, **span) for layout, name in OURS.items()
    }
    within = f"storeTimestamp >= timestamp_millis({low}) and storeTimestamp < timestamp_millis({high})"
    for peer in ("parquet", "delta", DELTA_TUNED):
        makes[peer] = lambda load=all_frames[peer]: load().where(within)
    if "kafka" in all_frames:
        kafka_span = {
            "startingTimestamp": str(data.kafka_slice_ms[0]),
            "endingTimestamp": str(data.kafka_slice_ms[1]),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        makes["kafka"] = functools.partial(kafka, world, data, **kafka_span)
    notes = []
    for layout, name in OURS.items():
        seen, needed = scanned({"store": data.stores[layout], "topic": TOPIC, **span}, schema.MESSAGE.names)
        notes.append(
            f"{name}: {seen:,} bytes read for all columns, {seen / needed:.2f} times the rows' own (aim <= 1.2)"
        )
    return Scenario(
        name=f"count of a time slice, 1 %, {data.label}",
        rows=data.slice_rows,
        runs=tuned(world, {peer: counted(make, data.slice_rows) for peer, make in makes.items()}),
        aims=[Aim(of=name, than=than, least=1) for name in OURS.values() for than in PEERS],
        notes=notes,
    )


def scanned(options, names):
    """(bytes that the source reads from its files, bytes of what it returns), by the source itself, in this process.

    Of what it returns only columns that files hold are counted, not those that are computed.
    """
    read = []
    handler = logging.Handler()
    handler.emit = lambda record: read.append(record.args[2])
    log = logging.getLogger("rmq_spark.spark.task_reader")
    log.addHandler(handler)
    source = DefaultSource(options)
    wanted = [item for item in source.schema() if item.name in names]
    reader = source.reader(type(source.schema())(wanted))
    stored = [name for name in schema.ROWS.names if name in names]
    returned = 0
    try:
        for partition in reader.partitions():
            for batch in reader.read(partition):
                returned += batch.select(stored).nbytes
    finally:
        log.removeHandler(handler)
    return sum(read), returned
