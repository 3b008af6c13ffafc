"""The front of the package: every name it promises is there, at its first use and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rmq_spark


@pytest.mark.parametrize("name", rmq_spark.__all__)
def test_every_name_is_found(name: str) -> None:
    assert getattr(rmq_spark, name) is not None


def test_a_wrong_name_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match=r"module 'rmq_spark' has no attribute 'Stroe'"):
        rmq_spark.Stroe  # noqa: B018
    with pytest.raises(ImportError, match="Stroe"):
        from rmq_spark import Stroe  # noqa: F401


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = """if True:
        import sys, rmq_spark
        print({"pyarrow", "numpy"} & set(sys.modules))
        rmq_spark.Store
        print("pyarrow" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["set()", "True"]
