"""How deliveries end."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from grpc import StatusCode
from hypothesis import given
from hypothesis import strategies as st

from support.api_requests import Answer, ack_request, call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime
from tandemmq.broker.client_api.request_fields import has_more_fields
from tandemmq.broker.client_api.settle import _ENTRIES_MAX, _FIELDS_MAX, AckRequest, encoded_ack
from tandemmq.broker.client_api.validation import OK, Outcome, common_status, status_of
from tandemmq.core.delivery.lease_terms import encode_broker_name, make_handles
from tandemmq.core.storage.disk import DiskError
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code


def delivered(broker: BrokerAssembly, *bodies: bytes) -> list[str]:
    """Handles of messages that were sent and received."""
    for body in bodies:
        call(broker, "SendMessage", send_request(message(body=body)))
    return receive(broker, receive_request()).handles


def ack(broker: BrokerAssembly, *handles: str) -> pb.AckMessageResponse:
    fake = call(broker, "AckMessage", ack_request(*handles))
    broker.end_turn()
    return fake.only(pb.AckMessageResponse)


def refused_ack(broker: BrokerAssembly, *handles: str) -> str:
    """Why an acknowledgement was not taken, by gRPC's status: Go's client looks at nothing else."""
    fake = call(broker, "AckMessage", ack_request(*handles))
    broker.end_turn()
    assert (fake.code, fake.sent) == (StatusCode.UNAVAILABLE, [])
    return fake.detail


def change(broker: BrokerAssembly, handle: str, invisible_ms: int) -> pb.ChangeInvisibleDurationResponse:
    request = pb.ChangeInvisibleDurationRequest(
        group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle=handle
    )
    request.invisible_duration.FromMilliseconds(invisible_ms)
    return call(broker, "ChangeInvisibleDuration", request).only(pb.ChangeInvisibleDurationResponse)


def forward_request(handle: str) -> pb.ForwardMessageToDeadLetterQueueRequest:
    return pb.ForwardMessageToDeadLetterQueueRequest(
        group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle=handle
    )


def forward(broker: BrokerAssembly, handle: str) -> int:
    fake = call(broker, "ForwardMessageToDeadLetterQueue", forward_request(handle))
    return fake.only(pb.ForwardMessageToDeadLetterQueueResponse).status.code


def dead_letters(broker: BrokerAssembly) -> int:
    return broker.store.queue_max_offset("%DLQ%group", 0)


def test_acknowledged_message_does_not_come_again(broker: BrokerAssembly, time: ManualTime) -> None:
    response = ack(broker, *delivered(broker, b"a", b"b"))
    assert response.status.code == Code.OK
    assert [entry.status.code for entry in response.entries] == [Code.OK, Code.OK]
    time.advance(20_000)
    assert call(broker, "ReceiveMessage", receive_request()).code is None


def test_good_and_bad_handle_have_results_of_their_own_in_order(broker: BrokerAssembly) -> None:
    [good] = delivered(broker, b"a")
    response = ack(broker, good, "nonsense")
    assert response.status.code == Code.MULTIPLE_RESULTS
    assert [(entry.receipt_handle, entry.status.code) for entry in response.entries] == [
        (good, Code.OK),
        ("nonsense", Code.INVALID_RECEIPT_HANDLE),
    ]


def test_a_bad_handle_beside_one_of_another_broker_group_does_not_keep_that_from_it(broker: BrokerAssembly) -> None:
    (theirs,) = make_handles(
        [0], queue_id=0, nonce=1, deadline_ms=1, encoded_broker_name=encode_broker_name("broker-b")
    )
    for handles in ((theirs, "bad"), ("bad", theirs)):
        assert "broker group broker-b" in refused_ack(broker, *handles), "it was to be passed on"
    assert ack(broker, "bad", "worse").status.code == Code.INVALID_RECEIPT_HANDLE


def test_single_failure_is_the_overall_result(broker: BrokerAssembly, time: ManualTime) -> None:
    [handle] = delivered(broker, b"a")
    time.advance(10_001)
    response = ack(broker, handle)
    assert (response.status.code, response.entries[0].status.code) == (Code.INVALID_RECEIPT_HANDLE,) * 2


def test_request_without_entries_is_refused(broker: BrokerAssembly) -> None:
    assert ack(broker).status.code == Code.BAD_REQUEST


@pytest.mark.parametrize("lite_topic", ["", "some"])
def test_a_request_has_1024_entries_at_most(broker: BrokerAssembly, lite_topic: str) -> None:
    request = ack_request(*(["bad"] * 1_025))
    for entry in request.entries if lite_topic else ():
        entry.lite_topic = lite_topic
    refused = call(broker, "AckMessage", request).only(pb.AckMessageResponse)
    assert (refused.status.code, refused.status.message.partition(":")[0]) == (Code.BAD_REQUEST, "entries")
    # What is read of it is bounded, too.
    data = request.SerializeToString() + b"".join([b"\x1a\x00"] * 5_000)
    assert len(AckRequest.FromString(data).handles) == 1_025
    del request.entries[0]
    fake = call(broker, "AckMessage", request)
    broker.end_turn()
    assert len(fake.only(pb.AckMessageResponse).entries) == 1_024


def test_a_slave_s_refusal_is_one_that_no_client_takes_for_a_good_answer(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    broker.refusal = "this broker is a slave"
    assert refused_ack(broker, handle) == "this broker is a slave"
    request = pb.ChangeInvisibleDurationRequest(
        group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle=handle
    )
    request.invisible_duration.FromMilliseconds(10_000)
    assert call(broker, "ChangeInvisibleDuration", request).code is StatusCode.UNAVAILABLE


def test_acknowledgements_of_a_turn_are_answered_after_one_write(broker: BrokerAssembly) -> None:
    handles = delivered(broker, b"a", b"b", b"c")
    written: list[int] = []
    broker.persist_leases = lambda: written.append(len(broker.leases.take_journal()))  # type: ignore[method-assign]
    calls = [call(broker, "AckMessage", ack_request(handle)) for handle in handles]
    assert [fake.code for fake in calls] == [None] * 3
    broker.end_turn()
    assert [fake.only(pb.AckMessageResponse).status.code for fake in calls] == [Code.OK] * 3
    assert len(written) == 1
    assert written[0] > 0


def test_nothing_is_answered_when_the_journal_cannot_be_written(broker: BrokerAssembly) -> None:
    (handle,) = delivered(broker, b"a")

    def fail() -> None:
        raise DiskError("leases", "no space left")

    broker.persist_leases = fail  # type: ignore[method-assign]
    fake = call(broker, "AckMessage", ack_request(handle))
    with pytest.raises(DiskError):
        broker.end_turn()
    assert fake.code is None


@given(
    message_ids=st.lists(st.text(max_size=40), min_size=1, max_size=5),
    known=st.integers(0, 31),
    long_id=st.booleans(),
)
def test_the_answer_is_what_protobuf_would_have_written(message_ids: list[str], known: int, long_id: bool) -> None:
    entries = [
        pb.AckMessageEntry(message_id=message_id, receipt_handle=f"h{number}", lite_topic="l")
        for number, message_id in enumerate(message_ids)
    ]
    if long_id:
        entries[0].message_id = "x" * 20_000
    outcomes = [
        OK if known >> number & 1 else Outcome(Code.INVALID_RECEIPT_HANDLE, "gone") for number in range(len(entries))
    ]
    expected = pb.AckMessageResponse(
        status=common_status(outcomes),
        entries=[
            pb.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status_of(outcome)
            )
            for entry, outcome in zip(entries, outcomes, strict=True)
        ],
    )
    request = AckRequest.FromString(pb.AckMessageRequest(entries=entries).SerializeToString())
    assert pb.AckMessageResponse.FromString(encoded_ack(request.entries, outcomes)) == expected


RESOURCES = st.builds(
    definition.Resource, name=st.text(max_size=9) | st.just("x" * 200), resource_namespace=st.sampled_from(["", "ns"])
)
ACK_REQUESTS = st.builds(
    pb.AckMessageRequest,
    group=st.none() | RESOURCES,
    topic=st.none() | RESOURCES,
    entries=st.lists(
        st.builds(
            pb.AckMessageEntry,
            message_id=st.sampled_from(["", "m", "ü", "m" * 60, "m" * 120]),
            receipt_handle=st.sampled_from(["", "h", "h" * 60, "h" * 120, "h" * 20_000]) | st.text(max_size=9),
            lite_topic=st.sampled_from([None, "lite"]),
        ),
        max_size=4,
    ),
).map(lambda request: request.SerializeToString())


@given(data=ACK_REQUESTS)
def test_a_request_is_read_as_protobuf_reads_it(data: bytes) -> None:
    expect_as_protobuf(data)


# As hostile or other clients may write it: fields twice, in another order, of another type, cut off.
@given(
    fields=st.lists(ACK_REQUESTS | st.binary(max_size=4) | st.sampled_from([b"\x0a\x00", b"\x12\x00", b"\x1a\x00"])),
    kept=st.none() | st.integers(0, 60),
    changed=st.none() | st.tuples(st.integers(0, 40), st.integers(0, 255)),
)
def test_any_bytes_are_read_as_protobuf_reads_them(
    fields: list[bytes], kept: int | None, changed: tuple[int, int] | None
) -> None:
    data = bytearray(b"".join(fields)[:kept])
    if changed is not None and changed[0] < len(data):
        data[changed[0]] = changed[1]
    expect_as_protobuf(bytes(data))


def expect_as_protobuf(data: bytes) -> None:
    """Names, handles and the entries of the answer are those of protobuf's message."""
    try:
        expected = pb.AckMessageRequest.FromString(data)
    except DecodeError:
        try:
            refused = AckRequest.FromString(data)
        except DecodeError:
            return
        # Fields are counted first: of too many it does not matter what else is wrong.
        assert len(refused.handles) > _ENTRIES_MAX
        return
    request = AckRequest.FromString(data)
    if len(request.handles) > _ENTRIES_MAX and has_more_fields(data, _FIELDS_MAX):
        return  # Nobody reads on, whatever the fields are.
    assert (request.group, request.topic) == (expected.group.name, expected.topic.name)
    assert request.handles == [entry.receipt_handle for entry in expected.entries]
    assert [pb.AckMessageResultEntry.FromString(entry) for entry in request.entries] == [
        pb.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
        for entry in expected.entries
    ]


def test_acknowledging_twice_in_one_request_succeeds_once(broker: BrokerAssembly) -> None:
    (handle,) = delivered(broker, b"a")
    response = ack(broker, handle, handle)
    assert response.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


def test_group_that_never_received_has_no_handles(broker: BrokerAssembly) -> None:
    (handle,) = delivered(broker, b"a")
    for group, code in (("other", Code.INVALID_RECEIPT_HANDLE), ("no group", Code.ILLEGAL_CONSUMER_GROUP)):
        fake = call(broker, "AckMessage", ack_request(handle, group=group))
        broker.end_turn()
        response = fake.only(pb.AckMessageResponse)
        assert (response.status.code, response.entries[0].status.code) == (code, code)
        assert response.entries[0].receipt_handle == handle


def test_changed_lease_has_a_new_handle_and_the_old_one_stops_working(broker: BrokerAssembly, time: ManualTime) -> None:
    [old] = delivered(broker, b"a")
    changed = change(broker, old, 30_000)
    assert changed.status.code == Code.OK
    time.advance(20_000)
    assert ack(broker, old).status.code == Code.INVALID_RECEIPT_HANDLE
    assert ack(broker, changed.receipt_handle).status.code == Code.OK


def test_lease_given_up_is_delivered_at_once_to_whoever_waits(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    waiting = call(broker, "ReceiveMessage", receive_request())
    change(broker, handle, 0)
    [again] = Answer.of(waiting).messages
    assert again.system_properties.delivery_attempt == 2


def test_refused_change_returns_the_handle_it_was_given(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    too_long = change(broker, handle, 13 * 3_600_000)
    assert (too_long.status.code, too_long.receipt_handle) == (Code.ILLEGAL_INVISIBLE_TIME, handle)
    unknown = change(broker, "nonsense", 10_000)
    assert (unknown.status.code, unknown.receipt_handle) == (Code.INVALID_RECEIPT_HANDLE, "nonsense")


def test_forwarded_message_is_written_then_finished(broker: BrokerAssembly, time: ManualTime) -> None:
    [handle] = delivered(broker, b"a")
    assert forward(broker, handle) == Code.OK
    assert dead_letters(broker) == 1
    time.advance(20_000)
    assert call(broker, "ReceiveMessage", receive_request()).code is None


def test_forward_under_way_is_not_written_twice(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    broker.puts_held = True
    calls = [call(broker, "ForwardMessageToDeadLetterQueue", forward_request(handle)) for _ in range(2)]
    assert [fake.code for fake in calls] == [None, None]
    broker.release_puts()
    codes = [fake.only(pb.ForwardMessageToDeadLetterQueueResponse).status.code for fake in calls]
    assert codes == [Code.OK, Code.OK]
    assert dead_letters(broker) == 1


def test_forward_repeated_after_a_lost_answer_is_ok(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    assert forward(broker, handle) == Code.OK
    assert forward(broker, handle) == Code.OK
    assert dead_letters(broker) == 1


@pytest.mark.parametrize(("group", "topic"), [("group", "orders"), ("group", ""), ("", "orders"), ("", "%DLQ%group")])
def test_what_is_consumed_anew_becomes_a_dead_letter_anew(broker: BrokerAssembly, group: str, topic: str) -> None:
    [handle] = delivered(broker, b"a")
    assert forward(broker, handle) == Code.OK
    for state in broker.leases.progress_of("group", "orders"):
        broker.leases.reset(group="group", topic="orders", queue_id=state.queue_id, offset=0)
    broker.api.consumes_anew(group, topic)
    [again] = receive(broker, receive_request()).handles
    assert forward(broker, again) == Code.OK
    assert dead_letters(broker) == 2


def test_a_master_that_is_one_again_remembers_no_dead_letters_of_before(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    assert forward(broker, handle) == Code.OK
    for state in broker.leases.progress_of("group", "orders"):
        # An operator told the master that there was meanwhile.
        broker.leases.reset(group="group", topic="orders", queue_id=state.queue_id, offset=0)
    broker.api.role_begins()
    [again] = receive(broker, receive_request()).handles
    assert forward(broker, again) == Code.OK
    assert dead_letters(broker) == 2


def test_a_dead_letter_under_way_is_not_remembered_when_its_group_begins_anew(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    broker.puts_held = True
    first = call(broker, "ForwardMessageToDeadLetterQueue", forward_request(handle))
    broker.api.consumes_anew("group", "orders")
    broker.release_puts()
    assert first.only(pb.ForwardMessageToDeadLetterQueueResponse).status.code == Code.OK
    assert forward(broker, handle) == Code.INVALID_RECEIPT_HANDLE


def test_other_groups_dead_letters_stay_remembered(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    assert forward(broker, handle) == Code.OK
    broker.api.consumes_anew("other", "orders")
    broker.api.consumes_anew("", "other")
    assert forward(broker, handle) == Code.OK
    assert dead_letters(broker) == 1


def test_forward_that_was_not_stored_leaves_the_lease(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    assert forward(broker, handle) == Code.SLAVE_PERSISTENCE_TIMEOUT
    assert ack(broker, handle).status.code == Code.OK


def test_forward_with_an_ended_lease_is_refused(broker: BrokerAssembly, time: ManualTime) -> None:
    [handle] = delivered(broker, b"a")
    time.advance(10_001)
    assert forward(broker, handle) == Code.INVALID_RECEIPT_HANDLE


def test_an_acknowledgement_is_answered_when_the_slaves_have_it(broker: BrokerAssembly) -> None:
    handles = delivered(broker, b"a", b"b", b"c")
    broker.progress_waits = []
    calls = [call(broker, "AckMessage", ack_request(handle)) for handle in handles[:2]]
    broker.end_turn()
    assert [fake.code for fake in calls] == [None] * 2
    [held] = broker.progress_waits
    held(True)
    assert [fake.only(pb.AckMessageResponse).status.code for fake in calls] == [Code.OK] * 2


def test_an_acknowledgement_that_the_slaves_may_lack_is_answered_with_a_failure_that_is_repeated(
    broker: BrokerAssembly,
) -> None:
    handles = delivered(broker, b"a", b"b")
    broker.progress_waits = []
    fake = call(broker, "AckMessage", ack_request(*handles))
    broker.end_turn()
    [held] = broker.progress_waits
    held(False)
    assert (fake.code, fake.sent) == (StatusCode.UNAVAILABLE, [])
    broker.progress_waits = None
    # It was done here: a client that repeats it may stop.
    assert ack(broker, handles[0]).status.code == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize(("is_held", "code"), [(True, Code.OK), (False, Code.SLAVE_PERSISTENCE_TIMEOUT)])
def test_a_changed_lease_is_told_when_the_slaves_have_it(broker: BrokerAssembly, is_held: bool, code: int) -> None:
    [handle] = delivered(broker, b"a")
    broker.progress_waits = []
    request = pb.ChangeInvisibleDurationRequest(
        group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle=handle
    )
    request.invisible_duration.FromMilliseconds(20_000)
    fake = call(broker, "ChangeInvisibleDuration", request)
    assert fake.code is None
    [held] = broker.progress_waits
    held(is_held)
    response = fake.only(pb.ChangeInvisibleDurationResponse)
    assert response.status.code == code
    broker.progress_waits = None
    assert ack(broker, response.receipt_handle).status.code == Code.OK, "the new handle counts, and clients adopt it"


@pytest.mark.parametrize(("is_held", "code"), [(True, Code.OK), (False, Code.SLAVE_PERSISTENCE_TIMEOUT)])
def test_a_forward_is_answered_when_the_slaves_have_the_end_of_the_lease(
    broker: BrokerAssembly, is_held: bool, code: int
) -> None:
    [handle] = delivered(broker, b"a")
    broker.progress_waits = []
    fake = call(broker, "ForwardMessageToDeadLetterQueue", forward_request(handle))
    assert fake.code is None
    [held] = broker.progress_waits
    held(is_held)
    assert fake.only(pb.ForwardMessageToDeadLetterQueueResponse).status.code == code
    again = call(broker, "ForwardMessageToDeadLetterQueue", forward_request(handle))
    assert again.code is None, "it was moved, and that may still be undone"
    broker.progress_waits = None
    assert forward(broker, handle) == Code.OK
    assert dead_letters(broker) == 1


# A slave that serves reads


def test_a_slave_that_serves_reads_gives_and_acknowledges_and_takes_nothing(
    broker: BrokerAssembly, time: ManualTime
) -> None:
    call(broker, "SendMessage", send_request(message(body=b"a"), message(body=b"b")))
    receive(broker, receive_request(invisible_ms=10_000))
    time.advance(10_001)
    broker.become_reads_only()
    first, second = receive(broker, receive_request()).handles
    acknowledged = call(broker, "AckMessage", ack_request(first))
    broker.end_turn()
    assert acknowledged.only(pb.AckMessageResponse).status.code == Code.OK
    assert forward(broker, second) == Code.FORBIDDEN
    sent = call(broker, "SendMessage", send_request(message()))
    assert sent.only(pb.SendMessageResponse).status.code == Code.FORBIDDEN


def test_a_slave_writes_no_dead_letter_and_gives_the_message_again(broker: BrokerAssembly, time: ManualTime) -> None:
    call(broker, "SendMessage", send_request(message(body=b"poison")))
    receive(broker, receive_request())
    broker.become_reads_only()
    attempts = []
    for _ in range(20):
        time.advance(10_001)
        answer = receive(broker, receive_request())
        attempts += [each.system_properties.delivery_attempt for each in answer.messages]
    assert attempts == list(range(2, 22))
    assert broker.topics.get("%DLQ%group") is None


def test_a_slave_refuses_groups_of_whose_progress_it_knows_nothing(broker: BrokerAssembly) -> None:
    call(broker, "SendMessage", send_request(message()))
    broker.become_reads_only()
    assert receive(broker, receive_request(group="strangers")).code == Code.FORBIDDEN
    assert broker.groups.get("strangers") is None


def test_handles_of_another_broker_group_are_for_that_group_to_honour(broker: BrokerAssembly) -> None:
    """Nobody is registered for it here: a push consumer repeats the call until somebody is."""
    [own] = delivered(broker, b"a")
    [foreign] = make_handles([7], queue_id=0, nonce=1, deadline_ms=1, encoded_broker_name=encode_broker_name("b-2"))
    assert "broker group b-2" in refused_ack(broker, foreign)
    assert forward(broker, foreign) == Code.PROXY_TIMEOUT
    request = pb.ChangeInvisibleDurationRequest(
        group=definition.Resource(name="group"), topic=definition.Resource(name="orders"), receipt_handle=foreign
    )
    request.invisible_duration.FromMilliseconds(10_000)
    assert call(broker, "ChangeInvisibleDuration", request).code is StatusCode.UNAVAILABLE
    # No client sends handles of two groups at once.
    mixed = ack(broker, foreign, own)
    assert [entry.status.code for entry in mixed.entries] == [Code.INVALID_RECEIPT_HANDLE, Code.OK]
