"""What every job has: arguments, help with examples, a Spark session, progress on stderr, a documented exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from rmq_spark.cli import exits, output
from rmq_spark.cli.conf import STORE_VARIABLE, load_conf, store_uri
from rmq_spark.client.store import Store
from rmq_spark.errors import NotFoundError, RmqError
from rmq_spark.spark.table_engine import DELTA_SETTINGS
from rmq_spark.spark.table_tasks import Place
from rmq_spark.tables.lease import WAIT_MAX_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq_spark.model.settings import LogSettings

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""What Spark fetches when neither it nor `--delta-jars` has Delta's jars."""
_SHOW_EVERY_S: Final = 1.0


class Job:
    """One main: its arguments, then what they open."""

    def __init__(self, name: str, purpose: str, examples: Sequence[str], *, paced: str) -> None:
        """Make the parser; add arguments of your own to it.

        Args:
            name: of the module in `rmq_spark.jobs`, and of the file in `jobs/`.
            purpose: one sentence.
            examples: arguments for `--help` to show.
            paced: what `--continuous` waits for, as `--help` says it.
        """
        self.name = name
        lines = [f"  python -m rmq_spark.jobs.{name} {example}" for example in examples]
        lines.append(f"  spark-submit jobs/{name}.py {examples[0]}")
        self.parser = argparse.ArgumentParser(
            prog=f"python -m rmq_spark.jobs.{name}",
            description=purpose,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog="\n".join(["examples:", *lines, "", "exit codes:", exits.table()]),
        )
        add = self.parser.add_argument
        add("--store", metavar="URI", help=f"where the store is; otherwise {STORE_VARIABLE}")
        add("--conf", metavar="FILE", type=Path, help="TOML file with settings; see conf/store.toml")
        add("--json", action="store_true", help="write results as JSON, one line each")
        mode = self.parser.add_mutually_exclusive_group()
        mode.add_argument("--once", action="store_true", help="do what there is to do, and end; the default")
        mode.add_argument("--continuous", action="store_true", help=f"{paced}, until stopped by Ctrl-C or SIGTERM")
        add(
            "--interval",
            metavar="SECONDS",
            type=positive,
            default=10.0,
            help="continuous: least time from one to the next",
        )
        self._spark: SparkSession | None = None
        self.stopping = threading.Event()
        """Set when the job was asked to stop."""

    # ------------------------------------------------------------ running

    def run(self, work: Callable[[argparse.Namespace], None], arguments: Sequence[str] | None = None) -> int:
        """Parse arguments, call `work`, and return the exit code; every error becomes a line on stderr."""
        output.use_utf8()
        try:
            options = self.parser.parse_args(arguments)
            if options.continuous:
                self._stop_by_signals()
            work(options)
            output.finish()
        except SystemExit as ended:  # argparse: help, or wrong arguments
            return ended.code if isinstance(ended.code, int) else exits.USAGE
        except KeyboardInterrupt:
            self.say("interrupted")
            return exits.INTERRUPTED
        except BrokenPipeError:
            output.abandon_stdout()
            return exits.BROKEN_PIPE
        except RmqError as error:
            self.say(str(error))
            return exits.code_of(error)
        except Exception as error:  # noqa: BLE001 - the end of the line: every error gets its code here
            output.show_traceback(error)
            self.say(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            return exits.FAILED if isinstance(error, PySparkException) else exits.INTERNAL
        finally:
            if self._spark is not None:
                self._spark.stop()
        return exits.OK

    def _stop_by_signals(self) -> None:
        def stop(number: int, frame: FrameType | None) -> None:
            self.stopping.set()

        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, stop)

    def again(self, options: argparse.Namespace, work: Callable[[], None]) -> None:
        """Call `work` once, or with `--continuous` each `--interval` seconds until stopped."""
        while True:
            work()
            if not options.continuous or self.stopping.wait(options.interval):
                return

    # ------------------------------------------------------------ what arguments open

    def settings(self, options: argparse.Namespace) -> tuple[LogSettings, dict[str, str] | None]:
        """Settings and storage options of `--conf`.

        Raises:
            InvalidRequestError: as `load_conf`.
        """
        return load_conf(options.conf)

    def place(self, options: argparse.Namespace) -> Place:
        """The store as tasks reach it.

        Raises:
            InvalidRequestError: as `store_uri`.
        """
        uri = store_uri(options.store)
        uri = uri if "://" in uri else str(Path(uri).absolute())
        return Place(uri, tuple(sorted((self.settings(options)[1] or {}).items())))

    def open(self, options: argparse.Namespace, *, read_only: bool = False) -> Store:
        """The store.

        Raises:
            as `Store.open`.
        """
        place = self.place(options)
        settings, storage_options = self.settings(options)
        return Store.open(place.uri, settings=settings, options=storage_options, read_only=read_only, services="off")

    def session(self, *, delta_jars: Path | None = None, delta: bool = False) -> SparkSession:
        """The session of spark-submit, or a local one on all cores; with delta-spark if that is asked for.

        Raises:
            NotFoundError: `delta_jars` has no jars.
        """
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        spark_conf = SparkConf()
        wanted = {
            "spark.master": "local[*]",
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "WARN",
        }
        if delta:
            wanted |= DELTA_SETTINGS
            if delta_jars is not None:
                jars = sorted(str(path) for path in delta_jars.glob("*.jar"))
                if not jars:
                    raise NotFoundError(
                        "no jars there; `make jars` shows where it puts them", directory=str(delta_jars)
                    )
                wanted["spark.jars"] = ",".join(jars)
            elif "delta-spark" not in spark_conf.get("spark.jars", "") + spark_conf.get("spark.jars.packages", ""):
                wanted["spark.jars.packages"] = DELTA_PACKAGE
        settings: dict[str, Any] = {name: value for name, value in wanted.items() if not spark_conf.contains(name)}
        builder = SparkSession.builder.appName(f"rmq-spark {self.name}")
        self._spark = builder.config(map=settings).getOrCreate()
        return self._spark

    # ------------------------------------------------------------ showing

    def out(self, options: argparse.Namespace) -> output.Output:
        """Where results go; tables are plain columns, because drawing them would need the extra `cli`."""
        return output.Output(json=options.json, drawn=False)

    def say(self, text: str) -> None:
        """A line on stderr."""
        sys.stderr.write(f"{self.name}: {output.printable(text)}\n")
        sys.stderr.flush()

    def progress(self, unit: str) -> Callable[[int, int], None]:
        """A function that shows how far it is, once a second at most, and at the end."""
        began = shown = time.monotonic()

        def show(done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if total and done and (done >= total or now - shown >= _SHOW_EVERY_S):
                shown = now
                self.say(f"{done:,} of {total:,} {unit}, {done / max(now - began, 1e-3):,.0f}/s")

        return show


def positive(text: str) -> float:
    """An argument that is a time above zero."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than zero")
    return value


def at_least_one(text: str) -> int:
    """An argument that is a whole number above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def seconds(text: str) -> float:
    """An argument that is a time from 0 to a year; neither endless nor "not a number", which floats can be."""
    value = float(text)
    if not 0 <= value <= WAIT_MAX_S:
        raise argparse.ArgumentTypeError("must be from zero to a year")
    return value
