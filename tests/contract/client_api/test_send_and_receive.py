"""Scenarios 11, 16, 17, 33 to 41, 43 and 44: messages, leases and long polls."""

from __future__ import annotations

import asyncio
import hashlib
from time import monotonic

import pytest

from contract.client_api.conftest import Endpoint
from contract.client_api.raw_client import RawClient
from support.api_requests import message, receive_request
from support.running_time import running_time, until
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

Code = definition.Code


async def delivered(client: RawClient, *bodies: bytes) -> list[str]:
    """Handles of messages that were sent and received."""
    for body in bodies:
        assert (await client.send(message(body=body))).status.code == Code.OK
    return (await client.receive()).handles


async def waiting(endpoint: Endpoint, count: int = 1) -> None:
    """Until so many receives wait."""
    await until(lambda: endpoint.broker.api.waiting_receive_count == count)


async def test_11_digest_is_upper_case_md5_and_the_encoding_is_told(client: RawClient) -> None:
    await client.send(message(body=b"body"))
    [got] = (await client.receive()).messages
    assert got.system_properties.body_digest.type == definition.MD5
    assert got.system_properties.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert got.system_properties.body_encoding == definition.IDENTITY


async def test_12_body_at_the_limit_and_beyond(client: RawClient) -> None:
    assert (await client.send(message(body=bytes(4 << 20)))).status.code == Code.OK
    assert (await client.send(message(body=bytes((4 << 20) + 1)))).status.code == Code.MESSAGE_BODY_TOO_LARGE
    assert (await client.send(message(body=b""))).status.code == Code.MESSAGE_BODY_EMPTY


async def test_16_type_of_message_must_fit_the_topic(client: RawClient) -> None:
    conflict = await client.send(message("orders", message_group="g"))
    assert conflict.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert (await client.send(message("mixed", message_group="g"))).status.code == Code.OK
    assert (await client.send(message("mixed"))).status.code == Code.OK


async def test_17_blank_message_id_and_mixed_topics(client: RawClient) -> None:
    assert (await client.send(message(message_id=" "))).status.code == Code.ILLEGAL_MESSAGE_ID
    assert (await client.send(message("orders"), message("mixed"))).status.code == Code.MESSAGE_CORRUPTED


@pytest.mark.slow
async def test_33_lease_of_10_s_ends_after_10_s(client: RawClient) -> None:
    sent_at = monotonic()
    [first] = await delivered(client, b"a")
    # The lease has begun by now, how long ago nobody knows.
    asked_at = monotonic()
    answer = await client.receive(receive_request(poll_ms=20_000))
    # By the lease's end and not by the poll's. How soon after it is for a benchmark to say, here and below.
    assert monotonic() - sent_at >= 9.9
    assert monotonic() - asked_at < 19
    [again] = answer.messages
    assert again.system_properties.delivery_attempt == 2
    assert again.system_properties.receipt_handle != first


async def test_33_lease_that_ended_while_nobody_waited(client: RawClient, endpoint: Endpoint) -> None:
    [first] = await delivered(client, b"a")
    endpoint.clock.push(10_001)
    [again] = (await client.receive()).messages
    assert again.system_properties.delivery_attempt == 2
    assert again.system_properties.receipt_handle != first


async def test_34_ack_after_the_lease(client: RawClient, endpoint: Endpoint) -> None:
    handles = await delivered(client, b"a")
    endpoint.clock.push(10_001)
    response = await client.ack(*handles)
    assert response.status.code == Code.INVALID_RECEIPT_HANDLE
    assert [entry.status.code for entry in response.entries] == [Code.INVALID_RECEIPT_HANDLE]


@pytest.mark.parametrize("invisible_ms", [9_000, 13 * 3_600_000])
async def test_35_lease_out_of_range(client: RawClient, invisible_ms: int) -> None:
    answer = await client.receive(receive_request(invisible_ms=invisible_ms))
    assert answer.code == Code.ILLEGAL_INVISIBLE_TIME


async def test_36_changed_lease_is_acknowledged_with_its_new_handle(client: RawClient) -> None:
    [old] = await delivered(client, b"a")
    changed = await client.change_invisible(old, 30_000)
    assert changed.status.code == Code.OK
    assert (await client.ack(old)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.ack(changed.receipt_handle)).status.code == Code.OK


async def test_37_lease_given_up_is_visible_within_1_s(client: RawClient, endpoint: Endpoint) -> None:
    [handle] = await delivered(client, b"a")
    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(client.receive(receive_request(poll_ms=20_000)))
        await waiting(endpoint)
        with running_time() as seconds:
            await client.change_invisible(handle, 0)
            assert (await receiving).bodies == [b"a"]
            # By that and not by the poll's end, nor by the lease's.
            assert seconds() < 8


async def test_38_good_and_bad_handle_in_one_ack(client: RawClient) -> None:
    [good] = await delivered(client, b"a")
    response = await client.ack(good, "bad")
    assert response.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


async def test_39_stream_is_status_messages_and_delivery_time(client: RawClient) -> None:
    for body in (b"a", b"b"):
        await client.send(message(body=body))
    elements = [element async for element in client.start_receive(receive_request())]
    assert [element.WhichOneof("content") for element in elements] == [
        "status",
        "message",
        "message",
        "delivery_timestamp",
    ]


async def test_40_empty_poll_of_5_s(client: RawClient) -> None:
    asked_at = monotonic()
    answer = await client.receive(receive_request(poll_ms=5_000))
    assert answer.code == Code.MESSAGE_NOT_FOUND
    assert monotonic() - asked_at >= 4.99


async def test_41_message_sent_during_a_poll(client: RawClient, endpoint: Endpoint) -> None:
    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(client.receive(receive_request(poll_ms=20_000)))
        await waiting(endpoint)
        with running_time() as seconds:
            await client.send(message(body=b"a"))
            assert (await receiving).bodies == [b"a"]
            # By the message and not by the poll's end.
            assert seconds() < 19


async def test_43_deadline_too_short_for_a_poll(client: RawClient) -> None:
    answer = await client.receive(receive_request(poll_ms=20_000), timeout_s=2)
    assert answer.code == Code.ILLEGAL_POLLING_TIME


async def test_43_cancelled_receive_frees_its_place_and_loses_nothing(client: RawClient, endpoint: Endpoint) -> None:
    call = client.start_receive(receive_request())
    reading = asyncio.ensure_future(call.read())
    await waiting(endpoint)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await waiting(endpoint, 0)
    await client.send(message(body=b"a"))
    assert (await client.receive()).bodies == [b"a"]


async def test_43_receive_cancelled_as_its_answer_is_written_loses_nothing(endpoint: Endpoint) -> None:
    # Its windows stay small, so that part of the answer is still to be written. Else gRPC opens them to 8 MiB and more
    # within 50 ms, whoever reads, and what has all come is not cancelled.
    async with RawClient(endpoint.address, ("grpc.http2.bdp_probe", 0)) as client:
        for _ in range(8):
            await client.send(message(body=bytes(1 << 20)))
        call = client.start_receive(receive_request(invisible_ms=3_600_000))
        element = await call.read()
        assert isinstance(element, pb.ReceiveMessageResponse)
        call.cancel()
        await until(lambda: any(state.ready_count for state in endpoint.broker.leases.progress()))
        assert len((await client.receive()).messages) == 8


async def test_44_batch_of_100_is_cut_to_32(client: RawClient) -> None:
    await client.send(*(message(body=b"x") for _ in range(50)))
    assert len((await client.receive(receive_request(batch_size=100))).messages) == 32
