"""How many consumer groups clients may bring into being by merely naming them.

Each is kept for good, in a file that is written whole and copied to every slave. A client that names new ones in a
loop, by mistake or not, takes neither the disk nor the sends of the others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

__all__ = ["CreationLimit"]

_CLIENTS_MAX: Final = 1_000
"""Remembered; the one heard of longest ago is forgotten first."""


class CreationLimit:
    """At most so many a second, of one client and of all, and so many there may be. No clock: the caller tells the
    time, in ms of the monotonic clock. What was not used in one second may be in the next, no later."""

    def __init__(self, *, per_second: int, per_client_per_second: int, count_max: int) -> None:
        self._per_second = per_second
        self._per_client = per_client_per_second
        self._count_max = count_max
        self._all = _Allowance(per_second)
        self._clients: OrderedDict[str, _Allowance] = OrderedDict()

    def refusal(self, client_id: str, *, count: int, now_ms: int) -> str | None:
        """Why not one more besides `count`, and what to do; None: it is made, and counted."""
        if count >= self._count_max:
            return (
                f"the broker has {count} consumer groups, and subscriptionGroupsMax is {self._count_max}: "
                "delete groups nobody uses, or raise it"
            )
        client = self._clients.get(client_id) or _Allowance(self._per_client)
        self._clients[client_id] = client
        self._clients.move_to_end(client_id)
        if len(self._clients) > _CLIENTS_MAX:
            self._clients.popitem(last=False)
        if not client.has_one(now_ms):
            return (
                f"client {client_id} names new consumer groups faster than newGroupsPerClientPerSecond="
                f"{self._per_client}: use one group for each application, or create groups beforehand"
            )
        if not self._all.has_one(now_ms):
            return (
                f"clients name new consumer groups faster than newGroupsPerSecond={self._per_second}: "
                "try again in a second, or create groups beforehand"
            )
        client.take()
        self._all.take()
        return None


class _Allowance:
    """A bucket that holds what one second brings."""

    __slots__ = ("_at_ms", "_left_thousandths", "_per_second")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left_thousandths = per_second * 1_000
        self._at_ms: int | None = None

    def has_one(self, now_ms: int) -> bool:
        if self._at_ms is not None:
            came = (now_ms - self._at_ms) * self._per_second
            self._left_thousandths = min(self._left_thousandths + came, self._per_second * 1_000)
        self._at_ms = now_ms
        return self._left_thousandths >= 1_000

    def take(self) -> None:
        self._left_thousandths -= 1_000
