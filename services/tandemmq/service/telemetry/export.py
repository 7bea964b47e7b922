"""What the exports of spans, metrics and audit lines have in common: a thread of its own that sends to a receiver.

A receiver that is away, refuses or hangs costs what was to be sent, or its delay, and two lines in the log: one when
that begins and one when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

SentT = TypeVar("SentT", contravariant=True)
ItemT = TypeVar("ItemT")

_FLUSH_LIMIT_S: Final = 1.5
_ABORT_LIMIT_S: Final = 0.5
CALL_LIMIT_S: Final = 5.0
"""A request and its retries may take so long; then it is given up."""


class Sender(Protocol[SentT]):
    """The connection to a receiver."""

    def send(self, batch: Sequence[SentT]) -> str:
        """Sends it; "" when it was taken, else why not. Blocks, but not for ever. On the export thread."""

    def abort(self) -> None:
        """Ends a `send` in progress, and all that come later, at once. From any thread."""


class ExportThread(Generic[ItemT]):
    """`connect` is called there, too. One that raises, as a wrong variable of OpenTelemetry's makes it, is tried
    again with the next batch. Whoever inherits it does `_work` there, and starts `_thread`."""

    def __init__(self, connect: Callable[[], Sender[ItemT]], *, name: str) -> None:
        self._connect = connect
        self._sender: Sender[ItemT] | None = None
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def _work(self) -> None:
        raise NotImplementedError

    def _attempt(self, batch: Sequence[ItemT]) -> str:
        """Why the batch was not taken; empty: it was, or there is nothing in it."""
        try:
            if self._sender is None:
                self._sender = self._connect()
            return self._sender.send(batch) if batch else ""
        except Exception as error:  # The thread's root: what cannot be sent must not end the export.
            return f"{type(error).__name__}: {error}"

    def _has_turned(self, problem: str) -> bool:
        """Notes it; whether the receiver has begun, or has ended, to fail."""
        before, self._is_failing = self._is_failing, bool(problem)
        return before != self._is_failing

    def _end(self) -> None:
        """Gives the thread a moment to send the rest. Blocks for two seconds at most."""
        self._thread.join(_FLUSH_LIMIT_S)
        self._abort()
        self._thread.join(_ABORT_LIMIT_S)

    def _abort(self) -> None:
        if self._sender is not None:
            self._sender.abort()
