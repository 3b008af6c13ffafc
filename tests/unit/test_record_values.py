"""The bodies of records: each is a JSON object by itself."""

from __future__ import annotations

import pytest

from rmq_spark.log.fold import UNREADABLE, Records


def values(*bodies: bytes) -> list[dict[str, object]]:
    return list(Records("rmq_sys_t", [0] * len(bodies), bodies=bodies).values())


def test_each_body_is_parsed() -> None:
    assert values(b'{"a":1}', b' {"b": [2, {"c": "\xc3\xa9"}]}\n', b"{}") == [{"a": 1}, {"b": [2, {"c": "é"}]}, {}]
    assert values() == []


@pytest.mark.parametrize(
    "bodies",
    [
        (b'{"a":1', b'"b":2}', b'{"c":3},{"d":4}'),
        (b'{"a":[1', b"2]}", b"{},{}"),
        (b"{},{}",),
        (b"{} {}",),
        (b"",),
        (b"[]",),
        (b"1",),
        (b'{"a":',),
        (b"\xff{}",),
    ],
)
def test_bodies_that_only_make_sense_together_are_refused(bodies: tuple[bytes, ...]) -> None:
    with pytest.raises(UNREADABLE):
        values(*bodies)


def test_numbers_of_any_size_stay_whole_numbers() -> None:
    assert values(b'{"n":%d}' % 2**70) == [{"n": 2**70}]
