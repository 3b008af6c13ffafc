"""Every error survives pickling (Spark moves them), says its facts, and knows whether a retry makes sense."""

from __future__ import annotations

import inspect
import pickle

import pytest

from rmq_spark import errors
from rmq_spark.errors import RmqError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RmqError)]
RETRIABLE = {"BackPressureError", "LostRaceError", "OutcomeUnknownError", "UnavailableError", "StorageFullError"}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[RmqError]) -> None:
    error = kind("something went wrong; do this", file="a/b.arrow", offset=3, values=(1, "x"))
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert back.args == error.args
    assert back.context == error.context
    assert str(back) == str(error) == "something went wrong; do this (file='a/b.arrow', offset=3, values=(1, 'x'))"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_says_whether_a_retry_makes_sense(kind: type[RmqError]) -> None:
    assert kind.retriable == (kind.__name__ in RETRIABLE)
    assert kind.__doc__


def test_an_error_without_facts_is_its_problem() -> None:
    assert str(RmqError("a problem")) == "a problem"


def test_errors_are_also_what_python_programs_expect() -> None:
    assert issubclass(errors.InvalidRequestError, ValueError)
    assert issubclass(errors.MissingExtraError, ImportError)
