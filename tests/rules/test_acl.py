"""Access control: which policy decides, what the log keeps, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rmq_spark import ExistsError, InvalidRequestError, NotFoundError, RmqError, Store
from rmq_spark.client.acl import Acl
from rmq_spark.client.store import append_records
from rmq_spark.log.undo import Journal
from rmq_spark.rules.acl import AccessControl, Action, ResourceType, User, Wanted, parse_actions
from rmq_spark.storage.memory import MemoryStorage

PUB = frozenset({Action.PUB})
SUB = frozenset({Action.SUB})


@pytest.fixture
def store() -> Iterator[Store]:
    try:
        with Store.create("memory://acl") as made:
            yield made
    finally:
        MemoryStorage.forget("acl")


@pytest.fixture
def acl(store: Store) -> Acl:
    acl = Acl(store)
    acl.add_user("alice", "secret-of-alice")
    return acl


def may(acl: Acl, resource: str, action: Action, source_ip: str | None = None, user: str = "alice") -> bool:
    kind, _, name = resource.partition(":")
    known = acl.access_list()
    wanted = Wanted(ResourceType(kind), name, frozenset({action}))
    return known.denied(known.users[user], [wanted], source_ip) is None


def test_what_no_policy_matches_is_denied(acl: Acl) -> None:
    assert not may(acl, "Topic:orders", Action.PUB)
    acl.add_policy("alice", "Topic:orders", ["Pub"])
    assert may(acl, "Topic:orders", Action.PUB)
    assert not may(acl, "Topic:orders", Action.SUB)
    assert not may(acl, "Topic:orders2", Action.PUB)
    assert not may(acl, "Group:orders", Action.PUB)
    acl.add_user("bob", "secret-of-bob")
    assert not may(acl, "Topic:orders", Action.PUB, user="bob")


@pytest.mark.parametrize(
    ("policies", "allowed"),
    [
        ([("*", "Allow")], True),
        ([("*", "Allow"), ("or*", "Deny")], False),
        ([("*", "Deny"), ("or*", "Allow")], True),
        ([("or*", "Allow"), ("orders*", "Deny")], False),
        ([("or*", "Deny"), ("orders*", "Allow")], True),
        ([("orders*", "Deny"), ("orders", "Allow")], True),
        ([("orders*", "Allow"), ("orders", "Deny")], False),
        ([("other", "Deny"), ("*", "Allow")], True),
    ],
)
def test_the_most_specific_policy_decides(acl: Acl, policies: list[tuple[str, str]], allowed: bool) -> None:
    for name, effect in policies:
        acl.add_policy("alice", f"Topic:{name}", ["Pub"], effect=effect)
    assert may(acl, "Topic:orders", Action.PUB) is allowed


def test_a_policy_about_other_actions_does_not_decide(acl: Acl) -> None:
    acl.add_policy("alice", "Topic:*", ["All"])
    acl.add_policy("alice", "Topic:orders", ["Sub"], effect="Deny")
    assert may(acl, "Topic:orders", Action.PUB)
    assert not may(acl, "Topic:orders", Action.SUB)


def test_any_of_several_actions_is_enough(acl: Acl) -> None:
    acl.add_policy("alice", "Topic:orders", ["Sub"])
    known = acl.access_list()
    wanted = Wanted(ResourceType.TOPIC, "orders", PUB | SUB)
    assert known.denied(known.users["alice"], [wanted]) is None


def test_every_right_of_a_request_is_needed_and_the_first_missing_one_is_named(acl: Acl) -> None:
    acl.add_policy("alice", "Topic:orders", ["Sub"])
    wanted = [Wanted(ResourceType.TOPIC, "orders", SUB), Wanted(ResourceType.GROUP, "billing", SUB)]
    known = acl.access_list()
    denied = known.denied(known.users["alice"], wanted)
    assert denied is wanted[1]
    assert str(denied) == "Sub on Group:billing"


@pytest.mark.parametrize(
    ("source_ip", "allowed"),
    [
        ("10.1.2.3", True),
        ("11.0.0.1", False),
        ("192.168.0.7", True),
        ("192.168.0.8", False),
        ("::1", False),
        (None, False),
    ],
)
def test_a_policy_may_hold_for_some_addresses_only(acl: Acl, source_ip: str | None, allowed: bool) -> None:
    acl.add_policy("alice", "Topic:orders", ["Pub"], source_ips=["10.0.0.0/8", "192.168.0.7"])
    assert may(acl, "Topic:orders", Action.PUB, source_ip) is allowed


def test_a_super_user_may_do_everything(acl: Acl) -> None:
    acl.add_policy("alice", "Topic:*", ["All"], effect="Deny")
    acl.update_user("alice", is_super=True)
    assert may(acl, "Topic:orders", Action.PUB)


def test_admin_stands_for_what_is_done_to_topics_and_groups_themselves() -> None:
    assert parse_actions(["admin"]) == set(Action) - PUB - SUB
    assert parse_actions(["PUB", "sub", "Admin"]) == parse_actions(["all"]) == set(Action)


def test_a_new_store_checks_nothing_until_it_is_turned_on(store: Store) -> None:
    acl = Acl(store)
    assert not acl.enabled
    with pytest.raises(InvalidRequestError, match="add a user first"):
        acl.turn_on()
    acl.add_user("alice", "secret-of-alice")
    acl.turn_on()
    assert acl.enabled
    acl.turn_off()
    assert not acl.enabled
    assert [user.name for user in acl.users()] == ["alice"]


def test_policies_go_with_their_user_and_do_not_come_back_with_its_name(acl: Acl) -> None:
    acl.add_policy("alice", "Topic:orders", ["Pub"])
    acl.delete_user("alice")
    assert acl.policies() == []
    acl.add_user("alice", "another secret")
    assert not may(acl, "Topic:orders", Action.PUB)


def test_a_user_has_one_policy_for_a_resource(acl: Acl) -> None:
    acl.add_policy("alice", "Topic:orders", ["Pub"])
    acl.add_policy("alice", "topic:orders", ["Sub"])
    assert [policy.actions for policy in acl.policies("alice")] == [SUB]
    acl.delete_policy("alice", "Topic:orders")
    assert acl.policies("alice") == []


def test_the_fold_is_the_same_after_a_snapshot(store: Store, acl: Acl) -> None:
    acl.add_policy("alice", "Topic:a*", ["Pub"], source_ips=["10.0.0.0/8"])
    acl.update_user("alice", enabled=False)
    acl.add_user("root", "secret-of-root", is_super=True)
    acl.turn_on()
    fold = store.nameserver.refresh().state.fold(AccessControl)
    other = AccessControl(Journal())
    other.load(json.loads(json.dumps(fold.dump())), AccessControl.version)
    assert other.access_list() == fold.access_list() == acl.access_list()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda acl: acl.add_user("alice", "secret-of-alice"), ExistsError),
        (lambda acl: acl.add_user("a,b", "long enough"), InvalidRequestError),
        (lambda acl: acl.add_user("bob", "short"), InvalidRequestError),
        (lambda acl: acl.update_user("alice", secret="short"), InvalidRequestError),
        (lambda acl: acl.update_user("bob", enabled=False), NotFoundError),
        (lambda acl: acl.delete_user("bob"), NotFoundError),
        (lambda acl: acl.policies("bob"), NotFoundError),
        (lambda acl: acl.add_policy("bob", "Topic:t", ["Pub"]), NotFoundError),
        (lambda acl: acl.add_policy("alice", "orders", ["Pub"]), InvalidRequestError),
        (lambda acl: acl.add_policy("alice", "Queue:orders", ["Pub"]), InvalidRequestError),
        (lambda acl: acl.add_policy("alice", "Topic:", ["Pub"]), InvalidRequestError),
        (lambda acl: acl.add_policy("alice", "Topic:a*b", ["Pub"]), InvalidRequestError),
        (lambda acl: acl.add_policy("alice", "Topic:t", ["Fly"]), InvalidRequestError),
        (lambda acl: acl.add_policy("alice", "Topic:t", []), InvalidRequestError),
        (lambda acl: acl.add_policy("alice", "Topic:t", ["Pub"], effect="Maybe"), InvalidRequestError),
        (lambda acl: acl.add_policy("alice", "Topic:t", ["Pub"], source_ips=["here"]), InvalidRequestError),
        (lambda acl: acl.delete_policy("alice", "Topic:t"), NotFoundError),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(acl: Acl, call: object, error: type[RmqError]) -> None:
    before = acl.access_list()
    with pytest.raises(error) as raised:
        call(acl)  # type: ignore[operator]
    assert acl.access_list() == before
    assert "secret-of-alice" not in str(raised.value)
    assert "short" not in str(raised.value).replace("too short", "")


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "other"},
        {"kind": "user", "user": "bob"},
        {"kind": "user", "user": "bob", "secret": "not base64!", "super": False, "enabled": True},
        {
            "kind": "policy",
            "user": "alice",
            "resource": "Topic:t",
            "actions": ["Fly"],
            "effect": "Allow",
            "sourceIps": [],
        },
    ],
)
def test_a_record_that_could_not_be_read_back_is_refused(store: Store, record: dict[str, object]) -> None:
    with pytest.raises(RmqError):
        append_records(store.nameserver, AccessControl, record)
    assert Acl(store).users() == []


def test_secrets_are_not_shown_by_accident(store: Store, acl: Acl) -> None:
    assert "secret-of-alice" not in repr(acl.users())
    assert "secret-of-alice" not in repr(acl.access_list())
    assert repr(User("bob", "hidden")) == "User(name='bob', is_super=False, enabled=True)"
    record = store.nameserver.refresh().state.fold(AccessControl).dump()
    assert "secret-of-alice" not in json.dumps(record)
    # Readers of topics look into brokers' logs; the record is in the nameserver's.
    assert [batch.num_rows for batch in store.scan("rmq_sys_acl")] == []
