"""The machine before each run: nothing left to be written, and little memory that nobody uses.

Some peers wait for the disk and some do not: one that waits must not wait for the bytes of the others. And on a virtual
machine, memory that is free may go back to the host, and whoever uses it next waits for it, much longer than for the
disk. A machine that has been up for a while has its memory full of files; so has this one, then.
"""

import os
import tempfile
from functools import cache

FREE_BYTES = 1_500_000_000
"""What is left free: enough for what a run asks for itself."""
_STEP = 1 << 20
_MEMORY = "/proc/meminfo"


class Settler:
    """Calls bring the machine into that state; what fills the memory is a file without content."""

    def __init__(self):
        self._memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._file = tempfile.TemporaryFile(dir=os.environ.get("RMQ_BENCH_DIR"))  # noqa: SIM115
        self._file.truncate(2 * self._memory)
        self._at = 0

    def __call__(self):
        os.sync()
        target = bytearray(_STEP)
        for _ in range(self._memory // _STEP):
            if free_bytes() <= FREE_BYTES:
                break
            os.preadv(self._file.fileno(), [target], self._at)
            self._at = (self._at + _STEP) % (2 * self._memory)


@cache
def settler():
    """One for a whole benchmark: what fills the memory goes with it, and takes a while to come back."""
    return Settler()


def free_bytes():
    """Memory that nothing is in, not even a file's content; 0 where only Linux would know."""
    if not os.path.exists(_MEMORY):
        return 0
    with open(_MEMORY) as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemFree:")) * 1024
