"""`rmq` as a process of its own: what the runner cannot show."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run

RMQ = [sys.executable, "-m", "rmq_spark.cli.main"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def env(store: Path) -> dict[str, str]:
    return {**os.environ, "RMQ_STORE": str(store), "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0"}


def rmq(env: dict[str, str], *args: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([*RMQ, *args], env=env, capture_output="stdout" not in more, timeout=60, check=False, **more)


def read_terminal(fd: int) -> str:
    """Everything a process wrote to a pseudo-terminal whose other end is closed by now."""
    output = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:  # how Linux says that the other end is closed
            return output.decode()
        if not piece:
            return output.decode()
        output += piece


def test_a_session_of_commands_in_any_locale(env: dict[str, str]) -> None:
    sent = rmq(env, "--json", "send", "t", "--body", "zażółć \U0001f600")
    assert (sent.returncode, sent.stderr) == (0, b"")
    assert json.loads(sent.stdout)["queueOffset"] == 0
    shown = rmq(env, "read", "t", "--columns", "body")
    assert shown.stdout.decode() == "zażółć \U0001f600\n"
    failed = rmq(env, "read", "ü")
    assert (failed.returncode, failed.stdout) == (2, b"")
    assert failed.stderr.startswith(b"rmq: topic name has an illegal character")


def test_a_reader_that_goes_away_ends_it_quietly(env: dict[str, str], run: Run) -> None:
    assert run("send", "t", "--count", "20000").code == 0
    process = subprocess.Popen([*RMQ, "read", "t"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 141


def test_output_that_cannot_be_written_is_said(env: dict[str, str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "wb") as full:
        ran = rmq(env, "topic", "list", stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == 5
    assert ran.stderr.startswith(b"rmq: the output cannot be written (reason='No space left")
    assert ran.stderr.count(b"\n") == 1


def test_an_interrupt_ends_it_with_130_and_one_line(env: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*RMQ, "send", "t", "--batch", "1"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    commits = Path(env["RMQ_STORE"], "brokers/broker-0/commitlog")
    while not (commits.is_dir() and any(commits.glob("*.arrow"))):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert err.startswith(b"rmq: interrupted; ")
    assert err.endswith(b" messages were sent before\n")


def test_progress_is_for_terminals_and_never_on_stdout(env: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    ran = rmq(env, "send", "t", "--count", "30000", "--batch", "3000", "--json", stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = read_terminal(ours)
    os.close(ours)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["sent"] == 30_000
    assert "sending" in shown
    assert "of 30,000 messages" in shown


def test_tables_are_drawn_on_a_terminal(env: dict[str, str], run: Run) -> None:
    run("topic", "create", "t-1")
    ours, theirs = pty.openpty()
    ran = rmq({**env, "TERM": "xterm"}, "topic", "list", stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = read_terminal(ours)
    os.close(ours)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert "TOPIC" in shown
    assert "t-1" in shown
    assert "\x1b[" in shown


def test_debug_adds_the_traceback(env: dict[str, str], run: Run) -> None:
    ran = rmq({**env, "RMQ_DEBUG": "1"}, "topic", "show", "nothing")
    assert ran.returncode == 3
    assert ran.stderr.startswith(b"Traceback")
    assert ran.stderr.endswith(run("topic", "show", "nothing").err.encode())


def test_a_missing_extra_is_named(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no', name='typer')\n")
    ran = rmq({**env, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, "topic", "list")
    assert ran.returncode == 1
    assert ran.stderr == b'rmq: typer is not installed; run: pip install "rmq-spark[cli]"\n'


def test_an_interrupt_while_it_is_imported_is_one_line(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    ran = rmq({**env, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, "topic", "list")
    assert ran.returncode == 130
    assert ran.stderr == b"rmq: interrupted\n"


def test_it_loads_neither_spark_nor_grpc_nor_rich(env: dict[str, str]) -> None:
    code = (
        "import sys\nfrom rmq_spark.cli.app import run\n"
        "try:\n    run(['topic', 'list'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(sorted({'pyspark', 'grpc', 'rich', 'pandas'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=False)
    assert ran.stdout.endswith(b"[]\n"), ran


def test_the_shell_is_told_what_can_come_next(env: dict[str, str]) -> None:
    def ask(words: str, at: int) -> list[str]:
        asked = {**env, "_RMQ_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        ran = rmq(asked)
        assert (ran.returncode, ran.stderr) == (0, b"")
        return ran.stdout.decode().split()

    assert ask("rmq to", 1) == ["topic"]
    assert ask("rmq topic u", 2) == ["update"]
    assert "--from-offset" in ask("rmq read --f", 2)
    # Not the shell that the tests happen to run in, if there is one.
    named = {**env, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = rmq(named, "--show-completion", "bash")
    assert (script.returncode, script.stderr) == (0, b"")
    assert b"_RMQ_COMPLETE=complete_bash" in script.stdout


def test_version_and_help(run: Run) -> None:
    assert run("--version").out.startswith("rmq ")
    assert "130  interrupted" in run("--help").out
    assert "--from-offset" in run("read", "-h").out


def test_no_command_imports_pandas(tmp_path: Path) -> None:
    """It takes longer than most commands do, and pyarrow imports it by itself wherever it is installed."""
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas was imported')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    store = str(tmp_path / "store")
    for arguments in (["init"], ["send", "t", "--count", "20"], ["query", "t", "--from", "1d"], ["read", "t"]):
        done = subprocess.run([*RMQ, "--store", store, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (arguments, done.stderr)
