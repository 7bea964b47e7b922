"""Sends clients of a broker that can do nothing for them to another member's address, and takes them again.

Refused here, they would stay for as long as their connections hold: they have other addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from tandemmq.broker.failover.controller import FailoverHost
    from tandemmq.broker.parts import Role

log = structlog.get_logger(__name__)

_DEAF_MS: Final = 2_000
"""A member that hears nothing of a master that goes on to renew passes nothing on, and is not about to."""


class TurnedAway:
    """The clients of one member of a group that fails over. Event loop only."""

    def __init__(self, door: FailoverHost, *, lease_ms: int, now_ms: Callable[[], int]) -> None:
        self._door = door
        self._lease_ms = lease_ms
        self._now_ms = now_ms
        self._deaf_since: tuple[int, str] | None = None
        """Since when this member hears nothing of its master, and the record's version then."""
        self.is_on = False

    def turn_away(self, reason: str) -> None:
        if not self.is_on and not self._door.is_stopping:
            self.is_on = True
            log.warning("clients_turned_away", reason=reason)
            self._door.turn_clients_away(is_on=True)

    def take_again(self) -> None:
        if self.is_on:
            self.is_on = False
            log.info("clients_taken_again")
            self._door.turn_clients_away(is_on=False)

    def look_as_master(self) -> None:
        """It has no master to hear. One that hands over begins to listen anew."""
        self._deaf_since = None

    def look_as_member(self, role: Role, *, version: str, is_authority_away: bool, is_lease_over: bool) -> None:
        """Each time that it has looked at the record, which is of this `version`: whether it can pass nothing on to its
        master, and it is not that one that is away."""
        if role.is_master or role.hears_master or role.serves_reads:
            self._deaf_since = None
        elif self._deaf_since is None:
            self._deaf_since = self._now_ms(), version
        if self._is_cut_off(version, is_authority_away=is_authority_away, is_lease_over=is_lease_over):
            self.turn_away("it hears nothing of its master, and others may")
        else:
            self.take_again()

    def _is_cut_off(self, version: str, *, is_authority_away: bool, is_lease_over: bool) -> bool:
        if self._deaf_since is None:
            return False
        since_ms, version_then = self._deaf_since
        deaf_ms = self._now_ms() - since_ms
        if is_authority_away:
            return deaf_ms >= self._lease_ms
        return deaf_ms >= _DEAF_MS and version != version_then and not is_lease_over
