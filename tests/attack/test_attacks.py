"""Every attack ends by itself, is counted, and leaves nothing behind. Limits are small, so that it ends soon."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from support.http2_attacks import ATTACKS, GREETING, Attack, run_attack
from support.http2_peer import H2Pair, RecordedCall, ServerRig, data, message, open_request, unary_request
from support.running_time import PATIENCE_S, until
from tandemmq.http2 import frames
from tandemmq.http2.connection import Connection
from tandemmq.http2.errors import Limits, TlsMode
from tandemmq.http2.server import Server
from tandemmq.http2.stream import Stream
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.http2_front import Http2Front
from tandemmq.service.rpc import Call, MethodTable, UnaryMethod

LIMITS: Final = Limits(
    message_bytes=20_000,
    concurrent_streams=20,
    connections=8,
    connection_buffer_bytes=150_000,
    server_buffer_bytes=600_000,
    idle_burst=200,
    idle_per_s=10,
    preface_timeout_s=0.2,
    frame_timeout_s=0.3,
    message_timeout_s=0.3,
    keepalive_s=0.2,
    keepalive_timeout_s=0.2,
    write_stall_s=0.3,
)
# On a socket time is real, and a machine that is busy must not look like a peer that is slow. So nothing is late but
# for the limit which an attack is about: by the counter that it raises.
PATIENT: Final = dataclasses.replace(
    LIMITS,
    preface_timeout_s=3_600,
    frame_timeout_s=3_600,
    message_timeout_s=3_600,
    keepalive_s=3_600,
    keepalive_timeout_s=3_600,
    write_stall_s=3_600,
)
LIMITS_OF_TIME: Final = {
    "preface_timeout": dataclasses.replace(PATIENT, preface_timeout_s=LIMITS.preface_timeout_s),
    "frame_timeout": dataclasses.replace(PATIENT, frame_timeout_s=LIMITS.frame_timeout_s),
    "keepalive_timeout": dataclasses.replace(
        PATIENT, keepalive_s=LIMITS.keepalive_s, keepalive_timeout_s=LIMITS.keepalive_timeout_s
    ),
    "slow_reader": dataclasses.replace(PATIENT, write_stall_s=LIMITS.write_stall_s),
}
ANSWER: Final = bytes(100_000)
# What an attack may make us write at most, beside the answers it asked for: an answer for each idle frame and refusal.
OUTPUT_MAX: Final = 100_000
SOCKET_BYTES: Final = 256 << 10
CHUNKS_MAX: Final = 20_000


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_without_sockets(attack: Attack) -> None:
    rig = ServerRig(limits=LIMITS, on_half_closed=lambda call: call.respond(ANSWER), greet=False)
    connection = rig.connection
    written = 0
    for fed, chunk in enumerate(attack.chunks(unary_request)):
        rig.receive(chunk)
        while not rig.connection.is_closed and (piece := connection.take_output()):
            written += len(piece)
            if written > SOCKET_BYTES and not attack.reads:
                connection.pause_output(rig.now, written)
                break
        if connection.is_closed or (written > SOCKET_BYTES and not attack.reads):
            break
        assert fed < CHUNKS_MAX, "the attack goes on for ever"
        assert connection.buffered_bytes <= LIMITS.connection_buffer_bytes + len(ANSWER) + 5
        assert connection.open_streams <= LIMITS.concurrent_streams
    rig.advance(5 if attack.ends_connection else 0)
    assert rig.counters[attack.counter] >= 1, rig.counters
    assert connection.is_closed == attack.ends_connection
    if attack.reads:
        answers = sum(call.is_finished for call in rig.calls.values()) * (len(ANSWER) + 100)
        assert written + len(rig.output_bytes()) <= OUTPUT_MAX + answers
    rig.lose()
    for call in rig.calls.values():
        assert call.hooks.count("cancelled") + call.hooks.count("undelivered") <= 1


class Answering(Stream):
    """Answers every request with the same bytes."""

    def half_closed(self) -> None:
        self.respond(ANSWER)


@asynccontextmanager
async def serving(limits: Limits = PATIENT) -> AsyncIterator[tuple[Server, int]]:
    server = Server(Answering, limits=limits)
    port = server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop(limit_s=0.1)
    assert server.connection_count == 0
    assert server.usage.buffered_bytes == 0
    assert server.usage.unfinished_bytes == 0
    assert server.usage.streams == 0


async def until_empty(server: Server) -> None:
    await until(lambda: not server.connection_count)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_attack_on_a_socket(attack: Attack) -> None:
    async with serving(LIMITS_OF_TIME.get(attack.counter, PATIENT)) as (server, port):
        was_closed = await run_attack(attack, port, is_counted=lambda: server.counters[attack.counter] > 0)
        assert server.counters[attack.counter] >= 1, server.counters
        assert was_closed or not attack.ends_connection
        await until_empty(server)


async def test_an_orderly_client_does_not_notice_the_attacks_of_others() -> None:
    # Those that only time would end stay for as long as the others, and with them all that they make the server keep.
    limits = dataclasses.replace(PATIENT, connections=1_000, server_buffer_bytes=6_000_000)
    async with serving(limits) as (_, port):
        lasting = [
            asyncio.ensure_future(run_attack(attack, port)) for attack in ATTACKS if attack.counter in LIMITS_OF_TIME
        ]
        attacks = [
            asyncio.ensure_future(run_attack(attack, port))
            for attack in ATTACKS
            if attack.counter not in LIMITS_OF_TIME
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GREETING)
        answered = 0
        stream = 1
        while not all(attack.done() for attack in attacks):
            writer.write(unary_request(stream))
            stream += 2
            received = 0
            while received < len(ANSWER) + 5:
                head, flags, _ = frames.FRAME_HEAD.unpack(await reader.readexactly(frames.FRAME_HEAD_BYTES))
                payload = await reader.readexactly(head >> 8)
                assert head & 0xFF not in (frames.GOAWAY, frames.RST_STREAM), payload
                if head & 0xFF == frames.DATA:
                    received += len(payload)
                    writer.write(frames.window_update(0, len(payload)) + frames.window_update(stream - 2, len(payload)))
                if head & 0xFF == frames.PING and not flags:
                    writer.write(frames.frame(frames.PING, frames.ACK, 0, payload))
            answered += 1
        assert answered > 0
        writer.close()
        await asyncio.gather(*attacks)
        for attack in lasting:
            attack.cancel()
        await asyncio.wait(lasting)


async def test_connections_above_the_limit_are_closed_at_once() -> None:
    async with serving() as (server, port):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LIMITS.connections + 3)]
        for _, writer in pairs:
            writer.write(GREETING)
        await until(lambda: server.counters["connection_refused"] >= 3)
        assert server.connection_count <= LIMITS.connections
        for _, writer in pairs:
            writer.transport.abort()
        await until_empty(server)


@pytest.mark.parametrize("tls_mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE])
async def test_whoever_opens_all_connections_keeps_nobody_else_out(tls_mode: TlsMode) -> None:
    """Of the one that opened them those that do nothing give way, and no more than others need."""
    limits = dataclasses.replace(PATIENT, connections=12)
    server = Server(Answering, limits=limits, tls_mode=tls_mode, tls=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    port = server.listen("127.0.0.1", 0)
    writers: list[asyncio.StreamWriter] = []

    async def connected(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        writers.append(writer)
        writer.write(GREETING)
        return reader, writer

    async def is_served(reader: asyncio.StreamReader) -> bool:
        with suppress(ConnectionError):
            return len(await asyncio.wait_for(reader.read(1), PATIENCE_S)) == 1
        return False

    greedy = [await connected("127.0.0.1") for _ in range(limits.connections)]
    assert all([await is_served(reader) for reader, _ in greedy])
    greedy[0][1].write(open_request(1))
    await until(lambda: server.usage.streams)
    others = [await connected(f"127.0.0.{number}") for number in (2, 3, 3, 4)]
    assert all([await is_served(reader) for reader, _ in others])
    assert not await is_served((await connected("127.0.0.1"))[0])
    assert server.connection_count == limits.connections
    assert (server.counters["connection_gave_way"], server.counters["connection_refused"]) == (4, 1)
    assert server.usage.streams == 1, "the one with a call is there"
    # Those who have their share each are nobody's to push out.
    more = [await connected("127.0.0.5") for _ in range(3)]
    assert [await is_served(reader) for reader, _ in more] == [True, True, False]
    for writer in writers:
        writer.transport.abort()
    await asyncio.wait([asyncio.ensure_future(writer.wait_closed()) for writer in writers])
    await until_empty(server)
    assert not server._counts
    assert not server._address_of
    await server.stop(limit_s=0.1)


async def test_whoever_connects_and_says_nothing_keeps_nobody_else_out_of_a_port_that_waits_for_a_first_byte() -> None:
    limits = dataclasses.replace(PATIENT, connections=12, preface_timeout_s=PATIENCE_S)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server = Server(Answering, limits=limits, tls_mode=TlsMode.PERMISSIVE, tls=lambda: tls)
    port = server.listen("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(20)]
    await until(lambda: server.counters["connection_refused"] == 8)
    served = []
    for number in (3, 3, 4):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{number}", 0))
        writer.write(GREETING)
        served.append(await asyncio.wait_for(reader.read(1), PATIENCE_S))
        silent.append((reader, writer))
    assert [len(each) for each in served] == [1] * 3
    assert server.counters["connection_gave_way"] == 3
    for _, writer in silent:
        writer.transport.abort()
    await until_empty(server)
    assert not server._counts
    await server.stop(limit_s=0.1)


# What one address may have of what all share.


@asynccontextmanager
async def opened(port: int, host: str, count: int, says: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections of one address."""
    pairs = [
        await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0), limit=1 << 16) for _ in range(count)
    ]
    try:
        for _, writer in pairs:
            writer.write(says)
        yield [reader for reader, _ in pairs]
    finally:
        for _, writer in pairs:
            writer.transport.abort()
        await asyncio.wait([asyncio.ensure_future(writer.wait_closed()) for _, writer in pairs])


async def answered(reader: asyncio.StreamReader, size: int) -> bool:
    """Whether an answer of so many bytes comes, rather than a refusal or the connection's end."""
    received = 0
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while received < size:
            head, _, _ = frames.FRAME_HEAD.unpack(await reader.readexactly(frames.FRAME_HEAD_BYTES))
            payload = await reader.readexactly(head >> 8)
            if head & 0xFF in (frames.GOAWAY, frames.RST_STREAM):
                return False
            if head & 0xFF == frames.DATA:
                received += len(payload)
            elif head & 0xFF == frames.HEADERS and received == 0 and len(payload) > 20:
                return False
    return received >= size


WIDE: Final = frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(0, 1 << 30)


async def test_whoever_opens_all_calls_leaves_others_theirs() -> None:
    limits = dataclasses.replace(PATIENT, connections=1_000, server_streams=60)
    async with serving(limits) as (server, port):
        halves = GREETING + b"".join(open_request(stream) for stream in range(1, 2 * limits.concurrent_streams, 2))
        async with opened(port, "127.0.0.2", 10, halves):
            await until(lambda: server.counters["stream_refused"] >= 140)
            assert server.usage.streams == 60
            for host in ("127.0.0.3", "127.0.0.4"):
                async with opened(port, host, 3, GREETING + WIDE + unary_request(1)) as readers:
                    assert all([await asyncio.wait_for(answered(each, len(ANSWER)), PATIENCE_S) for each in readers])
            # The others' have ended: there is none for whoever has all of them.
            refused = server.counters["stream_refused"]
            async with opened(port, "127.0.0.2", 1, GREETING + unary_request(1)) as readers:
                assert not await asyncio.wait_for(answered(readers[0], len(ANSWER)), PATIENCE_S)
            assert server.counters["stream_refused"] == refused + 1
        await until_empty(server)


_HALF_MESSAGE: Final = open_request(1) + data(1, message(bytes(19_000))[:-1])
_HALF_FRAME: Final = data(1, bytes(16_000))[:-1]
_HALF_HEAD: Final = frames.frame(frames.HEADERS, 0, 1, bytes(16_000))
_UNREAD: Final = frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 0}) + unary_request(1)


@pytest.mark.parametrize(
    "says", [_HALF_MESSAGE, _HALF_FRAME, _HALF_HEAD, _UNREAD], ids=["message", "frame", "header block", "answer"]
)
async def test_whoever_has_all_kept_that_may_be_leaves_others_theirs(says: bytes) -> None:
    """Each of its connections has little."""
    limits = dataclasses.replace(PATIENT, connections=1_000)
    count = 2 * limits.server_buffer_bytes // (len(ANSWER) if says is _UNREAD else 15_000)
    async with serving(limits) as (server, port), opened(port, "127.0.0.2", count, GREETING + says):
        await until(lambda: server.counters["buffers_full"] >= count // 4)
        assert limits.server_buffer_bytes * 0.8 <= server.usage.buffered_bytes <= limits.server_buffer_bytes * 1.2
        for host in ("127.0.0.3", "127.0.0.4"):
            whole = GREETING + WIDE + open_request(1) + data(1, message(bytes(19_000))[:10_000])
            async with opened(port, host, 3, whole) as readers:
                await until(lambda: server.usage.streams >= 3)
                refused = server.counters["buffers_full"]
                assert not any(reader.at_eof() for reader in readers)
            async with opened(port, host, 3, GREETING + WIDE + unary_request(1, bytes(15_000))) as readers:
                assert all([await asyncio.wait_for(answered(each, len(ANSWER)), PATIENCE_S) for each in readers])
            # It reads slowly, as clients far away do.
            async with opened(port, host, 1, GREETING + _UNREAD + WIDE) as readers:
                assert await asyncio.wait_for(answered(readers[0], len(ANSWER)), PATIENCE_S)
            assert server.counters["buffers_full"] == refused
    assert server.usage.buffered_bytes == 0


async def test_whole_requests_whose_end_does_not_come_are_bounded() -> None:
    """Each of them is of the largest size there may be, and its handler has not seen it."""
    seen: list[int] = []

    def answer(request: StringValue, call: Call) -> None:
        seen.append(len(request.value))
        call.send(StringValue(value="y" * 1_000))
        call.finish()

    front = Http2Front("127.0.0.1", 0, clock=SystemClock(), limits=dataclasses.replace(PATIENT, connections=1_000))
    front.add(MethodTable("a.B", {"C": UnaryMethod(answer, StringValue)}))
    port, server = await front.start(), front._server
    encoded, path = StringValue(value="x" * 15_000).SerializeToString(), (":path", "/a.B/C")
    says = b"".join(open_request(stream, path) + data(stream, message(encoded)) for stream in range(1, 41, 2))
    async with opened(port, "127.0.0.2", 20, GREETING + says):
        await until(lambda: server.usage.streams >= 400 or server.counters["buffers_full"] >= 40)
        # Beside them, half as much may be frames that are not whole.
        assert LIMITS.server_buffer_bytes * 0.8 <= server.usage.buffered_bytes <= LIMITS.server_buffer_bytes * 1.6
        assert server.usage.streams <= 60
        rest = open_request(1, path) + data(1, message(encoded)[:1_000]) + data(1, message(encoded)[1_000:])
        for host in ("127.0.0.3", "127.0.0.4"):
            async with opened(port, host, 2, GREETING + rest + data(1, b"", end=True)) as readers:
                assert all([await asyncio.wait_for(answered(each, 1_000), PATIENCE_S) for each in readers])
        assert seen == [15_000] * 4
    await until(lambda: not server.usage.buffered_bytes)
    await front.stop(limit_ms=0)


async def test_a_half_closed_socket_is_closed_and_its_calls_end() -> None:
    ended: list[str] = []

    class Waiting(Stream):
        def cancelled(self) -> None:
            ended.append("cancelled")

    server = Server(Waiting, limits=PATIENT)
    port = server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING + unary_request(1) + open_request(3))
    writer.write_eof()
    with suppress(ConnectionError):
        await reader.read()
    await until_empty(server)
    assert ended == ["cancelled"] * 2
    writer.close()
    await server.stop(limit_s=0)


# Attacks that need time rather than bytes.


def trickle(rig: ServerRig, wire: bytes, *, every_s: float) -> None:
    for number in range(len(wire)):
        rig.receive(wire[number : number + 1])
        rig.advance(every_s)
        if rig.connection.is_closed:
            return


def test_a_frame_that_trickles_in() -> None:
    rig = ServerRig(limits=LIMITS)
    trickle(rig, data(1, bytes(1_000)), every_s=0.1)
    assert rig.counters["frame_timeout"] == 1
    rig.lose()


def test_a_header_block_that_trickles_in_frame_by_frame() -> None:
    rig = ServerRig(limits=LIMITS)
    rig.receive(frames.frame(frames.HEADERS, 0, 1, b""))
    for _ in range(10):
        rig.advance(0.1)
        rig.receive(frames.frame(frames.CONTINUATION, 0, 1, b""))
    assert rig.counters["frame_timeout"] == 1
    rig.lose()


def test_small_frames_that_trickle_in_are_no_attack() -> None:
    rig = ServerRig(limits=LIMITS)
    for number in range(20):
        rig.receive(unary_request(2 * number + 1)[:-3])
        rig.advance(0.1)
        rig.receive(unary_request(2 * number + 1)[-3:])
        rig.output_bytes()
        rig.calls[2 * number + 1].end()
    assert not rig.connection.is_closed


def test_a_message_that_trickles_in_ends_its_call_and_no_other() -> None:
    rig = ServerRig(limits=LIMITS)
    rig.receive(open_request(1) + open_request(3))
    for _ in range(10):
        rig.receive(data(1, message(bytes(100))[:20] if 1 not in rig.calls or not rig.calls[1].is_finished else b"."))
        rig.receive(data(3, message(b"whole")))
        rig.advance(0.1)
    assert rig.counters["message_timeout"] == 1
    assert rig.calls[1].hooks[-1] == "cancelled"
    assert "cancelled" not in rig.calls[3].hooks
    assert rig.connection.buffered_bytes == 0


def test_a_message_in_tiny_frames_takes_no_more_memory_than_is_counted() -> None:
    rig = ServerRig()
    whole = message(bytes(range(256)) * 40)
    rig.receive(open_request(1))
    for byte in whole[:-1]:
        rig.receive(data(1, bytes((byte,))))
    assert rig.connection.buffered_bytes == len(whole) - 1
    assembly = rig.calls[1].assembly
    assert assembly is not None
    # An object has some 40 bytes of its own.
    assert assembly.piece_count <= 10
    rig.receive(data(1, whole[-1:]))
    assert rig.calls[1].hooks[-1] == whole[5:]
    assert rig.connection.buffered_bytes == 0


def test_calls_dribbled_to_death_end_while_the_connection_s_other_calls_go_on() -> None:
    def answer(call: RecordedCall) -> None:
        call.respond(ANSWER if call.stream_id == 1 else b"short")

    rig = ServerRig(limits=LIMITS, on_half_closed=answer)
    rig.receive(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 100}) + unary_request(1))
    stream = 3
    for _ in range(10):
        rig.receive(frames.window_update(1, 1) + unary_request(stream))
        rig.output_bytes()
        rig.advance(0.1)
        stream += 2
    assert rig.counters["slow_reader"] == 1
    assert not rig.connection.is_closed
    assert rig.calls[1].hooks[-1] == "undelivered"
    assert rig.connection.buffered_bytes == 0


def test_answers_to_many_closed_windows_are_bounded() -> None:
    rig = ServerRig(limits=LIMITS, on_half_closed=lambda call: call.respond(ANSWER))
    rig.receive(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 0}))
    for stream in range(1, 30, 2):
        rig.receive(unary_request(stream))
    assert rig.connection.buffered_bytes <= LIMITS.connection_buffer_bytes
    assert rig.counters["buffers_full"] == 14
    rig.lose()


def test_large_headers_of_open_calls_are_bounded() -> None:
    rig = ServerRig(limits=LIMITS)
    for stream in range(1, 40, 2):
        rig.receive(open_request(stream, ("x-large", "y" * 12_000)))
    assert rig.connection.buffered_bytes <= LIMITS.connection_buffer_bytes
    assert rig.counters["buffers_full"] > 0
    for call in list(rig.calls.values()):
        call.end()
    assert rig.connection.buffered_bytes == 0


def test_calls_of_all_connections_together_are_bounded() -> None:
    limits = Limits(server_streams=10)
    first = ServerRig(limits=limits)
    second = Connection(
        lambda *arguments: Stream(*arguments),
        limits=limits,
        now=0,
        usage=first.usage,
        counters=first.counters,
    )
    first.receive(b"".join(open_request(stream) for stream in range(1, 15, 2)))
    second.receive(GREETING + b"".join(open_request(stream) for stream in range(1, 15, 2)), 0)
    assert (first.connection.open_streams, second.open_streams) == (7, 3)
    assert first.counters["stream_refused"] == 4
    second.lost()
    first.receive(open_request(15) + open_request(17))
    assert first.connection.open_streams == 9
    first.lose()


def test_many_calls_blocked_by_their_windows_cost_other_calls_nothing() -> None:
    """What waits for its own window is not looked at until that opens."""
    rig = ServerRig(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 0}, on_half_closed=lambda call: call.respond(b"x"))
    rig.receive(b"".join(unary_request(stream) for stream in range(1, 2_001, 2)))
    rig.output_bytes()
    # What the connection goes through whenever it may write.
    sendable = rig.connection._calls.sendable
    assert not sendable
    rig.receive(frames.window_update(0, 1), frames.frame(frames.PING, 0, 0, bytes(8)))
    rig.output_bytes()
    assert not sendable
    rig.receive(frames.window_update(999, 100))
    rig.output_bytes()
    assert not sendable
    assert len(rig.connection._calls.blocked) == 999


def test_empty_data_on_a_call_that_was_answered_early_is_counted_too() -> None:
    rig = ServerRig(limits=LIMITS, on_opened=lambda call: call.end(12))
    rig.receive(open_request(1), data(1, b"") * 1_000)
    assert rig.counters["too_many_empty_data_frames"] == 1
    assert rig.connection.is_closed


def test_h2_agrees_that_a_flooded_connection_ended_in_order() -> None:
    both = H2Pair(ServerRig(greet=False, limits=LIMITS))
    for _ in range(300):
        both.client.ping(b"12345678")
    both.exchange()
    assert type(both.events[-1]).__name__ == "ConnectionTerminated"
