"""Put compiled modules into the archive of pyspark that Spark gives to its Python processes.

A pip-installed pyspark has itself once more in `python/lib/pyspark.zip`, and Spark puts that first on the path of every
Python process it starts. An archive of sources has nowhere to keep what was compiled, so each of these processes
compiles pyspark anew: about a second, and a query starts four of them before its first row. Two thirds of its entries
are pyspark's own tests, which nobody imports there, and each process reads the list of entries over and over (once for
each package that it has imported a part of): these are left out.

    python -m rmq_spark.spark.precompile

does it once, for the pyspark of this interpreter; again after an upgrade of pyspark or Python. `make setup` runs it.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path


def precompile(archive: Path) -> int:
    """Add the compiled form of every module in `archive` and leave out its tests.

    Return how many modules were compiled, 0 if all was done before.

    The archive is replaced in one step: a process that starts meanwhile sees the old one or the new one.

    Raises:
        OSError: it cannot be read or replaced.
    """
    with zipfile.ZipFile(archive) as old:
        wanted = [entry for entry in old.infolist() if "/tests/" not in entry.filename]
        sources = [entry.filename for entry in wanted if entry.filename.endswith(".py")]
        if len(wanted) == len(old.namelist()) and all(_is_current(old, name) for name in sources):
            return 0
        kept = [(entry, old.read(entry)) for entry in wanted if not entry.filename.endswith(".pyc")]
    handle, target = tempfile.mkstemp(dir=archive.parent, suffix=".zip")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
            for entry, data in kept:
                new.writestr(entry, data)
                if entry.filename.endswith(".py"):
                    # Stored as it is: reading it is all that is left to do.
                    new.writestr(entry.filename + "c", _compile(entry.filename, data), zipfile.ZIP_STORED)
        Path(target).chmod(archive.stat().st_mode)
        Path(target).replace(archive)
    except BaseException:
        Path(target).unlink(missing_ok=True)
        raise
    return len(sources)


def _is_current(archive: zipfile.ZipFile, name: str) -> bool:
    try:
        with archive.open(name + "c") as compiled:
            return compiled.read(4) == importlib.util.MAGIC_NUMBER
    except KeyError:
        return False


def _compile(name: str, source: bytes) -> bytes:
    """The compiled module. Unchecked: an archive's times depend on the time zone, so they would not match elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        module, compiled = Path(folder, "module.py"), Path(folder, "module.pyc")
        module.write_bytes(source)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(module), str(compiled), dfile=name, doraise=True, invalidation_mode=unchecked)
        return compiled.read_bytes()


def main() -> int:
    """Compile the archive of the installed pyspark."""
    import pyspark

    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    if not archive.exists():
        sys.stdout.write("this pyspark has no archive of itself: nothing to do\n")
        return 0
    count = precompile(archive)
    sys.stdout.write(f"compiled {count} modules of pyspark\n" if count else "pyspark is compiled already\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
