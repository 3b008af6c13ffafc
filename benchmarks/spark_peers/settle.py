"""The machine before each run: nothing left to be written, and little memory that nobody uses.

Some peers wait for the disk and some do not: one that waits must not wait for the bytes of the others. And on a virtual
machine, memory that is free goes back to the host: whoever uses it next waits for it, seconds a gigabyte (write more
than is free of late, and see). A machine that has been up for a while has its memory full of files; so has this one.
"""

import os
import tempfile

FREE_BYTES = 1_500_000_000
_STEP = 1 << 20


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


def free_bytes():
    """Memory that nothing is in, not even a file's content."""
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemFree:")) * 1024
