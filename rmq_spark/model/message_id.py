"""RocketMQ's two message ids: the producer's UNIQ_KEY and the broker's offset id."""

from __future__ import annotations

import os
import socket
import struct
import threading
from datetime import UTC, datetime

from rmq_spark.clock import Clock
from rmq_spark.errors import InvalidRequestError


class UniqueIds:
    """Draws UNIQ_KEYs of RocketMQ 4.x's layout: ip(4) pid(2) salt(4) ms-of-month(4) counter(2), in hex.

    Where RocketMQ puts a class loader's hash there is a random salt, so that two processes with the same
    pid behind one address still differ. Ids of one process and month sort by time, which lets the log prune by range.
    The counter is 16 bits a millisecond; when it wraps within one, time is borrowed from the next.
    """

    def __init__(self, clock: Clock, address: str | None = None) -> None:
        self._clock = clock
        packed = socket.inet_aton(address or own_address())
        self._process = (packed + struct.pack(">H", os.getpid() & 0xFFFF)).hex().upper()
        self._prefix = ""
        self._lock = threading.Lock()
        self._tick = -1
        self._count = 0
        self._month_start_ms = 0
        self._month_end_ms = 0

    def draw(self, count: int = 1) -> list[str]:
        """Return `count` ids that nobody else has drawn, ascending."""
        prefix, start = self.reserve(count)
        return [f"{prefix}{number & 0xFFFFFFFFFFFF:012X}" for number in range(start, start + count)]

    def reserve(self, count: int) -> tuple[str, int]:
        """Reserve `count` ids without writing them out: the first 20 digits of all of them, and the first number.

        An id is those digits and 12 more: the low 48 bits of its number, numbers being consecutive.
        """
        with self._lock:
            now = self._ms_of_month()
            if now > self._tick:
                self._tick, self._count = now, 0
            start = self._tick * 65_536 + self._count
            last = start + count
            self._tick, self._count = last >> 16, last & 0xFFFF
        return self._prefix, start

    def _ms_of_month(self) -> int:
        now = self._clock.now_ms()
        if not self._month_start_ms <= now < self._month_end_ms:
            day = datetime.fromtimestamp(now / 1000, UTC)
            start = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
            self._month_start_ms = int(start.timestamp() * 1000)
            self._month_end_ms = int(after.timestamp() * 1000)
            # Numbers start low again in each month, so each gets a salt of its own: a process lives for more than one,
            # and a clock that was wrong comes back to one that it was in.
            self._tick = -1
            self._prefix = self._process + self._clock.token()[-8:].upper()
        return now - self._month_start_ms


def own_address() -> str:
    """This machine's IPv4 address as its host name resolves, or loopback."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        # No resolvable host name is normal in containers; the id stays unique through its salt.
        return "127.0.0.1"


def offset_id(address: str, port: int, commit_offset: int) -> str:
    """RocketMQ's offsetMsgId: address, port and commit-log offset in upper-case hex."""
    return (socket.inet_aton(address) + struct.pack(">iq", port, commit_offset)).hex().upper()


def parse_offset_id(text: str) -> tuple[str, int, int]:
    """Return (address, port, commit-log offset) of an offsetMsgId.

    Raises:
        InvalidRequestError: not 32 hex digits.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise InvalidRequestError("an offset message id is 32 hex digits", id=text) from error
    if len(raw) != 16:
        raise InvalidRequestError("an offset message id is 32 hex digits", id=text)
    port, offset = struct.unpack(">iq", raw[4:])
    return socket.inet_ntoa(raw[:4]), port, offset
