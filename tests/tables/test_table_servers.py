"""The same tables and the same answers on HDFS and on S3, with real servers."""

from __future__ import annotations

import random

import deltalake
import pyarrow.compute as pc
import pytest
from sample_messages import RealClock, Sample, as_rows

from rmq_spark.query.messages import MessageQuery
from rmq_spark.tables import engine
from rmq_spark.tables.schemas import TABLES

pytestmark = pytest.mark.server


def check(sample: Sample, options: dict[str, str] | None) -> None:
    sample.grow(12).roll()
    sample.grow(6)
    engine.reput(sample.store, range_messages=200)
    sample.grow(3)
    uri = sample.store.storage.uri
    rows = sample.expected(mark=engine.status(sample.store)[0].mark)
    for name, spec in TABLES.items():
        assert as_rows(engine.read_table(sample.store, name)) == rows[name]
        table = deltalake.DeltaTable(f"{uri}/tables/{name}", storage_options=options)
        assert as_rows(table.to_pyarrow_table().cast(spec.schema)) == rows[name]
    query = MessageQuery(sample.store)
    draw = random.Random(1)
    for one in draw.sample(sample.visible(), 12):
        wanted = [m for m in sample.visible() if m.msg_id == one.msg_id and m.kind != 0xC]
        assert query.by_id(one.msg_id).messages["commitOffset"].to_pylist() == [m.commit_offset for m in wanted]
        for key in one.single_keys:
            found = query.by_key(one.topic, key, limit=1000).messages
            wanted = [m for m in sample.visible() if m.topic == one.topic and key in m.single_keys and m.kind != 0xC]
            assert found["commitOffset"].to_pylist() == [m.commit_offset for m in wanted]
            assert pc.all(pc.equal(found["topic"], one.topic)).as_py() in (True, None)
    engine.reput(sample.store)
    assert engine.drop(sample.store) == list(TABLES)
    assert list(sample.store.storage.list("tables/index")) == []
    assert MessageQuery(sample.store).by_id(one.msg_id).messages.num_rows
    engine.reput(sample.store)
    assert MessageQuery(sample.store).by_id(one.msg_id).messages.num_rows


def test_hdfs(hdfs_uri: str) -> None:
    check(Sample.new(1, f"{hdfs_uri}/tables-test/store", clock=RealClock()), None)


def test_s3(s3_uri: str, s3_options: dict[str, str]) -> None:
    check(Sample.new(2, f"{s3_uri}/tables-test/store", clock=RealClock(), options=s3_options), s3_options)
