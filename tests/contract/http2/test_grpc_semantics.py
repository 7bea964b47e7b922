"""What a gRPC client may rely on, the same on both fronts; grpcio's client is the judge."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from contract.http2.conftest import Client
from support.running_time import until


async def test_metadata_reaches_the_handler(client: Client) -> None:
    sent = (("x-plain", "value, with = signs"), ("x-empty", ""), ("x-long", "y" * 3_000), ("x-bin", b"\x00\xff"))
    await client.unary(BytesValue(value=b"x"), metadata=sent)
    ((metadata, peer, deadline_ms),) = client.mirror.calls
    assert [metadata.get(name) for name, _ in sent[:3]] == [value for _, value in sent[:3]]
    assert peer.startswith("ipv4:127.0.0.1:")
    assert deadline_ms is None


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 4 << 20, 20 << 20])
async def test_bodies_of_every_size(client: Client, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert (await client.unary(BytesValue(value=body))).value == body


async def test_many_calls_at_once(client: Client) -> None:
    bodies = [b"%d" % number * 100 for number in range(500)]
    answers = await asyncio.gather(*(client.unary(BytesValue(value=body)) for body in bodies))
    assert [answer.value for answer in answers] == bodies


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_every_status_with_a_detail_that_is_not_ascii(client: Client, code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.unary(BytesValue(), metadata=(("x-order", f"status {code.name}"),))
    assert failed.value.code() is code
    assert failed.value.details() == "größer als 100 %\n€"


async def test_a_handler_that_raises_is_unknown(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.unary(BytesValue(), metadata=(("x-order", "raise"),))
    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    assert (await client.unary(BytesValue(value=b"next"))).value == b"next"


async def test_an_unknown_method_is_unimplemented_and_says_where_to_go(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.unknown(BytesValue())
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert failed.value.details() == "look elsewhere"


async def test_a_deadline_reaches_the_handler_and_ends_the_call(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.unary(BytesValue(), metadata=(("x-order", "never"),), timeout=0.2)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: client.mirror.seen == ["cancelled"])
    assert client.mirror.calls[0][2] is not None


async def test_a_cancelled_call_reaches_the_handler_once(client: Client) -> None:
    call = client.unary(BytesValue(), metadata=(("x-order", "never"),))
    await until(lambda: len(client.mirror.calls) == 1)
    call.cancel()
    await until(lambda: client.mirror.seen == ["cancelled"])
    assert (await client.unary(BytesValue(value=b"next"))).value == b"next"
    assert client.mirror.seen == ["cancelled"]


async def test_a_closed_channel_cancels_what_is_going_on(client: Client) -> None:
    call = client.unary(BytesValue(), metadata=(("x-order", "never"),))
    await until(lambda: len(client.mirror.calls) == 1)
    await client.channel.close(None)
    await until(lambda: client.mirror.seen == ["cancelled"])
    assert call.cancelled()


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 10), (1_000, 10), (20, 1 << 20)])
async def test_server_streaming(client: Client, count: int, size: int) -> None:
    answers = [
        len(answer.value)
        async for answer in client.stream(BytesValue(value=bytes(size)), metadata=(("x-count", str(count)),))
    ]
    assert answers == [size] * count


async def test_a_cancelled_stream_reaches_the_handler(client: Client) -> None:
    call = client.stream(BytesValue(value=b"x"), metadata=(("x-order", "never"), ("x-count", "2")))
    assert [(await call.read()).value for _ in range(2)] == [b"x", b"x"]
    call.cancel()
    await until(lambda: client.mirror.seen == ["cancelled"])


async def test_bidi_in_turn_until_the_caller_ends(client: Client) -> None:
    call = client.bidi()
    for number in range(50):
        body = b"%d" % number * (number * 400)
        await call.write(BytesValue(value=body))
        assert (await call.read()).value == body
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs forgot it
    assert await call.code() is grpc.StatusCode.OK
    assert client.mirror.seen == ["half_closed"]


async def test_bidi_ended_by_the_server(client: Client) -> None:
    call = client.bidi()
    await call.write(BytesValue(value=b"one"))
    assert (await call.read()).value == b"one"
    await call.write(BytesValue(value=b"stop"))
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    assert await call.code() is grpc.StatusCode.ABORTED
    assert await call.details() == "as you say"


async def test_many_bidi_streams_at_once(client: Client) -> None:
    async def talk(number: int) -> bool:
        call = client.bidi()
        for turn in range(5):
            await call.write(BytesValue(value=b"%d %d" % (number, turn)))
            if (await call.read()).value != b"%d %d" % (number, turn):
                return False
        await call.done_writing()
        return await call.code() is grpc.StatusCode.OK

    assert all(await asyncio.gather(*(talk(number) for number in range(60))))


async def test_a_request_compressed_with_gzip_gets_an_answer_or_a_clear_refusal(client: Client) -> None:
    call = client.unary(BytesValue(value=bytes(10_000)), compression=grpc.Compression.Gzip)
    if await call.code() is grpc.StatusCode.OK:
        assert (await call).value == bytes(10_000)
    else:
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "gzip" in await call.details()


async def test_headers_above_the_limit_are_refused_and_the_connection_goes_on(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.unary(BytesValue(), metadata=(("x-huge", "y" * 40_000),))
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await client.unary(BytesValue(value=b"next"))).value == b"next"
