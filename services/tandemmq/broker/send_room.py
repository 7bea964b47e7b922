"""How many sends stand in the log unacknowledged, and in which order the others get there (ADR 53).

Sends that wait for a slave or the disk are answered in the log's order, so whatever one client has put there stands
before everybody's next one. Hence the log takes so many of them, by weight; then there is no room, and what comes waits
here, outside the log, in an order of its own:

- by address: each gets the same share of the weight that goes to the log. An address that has taken less than its share
  does not wait at all, room or not; so a client with one send in the air never stands behind one with thousands, but
  for the few that are in the log;
- of an address, one connection after the other; of a connection, in the order in which they came.

The share is start-time fair queueing: a send starts where the last one of its address ended, or now; it ends by its
weight later; the send that starts first goes first, and `now` is its start. An address that had nothing to send has
saved nothing up.

What waits is memory: beyond a bound in bytes an address waits with no more than an equal share of it, and is refused.

An address that does not wait waits for the loop, though: between its send and its answer there are turns in which a
report is read, and sends for which it made room go on. So while there was one lately, only a few go on in a turn. More
than a turn should take never do: sends that are refused take no room, however many.

The bound on the log is there for the sake of order alone. If nothing was acknowledged for a while, order helps nobody:
a slave is gone or very slow, and all that waits goes to the log, to be answered there as if there were no bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from tandemmq.core.quotas import address_of_peer

MESSAGES_MAX: Final = 64
"""About a millisecond of a broker's work. A slave 2 ms away confirms 32,000 a second of them."""
MESSAGE_WEIGHT_BITS: Final = 14
"""A message weighs its bytes and 16 KiB: a short one takes about as long as storing and sending so many. So one send of
1 MiB fills the room as 64 short messages do, in one request or in many."""
HELD_BYTES_MAX: Final = 512 << 20
STALLED_S: Final = 0.2
"""Slaves report many times in it while they follow."""
AT_A_TIME: Final = 8
"""Sends that go on in a turn of the loop then: a tenth of a millisecond."""
IN_A_TURN_MAX: Final = 64
"""And else: about a millisecond."""
# Addresses that have taken more than their share; beyond, those that have not are forgotten.
_SHARES_MAX: Final = 4_096


class _Address:
    """What one address has waiting, by connection."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._connections: dict[str, deque[tuple[int, int, Callable[[], object]]]] = {}
        # Connections in the order in which they are served next.
        self._turns: deque[str] = deque()

    def add(self, connection: str, weight: int, request_bytes: int, send: Callable[[], object]) -> None:
        waiting = self._connections.get(connection)
        if waiting is None:
            waiting = self._connections[connection] = deque()
            self._turns.append(connection)
        waiting.append((weight, request_bytes, send))
        self.held_bytes += request_bytes

    def take(self) -> tuple[int, int, Callable[[], object]]:
        connection = self._turns.popleft()
        waiting = self._connections[connection]
        taken = waiting.popleft()
        if waiting:
            self._turns.append(connection)
        else:
            del self._connections[connection]
        self.held_bytes -= taken[1]
        return taken

    def is_empty(self) -> bool:
        return not self._turns


class SendRoom:
    """One for each broker. Event loop only.

    The write path says `is_full` and calls `made` and `open`; whoever brings a send asks `is_full` and, if so, `holds`.
    While anything waits there is no room, so that nothing overtakes it.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], object]], object],
        *,
        messages_max: int = MESSAGES_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        """`call_later` calls back after so many seconds."""
        self.weight_max = messages_max << MESSAGE_WEIGHT_BITS
        """What may be in the log at a time."""
        self.is_full = False
        self.held_count = 0
        """Sends that wait now."""
        self.held_bytes = 0
        """Of their requests."""
        self._held_bytes_max = held_bytes_max
        self._call_later = call_later
        self._addresses: dict[str, _Address] = {}
        # Where the next send of each of them starts, and the number it got then.
        self._starts: list[tuple[int, int, str]] = []
        self._number = 0
        # Where the last send of an address ended, if that is not over.
        self._ends: dict[str, int] = {}
        self._now = 0
        self._has_moved = False
        self._is_watched = False
        # Looks until nobody counts any more who went on at once while others waited.
        self._newcomer_looks = 0

    def change(self, messages_max: int) -> None:
        self.weight_max = messages_max << MESSAGE_WEIGHT_BITS

    def has_too_much(self, peer: str, request_bytes: int) -> bool:
        """There is no room, and so many bytes more of `peer` may not wait. Nobody has looked at them: whatever is in
        the request counts."""
        held = self.held_bytes + request_bytes
        if held <= self._held_bytes_max or not self.held_bytes:
            return False
        waiting = self._addresses.get(address_of_peer(peer))
        own = request_bytes if waiting is None else waiting.held_bytes + request_bytes
        return held > 2 * self._held_bytes_max or own > self._held_bytes_max // (len(self._addresses) + 1)

    def holds(self, peer: str, messages: int, request_bytes: int, send: Callable[[], object]) -> bool:
        """There is no room, and `peer`, an address and a port, brings messages. True: they wait, and `send` is called
        when their turn has come, which must not raise. False: they go on at once."""
        weight = (messages << MESSAGE_WEIGHT_BITS) + request_bytes
        address = address_of_peer(peer)
        waiting = self._addresses.get(address)
        if waiting is None:
            start = self._ends.get(address, 0)
            if start <= self._now:
                self._note_end(address, self._now + weight)
                if self._starts:
                    self._newcomer_looks = 2
                return False
            waiting = self._addresses[address] = _Address()
            self._push(start, address)
        waiting.add(peer, weight, request_bytes, send)
        self.held_count += 1
        self.held_bytes += request_bytes
        if not self._is_watched:
            self._is_watched = True
            self._has_moved = True  # For a whole pause from now on.
            self._call_later(STALLED_S, self._look)
        return True

    def made(self) -> bool:
        """There is room again: as many go on as it takes, or as a turn should take. True: there is room for more, in
        the next turn."""
        self._has_moved = True
        self.is_full = False
        left = AT_A_TIME if self._newcomer_looks else IN_A_TURN_MAX
        while self._starts and not self.is_full and left:
            self._send_next()
            left -= 1
        if self._starts:
            has_room, self.is_full = not self.is_full, True
            return has_room
        self._ends.clear()
        return False

    def open(self) -> None:
        self.is_full = False
        while self._starts:
            self._send_next()
        self._ends.clear()

    def _send_next(self) -> None:
        start, _, address = heappop(self._starts)
        waiting = self._addresses[address]
        weight, request_bytes, send = waiting.take()
        self._now = start
        if waiting.is_empty():
            del self._addresses[address]
        else:
            self._push(start + weight, address)
        self._note_end(address, start + weight)
        self.held_count -= 1
        self.held_bytes -= request_bytes
        send()

    def _push(self, start: int, address: str) -> None:
        self._number += 1
        heappush(self._starts, (start, self._number, address))

    def _note_end(self, address: str, end: int) -> None:
        if len(self._ends) >= _SHARES_MAX:
            self._ends = {known: its_end for known, its_end in self._ends.items() if its_end > self._now}
        self._ends[address] = end

    def _look(self) -> None:
        self._is_watched = False
        if not self.held_count:
            self._newcomer_looks = 0
            return
        self._newcomer_looks = max(0, self._newcomer_looks - 1)
        if not self._has_moved:
            self.open()
            return
        self._has_moved = False
        self._is_watched = True
        self._call_later(STALLED_S, self._look)
