"""Make the archive of pyspark that Spark gives to its Python processes a quick one to import from.

A pip-installed pyspark has itself once more in `python/lib/pyspark.zip`, and Spark puts that first on the path of every
Python process it starts. An archive of sources has nowhere to keep what was compiled, so each of these processes
compiles pyspark anew: about a second, and a query starts four of them before its first row. And each process reads the
archive's list of entries over and over, once for each package that it has imported a part of.

So the compiled modules are put into it, pyspark's own tests, two thirds of the entries, are left out, and its package
says that its parts are in the directory of the installed pyspark, as long as the archive lies in that directory.
Shipped to other machines, the archive is as complete as before. The archive of py4j beside it is compiled, too.

Where Python is told to write no bytecode (`PYTHONDONTWRITEBYTECODE`, as in many containers), a project used from
its sources is compiled anew in every process, too: so this project's own modules are compiled here as well.

    python -m rmq_spark.spark.precompile

does it once, for the pyspark of this interpreter; again after an upgrade of pyspark or Python. `make setup` runs it.
"""

from __future__ import annotations

import ast
import compileall
import importlib.util
import os
import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

_OWN: Final = ("rmq_spark", "pyspark_rocketmq")
_PACKAGE: Final = "pyspark/__init__.py"
_MARK: Final = b"# Added by rmq_spark.spark.precompile"
_REDIRECT: Final = (
    _MARK
    + b""": the installed pyspark around this archive has the same modules, and is read quicker.
import os.path as _path
_home = __file__
for _ in range(5):  # up from python/lib/pyspark.zip/pyspark/__init__.py
    _home = _path.dirname(_home)
if _path.isdir(_path.join(_home, "sql", "__pycache__")):  # else nothing is compiled there, and it may be read-only
    __path__[:] = [_home]
"""
)


def precompile(archive: Path) -> int:
    """Add the compiled form of every module in `archive`, leave out its tests, send importers to what is installed.

    Return how many modules were compiled, 0 if all was done before.

    The archive is replaced in one step: a process that starts meanwhile sees the old one or the new one.

    Raises:
        OSError: it cannot be read or replaced.
    """
    with zipfile.ZipFile(archive) as old:
        wanted = [entry for entry in old.infolist() if "/tests/" not in entry.filename]
        sources = [entry.filename for entry in wanted if entry.filename.endswith(".py")]
        sent_on = _PACKAGE not in sources or _MARK in old.read(_PACKAGE)
        if sent_on and len(wanted) == len(old.namelist()) and all(_is_current(old, name) for name in sources):
            return 0
        kept = [(entry, old.read(entry)) for entry in wanted if not entry.filename.endswith(".pyc")]
    handle, target = tempfile.mkstemp(dir=archive.parent, suffix=".zip")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
            for entry, source in kept:
                data = _redirected(source) if entry.filename == _PACKAGE else source
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


def _redirected(source: bytes) -> bytes:
    """The package's own module with the redirection behind its docstring and whatever else has to come first."""
    if _MARK in source:
        return source
    line = 0
    for node in ast.parse(source).body:
        first = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not first and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        line = node.end_lineno or 0
    lines = source.splitlines(keepends=True)
    return b"".join([*lines[:line], _REDIRECT, *lines[line:]])


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


def compile_own() -> bool:
    """Compile this project's modules where that was not done since they changed; False if some cannot be written."""
    specs = [importlib.util.find_spec(name) for name in _OWN]
    places = [place for spec in specs if spec is not None for place in spec.submodule_search_locations or ()]
    compiled = [compileall.compile_dir(place, quiet=2) for place in places]
    return all(compiled)


def main() -> int:
    """Compile the archives of the installed pyspark (itself, and py4j), and this project's own modules."""
    import pyspark

    if not compile_own():
        sys.stdout.write("some modules of rmq-spark could not be compiled: their directory cannot be written\n")
    archives = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("py*.zip"))
    if not archives:
        sys.stdout.write("this pyspark has no archive of itself: nothing to do\n")
    for archive in archives:
        count = precompile(archive)
        what = f"compiled {count} modules of" if count else "nothing to compile in"
        sys.stdout.write(f"{what} {archive.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
