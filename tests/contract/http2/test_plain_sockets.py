"""Plain connections: what one of them does, or suffers, is nothing to the others that are ready in the same turn."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pytest

from support.http2_peer import unary_request
from support.running_time import PATIENCE_S
from tandemmq.http2 import frames
from tandemmq.http2.connection import Connection
from tandemmq.http2.errors import Limits, TlsMode, Usage
from tandemmq.http2.frames import RequestShape
from tandemmq.http2.hpack import Header
from tandemmq.http2.output import PendingOutput
from tandemmq.http2.server import Server
from tandemmq.http2.sockets import PlainSockets
from tandemmq.http2.stream import MESSAGE_HEAD_BYTES, Stream

GREETING = frames.PREFACE + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: frames.WINDOW_MAX})
WIDE = frames.window_update(0, frames.WINDOW_MAX - frames.DEFAULT_WINDOW_BYTES)


@dataclass
class Rig:
    """Sockets of a server, with what its calls do."""

    sockets: PlainSockets
    usage: Usage
    # What a request makes the server do; gets the call.
    handler: Callable[[Stream], None] = lambda call: call.respond(b"answer")
    cancelled: list[int] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    peers: list[socket.socket] = field(default_factory=list)
    descriptors: set[int] = field(default_factory=set)
    # What handlers say that they took.
    spent_s: float = 0.0
    # With the time of its beginning.
    connections: list[tuple[Connection, float]] = field(default_factory=list)
    # Calls, by connection and turn.
    served: Counter[tuple[str, float]] = field(default_factory=Counter)

    def have_spoken(self, count: int) -> bool:
        """The first words of so many peers were read."""
        return sum(connection.now > began for connection, began in self.connections) >= count

    def connect(self) -> socket.socket:
        """A client's end of a new connection, whose first words are on their way."""
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        self.sockets.add(near)
        self.descriptors.add(near.fileno())
        self.peers.append(far)
        far.sendall(GREETING + WIDE)
        return far


@asynccontextmanager
async def rigged(limits: Limits | None = None) -> AsyncIterator[Rig]:
    rig: Rig

    class Call(Stream):
        def half_closed(self) -> None:
            rig.served[self.connection.peer, self.connection.now] += 1
            rig.handler(self)

        def cancelled(self) -> None:
            rig.cancelled.append(self.stream_id)

    def connect(
        peer: str, now: float, on_output: Callable[[], None], on_waiting_output: Callable[[], None]
    ) -> Connection:
        connection = Connection(
            new_call,
            limits=limits or Limits(),
            now=now,
            peer=peer,
            usage=usage,
            on_output=on_output,
            on_waiting_output=on_waiting_output,
        )
        rig.connections.append((connection, now))
        return connection

    def new_call(connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> Stream:
        return Call(connection, stream_id, headers, shape)

    def now() -> float:
        return monotonic() + rig.spent_s

    usage = Usage()
    sockets = PlainSockets(memoryview(bytearray(128 << 10)), PendingOutput(None), connect, now=now)
    rig = Rig(sockets, usage)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: rig.errors.append(context))
    try:
        yield rig
    finally:
        for sock in sockets.open_now():
            sock.abort()
        await until(lambda: len(sockets) == 0)
        sockets.close()
        for peer in rig.peers:
            peer.close()
    assert usage == Usage()


class FromFar(socket.socket):
    """As if it came from an address of IPv6, of which a test's machine has one."""

    host = ""

    def getpeername(self) -> tuple[str, int, int, int]:
        return self.host, 40_000, 0, 0


def connect_from(rig: Rig, host: str) -> socket.socket:
    """A client's end of a connection from an address of the loopback network, or as if from one of IPv6."""
    is_far = ":" in host
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname(), source_address=None if is_far else (host, 0))
        near, _ = listener.accept()
    if is_far:
        near = FromFar(fileno=near.detach())
        near.host = host
    near.setblocking(False)
    rig.sockets.add(near)
    rig.peers.append(far)
    far.sendall(GREETING + WIDE)
    far.setblocking(False)
    return far


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0)


async def answer_of(peer: socket.socket) -> bytes:
    """The message that answers the first call."""
    received = bytearray()
    answer = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        while piece := await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
            received += piece
            while len(received) >= frames.FRAME_HEAD_BYTES:
                head, flags, _ = frames.FRAME_HEAD.unpack_from(received)
                stop = frames.FRAME_HEAD_BYTES + (head >> 8)
                if len(received) < stop:
                    break
                if head & 0xFF == frames.DATA:
                    answer += received[frames.FRAME_HEAD_BYTES : stop]
                if flags & frames.END_STREAM and head & 0xFF == frames.HEADERS:
                    return bytes(answer[MESSAGE_HEAD_BYTES:])
                del received[:stop]
    raise AssertionError("closed before the answer's end")


async def ended(peer: socket.socket) -> None:
    """Reads to the end of what the server says."""
    async with asyncio.timeout(PATIENCE_S):
        # With something unread on the other side it ends by a reset.
        with suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
                pass


async def test_more_sockets_than_one_poll_names_are_all_served() -> None:
    async with rigged() as rig:
        peers = [rig.connect() for _ in range(300)]
        for peer in peers:
            peer.sendall(unary_request(1))
        for peer in peers:
            assert await answer_of(peer) == b"answer"


async def test_an_error_in_one_connection_ends_that_one_alone() -> None:
    def handler(call: Stream) -> None:
        if call.stream_id == 3:
            raise RuntimeError("on purpose")
        call.respond(b"answer")

    async with rigged() as rig:
        rig.handler = handler
        bad, good = rig.connect(), rig.connect()
        bad.sendall(unary_request(3))
        good.sendall(unary_request(1))
        assert await answer_of(good) == b"answer"
        await ended(bad)
        assert [str(context["exception"]) for context in rig.errors] == ["on purpose"]
        await until(lambda: len(rig.sockets) == 1)


async def test_a_connection_that_another_ends_in_the_same_turn_is_not_read_and_keeps_its_descriptor() -> None:
    asked: list[int] = []
    opened: list[socket.socket] = []

    def handler(call: Stream) -> None:
        asked.append(call.stream_id)
        for sock in rig.sockets.open_now():
            if sock is not own[call.stream_id]:
                sock.abort()
        # Of a descriptor that was closed just now this would be the next user.
        opened.append(socket.socket())

    async with rigged() as rig:
        rig.handler = handler
        peers = {number: rig.connect() for number in (1, 3)}
        own = dict(zip(peers, rig.sockets.open_now(), strict=True))
        await until(lambda: rig.usage.streams == 0)
        for number, peer in peers.items():
            peer.sendall(unary_request(number))
        await until(lambda: bool(asked))
        await until(lambda: len(rig.sockets) == 1)
        assert len(asked) == 1
        [survivor] = rig.sockets.open_now()
        assert survivor is own[asked[0]]
        await ended(peers[4 - asked[0]])
        assert opened[0].fileno() not in rig.descriptors
        assert rig.errors == []
        for sock in opened:
            sock.close()


async def test_a_descriptor_used_again_belongs_to_the_new_connection() -> None:
    async with rigged() as rig:
        for _ in range(5):
            first = rig.connect()
            first.sendall(unary_request(1))
            assert await answer_of(first) == b"answer"
            first.close()
            await until(lambda: len(rig.sockets) == 0)


async def test_a_peer_that_does_not_read_is_waited_for_and_gets_every_byte() -> None:
    large = bytes(range(256)) * (48 << 10)
    async with rigged() as rig:
        rig.handler = lambda call: call.respond(large)
        peer = rig.connect()
        peer.sendall(unary_request(1))
        # More than any socket's buffer: the rest is kept, and counted.
        await until(lambda: rig.usage.buffered_bytes > 256 << 10)
        other = rig.connect()
        rig.handler = lambda call: call.respond(b"answer")
        other.sendall(unary_request(1))
        assert await answer_of(other) == b"answer"
        assert await answer_of(peer) == large
        await until(lambda: rig.usage.buffered_bytes == 0)
        # It is read again.
        peer.sendall(unary_request(3))
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.get_running_loop().sock_recv(peer, 1 << 20)


async def test_a_peer_that_is_gone_ends_its_calls() -> None:
    held: list[Stream] = []
    async with rigged() as rig:
        rig.handler = held.append
        peer = rig.connect()
        peer.sendall(unary_request(1))
        await until(lambda: len(held) == 1)
        peer.close()
        await until(lambda: len(rig.sockets) == 0)
        assert rig.cancelled == [1]


async def test_a_reset_ends_the_calls_of_a_peer_that_is_not_read() -> None:
    held: list[Stream] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with rigged() as rig:
            peer = socket.create_connection(listener.getsockname())
            near, _ = listener.accept()
            near.setblocking(False)
            rig.sockets.add(near)
            peer.sendall(GREETING + WIDE + unary_request(1) + unary_request(3))
            rig.handler = lambda call: held.append(call) if call.stream_id == 3 else call.respond(bytes(12 << 20))
            await until(lambda: rig.usage.buffered_bytes > 256 << 10)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            await until(lambda: len(rig.sockets) == 0)
            assert 3 in rig.cancelled
            assert rig.errors == []


@pytest.mark.parametrize(
    ("end", "is_read"),
    [("closed in order", True), ("closed with the answer unread", False), ("reset behind the answer", False)],
)
async def test_an_answer_that_was_written_is_read_if_the_peer_ended_in_order(end: str, is_read: bool) -> None:
    written, unread = asyncio.Event(), asyncio.Event()

    def answer(call: Stream) -> None:
        call.confirms, call.unread = True, unread.set
        call.respond(b"answer")
        asyncio.get_running_loop().call_later(0.05, written.set)

    async with rigged() as rig:
        rig.handler = answer
        peer = connect_from(rig, "127.0.0.1")
        peer.sendall(unary_request(1))
        await written.wait()
        if end != "closed with the answer unread":
            peer.recv(1 << 20)
        if end == "reset behind the answer":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await until(lambda: len(rig.sockets) == 0)
        assert unread.is_set() is not is_read


async def test_output_of_one_that_fails_is_nothing_to_the_next() -> None:
    class Writer:
        def __init__(self, broken: bool) -> None:
            self.broken = broken
            self.seen: list[str] = []

        def write_out(self) -> None:
            if self.broken:
                raise RuntimeError("on purpose")
            self.seen.append("written")

        def fail(self, error: Exception, /) -> None:
            self.seen.append(f"failed {error}")

    output = PendingOutput(None)
    writers = [Writer(True), Writer(False), Writer(False)]
    output.add(writers[0])
    output.add(writers[1])
    output.add_waiting(writers[2])
    await until(lambda: all(writer.seen for writer in writers))
    assert [writer.seen for writer in writers] == [["failed on purpose"], ["written"], ["written"]]
    assert not output.is_waiting


# Fairness


def spends(rig: Rig, seconds: float, order: list[str]) -> Callable[[Stream], None]:
    """A handler that takes so long, and notes whose call it was."""

    def handle(call: Stream) -> None:
        order.append(call.connection.peer.split(":")[1])
        rig.spent_s += seconds
        call.respond(b"answer")

    return handle


async def test_one_request_passes_by_all_that_another_address_sent_on_many_connections() -> None:
    order: list[str] = []
    async with rigged() as rig:
        rig.handler = spends(rig, 0.001, order)
        greedy = [connect_from(rig, "127.0.0.2") for _ in range(40)]
        orderly = connect_from(rig, "127.0.0.3")
        await until(lambda: rig.have_spoken(41))
        for peer in greedy:
            peer.sendall(b"".join(unary_request(1 + 2 * number) for number in range(5)))
        orderly.sendall(unary_request(1))
        assert await answer_of(orderly) == b"answer"
        # Two reads of the turn that was full, and one of the greedy address in the next.
        assert order.index("127.0.0.3") <= 3 * 5
        await until(lambda: len(order) == 40 * 5 + 1)


@pytest.mark.parametrize("greedy", [["127.0.0.2"], [f"2001:db8:0:7::{number:x}" for number in range(30)]])
async def test_addresses_share_a_full_loop_however_many_connections_each_has(greedy: list[str]) -> None:
    """Nor how many addresses of IPv6 a host takes from its network."""
    order: list[str] = []
    async with rigged() as rig:
        rig.handler = spends(rig, 0.002, order)
        peers = {
            "127.0.0.2": [connect_from(rig, greedy[number % len(greedy)]) for number in range(30)],
            "127.0.0.3": [connect_from(rig, "127.0.0.3") for _ in range(3)],
            "127.0.0.4": [connect_from(rig, "127.0.0.4")],
        }
        await until(lambda: rig.have_spoken(34))
        first = 1
        # Whoever has been answered asks again.
        for _ in range(10):
            for peer in peers["127.0.0.4"] + peers["127.0.0.3"]:
                peer.sendall(unary_request(first))
            for peer in peers["127.0.0.2"]:
                peer.sendall(unary_request(first))
            first += 2
            order.clear()
            await until(lambda: len(order) == 34)
            served = list(order)
            # Two to a turn: whoever has one is served among the first, and of three one each time.
            assert served.index("127.0.0.4") < 6
            assert [place for place, host in enumerate(served) if host == "127.0.0.3"][2] < 12


async def test_a_connection_is_served_for_so_long_at_a_time_as_its_requests_allow() -> None:
    """Whatever was read of it: a receive is short, and brings many messages."""
    order: list[str] = []
    async with rigged() as rig:
        rig.handler = lambda call: spends(rig, cost_s, order)(call)
        peer = connect_from(rig, "127.0.0.2")
        connect_from(rig, "127.0.0.3")  # It is there, and that is enough.
        await until(lambda: rig.have_spoken(2))
        requests = b"".join(unary_request(1 + 2 * number) for number in range(300))
        half = len(requests) // 2
        cost_s = 0.002
        peer.sendall(requests[:half])
        await until(lambda: len(order) == 150)
        assert set(rig.served.values()) == {1}
        # What costs little is handled all at once.
        rig.served.clear()
        cost_s = 0.0
        peer.sendall(requests[half:])
        await until(lambda: len(order) == 300)
        assert max(rig.served.values()) > 3


@pytest.mark.parametrize("reads", [True, False])
async def test_what_a_turn_had_no_time_for_is_handled_whatever_becomes_of_its_socket(reads: bool) -> None:
    """The peer says nothing more, reads nothing for a while, and others go: none of that is a reason to forget it."""
    order: list[str] = []
    async with rigged() as rig:

        def handle(call: Stream) -> None:
            order.append(call.connection.peer)
            rig.spent_s += 0.002
            call.respond(bytes(100_000))

        rig.handler = handle
        peer = connect_from(rig, "127.0.0.2")
        other = connect_from(rig, "127.0.0.3")
        await until(lambda: rig.have_spoken(2))
        peer.sendall(b"".join(unary_request(1 + 2 * number) for number in range(100)))
        await until(lambda: len(order) >= 2)
        if not reads:
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert len(order) < 100
        other.close()
        received = 0
        while received < 100 * 100_000:
            with suppress(BlockingIOError):
                received += len(peer.recv(1 << 20))
            await asyncio.sleep(0)
        # And nothing of it makes the loop turn when there is nothing to do.
        await until(lambda: len(rig.sockets) == 1)
        peer.sendall(unary_request(1 + 2 * 100))
        await until(lambda: len(order) == 101)
        assert not select.select([rig.sockets._epoll.fileno()], [], [], 0)[0]


async def test_who_had_nothing_left_over_has_a_turn_of_its_own() -> None:
    """Its answer leaves before anything else of whoever fills the turns is handled."""
    order: list[str] = []
    seen: list[bool] = []
    async with rigged() as rig:

        def handle(call: Stream) -> None:
            if "127.0.0.3" in order and not seen:
                seen.append(bool(select.select([orderly], [], [], 0)[0]))
            spends(rig, 0.001, order)(call)
            if len(order) == 10:
                orderly.sendall(unary_request(1))

        rig.handler = handle
        greedy = [connect_from(rig, "127.0.0.2") for _ in range(40)]
        orderly = connect_from(rig, "127.0.0.3")
        await until(lambda: rig.have_spoken(41))
        for _ in range(10):
            await asyncio.sleep(0)
        with suppress(BlockingIOError):  # The server's greeting.
            while orderly.recv(1 << 20):
                pass
        for peer in greedy:
            peer.sendall(unary_request(1))
        await until(lambda: len(order) == 41)
        assert order.index("127.0.0.3") <= 12
        assert seen == [True]


async def test_turns_are_short_while_somebody_may_wait_for_an_answer_who_left_nothing_over() -> None:
    """What his answer waits for is read between turns: a slave's report."""
    order: list[str] = []
    async with rigged() as rig:
        rig.handler = spends(rig, 0.0002, order)
        greedy = [connect_from(rig, "127.0.0.2") for _ in range(20)]
        orderly = connect_from(rig, "127.0.0.3")
        await until(lambda: rig.have_spoken(21))
        for peer in greedy:
            peer.sendall(b"".join(unary_request(1 + 2 * number) for number in range(40)))

        async def calls_of_turns(count: int) -> list[int]:
            """How many each turn had of the greedy address; turns that had none are not told."""
            found: list[int] = []
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < count:
                    before = len(order)
                    await asyncio.sleep(0)
                    if of_it := order[before:].count("127.0.0.2"):
                        found.append(of_it)
            return found

        await calls_of_turns(1)
        assert min(await calls_of_turns(4)) > 2
        orderly.sendall(unary_request(1))
        await until(lambda: "127.0.0.3" in order)
        assert max(await calls_of_turns(4)) <= 2
        rig.spent_s += 0.1
        assert min(await calls_of_turns(4)) > 2
        await until(lambda: len(order) == 20 * 40 + 1)


async def test_a_turn_costs_what_it_serves_however_many_wait() -> None:
    """Ten thousand that come back at once must not make a turn of a millisecond one of ten."""
    few, many = [await calls_of_a_turn(count) for count in (40, 320)]
    assert many < 1.5 * few


async def calls_of_a_turn(count: int) -> int:
    """Functions that are called in one turn while so many wait for theirs."""
    order: list[str] = []
    calls: list[str] = []
    async with rigged() as rig:
        rig.handler = spends(rig, 0.001, order)
        peers = [rig.connect() for _ in range(count)]
        await until(lambda: rig.have_spoken(count))
        for peer in peers:
            peer.sendall(b"".join(unary_request(1 + 2 * number) for number in range(5)))
        # All were read once; what they still want is kept here.
        await until(lambda: len(order) >= count + 10)
        sys.setprofile(lambda _frame, event, _of: calls.append(event))
        try:
            rig.sockets._on_ready()
        finally:
            sys.setprofile(None)
        await until(lambda: len(order) == 5 * count)
    return len(calls)


async def test_nobody_is_ended_for_silence_who_only_waits_for_a_turn() -> None:
    order: list[str] = []
    async with rigged(Limits(keepalive_s=0.05, keepalive_timeout_s=0.05, frame_timeout_s=0.05)) as rig:

        def handle(call: Stream) -> None:
            time.sleep(0.004)
            spends(rig, 0.001, order)(call)

        rig.handler = handle
        peers = [connect_from(rig, "127.0.0.2") for _ in range(50)]
        for peer in peers:
            peer.sendall(b"".join(unary_request(1 + 2 * number) for number in range(3)))

        def handled(connection: Connection) -> int:
            return sum(count for (peer, _), count in rig.served.items() if peer == connection.peer)

        await until(lambda: all(handled(connection) == 3 or connection.is_closed for connection, _ in rig.connections))
        assert len(order) == 150


async def test_of_very_many_that_wait_little_is_kept_of_each() -> None:
    order: list[str] = []
    async with rigged() as rig:
        rig.handler = spends(rig, 0.001, order)
        peers = [connect_from(rig, "127.0.0.2") for _ in range(3)]
        await until(lambda: rig.have_spoken(3))
        requests = b"".join(unary_request(1 + 2 * number) for number in range(200))
        for is_much in (False, True):
            others = 32 << 20 if is_much else 0
            rig.usage.unfinished_bytes += others
            peers[is_much].sendall(requests)
            most = 0
            async with asyncio.timeout(PATIENCE_S):
                while len(order) < 200 * (1 + is_much):
                    most = max(most, rig.usage.unfinished_bytes - others)
                    await asyncio.sleep(0)
            assert (most < 8 << 10) is is_much
            rig.usage.unfinished_bytes -= others


async def test_a_connection_that_is_alone_is_read_as_a_whole() -> None:
    order: list[str] = []
    async with rigged() as rig:
        rig.handler = spends(rig, 1.0, order)
        peer = connect_from(rig, "127.0.0.2")
        await until(lambda: rig.have_spoken(1))
        peer.sendall(b"".join(unary_request(1 + 2 * number) for number in range(400)))
        await until(lambda: len(order) == 400)
        assert list(rig.served.values()) == [400]


async def test_a_socket_that_ends_while_it_waits_for_its_turn_is_passed_over() -> None:
    order: list[str] = []
    async with rigged() as rig:

        def handle(call: Stream) -> None:
            spends(rig, 0.01, order)(call)
            if len(order) == 2:
                for sock in rig.sockets.open_now()[10:]:
                    sock.abort()

        rig.handler = handle
        peers = [connect_from(rig, "127.0.0.2") for _ in range(20)]
        await until(lambda: rig.have_spoken(20))
        for peer in peers:
            peer.sendall(unary_request(1))
        await until(lambda: len(rig.sockets) == 10 and len(order) >= 10)
        assert len(order) <= 12
        assert not rig.errors


class Gate:
    """Two connections of each address; remembers who is there."""

    def __init__(self) -> None:
        self.here: list[str] = []

    def admits(self, peer: str, /) -> bool:
        return sum(each.rpartition(":")[0] == peer.rpartition(":")[0] for each in self.here) < 2

    def connected(self, peer: str, /) -> None:
        self.here.append(peer)

    def disconnected(self, peer: str, /) -> None:
        self.here.remove(peer)


async def test_a_connection_beyond_its_address_s_quota_is_closed_before_it_is_read() -> None:
    gate = Gate()
    server = Server(Stream, gate=gate)
    port = server.listen("127.0.0.1", 0)
    peers: list[socket.socket] = []

    def connect(host: str) -> socket.socket:
        peers.append(socket.create_connection(("127.0.0.1", port), source_address=(host, 0)))
        peers[-1].setblocking(False)
        return peers[-1]

    try:
        first, _, other = connect("127.0.0.2"), connect("127.0.0.2"), connect("127.0.0.3")
        await until(lambda: len(gate.here) == 3)
        await ended(connect("127.0.0.2"))
        assert server.counters["connection_over_quota"] == 1
        assert server.counters["connections_accepted"] == 3
        first.close()
        await until(lambda: len(gate.here) == 2)
        connect("127.0.0.2")
        await until(lambda: len(gate.here) == 3)
        other.sendall(b"no HTTP/2 at all, and long enough to be told so")
        await ended(other)
        await until(lambda: len(gate.here) == 2)
    finally:
        await server.stop(limit_s=0)
        for peer in peers:
            peer.close()
    assert gate.here == []


async def test_who_is_turned_away_is_asked_to_go_and_who_comes_is_cut_off_before_a_byte() -> None:
    server = Server(Stream)
    port = server.listen("127.0.0.1", 0)
    peers: list[socket.socket] = []

    def connect() -> socket.socket:
        peers.append(socket.create_connection(("127.0.0.1", port)))
        peers[-1].setblocking(False)
        return peers[-1]

    try:
        there = connect()
        there.sendall(frames.PREFACE + frames.settings({}))
        await until(lambda: server.connection_count == 1)
        server.turn_away(is_on=True)
        await ended(connect())
        received = await asyncio.get_running_loop().sock_recv(there, 1 << 16)
        while bytes([frames.GOAWAY]) not in received:
            received += await asyncio.get_running_loop().sock_recv(there, 1 << 16)
        assert server.counters["connection_turned_away"] == 1
        server.turn_away(is_on=False)
        connect().sendall(frames.PREFACE + frames.settings({}))
        await until(lambda: server.counters["connections_accepted"] == 2)
    finally:
        await server.stop(limit_s=0)
        for peer in peers:
            peer.close()


async def test_who_waits_with_the_first_byte_has_no_more_connections_than_its_quota() -> None:
    """Neither at a time nor, which is what counts, once all of them begin to speak."""
    gate = Gate()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server = Server(Stream, gate=gate, tls_mode=TlsMode.PERMISSIVE, tls=lambda: tls)
    port = server.listen("127.0.0.1", 0)
    peers: list[socket.socket] = []

    def connect(host: str) -> socket.socket:
        peers.append(socket.create_connection(("127.0.0.1", port), source_address=(host, 0)))
        peers[-1].setblocking(False)
        return peers[-1]

    try:
        many = [connect("127.0.0.2") for _ in range(6)]
        other = connect("127.0.0.3")
        await until(lambda: server.counters["connection_over_quota"] == 4)
        for peer in (*many, other):
            with suppress(ConnectionError):
                peer.sendall(GREETING)
        await until(lambda: server.connection_count == 3)
        assert len(gate.here) == 3
        for peer in peers:
            peer.close()
        await until(lambda: not server.connection_count)
        assert not gate.here
        silent = connect("127.0.0.2")
        await until(lambda: len(gate.here) == 1)
        silent.close()
        await until(lambda: not gate.here)
    finally:
        await server.stop(limit_s=0)
        for peer in peers:
            peer.close()
