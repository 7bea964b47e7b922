"""Which connections of a server have something to write, and when: once for each, at the end of a turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["PendingOutput", "Writer"]

# What may wait for an answer to go with, waits no longer. A client that estimates its bandwidth asks by PING with every
# request, and its round trip is mostly over by then.
_WAITING_OUTPUT_S: Final = 0.005


class Writer(Protocol):
    """One connection with its socket."""

    def write_out(self) -> None:
        """Writes the connection's output as far as the socket takes it; closes behind the last words."""

    def fail(self, error: Exception, /) -> None:
        """Ends the connection, and nobody else's, for what went wrong in it."""


class PendingOutput:
    """See the module's docstring. Event loop only."""

    def __init__(self, write_soon: Callable[[Callable[[], None]], object] | None) -> None:
        """`write_soon` calls back at the end of a turn of the loop; `call_soon` of the loop where there is none."""
        self._write_soon = write_soon
        self._dirty: list[Writer] = []
        self._is_scheduled = False
        # Those whose output may wait; empty: no timer is set for them.
        self._waiting: set[Writer] = set()

    @property
    def is_waiting(self) -> bool:
        """Somebody has output that waits for an answer to go with."""
        return bool(self._waiting)

    def add(self, writer: Writer) -> None:
        """A connection has output; it is written at the end of this turn of the loop."""
        self._dirty.append(writer)
        if not self._is_scheduled:
            self._is_scheduled = True
            (self._write_soon or asyncio.get_running_loop().call_soon)(self._end_of_turn)

    def add_waiting(self, writer: Writer) -> None:
        """A connection has output that is not worth a write: it goes with the next answer, or soon if there is none."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_WAITING_OUTPUT_S, self._write_waiting)
        self._waiting.add(writer)

    def flush(self) -> None:
        """Writes what every connection has to say, now rather than at the end of this turn of the loop."""
        dirty, self._dirty = self._dirty, []
        for writer in dirty:
            try:
                writer.write_out()
            except Exception as error:
                writer.fail(error)

    def _end_of_turn(self) -> None:
        self._is_scheduled = False
        self.flush()

    def _write_waiting(self) -> None:
        self._dirty += self._waiting
        self._waiting.clear()
        self.flush()
