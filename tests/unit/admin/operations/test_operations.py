"""Who may do what: every operation that changes something needs an operator, and leaves a line in the audit log."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from support.fake_operations import FakeOperations, operations_of_nothing
from support.manual_time import ManualTime
from tandemmq.admin.audit_log import Actor, AuditLog, Role
from tandemmq.admin.operations.operations import CHANGES, NotPermitted, OperationsDesk
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import (
    AclEntry,
    Client,
    Extent,
    GroupChange,
    MessagePage,
    MessageQuery,
    MessageSummary,
    Page,
    ResetTarget,
    TestMessage,
    TopicChange,
    TopicDetail,
    TopicSummary,
    TransactionPage,
    UserChange,
)
from tandemmq.core.audit.run_summary import Tier

_METHODS = {
    name: inspect.signature(method)
    for name, method in inspect.getmembers(operations_of_nothing(), callable)
    if not name.startswith("_")
}

# A call of each change, and what the audit log says of it beside who did it.
_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, str]]] = {
    "put_topic": (
        (TopicChange("fresh", read_queue_count=6, broker_names=("broker-a", "broker-b")),),
        {},
        {"action": "put_topic", "subject": "fresh", "read_queue_count": "6", "broker_names": "broker-a,broker-b"},
    ),
    "delete_topic": (("orders",), {}, {"action": "delete_topic", "subject": "orders"}),
    "put_group": (
        (GroupChange("billing", ordered=False, retry_max_times=3),),
        {},
        {"action": "put_group", "subject": "billing", "ordered": "false", "retry_max_times": "3"},
    ),
    "delete_group": (
        ("billing",),
        {"even_with_members": True},
        {"action": "delete_group", "subject": "billing", "even_with_members": "true"},
    ),
    "reset_offsets": (
        ("billing", "orders", ResetTarget(earliest=True)),
        {},
        {"action": "reset_offsets", "subject": "billing", "topic": "orders", "earliest": "true"},
    ),
    "send": (
        (TestMessage("orders", b"secret", tag="t", keys=("a", "b")),),
        {},
        {"action": "send_message", "subject": "orders", "body_bytes": "6", "tag": "t", "keys": "a,b"},
    ),
    "resend_dead_letters": (
        ("billing", "broker-a", [0, 7]),
        {},
        {
            "action": "resend_dead_letters",
            "subject": "billing",
            "broker_name": "broker-a",
            "queue_offsets": "0,7",
        },
    ),
    "resolve_transaction": (
        ("djE=", "commit"),
        {},
        {"action": "resolve_transaction", "subject": "djE=", "end": "commit"},
    ),
    "create_user": (
        (UserChange("fresh", "planted-secret", user_type="Super"),),
        {},
        {"action": "create_user", "subject": "fresh", "user_type": "Super"},
    ),
    "update_user": (
        (UserChange("billing", "planted-secret", user_status="disable"),),
        {},
        {"action": "update_user", "subject": "billing", "user_status": "disable", "new_password": "true"},
    ),
    "delete_user": (("billing",), {}, {"action": "delete_user", "subject": "billing"}),
    "put_acl": (
        ("User:billing", [AclEntry("Topic:orders", ("Pub", "Sub"), "Deny")]),
        {},
        {"action": "put_acl", "subject": "User:billing", "entries": "Deny Pub,Sub Topic:orders"},
    ),
    "delete_acl": (
        ("User:billing", ("Topic:orders",)),
        {"policy_type": "Default"},
        {"action": "delete_acl", "subject": "User:billing", "resources": "Topic:orders", "policy_type": "Default"},
    ),
    "copy_users": (
        ("broker-a", "broker-b", ("billing",)),
        {"only_acls": True},
        {"action": "copy_users", "subject": "broker-a to broker-b", "usernames": "billing", "only_acls": "true"},
    ),
    "command_client": (
        ("host@1", "verify-message"),
        {"broker_name": "broker-a", "topic": "orders", "queue_offset": 7},
        {
            "action": "command_client",
            "subject": "host@1",
            "command": "verify-message",
            "broker_name": "broker-a",
            "topic": "orders",
            "queue_offset": "7",
        },
    ),
    "restore_kept_tail": (
        ("broker-a:1", "00000000000000004096-1700000000000.log"),
        {"page_token": "second"},
        {"action": "restore_kept_tail", "subject": "broker-a:1 00000000000000004096-1700000000000.log"},
    ),
    "restore_records": (
        ("broker-a", [(0, b""), (9, b"")]),
        {},
        {"action": "restore_records", "subject": "broker-a", "records": "2"},
    ),
    "update_settings": (
        ("broker-a:0", {}),
        {},
        {"action": "update_settings", "subject": "broker-a:0", "settings": ""},
    ),
    "set_write_permission": (
        ("broker-a",),
        {"writable": False},
        {"action": "set_write_permission", "subject": "broker-a", "writable": "false"},
    ),
    "accept_loss": (
        ("broker-a",),
        {"names": ["d1", "d2"]},
        {"action": "accept_loss", "subject": "broker-a", "names": "d1,d2"},
    ),
    "verify": (
        (),
        {"tier": Tier.DEEP, "groups": ["broker-a"]},
        {"action": "verify", "subject": "deep", "groups": "broker-a"},
    ),
    "failover": (("broker-a",), {"to": 0}, {"action": "failover", "subject": "broker-a", "to": "0"}),
}


def _line(audit_log: AuditLog) -> dict[str, str]:
    (line,) = audit_log.lines()
    return dict(line.fields)


def _desk() -> OperationsDesk:
    return OperationsDesk(FakeOperations(), AuditLog(clock=ManualTime(), log=structlog.get_logger()))


def test_what_can_be_tried_dry_changes_something_and_a_message_is_sent_for_good() -> None:
    dry = {name for name, signature in _METHODS.items() if "dry_run" in signature.parameters}
    assert set(CHANGES) == dry | {"send", "command_client"} == set(_CALLS)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_the_line_of_a_change_is_made_of_its_arguments(name: str) -> None:
    of_method = [each.replace(annotation=each.empty) for each in _METHODS[name].parameters.values()]
    of_line = inspect.signature(CHANGES[name]).parameters.values()
    assert list(of_line) == [each for each in of_method if each.name != "dry_run"]


@pytest.mark.parametrize("name", sorted(_CALLS))
async def test_a_viewer_changes_nothing_and_the_log_says_who_tried_what(name: str) -> None:
    desk = _desk()
    arguments, options, said = _CALLS[name]
    with pytest.raises(NotPermitted):
        await getattr(desk.acting_as(Actor("eve", Role.VIEWER, "10.0.0.9")), name)(*arguments, **options)
    who = {"who": "eve", "role": "viewer", "address": "10.0.0.9"}
    end = {"dry_run": "false", "outcome": "refused: eve may look and not change"}
    assert list(_line(desk.audit_log).items()) == list((who | said | end).items())


@pytest.mark.parametrize("name", sorted(set(_CALLS) - {"send", "accept_loss", "command_client"}))
async def test_what_an_operator_does_is_done_and_recorded(name: str) -> None:
    desk = _desk()
    arguments, options, said = _CALLS[name]
    await getattr(desk.acting_as(Actor("ada", Role.OPERATOR)), name)(*arguments, **options, dry_run=True)
    who = {"who": "ada", "role": "operator", "address": ""}
    assert _line(desk.audit_log) == who | said | {"dry_run": "true", "outcome": "done"}


# A filter that names nothing.


class _Nothing:
    """Every list is empty; `orders` has the queues 0 and 1 on broker-a, and the group `billing` is there."""

    async def topic(self, name: str) -> TopicDetail:
        if name != "orders":
            raise OperationFailed(FailureKind.NOT_FOUND, f"there is no topic {name}")
        extents = [Extent("broker-a", queue_id, 0, 0, -1, -1) for queue_id in (0, 1)]
        return TopicDetail(TopicSummary(name, "topic", ()), extents, (), True, ())

    async def group(self, name: str) -> None:
        if name != "billing":
            raise OperationFailed(FailureKind.NOT_FOUND, f"there is no group {name}")

    async def clients(self, **_: object) -> Page[Client]:
        return Page((), 1, 200, 0)

    async def transactions(self, **_: object) -> TransactionPage:
        return TransactionPage((), 0, ())

    async def find(self, _: str, **__: object) -> list[MessageSummary]:
        return []

    async def search(self, _: MessageQuery) -> MessagePage:
        return MessagePage((), "", 0, ())


@pytest.fixture
def of_nothing() -> Any:
    operations: Any = operations_of_nothing()
    nothing = _Nothing()
    operations._topics = operations._groups = operations._transactions = operations._messages = nothing
    operations._search = nothing.search
    return operations


async def test_an_empty_list_of_what_is_there_is_an_answer(of_nothing: Any) -> None:
    assert (await of_nothing.clients(group="billing", topic="orders")).items == ()
    assert (await of_nothing.clients()).items == ()
    assert (await of_nothing.transactions(topic="orders")).transactions == ()
    assert await of_nothing.find_message("AB", topic="orders") == []
    assert (await of_nothing.search(MessageQuery("orders", broker_name="broker-a", queue_id=1))).messages == ()


async def test_an_empty_list_of_what_is_not_there_is_refused_by_its_name(of_nothing: Any) -> None:
    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "no group nope": lambda: of_nothing.clients(group="nope"),
        "no topic nope": lambda: of_nothing.clients(group="billing", topic="nope"),
        "no topic gone": lambda: of_nothing.transactions(topic="gone"),
        "no topic lost": lambda: of_nothing.find_message("AB", topic="lost"),
        "no queue 2": lambda: of_nothing.search(MessageQuery("orders", broker_name="broker-a", queue_id=2)),
    }
    for problem, ask in asked.items():
        with pytest.raises(OperationFailed, match=problem) as refused:
            await ask()
        assert refused.value.kind is FailureKind.NOT_FOUND
