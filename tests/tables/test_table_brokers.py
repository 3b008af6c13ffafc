"""Brokers that are named to the engine."""

from __future__ import annotations

import pytest
from sample_messages import Sample, as_rows

from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.storage import paths
from rmq_spark.tables import engine


def test_a_broker_that_is_not_there_is_an_error_and_nothing_is_done() -> None:
    sample = Sample.new(9).grow(5)
    with pytest.raises(NotFoundError, match="no such broker") as error:
        engine.reput(sample.store, brokers=["broker-0", "nope"])
    assert error.value.context == {"broker": "nope", "known": ["broker-0"]}
    with pytest.raises(InvalidRequestError):
        engine.reput(sample.store, brokers=["no/pe"])
    assert not engine.read_table(sample.store, "index").num_rows
    assert sample.store.brokers() == ["broker-0"]
    root = paths.broker_root("nope")
    assert not [*sample.store.storage.list(paths.commitlog(root)), *sample.store.storage.list(paths.marks(root))]


def test_a_broker_whose_log_is_there_will_do_without_topics() -> None:
    # Its topics may be known to nobody any more, and its log is still one.
    sample = Sample.new(9).grow(5, brokers=("stray",))
    assert sample.store.brokers() == ["broker-0"]
    engine.reput(sample.store, brokers=["stray", "broker-0"])
    assert as_rows(engine.read_table(sample.store, "consumequeue")) == sample.consumequeue(("stray",))
