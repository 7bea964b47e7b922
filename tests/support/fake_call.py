"""An RPC in a test's hands: what was answered is kept, and the caller can go away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message

from tandemmq.service.rpc import StatusCode

MessageT = TypeVar("MessageT", bound=Message)


@dataclass
class FakeCall:
    """Satisfies `tandemmq.service.rpc.Call`. `cancel` plays a caller that goes away before it got what was sent."""

    metadata: dict[str, str] = field(default_factory=lambda: {"x-mq-client-id": "client@1"})
    peer: str = "ipv4:127.0.0.1:50000"
    deadline_ms: int | None = None
    received_ns: int = 0
    request_data: bytes = b""
    keeps_request: bool = False
    is_crowded_out: bool = False
    sent: list[Message] = field(default_factory=list)
    code: StatusCode | None = None
    detail: str = ""
    is_gone: bool = False
    # What `send_encoded` is expected to carry.
    response_type: type[Message] = Message
    _cancelled: Callable[[], None] | None = None
    _undelivered: Callable[[], None] | None = None
    unread: Callable[[], None] | None = None
    """Plays a connection that broke behind the answer."""

    def header(self, name: str) -> str:
        return self.metadata.get(name, "")

    def keep_request(self) -> None:
        self.keeps_request = True

    def send(self, message: Message) -> None:
        """Keeps a copy, as a front encodes at once."""
        if self.code is None and not self.is_gone:
            copy = type(message)()
            copy.CopyFrom(message)
            self.sent.append(copy)

    def send_encoded(self, data: bytes) -> None:
        """Keeps what the caller would read."""
        self.send(self.response_type.FromString(data))

    def send_all_encoded(self, messages: list[bytes]) -> None:
        for data in messages:
            self.send_encoded(data)

    def respond(self, data: bytes) -> None:
        """The only answer."""
        self.send_encoded(data)
        self.finish()

    def finish(self, code: StatusCode = StatusCode.OK, detail: str = "") -> None:
        if self.code is None:
            self.code, self.detail = code, detail

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._cancelled = callback

    def on_undelivered(self, callback: Callable[[], None]) -> None:
        self._undelivered = callback

    def on_unread(self, callback: Callable[[], None]) -> None:
        self.unread = callback

    def cancel(self) -> None:
        """The caller is gone."""
        self.is_gone = True
        if self.code is None and self._cancelled is not None:
            self._cancelled()
        if self._undelivered is not None:
            self._undelivered()

    def only(self, kind: type[MessageT]) -> MessageT:
        """The one response of a finished unary call."""
        assert self.code is StatusCode.OK, f"the call ended with {self.code}: {self.detail}"
        [response] = self.sent
        assert isinstance(response, kind)
        return response
