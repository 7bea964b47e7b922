"""What a connection has to say: bytes for the socket, in order, and whom to tell if they never got there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mqgrpc.stream import Stream

__all__ = ["Output"]


class Output:
    """Bytes that wait to be taken, and the calls that want to hear if theirs were not written.

    `on_output` is called when there is something to take and there was nothing before; for what may wait a little for
    others to go with, `on_waiting_output` instead.
    """

    def __init__(self, on_output: Callable[[], None], on_waiting_output: Callable[[], None]) -> None:
        self.pieces: list[bytes | memoryview] = []
        """In order. Whoever adds to it without `put` says so with `announce`."""
        self._on_output = on_output
        self._on_waiting_output = on_waiting_output
        # Nobody but `on_waiting_output` has been told of what is in it.
        self._waits = True
        # Ended calls that confirm: not yet taken; taken, with the output's length up to their end.
        self._unconfirmed: list[Stream] = []
        self._unwritten: deque[tuple[int, list[Stream]]] = deque()
        self._taken_bytes = 0

    def put(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        self.announce()
        self.pieces.append(data)

    def put_waiting(self, data: bytes) -> None:
        """The next bytes, which need not be a write of their own."""
        if not self.pieces:
            self._on_waiting_output()
        self.pieces.append(data)

    def announce(self) -> None:
        """Tells the owner, unless that was done."""
        if self._waits:
            self._waits = False
            self._on_output()

    def confirm(self, stream: Stream) -> None:
        """This call's last bytes were put; it wants to hear if they are lost."""
        self._unconfirmed.append(stream)

    def take(self) -> bytes:
        """All of it; b"" when there is none."""
        pieces = self.pieces
        if not pieces:
            return b""
        self.pieces = []
        self._waits = True
        data = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], bytes) else b"".join(pieces)
        self._taken_bytes += len(data)
        if self._unconfirmed:
            self._unwritten.append((self._taken_bytes, self._unconfirmed))
            self._unconfirmed = []
        return data

    def written(self, unwritten_bytes: int) -> None:
        """All that was taken, but for the last `unwritten_bytes`, is written to the socket.

        Those calls are delivered as far as anybody here can know.
        """
        unwritten = self._unwritten
        if unwritten:
            written = self._taken_bytes - unwritten_bytes
            while unwritten and unwritten[0][0] <= written:
                unwritten.popleft()

    def lost(self) -> list[Stream]:
        """Nothing more will be written. Gives the calls whose end was not."""
        self.pieces.clear()
        unconfirmed = [stream for _, streams in self._unwritten for stream in streams] + self._unconfirmed
        self._unwritten.clear()
        self._unconfirmed = []
        return unconfirmed
