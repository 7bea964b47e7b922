"""What the edge of operators' calls refuses, bounds and translates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import grpc
import pytest

from support.api_requests import call, message, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.group_operations import ConsumedBroker
from support.manual_time import ManualTime
from support.transactions import TOPIC, Producer, bodies_in, end, send_half
from tandemmq.broker.peer_api.operations import BrokerOperationsServicer
from tandemmq.broker.runtime_settings import RuntimeSettings
from tandemmq.broker.settings import BrokerSettings
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as pb
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as client_pb
from tandemmq.service.logging import EventMemory
from tandemmq.service.settings import load_settings


class Aborted(Exception):
    """The call ended with a status."""

    def __init__(self, code: grpc.StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Context:
    """Of a call, as far as it is used."""

    async def abort(self, code: grpc.StatusCode, detail: str = "") -> NoReturn:
        """Ends the call."""
        raise Aborted(code, detail)


class Edge:
    """The servicer over a broker in memory."""

    def __init__(self) -> None:
        self.broker = ConsumedBroker()
        self.assembly = BrokerAssembly(clock=self.broker.clock, timers=ManualTime())
        self.assembly.add_topic(TOPIC, message_type="TRANSACTION")
        self.events = EventMemory()
        self.resent: list[tuple[str, list[int], bool]] = []
        settings = load_settings(BrokerSettings, environ={}, overrides=())
        self.parts = SimpleNamespace(
            sessions=self.broker.sessions,
            client_api=self.assembly.api,
            incarnation=1_700_000_000_000,
            refusal=None,
            clock=self.broker.clock,
        )
        self.servicer = BrokerOperationsServicer(
            cast("Any", self.parts),
            changes=self.broker.changes,
            settings=RuntimeSettings(settings, dict),
            events=self.events,
            resend_dead_letters=self._resend,
            kept_tails=cast("Any", None),
        )

    async def _resend(self, group: str, offsets: Sequence[int], dry_run: bool) -> list[pb.ResentDeadLetter]:
        self.resent.append((group, list(offsets), dry_run))
        return [pb.ResentDeadLetter(queue_offset=offset) for offset in offsets]

    async def ask(self, method: str, request: object) -> Any:
        """The answer to a call, whatever its type."""
        return await getattr(self.servicer, method)(request, Context())

    async def refused(self, method: str, request: object) -> tuple[grpc.StatusCode, str]:
        """How a call ends that is not answered."""
        with pytest.raises(Aborted) as aborted:
            await self.ask(method, request)
        return aborted.value.code, str(aborted.value)

    def connect(self, client_id: str, *, group: str = "", topics: Sequence[str] = (), peer: str = "") -> None:
        """A client is heard of, a second after the one before."""
        session = self.broker.sessions.seen(client_id, FakeCall(), now_ms=self.broker.clock.monotonic_ms())
        session.group, session.peer = group, peer
        session.subscriptions = dict.fromkeys(topics, "*")
        self.broker.clock.now_ms += 1_000


async def test_clients_are_listed_the_newest_first_and_all_are_counted() -> None:
    edge = Edge()
    edge.connect("one", group="G", topics=["T"], peer="ipv4:10.0.0.4:5000")
    edge.connect("two", group="H", topics=["T"], peer="ipv6:%5B::1%5D:5000")
    edge.connect("three", topics=["other"], peer="10.0.0.5:1")
    everybody = await edge.ask("ListClients", pb.ListClientsRequest(limit=2))
    assert [client.client_id for client in everybody.clients] == ["three", "two"]
    assert everybody.total_count == 3
    assert [client.address for client in everybody.clients] == ["10.0.0.5:1", "[::1]:5000"]
    assert [client.silent_for.ToMilliseconds() for client in everybody.clients] == [1_000, 2_000]
    readers = await edge.ask("ListClients", pb.ListClientsRequest(topic="T", group="G"))
    assert [(client.client_id, client.address) for client in readers.clients] == [("one", "10.0.0.4:5000")]
    assert dict(readers.clients[0].subscriptions) == {"T": "*"}
    assert await edge.refused("ListClients", pb.ListClientsRequest(limit=1_001)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "limit: 1001; use 1 to 1000, or 0 for 200",
    )


async def test_what_clients_say_of_themselves_is_bounded() -> None:
    edge = Edge()
    edge.connect("one", topics=["T"])
    for name in ("many", "more"):
        edge.connect(name, topics=[f"T{number}" for number in range(15_000)])
    edge.broker.sessions.all()[-1].version = "v" * 5_000
    answer = await edge.ask("ListClients", pb.ListClientsRequest())
    assert [(client.client_id, len(client.subscriptions)) for client in answer.clients] == [("more", 15_000)]
    assert (answer.total_count, len(answer.clients[0].version)) == (3, 500)
    edge.connect("most", topics=[f"T{number}" for number in range(30_000)])
    answer = await edge.ask("ListClients", pb.ListClientsRequest())
    assert [(client.client_id, len(client.subscriptions)) for client in answer.clients] == [("most", 20_000)]


async def test_a_broker_that_does_not_serve_changes_nothing_but_tells() -> None:
    edge = Edge()
    edge.parts.refusal = "this broker is a slave"
    for method, request in (
        ("DeleteSubscriptionGroup", pb.DeleteSubscriptionGroupRequest(group="G")),
        ("ResetOffsets", pb.ResetOffsetsRequest(group="G", topic="T", latest=True)),
        ("ResendDeadLetters", pb.ResendDeadLettersRequest(group="G", queue_offsets=[0])),
    ):
        code, detail = await edge.refused(method, request)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert detail.startswith("this broker is a slave")
    assert (await edge.ask("ListClients", pb.ListClientsRequest())).total_count == 0
    assert len((await edge.ask("GetConfig", pb.GetConfigRequest())).settings) == len(BrokerSettings.model_fields)


async def test_a_group_with_members_stays_unless_told_otherwise() -> None:
    edge = Edge()
    for number in range(5):
        edge.connect(f"client-{number}", group="G")
    code, detail = await edge.refused("DeleteSubscriptionGroup", pb.DeleteSubscriptionGroupRequest(group="G"))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "client-0, client-1, client-2 and 2 more; stop them first" in detail
    request = pb.DeleteSubscriptionGroupRequest(group="G", even_with_members=True)
    assert (await edge.ask("DeleteSubscriptionGroup", request)).existed
    assert not edge.broker.changes.has_group("G")


@pytest.mark.parametrize(
    "target", [{}, {"earliest": False}, {"latest": False}, {"offsets": pb.OffsetTargets()}], ids=str
)
async def test_a_reset_without_a_target_is_refused(target: dict[str, Any]) -> None:
    request = pb.ResetOffsetsRequest(group="G", topic="T", **target)
    assert (await Edge().refused("ResetOffsets", request))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_reset_to_a_time_that_is_none_is_refused() -> None:
    request = pb.ResetOffsetsRequest(group="G", topic="T", time={"seconds": 1 << 62})
    code, detail = await Edge().refused("ResetOffsets", request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert detail.startswith("time: ")


async def test_a_broker_that_begins_to_leave_during_the_search_resets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edge = Edge()
    edge.broker.put(2)
    edge.broker.acknowledge(edge.broker.receive())
    looked = edge.broker.changes.moves

    async def moves(*arguments: Any) -> Any:
        found = await looked(*arguments)
        edge.parts.refusal = "the broker is draining"
        return found

    monkeypatch.setattr(edge.broker.changes, "moves", moves)
    request = pb.ResetOffsetsRequest(group="G", topic="T", time={"seconds": 1})
    assert (await edge.refused("ResetOffsets", request))[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert edge.broker.leases.committed("G", "T", 0) == 2


@pytest.mark.parametrize(
    "values", [{f"key{number}": "1" for number in range(201)}, {"k" * 101: "1"}, {"deleteWhen": "04;" * 2_000}], ids=len
)
async def test_settings_are_named_in_bounded_numbers(values: dict[str, str]) -> None:
    code, detail = await Edge().refused("UpdateConfig", pb.UpdateConfigRequest(values=values, dry_run=True))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "name at most 200 settings" in detail


async def test_a_reset_of_what_is_not_there_is_not_found() -> None:
    edge = Edge()
    for group, topic in (("nobody", "T"), ("G", "nowhere")):
        request = pb.ResetOffsetsRequest(group=group, topic=topic, earliest=True)
        assert (await edge.refused("ResetOffsets", request))[0] is grpc.StatusCode.NOT_FOUND


async def test_dead_letters_are_named_in_bounded_numbers() -> None:
    edge = Edge()
    for count in (0, 101):
        request = pb.ResendDeadLettersRequest(group="G", queue_offsets=range(count))
        assert (await edge.refused("ResendDeadLetters", request))[0] is grpc.StatusCode.INVALID_ARGUMENT
    request = pb.ResendDeadLettersRequest(group="G", queue_offsets=[3, 1], dry_run=True)
    answer = await edge.ask("ResendDeadLetters", request)
    assert [letter.queue_offset for letter in answer.letters] == [3, 1]
    assert edge.resent == [("G", [3, 1], True)]


async def test_events_are_told_from_where_the_asker_is() -> None:
    edge = Edge()
    for number in range(3):
        edge.events.note(
            {"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": f"event_{number}", "n": number}
        )
    answer = await edge.ask("ListEvents", pb.ListEventsRequest(after_sequence=1))
    assert [(event.sequence, event.event, dict(event.fields)) for event in answer.events] == [
        (2, "event_1", {"n": "1"}),
        (3, "event_2", {"n": "2"}),
    ]
    assert answer.last_sequence == 3
    assert answer.process_start_time.ToMilliseconds() == 1_700_000_000_000
    newest = await edge.ask("ListEvents", pb.ListEventsRequest(limit=1))
    assert [event.sequence for event in newest.events] == [3]


# Transactions


async def test_undecided_transactions_are_listed_the_oldest_first() -> None:
    edge = Edge()
    halves = [send_half(edge.assembly, body) for body in (b"a", b"bb", b"ccc")]
    answer = await edge.ask("ListTransactions", pb.ListTransactionsRequest(limit=2))
    assert [view.transaction_id for view in answer.transactions] == [half.transaction_id for half in halves[:2]]
    assert answer.total_count == 3
    view = answer.transactions[1]
    assert (view.topic, view.message_id, view.body_bytes) == (TOPIC, halves[1].message_id, 2)
    assert (view.producer, view.check_count) == ("client-host", 0)
    assert view.HasField("store_time")
    other = await edge.ask("ListTransactions", pb.ListTransactionsRequest(topic="other"))
    assert (len(other.transactions), other.total_count) == (0, 0)


async def test_an_operator_ends_a_transaction_after_a_look() -> None:
    edge = Edge()
    half = send_half(edge.assembly, b"pay")
    request = pb.ResolveTransactionRequest(
        transaction_id=half.transaction_id, end=pb.TRANSACTION_END_COMMIT, dry_run=True
    )
    planned = await edge.ask("ResolveTransaction", request)
    assert (planned.transaction.topic, bodies_in(edge.assembly)) == (TOPIC, [])
    request.dry_run = False
    await edge.ask("ResolveTransaction", request)
    assert bodies_in(edge.assembly) == [b"pay"]
    again = await edge.ask("ResolveTransaction", request)
    assert (again.transaction.topic, again.transaction.message_id) == ("", half.message_id)
    assert bodies_in(edge.assembly) == [b"pay"]
    for dry_run in (True, False):
        contrary = pb.ResolveTransactionRequest(
            transaction_id=half.transaction_id, end=pb.TRANSACTION_END_ROLLBACK, dry_run=dry_run
        )
        code, text = await edge.refused("ResolveTransaction", contrary)
        assert (code, "was committed" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)


async def test_an_operator_that_goes_away_harms_nobody() -> None:
    edge = Edge()
    half = send_half(edge.assembly, b"pay")
    edge.assembly.puts_held = True
    request = pb.ResolveTransactionRequest(transaction_id=half.transaction_id, end=pb.TRANSACTION_END_COMMIT)
    asked = asyncio.ensure_future(edge.ask("ResolveTransaction", request))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.sleep(0)
    edge.assembly.release_puts()
    assert bodies_in(edge.assembly) == [b"pay"]
    client = Producer(edge.assembly, TOPIC)
    stacks = pb.CommandClientRequest(client_id="producer@1", command=pb.CLIENT_COMMAND_PRINT_STACK)
    asked = asyncio.ensure_future(edge.ask("CommandClient", stacks))
    await asyncio.sleep(0)
    asked.cancel()
    answer = client_pb.TelemetryCommand(thread_stack_trace=client_pb.ThreadStackTrace(thread_stack_trace="late"))
    _answer_next(client, answer)


async def test_what_ends_no_transaction_is_refused() -> None:
    edge = Edge()
    half = send_half(edge.assembly)
    unclear = pb.ResolveTransactionRequest(transaction_id=half.transaction_id)
    assert (await edge.refused("ResolveTransaction", unclear))[0] is grpc.StatusCode.INVALID_ARGUMENT
    nonsense = pb.ResolveTransactionRequest(transaction_id="x", end=pb.TRANSACTION_END_COMMIT)
    assert (await edge.refused("ResolveTransaction", nonsense))[0] is grpc.StatusCode.INVALID_ARGUMENT
    edge.parts.refusal = "a slave"
    for method, request in (
        ("ListTransactions", pb.ListTransactionsRequest()),
        ("ResolveTransaction", unclear),
    ):
        assert (await edge.refused(method, request))[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert end(edge.assembly, half, definition.ROLLBACK).code == definition.OK


# Clients' streams


def _answer_next(producer: Producer, answer: client_pb.TelemetryCommand) -> None:
    """The client answers the command it got last, with its nonce."""
    command = producer.call.sent[-1]
    assert isinstance(command, client_pb.TelemetryCommand)
    asked = getattr(command, str(command.WhichOneof("command")))
    getattr(answer, str(answer.WhichOneof("command"))).nonce = asked.nonce
    producer.stream.message(answer)


async def test_a_client_prints_its_stacks() -> None:
    edge = Edge()
    client = Producer(edge.assembly, TOPIC)
    request = pb.CommandClientRequest(client_id="producer@1", command=pb.CLIENT_COMMAND_PRINT_STACK)
    asked = asyncio.ensure_future(edge.ask("CommandClient", request))
    await asyncio.sleep(0)
    stacks = client_pb.TelemetryCommand(thread_stack_trace=client_pb.ThreadStackTrace(thread_stack_trace="main: run"))
    # An answer to another question does not count.
    client.stream.message(stacks)
    stacks.status.code = definition.OK
    _answer_next(client, stacks)
    answer = await asked
    assert (answer.code, answer.text) == ("OK", "main: run")


@pytest.mark.parametrize("code", [definition.OK, definition.FAILED_TO_CONSUME_MESSAGE])
async def test_a_client_verifies_a_stored_message(code: definition.Code) -> None:
    edge = Edge()
    client = Producer(edge.assembly, TOPIC)
    end(edge.assembly, send_half(edge.assembly, b"pay"), definition.COMMIT)
    queue_id = next(queue.queue_id for queue in edge.assembly.store.queues if queue.topic == TOPIC)
    request = pb.CommandClientRequest(
        client_id="producer@1", command=pb.CLIENT_COMMAND_VERIFY_MESSAGE, topic=TOPIC, queue_id=queue_id
    )
    asked = asyncio.ensure_future(edge.ask("CommandClient", request))
    await asyncio.sleep(0)
    command = client.call.sent[-1]
    assert isinstance(command, client_pb.TelemetryCommand)
    assert command.verify_message_command.message.body == b"pay"
    result = client_pb.TelemetryCommand(verify_message_result=client_pb.VerifyMessageResult(nonce="?"))
    result.status.code = code
    _answer_next(client, result)
    answer = await asked
    assert answer.code == definition.Code.Name(code)
    assert "the message" in answer.text
    request.queue_offset = 99
    assert (await edge.refused("CommandClient", request))[0] is grpc.StatusCode.NOT_FOUND


async def test_a_client_connects_anew_and_an_unknown_one_is_told_of() -> None:
    edge = Edge()
    client = Producer(edge.assembly, TOPIC)
    request = pb.CommandClientRequest(client_id="producer@1", command=pb.CLIENT_COMMAND_RECONNECT)
    assert (await edge.ask("CommandClient", request)).code == "SENT"
    command = client.call.sent[-1]
    assert isinstance(command, client_pb.TelemetryCommand)
    assert command.HasField("reconnect_endpoints_command")
    request.client_id = "other"
    assert (await edge.refused("CommandClient", request))[0] is grpc.StatusCode.NOT_FOUND
    request.ClearField("command")
    assert (await edge.refused("CommandClient", request))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.broker.client_api.client_commands._LIMIT_S", 0.01)
    edge = Edge()
    Producer(edge.assembly, TOPIC)
    request = pb.CommandClientRequest(client_id="producer@1", command=pb.CLIENT_COMMAND_PRINT_STACK)
    answer = await edge.ask("CommandClient", request)
    assert (answer.code, "did not answer" in answer.text) == ("TIMEOUT", True)


async def test_lite_topics_are_told_with_their_readers() -> None:
    edge = Edge()
    edge.assembly.add_topic("sessions", message_type="LITE")
    subscribe = client_pb.SyncLiteSubscriptionRequest(
        topic=definition.Resource(name="sessions"), group=definition.Resource(name="workers"), lite_topic_set=["b"]
    )
    call(edge.assembly, "SyncLiteSubscription", subscribe)
    for lite_topic in ("b", "a", "b"):
        sent = message("sessions", b"x")
        sent.system_properties.message_type, sent.system_properties.lite_topic = definition.LITE, lite_topic
        call(edge.assembly, "SendMessage", send_request(sent))
    answer = await edge.ask("ListLiteTopics", pb.ListLiteTopicsRequest(topic="sessions"))
    assert [(one.lite_topic, one.max_offset, one.subscriber_count) for one in answer.lite_topics] == [
        ("a", 1, 0),
        ("b", 2, 1),
    ]
    assert dict(answer.lite_topics[1].lags) == {"workers": 2}
    only = await edge.ask("ListLiteTopics", pb.ListLiteTopicsRequest(topic="sessions", limit=1))
    assert (len(only.lite_topics), only.total_count) == (1, 2)
    found = await edge.ask("ListLiteTopics", pb.ListLiteTopicsRequest(topic="sessions", search="b"))
    assert [one.lite_topic for one in found.lite_topics] == ["b"]
    code, text = await edge.refused("ListLiteTopics", pb.ListLiteTopicsRequest(topic=TOPIC))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "LITE" in text
