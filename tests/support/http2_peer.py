"""HTTP/2 from the client's side, without sockets: frames by hand, and the `h2` package as an independent client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import h2.config
import h2.connection
import h2.events
from hpack import Decoder

from tandemmq.http2 import frames
from tandemmq.http2.connection import Connection
from tandemmq.http2.errors import Limits, Usage
from tandemmq.http2.hpack import Header, HeaderDecoder, literal
from tandemmq.http2.stream import MESSAGE_HEAD, Stream

GRPC_HEADERS: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Method"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame off the wire."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def error_code(self) -> int:
        """Of RST_STREAM and GOAWAY."""
        return int.from_bytes(self.payload[:4] if self.kind == frames.RST_STREAM else self.payload[4:8], "big")


def parse_frames(wire: bytes) -> list[Frame]:
    """Whole frames; AssertionError for a rest."""
    found = []
    pos = 0
    while pos < len(wire):
        head, flags, stream_id = frames.FRAME_HEAD.unpack_from(wire, pos)
        pos += frames.FRAME_HEAD_BYTES
        found.append(Frame(head & 0xFF, flags, stream_id, wire[pos : pos + (head >> 8)]))
        pos += head >> 8
        assert pos <= len(wire), "the output ends inside a frame"
    return found


def block(headers: Iterable[tuple[str, str]]) -> bytes:
    """A header block that touches no table."""
    return b"".join(literal(name, value) for name, value in headers)


def decoded(headers: Iterable[tuple[str, str]]) -> list[Header]:
    """The headers as a connection sees them."""
    return HeaderDecoder().decode(block(headers))


def message(body: bytes, *, compressed: int = 0) -> bytes:
    """gRPC's prefix and the message."""
    return MESSAGE_HEAD.pack(compressed, len(body)) + body


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    return frames.frame(frames.DATA, frames.END_STREAM if end else 0, stream_id, payload)


def open_request(stream_id: int, *more: tuple[str, str], end: bool = False) -> bytes:
    """HEADERS of a gRPC request; a name in `more` replaces the usual one."""
    names = {name for name, _ in more if not name.startswith("x-")}
    fields = [field for field in GRPC_HEADERS if field[0] not in names]
    pseudo = [field for field in (*more, *fields) if field[0].startswith(":")]
    rest = [field for field in (*fields, *more) if not field[0].startswith(":")]
    return frames.headers(stream_id, block([*pseudo, *rest]), end_stream=end)


def unary_request(stream_id: int, body: bytes = b"", *more: tuple[str, str]) -> bytes:
    return open_request(stream_id, *more) + data(stream_id, message(body), end=True)


class RecordedCall(Stream):
    """Notes which hooks were called. Answers nothing by itself."""

    rig: ServerRig

    def opened(self) -> None:
        self.hooks: list[Any] = ["opened"]
        self.rig.calls[self.stream_id] = self
        self.rig.on_opened(self)

    def message(self, data: bytes, /) -> None:
        self.hooks.append(data)
        self.rig.on_message(self, data)

    def half_closed(self) -> None:
        self.hooks.append("half_closed")
        self.rig.on_half_closed(self)

    def cancelled(self) -> None:
        self.hooks.append("cancelled")

    def undelivered(self) -> None:
        self.hooks.append("undelivered")

    def note_unread(self) -> None:
        self.hooks.append("unread")


@dataclass
class ServerRig:
    """A `Connection` with a clock of its own and calls that record; `greet` gets the handshake out of the way."""

    limits: Limits = field(default_factory=Limits)
    on_opened: Callable[[RecordedCall], None] = lambda call: None
    on_message: Callable[[RecordedCall, bytes], None] = lambda call, data: None
    on_half_closed: Callable[[RecordedCall], None] = lambda call: None
    settings: dict[int, int] = field(default_factory=dict)
    greet: bool = True
    now: float = 100.0

    def __post_init__(self) -> None:
        self.calls: dict[int, RecordedCall] = {}
        self.counters: Counter[str] = Counter()
        self.usage = Usage()
        call_type = type("BoundCall", (RecordedCall,), {"rig": self})
        self.connection = Connection(
            call_type, limits=self.limits, now=self.now, usage=self.usage, counters=self.counters, peer="ipv4:test:1"
        )
        self._decoder = Decoder()
        if self.greet:
            self.receive(frames.PREFACE + frames.settings(self.settings))
            self.output()

    def receive(self, *chunks: bytes) -> None:
        """Feeds bytes."""
        for chunk in chunks:
            self.connection.receive(chunk, self.now)

    def advance(self, seconds: float) -> None:
        """Lets time pass, timer by timer."""
        until = self.now + seconds
        while not self.connection.is_closed and (due := self.connection.next_deadline()) <= until:
            self.now = max(self.now, due)
            self.connection.on_time(self.now)
        self.now = until

    def output_bytes(self) -> bytes:
        """Everything there is to write now."""
        taken = []
        while chunk := self.connection.take_output():
            taken.append(chunk)
        return b"".join(taken)

    def output(self) -> list[Frame]:
        return parse_frames(self.output_bytes())

    def headers_of(self, frame: Frame) -> dict[str, str]:
        """Decodes a HEADERS frame; every one must pass here, in order."""
        assert frame.kind == frames.HEADERS
        return {str(name): str(value) for name, value in self._decoder.decode(frame.payload)}

    def lose(self) -> None:
        """The socket closes; checks that nothing is kept."""
        self.connection.lost()
        assert self.connection.buffered_bytes == 0
        assert self.usage.buffered_bytes == 0
        assert self.usage.unfinished_bytes == 0
        assert self.usage.streams == 0
        assert self.connection.open_streams == 0
        assert self.connection.take_output() == b""


class H2Pair:
    """A `ServerRig` and an `h2` client, back to back."""

    def __init__(self, rig: ServerRig, *, acknowledges: bool = True) -> None:
        """`acknowledges`: the client gives windows back for what it received."""
        assert not rig.greet, "the client greets by itself"
        self.rig = rig
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[h2.events.Event] = []
        self.bodies: dict[int, bytearray] = {}
        self._acknowledges = acknowledges
        self.client.initiate_connection()
        self.exchange()

    def exchange(self) -> None:
        """Moves bytes both ways until both are silent."""
        while True:
            to_server = self.client.data_to_send()
            if to_server:
                self.rig.receive(to_server)
            to_client = self.rig.connection.take_output()
            for event in self.client.receive_data(to_client) if to_client else ():
                self._on_event(event)
            if not to_server and not to_client:
                return

    def _on_event(self, event: h2.events.Event) -> None:
        self.events.append(event)
        if isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None
            self.bodies.setdefault(event.stream_id, bytearray()).extend(event.data or b"")
            if self._acknowledges and event.flow_controlled_length:
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def start(self, *more: tuple[str, str], end: bool = False) -> int:
        """Opens a call."""
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, [*GRPC_HEADERS, *more], end_stream=end)
        return stream_id

    def send(self, stream_id: int, body: bytes, *, end: bool = False) -> None:
        """One message, as fast as the server's windows allow."""
        rest = memoryview(message(body))
        while rest:
            room = min(self.client.local_flow_control_window(stream_id), self.client.max_outbound_frame_size)
            if room == 0:
                before = len(rest)
                self.exchange()
                assert self.client.local_flow_control_window(stream_id) or before == 0, "the server gives no window"
                continue
            self.client.send_data(stream_id, bytes(rest[:room]), end_stream=end and room >= len(rest))
            rest = rest[room:]

    def unary(self, body: bytes, *more: tuple[str, str]) -> int:
        """A whole unary request."""
        stream_id = self.start(*more)
        self.send(stream_id, body, end=True)
        self.exchange()
        return stream_id

    def headers(self, stream_id: int) -> list[dict[str, str]]:
        """Response headers and trailers of a call."""
        return [
            {str(name): str(value) for name, value in event.headers or ()}
            for event in self.events
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived)
            and event.stream_id == stream_id
        ]

    def messages(self, stream_id: int) -> list[bytes]:
        """Whole messages of a response."""
        body = bytes(self.bodies.get(stream_id, b""))
        found = []
        while body:
            _, length = MESSAGE_HEAD.unpack_from(body)
            found.append(body[5 : 5 + length])
            body = body[5 + length :]
        return found
