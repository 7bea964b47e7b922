"""How deliveries end."""

from __future__ import annotations

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as pb

from mqcore.storage import PutStatus
from support.api_requests import Answer, ack_request, call, message, receive, receive_request, send_request
from support.broker_assembly import BrokerAssembly
from support.manual_time import ManualTime

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


def test_single_failure_is_the_overall_result(broker: BrokerAssembly, time: ManualTime) -> None:
    [handle] = delivered(broker, b"a")
    time.advance(10_001)
    response = ack(broker, handle)
    assert (response.status.code, response.entries[0].status.code) == (Code.INVALID_RECEIPT_HANDLE,) * 2


def test_request_without_entries_is_refused(broker: BrokerAssembly) -> None:
    assert ack(broker).status.code == Code.BAD_REQUEST


def test_slave_refuses_acknowledgements_in_every_entry(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    broker.refusal = "this broker is a slave"
    response = ack(broker, handle)
    assert (response.status.code, response.entries[0].status.code) == (Code.FORBIDDEN, Code.FORBIDDEN)


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


def test_forward_that_was_not_stored_leaves_the_lease(broker: BrokerAssembly) -> None:
    [handle] = delivered(broker, b"a")
    broker.put_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    assert forward(broker, handle) == Code.SLAVE_PERSISTENCE_TIMEOUT
    assert ack(broker, handle).status.code == Code.OK


def test_forward_with_an_ended_lease_is_refused(broker: BrokerAssembly, time: ManualTime) -> None:
    [handle] = delivered(broker, b"a")
    time.advance(10_001)
    assert forward(broker, handle) == Code.INVALID_RECEIPT_HANDLE
