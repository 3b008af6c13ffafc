"""The front of the package: every name it promises is there, at its first use and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rmq_spark
from rmq_spark import errors


@pytest.mark.parametrize("name", rmq_spark.__all__)
def test_every_name_is_found(name: str) -> None:
    assert getattr(rmq_spark, name) is not None


def test_a_wrong_name_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match=r"module 'rmq_spark' has no attribute 'Stroe'"):
        rmq_spark.Stroe  # noqa: B018
    with pytest.raises(ImportError, match="Stroe"):
        from rmq_spark import Stroe  # noqa: F401


def test_dir_lists_every_name_before_it_is_used() -> None:
    code = "import rmq_spark, rmq_spark.filter; print(set(rmq_spark.__all__) <= set(dir(rmq_spark)), end=' ')"
    code += "; print(set(rmq_spark.filter.__all__) <= set(dir(rmq_spark.filter)), '__doc__' in dir(rmq_spark))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True True\n"


def test_every_error_is_at_the_front() -> None:
    public = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and name.endswith("Error")}
    assert "RmqError" in public
    assert {name: getattr(rmq_spark, name, None) for name in public} == public
    assert set(public) <= set(rmq_spark.__all__)


def test_stores_and_producers_say_what_they_are() -> None:
    with rmq_spark.Store.create("memory://named") as store:
        assert repr(store) == "Store('memory://named')"
        assert repr(rmq_spark.Producer(store, auto_create=False)) == (
            "Producer(Store('memory://named'), auto_create=False)"
        )
        with rmq_spark.Store.open("memory://named", read_only=True) as other:
            assert repr(other) == "Store('memory://named', read_only=True)"


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = """if True:
        import sys, rmq_spark
        print({"pyarrow", "numpy"} & set(sys.modules))
        rmq_spark.Store
        print("pyarrow" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["set()", "True"]
