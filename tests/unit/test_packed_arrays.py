"""Integer arrays as text in the metadata document."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rmq_spark.log.file_format import pack, unpack


@given(
    st.sampled_from(["i4", "u4", "i8"]).flatmap(
        lambda kind: arrays.arrays(np.dtype(kind), st.integers(0, 200)).map(lambda values: (kind, values))
    )
)
def test_unpacking_gives_the_array_back(drawn: tuple[str, np.ndarray]) -> None:
    kind, values = drawn
    back = unpack(pack(values), kind)
    assert back.dtype == np.dtype("<" + kind)
    assert back.tolist() == values.tolist()


def test_a_small_array_is_plain_base64_of_little_endian_bytes() -> None:
    assert pack(np.array([1, -2], np.int32)) == "r" + base64.b64encode(b"\x01\0\0\0\xfe\xff\xff\xff").decode()
    assert pack(np.empty(0, np.int64)) == "r"
    assert pack(np.zeros(32, np.int64))[0] == "r"


def test_a_large_array_is_shuffled_by_byte_and_deflated() -> None:
    values = np.arange(33, dtype=np.int64) + 256
    text = pack(values)
    assert text[0] == "z"
    shuffled = zlib.decompress(base64.b64decode(text[1:]))
    assert shuffled[:33] == bytes(range(33)), "first all low bytes"
    assert shuffled[33:66] == bytes([1] * 33), "then all second bytes"
    assert shuffled[66:] == bytes(33 * 6)


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_byte_order_of_the_machine_does_not_show(order: str) -> None:
    values = np.array([1, 2, 3], np.dtype(order + "i8"))
    assert pack(values) == pack(np.array([1, 2, 3], np.dtype("<i8")))
