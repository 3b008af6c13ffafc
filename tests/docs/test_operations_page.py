"""Every command of docs/operations.md runs, one block after the other, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_blocks import REPOSITORY, blocks, run_shell

from rmq_spark import Message, Producer, Store
from rmq_spark.storage.open import open_storage
from rmq_spark.testing.servers import s3_server

PAGE = REPOSITORY / "docs" / "operations.md"
SUBJECTS = {
    "Upkeep",
    "Sizing",
    "Several brokers",
    "Backup and restore",
    "Moving a store",
    "Full disk",
    "Damaged file",
    "Upgrade",
}


def test_every_subject_has_a_section() -> None:
    assert set(re.findall(r"^## (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)) == SUBJECTS


def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    shell = [code for language, code in blocks(PAGE) if language == "sh"]
    assert {language for language, _ in blocks(PAGE)} == {"sh", "text"}
    (tmp_path / "rmq").mkdir()
    printed = run_shell("".join(shell).replace("/var/lib/rmq", str(tmp_path / "rmq")), tmp_path)
    assert re.search(r"^broker-0 +NO", printed, re.MULTILINE), "the damage was not found"
    assert re.search(r"^broker-0 +yes", printed[printed.rindex("OK ") :], re.MULTILINE), "the file was not restored"


def test_the_lines_for_a_timer_are_commands_that_run(tmp_path: Path) -> None:
    (lines,) = [code for language, code in blocks(PAGE) if language == "text"]
    commands = [re.sub(r"^(\S+\s+){5}", "", line) for line in lines.splitlines()]
    assert len(commands) == 2
    store = str(tmp_path / "store")
    script = "\n".join([f"rmq init --store {store}", *commands])
    run_shell(script.replace("/var/lib/rmq/store", store), tmp_path)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_store_that_is_copied_into_a_bucket_goes_on_there(tmp_path: Path, flush: str) -> None:
    home = tmp_path / "store"
    run_shell(
        f"rmq init --store {home}; rmq send orders --count 50 --batch 10 --flush {flush} --store {home}", tmp_path
    )
    with s3_server() as server:
        bucket = open_storage(server.uri, options=server.options)
        for file in sorted(path for path in home.rglob("*") if path.is_file() and not path.name.startswith(".")):
            bucket.create_if_absent(file.relative_to(home).as_posix(), [file.read_bytes()])
        with Store.open(str(home)) as here, Store.open(server.uri, options=server.options) as there:
            assert there.info == here.info
            assert there.read("orders").equals(here.read("orders"))
            assert Producer(there).send(Message("orders", b"one more", queue_id=0)).queue_offset == (
                here.read("orders", queue=0).num_rows
            )
