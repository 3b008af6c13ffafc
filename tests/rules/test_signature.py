"""Signatures as Apache's clients send them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rmq_spark.rules.acl import User
from rmq_spark.rules.signature import credential, is_signed_by, sign

ALICE = User("alice", "secret-of-alice")


def header(user: str, signature: str) -> str:
    return f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"


def test_a_header_of_the_python_client_is_read_and_its_signature_holds() -> None:
    from rocketmq.v5.util.signature import Signature

    keys = SimpleNamespace(ak="alice", sk="secret-of-alice")
    metadata = dict(Signature.metadata(SimpleNamespace(credentials=keys, namespace=""), "client"))
    read = credential(metadata["authorization"])
    assert read is not None
    user, signature = read
    assert user == "alice"
    assert is_signed_by(ALICE, signature, metadata["x-mq-date-time"])
    assert not is_signed_by(ALICE, signature, "20200101T000000Z")
    assert not is_signed_by(User("alice", "guessed"), signature, metadata["x-mq-date-time"])


def test_a_known_signature() -> None:
    # HMAC-SHA1 of RFC 2202, test case 2
    assert sign("Jefe", "what do ya want for nothing?") == "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"


def test_capital_digits_as_the_java_client_writes_them_hold() -> None:
    assert is_signed_by(ALICE, sign(ALICE.secret, "now").upper(), "now")


def test_java_writes_the_region_and_service_behind_the_user() -> None:
    assert credential(header("alice/cn-hangzhou/rocketmq", "ab")) == ("alice", "ab")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Basic YTpi",
        "MQv2-HMAC-SHA1",
        "MQv2-HMAC-SHA1 Credential=a",
        header("", "ab"),
        header("alice", ""),
        "MQv2-HMAC-SHA1 ,,=,",
    ],
)
def test_other_headers_are_none(text: str) -> None:
    assert credential(text) is None


def test_a_signature_that_is_no_hexadecimal_does_not_hold() -> None:
    assert not is_signed_by(ALICE, "ü" * 40, "now")
