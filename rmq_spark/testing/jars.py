"""Java archives that tests and benchmarks need, fetched once, pinned by version and checksum.

pyspark ships Ivy, so a machine with Python and Java needs no build tool. To fetch beforehand:
`python -m rmq_spark.testing.jars hdfs`. Every set is one row of `JAR_SETS`, and complete or absent: it is
fetched into a scratch directory, checked against the pinned checksums, and renamed into the cache
(`$RMQ_CACHE` or `~/.cache/rmq-spark`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rmq_spark.errors import CorruptDataError, InvalidRequestError, MissingExtraError, UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """Jars that are fetched and used together."""

    coordinates: Sequence[str]
    """What to resolve, each as `group:artifact:version`."""
    transitive: bool = False
    """Whether their dependencies are fetched too."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Checksum per file name. Of a non-transitive set every file must be here; of a transitive set those
    that are here are checked, and they must all have come."""

    @property
    def directory(self) -> str:
        """The name of the set's directory in the cache; a new version gets a new one."""
        digest = hashlib.sha256("\n".join((*self.coordinates, str(self.transitive))).encode()).hexdigest()
        first = self.coordinates[0].split(":")
        return f"{first[1]}-{first[2]}-{digest[:8]}"


_MINICLUSTER_SHA256: Final = "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"

JAR_SETS: Final[dict[str, JarSet]] = {
    "hdfs": JarSet(
        coordinates=["org.apache.hadoop:hadoop-client-minicluster:3.5.0"],
        sha256={"hadoop-client-minicluster-3.5.0.jar": _MINICLUSTER_SHA256},
    ),
    # What the filter oracle really loads: the SQL92 module, the tag parser (in remoting), and their helpers.
    "rocketmq-filter": JarSet(
        coordinates=[
            "org.apache.rocketmq:rocketmq-filter:5.5.0",
            "org.apache.rocketmq:rocketmq-remoting:5.5.0",
            "com.google.guava:guava:32.0.1-jre",
            "org.apache.commons:commons-lang3:3.20.0",
        ],
        sha256={
            "rocketmq-filter-5.5.0.jar": "cbc3c072981d9cd22da0c569bc0f0ab2fc2545cf3f8452aaecfe45828bb4107b",
            "rocketmq-remoting-5.5.0.jar": "1273e2c5cd49692ac954f36a40251c7c89cbb7c5093a66bfcfbce7ce597dfd95",
            "guava-32.0.1-jre.jar": "bd7fa227591fb8509677d0d1122cf95158f3b8a9f45653f58281d879f6dc48c5",
            "commons-lang3-3.20.0.jar": "69e5c9fa35da7a51a5fd2099dfe56a2d8d32cf233e2f6d770e796146440263f4",
        },
    ),
}
"""Every known set; add a row to get another."""


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
    if name not in JAR_SETS:
        raise InvalidRequestError(f"no jar set is called {name!r}; known: {', '.join(sorted(JAR_SETS))}")
    jars = JAR_SETS[name]
    target = cache_root() / "jars" / jars.directory
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            fetched = Path(scratch) / "lib"
            fetched.mkdir()
            for coordinate in jars.coordinates:
                _resolve(coordinate, jars.transitive, Path(scratch), fetched)
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
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise UnavailableError("no java found; install Java 17 and set JAVA_HOME or PATH", java_home=home)
    return found


def _resolve(coordinate: str, transitive: bool, scratch: Path, target: Path) -> None:
    ivy = sorted(pyspark_jars().glob("ivy-*.jar"))
    if not ivy:
        raise UnavailableError("the installed pyspark has no Ivy jar; install pyspark 4.2", jars=str(pyspark_jars()))
    # Ivy trusts a POM in the home directory's Maven cache and then fails when the jar is not beside it:
    # give it an empty home.
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    command = [java_command(), f"-Duser.home={home}", "-jar", str(ivy[-1]), "-cache", str(scratch / "ivy")]
    command += ["-types", "jar", "bundle"] + ([] if transitive else ["-notransitive"])
    command += ["-dependency", *coordinate.split(":")]
    command += ["-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not any(target.iterdir()):
        log = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise UnavailableError(f"could not fetch {coordinate}; the resolver said:\n{log}")


def _check(jars: JarSet, fetched: Path) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in fetched.glob("*.jar")}
    expected = dict(jars.sha256)
    wrong = {name: found.get(name) for name, digest in expected.items() if found.get(name) != digest}
    foreign = set() if jars.transitive else set(found) - set(expected)
    if wrong or foreign:
        raise CorruptDataError(
            "fetched jars differ from the pinned ones; nothing was kept",
            wrong=wrong,
            expected={name: expected[name] for name in wrong},
            unpinned=sorted(foreign),
        )


def main(arguments: Sequence[str]) -> int:
    """Fetch the named sets (all if none is named) and print where each file is."""
    for name in arguments or sorted(JAR_SETS):
        for path in ensure_jars(name):
            sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
