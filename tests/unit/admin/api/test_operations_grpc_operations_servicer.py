"""ClusterOperationsService over calls in the test's hands, on a cluster in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog
from google.protobuf import text_format
from google.protobuf.message import Message
from pydantic import SecretStr

from support.fake_call import FakeCall
from support.fake_cluster import KEPT_TAIL, WAITS
from support.fake_operations import FakeOperations
from support.manual_time import ManualTime
from support.operations_samples import NOW_MS
from support.running_time import PATIENCE_S
from tandemmq.admin.api.access import Access, AccessRules
from tandemmq.admin.api.operations_grpc import OperationsServicer
from tandemmq.admin.audit_log import AuditLog, Role
from tandemmq.admin.operations.operations import OperationsDesk
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import MessageQuery, Unseen
from tandemmq.proto.admin.v1 import cluster_operations_service_pb2 as pb
from tandemmq.proto.admin.v1.broker_access_service_pb2 import AclEntry
from tandemmq.proto.admin.v1.broker_operations_service_pb2 import (
    CLIENT_COMMAND_PRINT_STACK,
    TRANSACTION_END_ROLLBACK,
)
from tandemmq.service.rpc import ServerStreamMethod, StatusCode, UnaryMethod

_GOLDEN = Path(__file__).with_name("operations_answers.txt")
_TOKEN = "correct-horse-battery"
_STRANGER = "ipv4:10.0.0.7:50000"


class _Call(FakeCall):
    """Calls are kept while they last."""

    __hash__ = object.__hash__

    async def ended(self) -> _Call:
        """Waits for the status."""
        async with asyncio.timeout(PATIENCE_S):
            while self.code is None:
                await asyncio.sleep(0)
        return self


class _Service:
    def __init__(self, *, local_role: Role = Role.OPERATOR) -> None:
        self.operations = FakeOperations()
        self.audit_log = AuditLog(clock=ManualTime(), log=structlog.get_logger())
        desk = OperationsDesk(self.operations, self.audit_log)
        self.servicer = OperationsServicer(desk, access=Access(SecretStr(_TOKEN), AccessRules(local_role=local_role)))
        self._methods = self.servicer.method_table().methods

    def begin(self, name: str, request: Message, call: _Call) -> _Call:
        method = self._methods[name]
        assert isinstance(method, UnaryMethod | ServerStreamMethod)
        assert method.request_type is type(request)
        method.handler(request, call)
        return call

    async def ask(self, name: str, request: Message, call: _Call | None = None) -> Any:
        """The one answer, or the call that ended without."""
        ended = await self.begin(name, request, call or _Call()).ended()
        return ended.sent[0] if ended.code is StatusCode.OK else ended

    @property
    def method_names(self) -> list[str]:
        return list(self._methods)


def test_every_method_of_the_contract_is_served() -> None:
    contract = pb.DESCRIPTOR.services_by_name["ClusterOperationsService"]
    assert sorted(_Service().method_names) == sorted(contract.methods_by_name)


_QUESTIONS: tuple[tuple[str, Message], ...] = (
    ("ListClusterTopics", pb.ListClusterTopicsRequest(search="o", page_size=2)),
    ("ListClusterTopics", pb.ListClusterTopicsRequest(categories=[pb.TOPIC_CATEGORY_DEAD_LETTER])),
    ("GetClusterTopic", pb.GetClusterTopicRequest(name="payments")),
    ("PutClusterTopic", pb.PutClusterTopicRequest(name="payments", read_queue_count=9, dry_run=True)),
    ("DeleteClusterTopic", pb.DeleteClusterTopicRequest(name="payments", dry_run=True)),
    ("ListClusterGroups", pb.ListClusterGroupsRequest(page_size=1)),
    ("GetClusterGroup", pb.GetClusterGroupRequest(name="billing")),
    ("PutClusterGroup", pb.PutClusterGroupRequest(name="billing", ordered=True, dry_run=True)),
    ("DeleteClusterGroup", pb.DeleteClusterGroupRequest(name="billing", even_with_members=True, dry_run=True)),
    ("ResetGroupOffsets", pb.ResetGroupOffsetsRequest(group="billing", topic="payments", latest=True, dry_run=True)),
    (
        "ResendGroupDeadLetters",
        pb.ResendGroupDeadLettersRequest(group="billing", broker_name="broker-a", queue_offsets=[0, 99], dry_run=True),
    ),
    ("ListClusterClients", pb.ListClusterClientsRequest(group="billing", limit=1)),
    ("SearchMessages", pb.SearchMessagesRequest(topic="orders", queue_id=1, page_size=1, body_bytes=4)),
    ("FindMessages", pb.FindMessagesRequest(message_id="nobody has it")),
    ("InspectMessage", pb.InspectMessageRequest(broker_name="broker-a", queue={"topic": "orders"}, body_bytes=8)),
    ("SendTestMessage", pb.SendTestMessageRequest(topic="orders", body=b"hi", keys=["k"])),
    ("GetBrokerSettings", pb.GetBrokerSettingsRequest(broker="broker-a:0")),
    ("UpdateBrokerSettings", pb.UpdateBrokerSettingsRequest(broker="broker-a:0", values={"fileReservedTime": "24"})),
    ("SetWritePermission", pb.SetWritePermissionRequest(broker_name="broker-a", dry_run=True)),
    ("ListClusterKeptTails", pb.ListClusterKeptTailsRequest()),
    ("RestoreKeptTail", pb.RestoreKeptTailRequest(broker="broker-a:1", name=KEPT_TAIL.name, dry_run=True)),
    (
        "RestoreKeptTail",
        pb.RestoreKeptTailRequest(broker="broker-a:1", name=KEPT_TAIL.name, page_token="second", dry_run=True),
    ),
    ("AcceptGroupLoss", pb.AcceptGroupLossRequest(broker_name="broker-b", dry_run=True)),
    ("FailOverGroup", pb.FailOverGroupRequest(broker_name="broker-a", to_broker_id=0)),
    ("FailOverGroup", pb.FailOverGroupRequest(broker_name="broker-a")),
    ("StartVerification", pb.StartVerificationRequest(tier="deep", groups=["broker-a"])),
    ("GetVerification", pb.GetVerificationRequest()),
    ("ListClusterEvents", pb.ListClusterEventsRequest(limit=3)),
    ("ListClusterLiteTopics", pb.ListClusterLiteTopicsRequest(topic="sessions", limit=1)),
    ("ListClusterTransactions", pb.ListClusterTransactionsRequest(limit=1)),
    (
        "ResolveClusterTransaction",
        pb.ResolveClusterTransactionRequest(transaction_id="djI=", end=TRANSACTION_END_ROLLBACK, dry_run=True),
    ),
    (
        "CommandClusterClient",
        pb.CommandClusterClientRequest(client_id="billing-7d9f@4711@1", command=CLIENT_COMMAND_PRINT_STACK),
    ),
    ("ListClusterUsers", pb.ListClusterUsersRequest(search="bill")),
    ("CreateClusterUser", pb.CreateClusterUserRequest(username="fresh", password="open sesame", user_type="Super")),
    ("UpdateClusterUser", pb.UpdateClusterUserRequest(username="fresh", user_status="disable")),
    (
        "PutClusterAcl",
        pb.PutClusterAclRequest(
            subject="User:fresh",
            entries=[
                AclEntry(resource="Topic:orders-*", actions=["Pub", "Sub"], source_ips=["10.0.0.0/8"], decision="Deny")
            ],
        ),
    ),
    ("ListClusterAcls", pb.ListClusterAclsRequest(subject="fresh")),
    ("DeleteClusterAcl", pb.DeleteClusterAclRequest(subject="User:fresh", resources=["Topic:orders-*"])),
    ("CopyClusterUsers", pb.CopyClusterUsersRequest(from_broker_name="broker-a", to_broker_name="broker-b")),
    ("DeleteClusterUser", pb.DeleteClusterUserRequest(username="fresh", dry_run=True)),
)


async def test_answers_say_what_they_always_said() -> None:
    service = _Service()
    service.operations.cluster.waits["broker-b"] = WAITS
    service.operations.unseen = (Unseen("broker-b:1", "does not answer"),)
    said = []
    for name, request in _QUESTIONS:
        answer = await service.ask(name, request)
        said.append(f"# {name} {text_format.MessageToString(request, as_one_line=True)}".rstrip())
        said.append(text_format.MessageToString(answer))
    assert {name for name, _ in _QUESTIONS} == set(service.method_names) - {"TailMessages"}
    assert "\n".join(said) == _GOLDEN.read_text()


async def test_topics_come_page_by_page() -> None:
    service = _Service()
    names, token, total = [], "", 0
    while True:
        answer = await service.ask("ListClusterTopics", pb.ListClusterTopicsRequest(page_size=3, page_token=token))
        names += [topic.name for topic in answer.topics]
        token, total = answer.next_page_token, answer.total_count
        if not token:
            break
    assert (len(names), names) == (total, sorted(names))
    dead = pb.ListClusterTopicsRequest(categories=[pb.TOPIC_CATEGORY_DEAD_LETTER])
    (topic,) = (await service.ask("ListClusterTopics", dead)).topics
    assert (topic.name, topic.category) == ("%DLQ%billing", pb.TOPIC_CATEGORY_DEAD_LETTER)


async def test_a_topic_is_made_shown_and_removed() -> None:
    service = _Service()
    change = pb.PutClusterTopicRequest(name="fresh", read_queue_count=6, write_queue_count=4, broker_names=["broker-a"])
    planned = pb.PutClusterTopicRequest(dry_run=True)
    planned.MergeFrom(change)
    assert (await service.ask("PutClusterTopic", planned)).report.dry_run
    assert (await service.ask("GetClusterTopic", pb.GetClusterTopicRequest(name="fresh"))).code is StatusCode.NOT_FOUND
    assert (await service.ask("PutClusterTopic", change)).report.changes
    (broker,) = (await service.ask("GetClusterTopic", pb.GetClusterTopicRequest(name="fresh"))).summary.brokers
    assert (broker.broker_name, broker.read_queue_count, broker.write_queue_count) == ("broker-a", 6, 4)
    assert (await service.ask("DeleteClusterTopic", pb.DeleteClusterTopicRequest(name="fresh"))).report.changes
    assert [line.fields["action"] for line in service.audit_log.lines()] == ["delete_topic", "put_topic", "put_topic"]


async def test_a_topic_is_whole() -> None:
    service = _Service()
    topic = await service.ask("GetClusterTopic", pb.GetClusterTopicRequest(name="orders"))
    value = await service.operations.topic("orders")
    assert [extent.queue.max_offset for extent in topic.extents] == [extent.max_offset for extent in value.extents]
    assert topic.extents[0].queue.newest_store_time.ToMilliseconds() == value.extents[0].newest_store_ms
    assert [route.name_server for route in topic.routes] == [route.name_server for route in value.routes]
    assert {progress.group for progress in topic.groups} == {progress.group for progress in value.groups}
    empty = await service.ask("GetClusterTopic", pb.GetClusterTopicRequest(name="never-used"))
    assert not empty.extents[0].queue.HasField("oldest_store_time")


async def test_groups_their_members_and_where_they_go_on() -> None:
    service = _Service()
    group = await service.ask("GetClusterGroup", pb.GetClusterGroupRequest(name="billing"))
    clients = await service.ask("ListClusterClients", pb.ListClusterClientsRequest(group="billing"))
    assert group.summary.member_count == len(group.members) == clients.total_count
    assert group.progress[0].oldest_age.ToMilliseconds() > 0
    change = pb.PutClusterGroupRequest(name="billing", enabled=False)
    assert (await service.ask("PutClusterGroup", change)).report.changes
    after = await service.ask("GetClusterGroup", pb.GetClusterGroupRequest(name="billing"))
    assert (after.summary.enabled, after.summary.ordered) == (False, group.summary.ordered)
    reset = pb.ResetGroupOffsetsRequest(group="billing", topic="orders", earliest=True, dry_run=True)
    assert {move.move.to_offset for move in (await service.ask("ResetGroupOffsets", reset)).moves} == {0}
    nowhere = pb.ResetGroupOffsetsRequest(group="billing", topic="orders", earliest=False)
    assert (await service.ask("ResetGroupOffsets", nowhere)).code is StatusCode.INVALID_ARGUMENT
    refused = await service.ask("DeleteClusterGroup", pb.DeleteClusterGroupRequest(name="billing"))
    assert refused.code is StatusCode.FAILED_PRECONDITION


async def test_a_message_is_found_and_shown_whole() -> None:
    service = _Service()
    search = pb.SearchMessagesRequest(topic="orders", page_size=2, body_bytes=8)
    search.start_time.FromMilliseconds(NOW_MS - 86_400_000)
    page = await service.ask("SearchMessages", search)
    first = page.messages[0]
    assert len(page.messages) == 2
    assert len(first.message.body) <= 8
    found = await service.ask("FindMessages", pb.FindMessagesRequest(message_id=first.message.message_id))
    assert [each.message.physical_offset for each in found.messages] == [first.message.physical_offset]
    by_offset = pb.InspectMessageRequest(broker_name=first.broker_name, physical_offset=first.message.physical_offset)
    by_place = pb.InspectMessageRequest(broker_name=first.broker_name)
    by_place.queue.topic = "orders"
    by_place.queue.queue_id, by_place.queue.queue_offset = first.message.queue_id, first.message.queue_offset
    whole = await service.ask("InspectMessage", by_offset)
    assert whole == await service.ask("InspectMessage", by_place)
    value = await service.operations.message(first.broker_name, first.message.physical_offset)
    assert dict(whole.message.message.properties) == value.message.properties
    assert [copy.HasField("equal") for copy in whole.copies] == [copy.equal is not None for copy in value.copies]
    nowhere = pb.InspectMessageRequest(broker_name="broker-a")
    assert (await service.ask("InspectMessage", nowhere)).code is StatusCode.INVALID_ARGUMENT


async def test_a_tail_gives_what_comes_in_until_the_caller_goes() -> None:
    service = _Service()
    newest = (await service.operations.search(MessageQuery("orders"))).messages[0]
    call = service.begin("TailMessages", pb.TailMessagesRequest(topic="orders", body_bytes=4), _Call())
    service.operations.arrive(newest)
    async with asyncio.timeout(PATIENCE_S):
        while not call.sent:
            await asyncio.sleep(0)
    (first,) = call.sent
    assert isinstance(first, pb.TailMessagesResponse)
    assert first.message.message.message_id == newest.message_id
    call.cancel()
    await service.servicer.stop()


async def test_stopping_ends_what_is_in_progress() -> None:
    service = _Service()
    call = service.begin("TailMessages", pb.TailMessagesRequest(topic="orders"), _Call())
    await asyncio.sleep(0)
    await service.servicer.stop()
    assert call.code is StatusCode.UNAVAILABLE


async def test_a_transaction_is_listed_and_ended() -> None:
    service = _Service()
    listed = await service.ask("ListClusterTransactions", pb.ListClusterTransactionsRequest())
    first = listed.transactions[0]
    assert (listed.total_count, first.broker_name, first.transaction.check_count) == (2, "broker-a", 2)
    assert first.transaction.store_time.seconds > 0
    request = pb.ResolveClusterTransactionRequest(
        transaction_id=first.transaction.transaction_id, end=TRANSACTION_END_ROLLBACK
    )
    ended = await service.ask("ResolveClusterTransaction", request)
    assert ended.transaction.transaction.message_id == "PAY-1"
    assert service.operations.cluster.ended == {"djE=": "rollback"}


async def test_lite_topics_are_listed() -> None:
    service = _Service()
    request = pb.ListClusterLiteTopicsRequest(topic="sessions", search="2")
    answer = await service.ask("ListClusterLiteTopics", request)
    (one,) = answer.lite_topics
    assert (one.broker_name, one.view.lite_topic, one.view.subscriber_count, answer.total_count) == (
        "broker-a",
        "session-2",
        2,
        1,
    )
    assert dict(one.view.lags) == {"workers": 3}


async def test_a_client_is_told_something() -> None:
    service = _Service()
    client = service.operations.cluster.clients[0]
    request = pb.CommandClusterClientRequest(client_id=client.client_id, command=CLIENT_COMMAND_PRINT_STACK)
    answer = await service.ask("CommandClusterClient", request)
    assert [(one.broker, one.code) for one in answer.replies] == [(broker, "OK") for broker in client.brokers]


async def test_a_kept_tail_is_listed_and_restored_in_parts() -> None:
    service = _Service()
    (tail,) = (await service.ask("ListClusterKeptTails", pb.ListClusterKeptTailsRequest())).tails
    assert (tail.broker, tail.tail.start_offset) == ("broker-a:1", 4_096)
    request = pb.RestoreKeptTailRequest(broker=tail.broker, name=tail.tail.name)
    first = await service.ask("RestoreKeptTail", request)
    assert (first.messages[0].held_by, first.unreadable[0].start_offset) == ("broker-b", 5_000)
    request.page_token = first.next_page_token
    rest = await service.ask("RestoreKeptTail", request)
    assert [(one.result.message_id, one.result.new_queue_offset) for one in rest.messages] == [
        ("MISSING", 7),
        ("NOWHERE", -1),
    ]
    assert not rest.next_page_token


async def test_a_loss_is_told_in_numbers_before_it_is_accepted() -> None:
    service = _Service()
    service.operations.cluster.waits["broker-b"] = WAITS
    request = pb.AcceptGroupLossRequest(broker_name="broker-b", dry_run=True)
    planned = await service.ask("AcceptGroupLoss", request)
    assert (planned.broker, planned.lost_bytes, planned.missing[0].disk_id) == ("broker-b:0", 4_096, "d1")
    request = pb.AcceptGroupLossRequest(broker_name="broker-b", names=["d1"])
    assert (await service.ask("AcceptGroupLoss", request)).end_offset == 4_096
    assert not service.operations.cluster.waits


async def test_settings_write_permission_and_events() -> None:
    service = _Service()
    settings = await service.ask("GetBrokerSettings", pb.GetBrokerSettingsRequest(broker="broker-a:0"))
    key = next(setting.key for setting in settings.settings if setting.changeable)
    update = pb.UpdateBrokerSettingsRequest(broker="broker-a:0", values={key: "24"})
    (change,) = (await service.ask("UpdateBrokerSettings", update)).changes
    assert (change.key, change.to_value) == (key, "24")
    wiped = await service.ask("SetWritePermission", pb.SetWritePermissionRequest(broker_name="broker-a"))
    assert wiped.report.changes
    events = (await service.ask("ListClusterEvents", pb.ListClusterEventsRequest())).events
    assert {event.fields["action"] for event in events if "action" in event.fields} >= {"update_settings"}


async def test_a_message_is_sent() -> None:
    service = _Service()
    sent = await service.ask("SendTestMessage", pb.SendTestMessageRequest(topic="orders", body=b"hi", tag="t"))
    assert (sent.broker_name, sent.duration.ToMicroseconds() > 0) == ("broker-a", True)
    long = pb.SendTestMessageRequest(topic="orders", body=bytes((4 << 20) + 1))
    assert (await service.ask("SendTestMessage", long)).code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("name", "request_", "words"),
    [
        ("ListClusterTopics", pb.ListClusterTopicsRequest(page_size=501), "page_size: 501"),
        ("ListClusterTopics", pb.ListClusterTopicsRequest(page_size=-1), "page_size: -1"),
        ("ListClusterTopics", pb.ListClusterTopicsRequest(page_token="x"), "page_token"),
        ("ListClusterTopics", pb.ListClusterTopicsRequest(page_token="9" * 40), "page_token"),
        ("ListClusterTopics", pb.ListClusterTopicsRequest(page_token="000000001" + "9" * 40), "page_token"),
        ("ListClusterTopics", pb.ListClusterTopicsRequest(page_token="000000001" + "9" * 5_000), "page_token"),
        ("ListClusterClients", pb.ListClusterClientsRequest(limit=1_001), "limit: 1001"),
        ("SearchMessages", pb.SearchMessagesRequest(topic="orders", body_bytes=(1 << 20) + 1), "body_bytes"),
        ("SearchMessages", pb.SearchMessagesRequest(topic="orders", start_time={"seconds": -1}), "start_time"),
    ],
)
async def test_what_is_out_of_range_is_named(name: str, request_: Message, words: str) -> None:
    refused = await _Service().ask(name, request_)
    assert (refused.code, words in refused.detail) == (StatusCode.INVALID_ARGUMENT, True)


async def test_viewers_look_and_do_not_change() -> None:
    service = _Service(local_role=Role.VIEWER)
    assert isinstance(
        await service.ask("GetClusterTopic", pb.GetClusterTopicRequest(name="orders")), pb.GetClusterTopicResponse
    )
    refused = await service.ask("DeleteClusterTopic", pb.DeleteClusterTopicRequest(name="orders"))
    assert (refused.code, "ask an operator" in refused.detail) == (StatusCode.PERMISSION_DENIED, True)
    token = {"authorization": f"Bearer {_TOKEN}"}
    proven = _Call(peer=_STRANGER, metadata=token)
    assert (await service.ask("DeleteClusterTopic", pb.DeleteClusterTopicRequest(name="orders"), proven)).report.changes


async def test_strangers_get_nothing_and_nobody_is_believed_about_users() -> None:
    service = _Service()
    for metadata in ({}, {"x-forwarded-user": "ada", "x-forwarded-groups": "ops"}):
        call = _Call(peer=_STRANGER, metadata=metadata)
        refused = await service.ask("GetClusterTopic", pb.GetClusterTopicRequest(name="orders"), call)
        assert refused.code is StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("kind", list(FailureKind))
async def test_each_way_to_fail_has_a_code(kind: FailureKind, monkeypatch: pytest.MonkeyPatch) -> None:
    service = _Service()

    async def fails(*_: object, **__: object) -> None:
        raise OperationFailed(kind, "it did not work", cause="the cause", remedy="do this")

    monkeypatch.setattr(service.operations, "topic", fails)
    failed = await service.ask("GetClusterTopic", pb.GetClusterTopicRequest(name="orders"))
    assert failed.detail == "it did not work: the cause; do this"
    assert failed.code not in (StatusCode.OK, StatusCode.INTERNAL, StatusCode.UNKNOWN)


async def test_a_defect_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    service = _Service()

    async def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(service.operations, "topic", breaks)
    failed = await service.ask("GetClusterTopic", pb.GetClusterTopicRequest(name="orders"))
    assert failed.code is StatusCode.INTERNAL
