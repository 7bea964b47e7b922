"""Quotas as clients meet them: the code, the pause before it, and what is counted while they wait."""

from __future__ import annotations

from support.api_requests import Answer, ack_request, call, message, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.fake_call import FakeCall
from support.manual_time import ManualTime
from tandemmq.broker.client_api.access import CallSources
from tandemmq.broker.client_api.client_api import ClientApi
from tandemmq.broker.client_api.held_answers import TOLD_AT_ONCE
from tandemmq.core.access.sealed_secrets import SecretKeys
from tandemmq.core.quotas import QuotaRules, parse_quotas
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.rpc import CALLER_HEADER

Code = definition.Code

PAUSE_MS = 1_000


def limit(broker: BrokerAssembly, text: str) -> None:
    broker.api.change_quotas(parse_quotas(text))


def send(broker: BrokerAssembly, *bodies: bytes, topic: str = "orders", port: int = 1) -> FakeCall:
    request = send_request(*(message(topic, body) for body in bodies))
    return call(broker, "SendMessage", request, FakeCall(peer=f"ipv4:10.0.0.1:{port}"))


def poll(broker: BrokerAssembly, host: str = "10.0.0.1", group: str = "group", batch_size: int = 32) -> FakeCall:
    request = receive_request(group=group, batch_size=batch_size)
    return call(broker, "ReceiveMessage", request, FakeCall(peer=f"ipv4:{host}:1"))


def code_of(fake: FakeCall) -> int:
    return fake.only(pb.SendMessageResponse).status.code


def pull_code(fake: FakeCall) -> int:
    first = fake.sent[0]
    assert isinstance(first, pb.PullMessageResponse)
    return first.status.code


def test_a_send_over_its_quota_stores_nothing_and_is_told_so_after_the_pause(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    limit(broker, "topic:orders sentMessages=4")
    assert code_of(send(broker, b"a", b"b", b"c", b"d")) == Code.OK
    end_offset = broker.store.end_offset
    refused = send(broker, b"e", b"f")
    assert broker.store.end_offset == end_offset
    assert refused.code is None
    time.advance(1)  # What was owed at the start is a second's worth.
    response = refused.only(pb.SendMessageResponse)
    assert response.status.code == Code.TOO_MANY_REQUESTS
    assert "quota of topic orders: sentMessages is 4 a second" in response.status.message
    assert [entry.status.code for entry in response.entries] == [Code.TOO_MANY_REQUESTS] * 2
    # Whoever asks again when he is told is served.
    assert code_of(send(broker, b"e", b"f")) == Code.OK
    assert broker.api.quotas.refused["quota_topic_sentMessages"] == 1


def test_the_pause_ends_within_a_second_however_much_is_owed(broker: BrokerAssembly, time: ManualTime) -> None:
    limit(broker, "address:* sentBytes=10")
    assert code_of(send(broker, b"x" * 1_000)) == Code.OK
    # Another port is the same address.
    refused = send(broker, b"y", port=2)
    time.advance(PAUSE_MS - 1)
    assert refused.code is None
    time.advance(1)
    assert code_of(refused) == Code.TOO_MANY_REQUESTS


def test_other_topics_and_addresses_have_quotas_of_their_own(broker: BrokerAssembly, time: ManualTime) -> None:
    limit(broker, "topic:* sentMessages=1")
    assert code_of(send(broker, b"a")) == Code.OK
    assert send(broker, b"a").code is None
    assert code_of(send(broker, b"a", topic="mixed")) == Code.OK


def test_names_of_topics_that_are_not_there_leave_no_trace(broker: BrokerAssembly) -> None:
    limit(broker, "topic:* sentMessages=1")
    for number in range(10):
        assert code_of(send(broker, b"a", topic=f"invented-{number}")) == Code.TOPIC_NOT_FOUND
    assert not broker.api.quotas._quotas._debts


def test_without_rules_everything_passes_again_at_once(broker: BrokerAssembly) -> None:
    limit(broker, "topic:* sentMessages=1")
    send(broker, b"a")
    assert send(broker, b"a").code is None
    broker.api.change_quotas(QuotaRules())
    assert code_of(send(broker, b"a")) == Code.OK


def test_what_was_received_is_charged_and_the_next_receive_waits(broker: BrokerAssembly, time: ManualTime) -> None:
    for number in range(6):
        send(broker, bytes([number + 1]))
    limit(broker, "address:* receivedMessages=2")
    assert len(Answer.of(poll(broker, batch_size=3)).messages) == 3
    refused = poll(broker)
    assert refused.code is None
    assert len(Answer.of(poll(broker, host="10.0.0.2", batch_size=1)).messages) == 1
    time.advance(501)
    assert Answer.of(refused).code == Code.TOO_MANY_REQUESTS
    assert len(Answer.of(poll(broker)).messages) == 2


def test_waiting_polls_are_counted_until_they_are_answered_cancelled_or_over(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    limit(broker, "address:* polls=2")
    first, second = poll(broker), poll(broker)
    refused = poll(broker)
    assert poll(broker, host="10.0.0.2").code is None
    time.advance(PAUSE_MS)
    assert (first.code, second.code) == (None, None)
    assert Answer.of(refused).code == Code.TOO_MANY_REQUESTS
    first.cancel()
    third = poll(broker)
    time.advance(PAUSE_MS)
    assert third.code is None
    send(broker, b"a")
    time.end_turn()
    assert Answer.of(second).code == Code.OK
    time.advance(10_000)
    assert Answer.of(third).code == Code.MESSAGE_NOT_FOUND
    assert not broker.api.quotas._quotas._polls


def test_refused_polls_are_told_a_few_at_a_time(broker: BrokerAssembly, time: ManualTime) -> None:
    limit(broker, "address:* polls=1")
    poll(broker)
    refused = [poll(broker) for _ in range(100)]
    told = []
    time.advance(PAUSE_MS - 1)
    for _ in range(10):
        before = sum(one.code is not None for one in refused)
        time.advance(1)
        told.append(sum(one.code is not None for one in refused) - before)
    assert told == [TOLD_AT_ONCE] * 6 + [4, 0, 0, 0]


def test_a_client_with_a_short_time_limit_is_told_of_its_quota_within_it(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    """Else it would only see that nobody answers, and look for another broker."""
    limit(broker, "topic:orders sentBytes=1")
    send(broker, b"a" * 10)
    fake = FakeCall(deadline_ms=time.monotonic_ms() + 500)
    call(broker, "SendMessage", send_request(message("orders", b"b")), fake)
    assert fake.code is None
    time.advance(400)
    assert code_of(fake) == Code.TOO_MANY_REQUESTS


def test_leases_are_counted_until_they_are_acknowledged(broker: BrokerAssembly, time: ManualTime) -> None:
    for number in range(6):
        send(broker, bytes([number + 1]))
    limit(broker, "topic:orders leases=3")
    held = Answer.of(poll(broker, batch_size=3))
    refused = poll(broker, host="10.0.0.2")
    time.advance(PAUSE_MS)
    assert Answer.of(refused).code == Code.TOO_MANY_REQUESTS
    call(broker, "AckMessage", ack_request(held.handles[0]))
    broker.end_turn()
    assert len(Answer.of(poll(broker, batch_size=3)).messages) == 3


def test_a_pull_is_charged_as_a_receive_is(broker: BrokerAssembly, time: ManualTime) -> None:
    broker.add_topic("single", queue_count=1)
    send(broker, b"a", b"b", b"c", topic="single")
    limit(broker, "topic:* receivedMessages=2 polls=1")

    def pull(offset: int, wait_ms: int = 0) -> FakeCall:
        request = pb.PullMessageRequest(group=definition.Resource(name="group"), offset=offset)
        request.message_queue.topic.name = "single"
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        return call(broker, "PullMessage", request)

    assert len([element for element in pull(0).sent if element.WhichOneof("content") == "message"]) == 3
    refused = pull(3)
    time.advance(501)
    assert pull_code(refused) == Code.TOO_MANY_REQUESTS
    time.advance(2_000)
    waiting, too_many = pull(3, 10_000), pull(3, 10_000)
    time.advance(PAUSE_MS)
    assert waiting.code is None
    assert pull_code(too_many) == Code.TOO_MANY_REQUESTS
    waiting.cancel()
    assert not broker.api.quotas._quotas._polls


def test_a_call_that_a_member_passed_on_counts_for_its_client_s_address_without_users_too(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    """If the members hold the same keys."""
    member, stranger = (CallSources(SecretKeys([key * 32]), time) for key in (b"k", b"x"))
    broker.api = ClientApi(broker, source_of=member.source)
    limit(broker, "address:* sentMessages=1")

    def passed_on(client: str, vouch: CallSources) -> FakeCall:
        fake = FakeCall(peer="ipv4:10.9.0.2:1")
        fake.metadata[CALLER_HEADER] = vouch.vouch(FakeCall(peer=f"ipv4:{client}:1"))
        return call(broker, "SendMessage", send_request(message("orders", b"a")), fake)

    assert code_of(passed_on("10.1.2.3", member)) == Code.OK
    assert code_of(passed_on("10.1.2.4", member)) == Code.OK
    assert passed_on("10.1.2.3", member).code is None, "held back: over its quota"
    # Whoever has no key is counted by where he is.
    assert code_of(passed_on("10.1.2.5", stranger)) == Code.OK
    assert passed_on("10.1.2.6", stranger).code is None
