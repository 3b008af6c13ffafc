"""Whole numbers as arguments."""

from __future__ import annotations

from rmq_spark.errors import InvalidRequestError


def check_whole(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return `value` if it is a whole number from `least` on, up to `most` if that is given.

    Raises:
        InvalidRequestError: it is not; `name` is the argument's.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise InvalidRequestError(f"{name} is a whole number {bounds}", **{name: value})
    return value
