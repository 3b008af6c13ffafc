"""A real file system that is small enough to be filled, for tests of full disks."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a file system of `size_bytes` at `place` (created); skips the test where mounting is not permitted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> None:
    """Write a file `junk` until there is not one free block."""
    with (place / "junk").open("wb", buffering=0) as file:
        for size in (1024 * 1024, 4096, 1):
            while True:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break


def free_bytes(place: Path) -> int:
    """How much of the file system is free."""
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize
