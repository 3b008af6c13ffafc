"""Settings are checked once, and an unknown one names the nearest."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.settings import Flush, LogSettings


def test_text_values_are_converted() -> None:
    built = LogSettings.from_mapping(
        {"flush": "async", "linger_ms": "0.5", "segment_bytes": "1024", "delete_when": "4;16"}
    )
    assert built == LogSettings(flush=Flush.ASYNC, linger_ms=0.5, segment_bytes=1024, delete_when="4;16")


def test_a_flush_policy_given_as_text_is_the_policy() -> None:
    assert LogSettings(flush="sync").flush is Flush.SYNC  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="bad value"):
        LogSettings(flush="never")  # type: ignore[arg-type]


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean 'segment_bytes'") as caught:
        LogSettings.from_mapping({"segment_byte": 1})
    assert caught.value.context == {"setting": "segment_byte"}


def test_an_unknown_setting_without_a_neighbour_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="unknown setting"):
        LogSettings.from_mapping({"zzz": 1})


@pytest.mark.parametrize(("name", "value"), [("flush", "never"), ("segment_bytes", "big"), ("linger_ms", "")])
def test_a_bad_value_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match="bad value") as caught:
        LogSettings.from_mapping({name: value})
    assert caught.value.context == {"setting": name, "value": value}


@pytest.mark.parametrize(
    "values",
    [
        {"linger_ms": -1},
        {"segment_bytes": -1},
        {"block_bytes": -1},
        {"append_timeout_ms": -1},
        {"retention_ms": -1},
        {"disk_reclaim_ratio": 0},
        {"disk_reclaim_ratio": 0.9, "disk_force_ratio": 0.8},
        {"disk_full_ratio": 1.1},
        {"delete_when": "24"},
        {"delete_when": ""},
        {"delete_when": "4,5"},
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        LogSettings(**values)
