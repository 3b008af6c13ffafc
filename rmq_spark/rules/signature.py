"""How Apache's RocketMQ 5 clients sign their requests: the header `authorization`."""

from __future__ import annotations

import hmac

from rmq_spark.rules.acl import User


def sign(secret: str, date_time: str) -> str:
    """The signature that Apache's clients send: HMAC-SHA1 over the header `x-mq-date-time`, in hexadecimal."""
    return hmac.new(secret.encode(), date_time.encode(), "sha1").hexdigest()


def credential(authorization: str) -> tuple[str, str] | None:
    """User name and signature of an `authorization` header; None if it is not one of RocketMQ 5's.

    `MQv2-HMAC-SHA1 Credential=USER[/...], [Region..., ]SignedHeaders=x-mq-date-time, Signature=HEX`; Java's client
    writes the digits in capitals, Python's in small letters.
    """
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != "MQv2-HMAC-SHA1":
        return None
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    user, signature = parts.get("Credential", "").split("/")[0], parts.get("Signature", "")
    return (user, signature) if user and signature else None


def is_signed_by(user: User, signature: str, date_time: str) -> bool:
    """Whether a signature is the user's; takes the same time whatever is wrong with it."""
    return hmac.compare_digest(sign(user.secret, date_time).encode(), signature.lower().encode())
