"""Structured logs: one JSON object a line, with facts and errors as fields."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from rmq_spark import UnavailableError
from rmq_spark.json_log import log_json


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    made = io.StringIO()
    logger = logging.getLogger("rmq_spark")
    level = logger.level
    handler = log_json(stream=made)
    yield made
    logger.removeHandler(handler)
    logger.setLevel(level)


def only_line(stream: io.StringIO) -> Any:
    [line] = stream.getvalue().splitlines()
    return json.loads(line)


def test_a_line_has_level_logger_message_and_facts(stream: io.StringIO) -> None:
    logging.getLogger("rmq_spark.client.x").warning("failed\nbadly (group=%r, queue=%r, from=%d)", "a b", ("t", 1), 7)
    line = only_line(stream)
    assert (line["level"], line["logger"]) == ("WARNING", "rmq_spark.client.x")
    assert line["message"] == "failed\nbadly (group='a b', queue=('t', 1), from=7)"
    assert line["facts"] == {"group": "a b", "queue": "('t', 1)", "from": 7}
    assert isinstance(line["ts"], int)


def test_an_error_is_an_object_with_its_trace(stream: io.StringIO) -> None:
    try:
        raise UnavailableError("the disk is away", path="/x")
    except UnavailableError:
        logging.getLogger("rmq_spark").exception("no")
    error = only_line(stream)["error"]
    assert (error["type"], error["retriable"]) == ("UnavailableError", True)
    assert "the disk is away" in error["message"] and "Traceback" in error["trace"]


def test_lines_below_the_level_are_left_out(stream: io.StringIO) -> None:
    logging.getLogger("rmq_spark").debug("quiet")
    assert stream.getvalue() == ""
