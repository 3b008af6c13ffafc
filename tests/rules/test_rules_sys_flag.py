"""The bits of sysFlag are RocketMQ's."""

from __future__ import annotations

import pytest

from rmq_spark.rules import sys_flag
from rmq_spark.rules.sys_flag import Compression, Transaction


@pytest.mark.parametrize(
    ("flags", "state"),
    [(0, Transaction.NONE), (0x5, Transaction.PREPARED), (0x8, Transaction.COMMIT), (0x30D, Transaction.ROLLBACK)],
)
def test_the_transaction_state_is_in_two_bits(flags: int, state: Transaction) -> None:
    assert sys_flag.transaction(flags) is state


def test_another_transaction_state_leaves_other_bits() -> None:
    assert sys_flag.with_transaction(0x33D, Transaction.COMMIT) == 0x339
    assert sys_flag.with_transaction(0x33D, Transaction.NONE) == 0x331


def test_rule_17_a_half_message_has_no_transaction_bits() -> None:
    assert sys_flag.transaction(sys_flag.with_transaction(Transaction.PREPARED, Transaction.NONE)) is Transaction.NONE


def test_compression_is_told_by_three_bits_and_none_means_zlib() -> None:
    assert sys_flag.compressed_by_zlib() == 0x301
    assert sys_flag.compressed_by_zlib(0x8 | Compression.LZ4) == 0x309
    assert [sys_flag.is_zlib(1 | method) for method in Compression] == [True, False, False, True]
