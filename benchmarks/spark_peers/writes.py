"""A batch write of messages that are in memory: tag, keys and body of each."""

import itertools
import shutil

from pyspark import StorageLevel

from rmq_spark.client.store import Store
from rmq_spark.log.scan import Query
from spark_peers.data import QUEUES, as_kafka
from spark_peers.measure import Aim, Scenario

TUNED = {"kafka.linger.ms": "100", "kafka.batch.size": "1000000", "kafka.buffer.memory": "134217728"}
OURS = "rocketmq"


def write(world, data):
    spark = world.spark
    numbers = itertools.count()
    source = spark.read.parquet(data.parquet).select("tags", "keys", "body")
    source = source.repartition(QUEUES).persist(StorageLevel.MEMORY_ONLY)
    assert source.count() == data.rows
    place = world.place / "written"
    place.mkdir(exist_ok=True)
    made = {}

    def fresh(peer):
        made[peer] = f"{peer.split(',')[0]}-{data.size}-{next(numbers)}"
        return made[peer]

    def written_to(peer):
        return str(place / made[peer])

    def ours():
        source.write.format("rocketmq").option("store", written_to(OURS)).option("topic", "written").mode(
            "append"
        ).save()

    def files(name):
        source.write.format(name).save(str(place / fresh(name)))

    def to_kafka(peer, options):
        frame = as_kafka(source).write.format("kafka").option("kafka.bootstrap.servers", world.kafka.address)
        frame.option("topic", made[peer]).options(**options).save()

    def next_store():
        """The store and its topic are there before a write, as a broker and its topic are."""
        if OURS in made:
            with Store.open(written_to(OURS), read_only=True) as store:
                query = Query(topics=frozenset(["written"]), columns=("queueOffset",))
                found = sum(batch.num_rows for batch in store.log().scan(query))
            assert found == data.rows, (found, data.rows)
            shutil.rmtree(written_to(OURS))
        fresh(OURS)
        with Store.create(written_to(OURS)) as store:
            store.create_topic("written", queues=QUEUES)

    def next_topic(peer):
        if peer in made:
            world.kafka.delete_topic(made[peer])
        world.kafka.create_topic(fresh(peer), QUEUES)

    next_store()
    runs = {OURS: ours, "parquet": lambda: files("parquet"), "delta": lambda: files("delta")}
    after = {
        OURS: next_store,
        "parquet": lambda: shutil.rmtree(written_to("parquet")),
        "delta": lambda: shutil.rmtree(written_to("delta")),
    }
    if world.kafka is not None:
        for peer, options in (("kafka", {}), ("kafka, tuned", TUNED)):
            next_topic(peer)
            runs[peer] = lambda peer=peer, options=options: to_kafka(peer, options)
            after[peer] = lambda peer=peer: next_topic(peer)
    aims = [Aim(of=OURS, than="kafka", least=1.5), Aim(of=OURS, than="delta", least=1)]
    return Scenario(
        name=f"batch write, {data.label}", rows=data.rows, runs=runs, after=after, aims=aims, close=source.unpersist
    )
