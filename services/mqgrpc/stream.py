"""One gRPC call as the server sees it. The owner subclasses `Stream` and overrides its hooks."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from mqgrpc.connection import Connection
    from mqgrpc.hpack import Header
    from mqgrpc.message_assembly import MessageAssembly
    from mqgrpc.request_head import RequestShape

__all__ = ["Stream", "StreamMaker"]


@mypyc_attr(allow_interpreted_subclasses=True)  # `tools/compile.py` may have made this an extension type
class Stream:
    """One call of one connection.

    Hooks, each called on the connection's thread, in this order: `opened`, `message` for each request message,
    `half_closed` (or `request` for both), and at most one of `cancelled` and `undelivered`. After `end` only
    `undelivered` may follow.
    """

    # What a short unary call never changes stays in the class: such a call is made and dropped 30,000 times a second.

    # Read by the owner.
    deadline = inf
    """When the caller gives up, on the connection's clock in s."""
    is_finished = False
    """`end` was called, or the call is over."""
    confirms = False
    """Set by the owner: `undelivered` is wanted for what was handed to the socket's buffer and not written."""

    # Kept by the connection.
    is_opened = False
    remote_closed = False
    local_closed = False
    headers_sent = False
    window_used = 0  # sent minus what the peer's WINDOW_UPDATEs for this stream gave
    unacknowledged = 0  # received and not yet given back by our WINDOW_UPDATE
    header_bytes = 0  # memory of unusually large headers
    assembly: MessageAssembly | None = None  # request messages that do not come in one frame; None: none did yet
    content_length = -1  # what is still to come of it; -1: it was not given
    queue: deque[memoryview] | None = None  # encoded messages that wait for the peer's windows
    queued_bytes = 0
    end_status: tuple[int, str] | None = None  # status to send behind the queue

    def __init__(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self._headers = headers
        self._shape = shape

    # Hooks

    def opened(self) -> None:
        """The call's headers are here."""

    def message(self, data: bytes, /) -> None:
        """The next request message, without gRPC's prefix."""

    def half_closed(self) -> None:
        """The caller sends no more."""

    def request(self, data: bytes, /) -> None:
        """The only message and the end of the caller's side at once, the usual request; else the two hooks above."""
        self.message(data)
        if not self.is_finished:
            self.half_closed()

    def cancelled(self) -> None:
        """The caller is gone, cancelled, broke the protocol or ran into its deadline, before all was handed over."""

    def undelivered(self) -> None:
        """The connection broke before the last of this call, which was handed over, was written to the socket."""

    # What the owner does

    @property
    def headers(self) -> dict[str, str]:
        """Names in lower case, pseudo headers included; of a name that came twice the last value."""
        return {header.name: header.value for header in self._headers}

    @property
    def path(self) -> str:
        """`/package.Service/Method`."""
        return self._headers[self._shape.path].value

    def header(self, name: str, default: str = "") -> str:
        """One of the headers, without making a map of them."""
        place = self._shape.places.get(name)
        return default if place is None else self._headers[place].value

    @property
    def traceparent(self) -> str:
        """The header of that name; "" for none. Who traces asks for it in every call, nearly always in vain."""
        shape = self._shape
        return "" if shape.traceparent < 0 else self._headers[shape.traceparent].value

    @property
    def peer(self) -> str:
        """Address of the caller, for example `ipv4:10.0.0.7:51234`."""
        return self.connection.peer

    def send_bytes(self, data: bytes) -> None:
        """One response message."""
        if not self.is_finished:
            self.connection.answers.send_message(self, data)

    def send_all_bytes(self, messages: list[bytes]) -> None:
        """Response messages, in their order."""
        if not self.is_finished:
            self.connection.answers.send_messages(self, messages)

    def end(self, status: int = 0, detail: str = "") -> None:
        """Ends the call behind what was sent. `status` is gRPC's number."""
        if not self.is_finished:
            self.is_finished = True
            self.connection.answers.send_end(self, status, detail)

    def respond(self, data: bytes) -> None:
        """`send_bytes` and `end` with OK in one step, for the one response of a unary call."""
        if not self.is_finished:
            self.is_finished = True
            self.connection.answers.send_response(self, data)


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamMaker:
    """Makes an owner's streams. A function serves as well, and takes longer to call."""

    def new_stream(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> Stream:
        """A call of this connection; the arguments are those of `Stream`."""
        raise NotImplementedError

    def __call__(self, connection: Connection, stream_id: int, headers: list[Header], shape: RequestShape) -> Stream:
        """The same."""
        return self.new_stream(connection, stream_id, headers, shape)
