"""Feeds hostile bytes to `tandemmq.http2.connection` and checks what must hold whatever comes.

    make fuzz ONLY=http2_connection      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.http2_connection      # a few thousand cases of one seed, without atheris

An input is a little program: what to send, how to cut it, how long to wait, how to answer. Frames are made from it
well-formed and then sometimes bent, so that the fuzzer gets past the preface and the header blocks at once; input whose
first byte is odd is sent as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from fuzz.source import Source, any_bytes, run_all
from tandemmq.http2 import frames
from tandemmq.http2.connection import Connection
from tandemmq.http2.errors import Limits, Usage
from tandemmq.http2.frames import RequestShape
from tandemmq.http2.hpack import Header, literal
from tandemmq.http2.stream import MESSAGE_HEAD, Stream

LIMITS: Final = Limits(
    message_bytes=2_000,
    concurrent_streams=6,
    server_streams=50,
    header_list_bytes=600,
    header_block_bytes=1_200,
    continuation_frames=4,
    frame_bytes=16_384,
    stream_window_bytes=4_000,
    connection_window_bytes=70_000,
    connection_buffer_bytes=5_000,
    server_buffer_bytes=9_000,
    idle_burst=60,
    idle_per_s=10,
    write_stall_s=20.0,
    write_stall_bytes=100,
    frame_timeout_s=10.0,
    message_timeout_s=15.0,
)
HEAD: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.B/C"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
ODD_FIELDS: Final = (
    ("grpc-timeout", "1S"),
    ("grpc-timeout", "5m"),
    ("grpc-timeout", "x"),
    ("content-length", "10"),
    ("content-length", "9" * 30),
    ("grpc-encoding", "gzip"),
    ("te", "other"),
    ("Upper", "case"),
    ("connection", "close"),
    ("x", "y" * 500),
    ("x", "\x01"),
    (":path", ""),
    (":method", "GET"),
)
STREAM_IDS: Final = (1, 3, 5, 7, 9, 11, 13, 2, 0, frames.STREAM_ID_MAX)
# A whole input makes us write at most this much, beside its answers.
OUTPUT_MAX: Final = 400_000
STEPS_MAX: Final = 200


class Call(Stream):
    """Answers as the input says, and notes what it is told."""

    world: World

    def __init__(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> None:
        super().__init__(connection, stream_id, headers, shape)
        self.told: list[str] = []

    def opened(self) -> None:
        self._is_told("opened")
        self.confirms = self.world.source.byte() & 1 == 1
        self._act()

    def message(self, data: bytes, /) -> None:
        self._is_told("message")
        assert len(data) <= LIMITS.message_bytes
        self._act()

    def half_closed(self) -> None:
        self._is_told("half_closed")
        self._act()

    def cancelled(self) -> None:
        self._is_told("cancelled")
        self.world.act_on_any_call()

    def undelivered(self) -> None:
        self._is_told("undelivered")

    def _is_told(self, hook: str) -> None:
        self.told.append(hook)
        assert self.told[0] == "opened", self.told
        assert all(self.told.count(once) <= 1 for once in ("opened", "half_closed", "cancelled", "undelivered")), (
            self.told
        )
        assert not {"cancelled", "undelivered"} <= set(self.told), self.told
        assert not {"cancelled", "undelivered"} & set(self.told[:-1]), self.told
        if hook == "opened":
            self.world.calls.append(self)

    def _act(self) -> None:
        answer = self.world.source.below(16)
        source = self.world.source
        if answer == 1:
            self.send_bytes(bytes(source.below(3_000)))
        elif answer == 2:
            self.respond(bytes(source.below(6_000)))
        elif answer == 3:
            self.end(source.below(17), "an \u00fcnusual end\n")
        elif answer == 4:
            for _ in range(source.below(8)):
                self.send_bytes(b"piece")
            self.end()
        elif answer == 5 and "half_closed" in self.told:
            self.respond(b"")

    def act_later(self) -> None:
        self._act()


class World:
    """One connection under test."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.now = 0.0
        self.usage = Usage()
        self.counters: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.output = bytearray()
        self.answered_bytes = 0
        call_type = type("BoundCall", (Call,), {"world": self})
        self.connection = Connection(call_type, limits=LIMITS, now=0.0, usage=self.usage, counters=self.counters)
        self._is_paused = False
        self._next_stream_id = 1

    def act_on_any_call(self) -> None:
        if self.calls:
            self.calls[self.source.below(len(self.calls))].act_later()

    def stream_id(self, *, is_new: bool) -> int:
        """Usually one that fits; now and then any."""
        choice = self.source.byte()
        if choice & 0x0F == 0:
            return STREAM_IDS[self.source.below(len(STREAM_IDS))]
        if is_new and choice & 0x30:
            self._next_stream_id += 2
            return self._next_stream_id - 2
        going_on = [call.stream_id for call in self.calls if not call.is_finished]
        if going_on and choice & 0x0F > 1:
            return going_on[(choice >> 4) % len(going_on)]
        return 1 + 2 * ((choice >> 4) % (self._next_stream_id // 2 + 1))

    def feed(self, wire: bytes) -> None:
        """Cut as the input says."""
        while wire:
            size = 1 + self.source.below(1 + len(wire)) if self.source.byte() & 3 == 0 else len(wire)
            self.connection.receive(wire[:size], self.now)
            wire = wire[size:]
            self.check()

    def drain_output(self) -> None:
        while piece := self.connection.take_output():
            self.output += piece
            if self._is_paused:
                break
        self.connection.output_written(self.source.below(64))

    def pass_time(self) -> None:
        self.now += self.source.below(256) / 16
        if self.connection.next_deadline() <= self.now:
            self.connection.on_time(self.now)
            if not self.connection.is_closed:
                assert self.connection.next_deadline() > self.now - 1e-9
        self.check()

    def toggle_socket(self) -> None:
        if self._is_paused:
            self.connection.resume_output(self.now)
        else:
            self.connection.pause_output(self.now, self.source.below(500))
        self._is_paused = not self._is_paused

    def check(self) -> None:
        connection = self.connection
        assert 0 <= connection.buffered_bytes == self.usage.buffered_bytes
        assert connection.open_streams <= LIMITS.concurrent_streams
        # A lone message always passes, a header block may lie in the air.
        assert connection.buffered_bytes <= LIMITS.connection_buffer_bytes + LIMITS.stream_window_bytes + 9_000
        assert sum(self.counters.values()) < 1_000

    def end(self) -> None:
        """The socket closes: nothing may be left."""
        if not self.connection.is_closed:
            self.drain_output()
        self.connection.lost()
        assert self.connection.buffered_bytes == 0
        assert self.usage.buffered_bytes == 0
        assert self.usage.streams == 0
        assert self.connection.open_streams == 0
        for call in list(self.calls):
            call.act_later()
        assert self.connection.take_output() == b""
        _check_frames(bytes(self.output))
        assert len(self.output) < OUTPUT_MAX + 10_000 * len(self.calls)


def _check_frames(wire: bytes) -> None:
    """Whole frames with sane lengths."""
    pos = 0
    while pos < len(wire):
        assert len(wire) - pos >= frames.FRAME_HEAD_BYTES
        head, _, stream_id = frames.FRAME_HEAD.unpack_from(wire, pos)
        assert head & 0xFF <= frames.CONTINUATION
        assert stream_id <= frames.STREAM_ID_MAX
        pos += frames.FRAME_HEAD_BYTES + (head >> 8)
    assert pos == len(wire)


def _headers(source: Source, stream_id: int) -> bytes:
    choice = source.byte()
    fields = [*HEAD, *(ODD_FIELDS[source.below(len(ODD_FIELDS))] for _ in range(choice & 3))]
    block = b"".join(
        b"\x40" + literal(name, value)[1:] if choice & 4 else literal(name, value)
        for name, value in fields
        if name.isascii() and value.isascii()
    )
    if choice & 8:
        block += source.some(source.below(8))
    flags = frames.END_HEADERS | (choice >> 7)
    if choice & 16:
        cut = source.below(len(block) + 1)
        return frames.frame(frames.HEADERS, flags & 1, stream_id, block[:cut]) + frames.frame(
            frames.CONTINUATION, frames.END_HEADERS, stream_id, block[cut:]
        )
    if choice & 32:
        return frames.frame(frames.HEADERS, flags | frames.PADDED, stream_id, b"\x03" + block + bytes(3))
    return frames.frame(frames.HEADERS, flags, stream_id, block)


def _data(source: Source, stream_id: int) -> bytes:
    choice = source.byte()
    size = source.below(3_000) if choice & 2 else source.below(20)
    payload = bytes(size)
    if choice & 4:
        payload = MESSAGE_HEAD.pack((choice >> 3) & 1, size) + payload
    if choice & 16:
        payload = payload[: source.below(len(payload) + 1)]
    if choice & 32:
        return frames.frame(frames.DATA, frames.PADDED | choice & 1, stream_id, b"\x02" + payload + bytes(2))
    return frames.frame(frames.DATA, choice & 1, stream_id, payload)


def _settings(source: Source, _: int) -> bytes:
    name = 1 + source.below(6)
    values = (0, 1, 100, 4_096, 16_384, 65_535, 1 << 20, frames.WINDOW_MAX, frames.WINDOW_MAX + 1)
    return frames.settings({name: values[source.below(len(values))]})


def _window_update(source: Source, stream_id: int) -> bytes:
    return frames.window_update(stream_id, (0, 1, 50, 1_000, 65_535, frames.WINDOW_MAX)[source.below(6)])


def _anything(source: Source, stream_id: int) -> bytes:
    choice = source.below(16)
    if choice == 0:
        return source.some(source.below(30))
    if choice < 4:
        return frames.frame(source.below(12), source.byte(), stream_id, source.some(source.below(40)))
    return unary(stream_id, source.below(200))


def unary(stream_id: int, size: int) -> bytes:
    """An orderly request."""
    head = frames.headers(stream_id, b"".join(literal(name, value) for name, value in HEAD), end_stream=False)
    return head + frames.frame(frames.DATA, 1, stream_id, MESSAGE_HEAD.pack(0, size) + bytes(size))


MAKERS: Final[tuple[Callable[[Source, int], bytes], ...]] = (
    _headers,
    _headers,
    _data,
    _data,
    _data,
    _anything,
    _settings,
    _window_update,
    lambda source, stream_id: frames.rst_stream(stream_id, source.below(14)),
    lambda source, _: frames.frame(frames.PING, source.byte() & 1, 0, b"mq-drain" if source.byte() & 1 else bytes(8)),
    lambda source, _: frames.goaway(0, source.below(14)),
    lambda source, stream_id: frames.frame(frames.PRIORITY, 0, stream_id, source.some(5).ljust(5, b"\0")),
    _anything,
)


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    source = Source(data)
    world = World(source)
    if source.byte() & 1:
        world.feed(source.rest())
        world.end()
        return
    world.feed(frames.PREFACE + frames.settings({}))
    for _ in range(STEPS_MAX):
        if source.is_empty or world.connection.is_closed:
            break
        step = source.below(32)
        if step == 31 and source.below(4) == 0:
            world.pass_time()
        elif step in (29, 30):
            world.drain_output()
        elif step == 28:
            world.act_on_any_call()
        elif step == 27:
            world.toggle_socket()
        elif step == 26 and source.below(8) == 0:
            world.connection.drain(world.now)
        else:
            make = MAKERS[step % len(MAKERS)]
            world.feed(make(source, world.stream_id(is_new=make in (_headers, _anything))))
    world.end()


def seeds(count: int, *, seed: int = 4) -> Iterator[bytes]:
    """Inputs to begin with."""
    yield b"\x01" + frames.PREFACE + frames.settings({})
    yield from any_bytes(count, seed=seed, bytes_max=600)


if __name__ == "__main__":
    run_all(run_one, seeds(5_000))
