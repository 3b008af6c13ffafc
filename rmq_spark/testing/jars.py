"""Java archives that tests, jobs and benchmarks need, fetched once, pinned by version and checksum.

pyspark ships Ivy, so a machine with Python and Java needs no build tool. The sets stand in `jars.lock` beside this
file: `hdfs`, `rocketmq-filter`, `delta` (for sessions with delta-spark), `spark-kafka` (Spark's connector) and `kafka`
(a broker). A set is complete or absent: it is fetched into a scratch directory, checked against the pinned
checksums, and renamed into the cache (`$RMQ_CACHE` or `~/.cache/rmq-spark`).

Fetch beforehand: `python -m rmq_spark.testing.jars hdfs delta`. A Spark session that needs a set takes its files with
`.config("spark.jars", ",".join(map(str, ensure_jars("delta"))))`, which fetches what the cache does not have.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rmq_spark.errors import CorruptDataError, InvalidRequestError, MissingExtraError, UnavailableError

LOCK_FILE: Final = Path(__file__).with_name("jars.lock")
"""Where the sets and their checksums are written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """Jars that are fetched and used together, dependencies included: nothing else is resolved."""

    name: str
    """What it is called in `jars.lock`."""
    sha256: Mapping[str, str]
    """Checksum of each jar by its coordinate `group:artifact:version`."""

    @property
    def directory(self) -> str:
        """The name of the set's directory in the cache; other pins get another one."""
        pins = "\n".join(f"{digest} {coordinate}" for coordinate, digest in sorted(self.sha256.items()))
        return f"{self.name}-{hashlib.sha256(pins.encode()).hexdigest()[:8]}"

    @property
    def files(self) -> dict[str, str]:
        """Checksum of each jar by its file name."""
        return {"{1}-{2}.jar".format(*coordinate.split(":")): digest for coordinate, digest in self.sha256.items()}


@cache
def jar_sets() -> dict[str, JarSet]:
    """Every known set by name, as `jars.lock` lists them.

    Raises:
        CorruptDataError: a line of the file is neither a `[set]`, a pin nor a comment.
    """
    pins: dict[str, dict[str, str]] = {}
    for line in LOCK_FILE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        section = re.fullmatch(r"\[([a-z-]+)\]", line)
        pin = re.fullmatch(r"([0-9a-f]{64})  ([^:\s]+:[^:\s]+:[^:\s]+)", line)
        if section:
            pins[section[1]] = {}
        elif pin and pins:
            pins[next(reversed(pins))][pin[2]] = pin[1]
        else:
            raise CorruptDataError("jars.lock has a line that is no pin", file=str(LOCK_FILE), line=line)
    return {name: JarSet(name=name, sha256=jars) for name, jars in pins.items()}


def cache_root() -> Path:
    """Where fetched files are kept between runs."""
    configured = os.environ.get("RMQ_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "rmq-spark"


def pyspark_jars() -> Path:
    """The directory of the jars inside the installed pyspark (Hadoop's client, Ivy, Scala).

    Raises:
        MissingExtraError: pyspark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtraError('pyspark is not installed; run: pip install "rmq-spark[spark]"')
    return Path(spec.origin).parent / "jars"


def ensure_jars(name: str) -> list[Path]:
    """Return the files of the set `name`, fetching them if the cache does not have them.

    Two processes may fetch at the same time; one of the results is kept, both are the same.

    Raises:
        InvalidRequestError: there is no such set.
        UnavailableError: the resolver failed; its output is in the message.
        CorruptDataError: a fetched file has another checksum than the pinned one; nothing was kept.
    """
    if name not in jar_sets():
        raise InvalidRequestError(f"no jar set is called {name!r}; known: {', '.join(sorted(jar_sets()))}")
    jars = jar_sets()[name]
    target = cache_root() / "jars" / jars.directory
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            fetched = Path(scratch) / "lib"
            _resolve(jars, Path(scratch), fetched)
            _check(jars, fetched)
            try:
                fetched.rename(target)
            except OSError:
                # Another process was first; a directory with content is never replaced by rename.
                if not target.is_dir():
                    raise
    return sorted(target.glob("*.jar"))


def java_command() -> str:
    """The `java` to run: `$JAVA_HOME/bin/java` if set, else the one on the path.

    Raises:
        UnavailableError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise UnavailableError("no java found; install Java 17 and set JAVA_HOME or PATH", java_home=home)
    return java


def _resolve(jars: JarSet, scratch: Path, target: Path) -> None:
    ivy = sorted(pyspark_jars().glob("ivy-*.jar"))
    if not ivy:
        raise UnavailableError("the installed pyspark has no Ivy jar; install pyspark 4.2", jars=str(pyspark_jars()))
    # Ivy trusts a POM in the home directory's Maven cache and then fails when the jar is not beside it:
    # give it an empty home.
    home = scratch / "home"
    for directory in (home, target):
        directory.mkdir()
    # One file for all, for each run of the resolver is a JVM.
    wanted = scratch / "ivy.xml"
    wanted.write_text(_ivy_file(jars))
    command = [java_command(), f"-Duser.home={home}", "-jar", str(ivy[-1]), "-cache", str(scratch / "ivy")]
    command += ["-types", "jar", "bundle", "-ivy", str(wanted), "-confs", "default"]
    command += ["-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not any(target.iterdir()):
        log = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise UnavailableError(f"could not fetch the jar set {jars.name}; the resolver said:\n{log}")


def _ivy_file(jars: JarSet) -> str:
    lines = [
        '<dependency org="{}" name="{}" rev="{}" conf="default->*" transitive="false"/>'.format(*coordinate.split(":"))
        for coordinate in jars.sha256
    ]
    return (
        f'<ivy-module version="2.0"><info organisation="rmq-spark" module="{jars.name}"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{"".join(lines)}</dependencies>'
        "</ivy-module>"
    )


def _check(jars: JarSet, fetched: Path) -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in fetched.glob("*.jar")}
    expected = jars.files
    wrong = {name: digests.get(name) for name, digest in expected.items() if digests.get(name) != digest}
    unpinned = set(digests) - set(expected)
    if wrong or unpinned:
        raise CorruptDataError(
            "fetched jars differ from the pinned ones; nothing was kept",
            wrong=wrong,
            expected={name: expected[name] for name in wrong},
            unpinned=sorted(unpinned),
        )


def main(arguments: Sequence[str]) -> int:
    """Fetch the named sets (all if none is named) and print where each file is."""
    for name in arguments or sorted(jar_sets()):
        for path in ensure_jars(name):
            sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
