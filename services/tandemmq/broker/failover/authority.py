"""Who keeps a group's record: three places, one interface. None of them is asked for more than compare-and-swap.

| `failoverAuthority`                | where                                                            |
|------------------------------------|------------------------------------------------------------------|
| `file:FOLDER`                      | a file a group in a folder that all members share, under a lock   |
| `etcd:host:port,host:port/PREFIX`  | etcd v3, one key a group                                          |
| `kubernetes:LEASE`                 | a Lease of this name in the pod's namespace                       |
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tandemmq.core.replication.group_record import GroupRecord

__all__ = ["Authority", "AuthorityUnavailable", "Held", "SwapLost"]


class AuthorityUnavailable(Exception):
    """No answer, or one that cannot be understood. Of a swap nobody knows whether it was applied: read again."""


class SwapLost(Exception):
    """The record is not the one that was read: somebody else changed it. Nothing was written."""


class Held(NamedTuple):
    """A record as the authority has it."""

    record: GroupRecord
    version: str
    """Changes with each write, and never comes back."""


class Authority(Protocol):
    """One group's record. Every call ends within its time limit of a second. From the event loop only."""

    async def read(self) -> Held | None:
        """The newest version, not an older one; None: there is no record. AuthorityUnavailable."""

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        """Writes `record` in place of exactly `before`; None: where there was no record. SwapLost,
        AuthorityUnavailable."""

    async def close(self) -> None:
        """Gives its connection back."""
