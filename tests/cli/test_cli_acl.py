"""`rmq acl`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import Run, call

from rmq_spark.cli import acl
from rmq_spark.client.acl import Acl
from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError


@pytest.fixture
def alice(run: Run, store: Path) -> None:
    run("acl", "user", "add", "alice", "--secret-file", "-", stdin="secret-of-alice\n")


def secret(store: Path, user: str) -> str:
    with Store.open(str(store), read_only=True) as opened:
        return Acl(opened).access_list().users[user].secret


def test_a_made_secret_is_shown_once_and_never_listed(run: Run, store: Path) -> None:
    made = run("acl", "user", "add", "bob", "--json").json["secret"]
    assert len(made) >= 32
    assert made == secret(store, "bob")
    listed = run("acl", "user", "list")
    assert "bob" in listed.out
    assert made not in listed.out + run("acl", "user", "list", "--json").out


def test_a_secret_that_cannot_be_read_is_told(
    run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe secret")
    refused = call("acl", "user", "add", "eve", "--secret-file", str(binary), "--store", store)
    assert (refused.code, "UTF-8" in refused.err) == (2, True)
    monkeypatch.setattr(acl.sys, "stdin", None)  # as a service has it
    with pytest.raises(InvalidRequestError, match="standard input"):
        acl._read_secret("-")


def test_a_secret_comes_from_standard_input_or_a_file(run: Run, store: Path, alice: None, tmp_path: Path) -> None:
    assert secret(store, "alice") == "secret-of-alice"
    file = tmp_path / "secret"
    file.write_text("another secret\n")
    run("acl", "user", "update", "alice", "--secret-file", str(file))
    assert secret(store, "alice") == "another secret"


def test_users_are_updated_and_deleted_with_their_policies(run: Run, alice: None) -> None:
    run("acl", "user", "update", "alice", "--super", "--disable")
    assert run("acl", "user", "list", "--json").json == {
        "enabled": False,
        "users": [{"user": "alice", "super": True, "enabled": False}],
    }
    run("acl", "policy", "add", "alice", "Topic:orders*", "pub", "Sub")
    assert run("acl", "user", "delete", "alice", "--yes", "--json").json == {"user": "alice", "deleted": True}
    assert run("acl", "policy", "list", "--json").json == []


def test_a_user_is_not_deleted_without_consent(run: Run, store: Path, alice: None) -> None:
    refused = call("acl", "user", "delete", "alice", "--store", store)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert "alice" in run("acl", "user", "list").out


def test_policies_are_added_listed_and_deleted(run: Run, alice: None) -> None:
    added = run(
        "acl", "policy", "add", "alice", "Group:billing", "Sub", "--deny", "--source-ip", "10.0.0.0/8", "--json"
    )
    entry = {
        "user": "alice",
        "resource": "Group:billing",
        "effect": "Deny",
        "actions": ["Sub"],
        "sourceIps": ["10.0.0.0/8"],
    }
    assert added.json == entry
    assert run("acl", "policy", "list", "alice", "--json").json == [entry]
    run("acl", "policy", "delete", "alice", "Group:billing")
    assert run("acl", "policy", "list", "--json").json == []


def test_access_control_is_turned_on_and_off(run: Run, alice: None) -> None:
    assert run("acl", "on", "--json").json == {"enabled": True}
    assert "access control is on" in run("acl", "user", "list").out
    assert run("acl", "off", "--json").json == {"enabled": False}
    assert "access control is off" in run("acl", "user", "list").out


def test_access_control_is_not_turned_on_without_a_user(store: Path) -> None:
    refused = call("acl", "on", "--store", store)
    assert refused.code == 2
    assert "add a user first" in refused.err
