"""Runs all members of a local cluster: start order, readiness, stop order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from admin.cli.failure import CommandError
from admin.cli.member import Member, MemberKind
from admin.cli.supervised_member import MemberState, SupervisedMember

__all__ = ["ClusterSupervisor"]

# Above a broker's own limit for an orderly stop (shutdownTimeout, 15 s).
_STOP_LIMIT_S: Final = 20.0
_READY_POLL_S: Final = 0.1


class ClusterSupervisor:
    """Starts NameServers, then the rest; stops the admin service, masters, slaves, NameServers.

    Brokers start together because a SYNC_MASTER that lost unflushed pages waits for its slave's copy before it serves.
    Masters stop first: they take themselves out of the routes, and sends still waiting for a slave find it there.
    """

    def __init__(self, supervised: Sequence[SupervisedMember], *, start_limit_s: float) -> None:
        self.members = tuple(supervised)
        self._start_limit_s = start_limit_s

    async def run(self, stop: asyncio.Event, *, ready: Callable[[], None], stopping: Callable[[], None]) -> None:
        """Runs the cluster until `stop` is set. CommandError when a member does not come up; all are stopped then."""
        async with asyncio.TaskGroup() as tasks:
            try:
                for wave in (self._of(_is_name_server), self._of(_follows_name_servers)):
                    for supervised in wave:
                        tasks.create_task(supervised.run(), name=supervised.member.name)
                    await self._until_serving(wave, stop)
                if not stop.is_set():
                    ready()
                await stop.wait()
            finally:
                stopping()
                await self._stop_in_order()

    async def _until_serving(self, wave: Sequence[SupervisedMember], stop: asyncio.Event) -> None:
        deadline_s = asyncio.get_running_loop().time() + self._start_limit_s
        while not stop.is_set():
            # One that is held may be so for days: operators look at it, and at the others, meanwhile.
            waiting = [each for each in wave if each.state not in (MemberState.SERVING, MemberState.HELD)]
            if not waiting:
                return
            for supervised in waiting:
                if supervised.failed_to_start:
                    raise _start_failure(supervised, f"it ended with {supervised.last_exit}")
            if asyncio.get_running_loop().time() > deadline_s:
                raise _start_failure(waiting[0], f"it does not serve after {self._start_limit_s:.0f} s")
            await asyncio.sleep(_READY_POLL_S)

    async def _stop_in_order(self) -> None:
        for wave in (self._of(_is_admin), self._of(_is_master), self._of(_is_slave), self._of(_is_name_server)):
            async with asyncio.TaskGroup() as tasks:
                for supervised in wave:
                    tasks.create_task(supervised.stop(limit_s=_STOP_LIMIT_S))

    def _of(self, belongs: Callable[[Member], bool]) -> list[SupervisedMember]:
        return [supervised for supervised in self.members if belongs(supervised.member)]


def _is_name_server(member: Member) -> bool:
    return member.kind is MemberKind.NAME_SERVER


def _follows_name_servers(member: Member) -> bool:
    return not _is_name_server(member)


def _is_broker(member: Member) -> bool:
    return member.kind is MemberKind.BROKER


def _is_admin(member: Member) -> bool:
    return member.kind is MemberKind.ADMIN


def _is_slave(member: Member) -> bool:
    return member.role == "SLAVE"


def _is_master(member: Member) -> bool:
    return _is_broker(member) and not _is_slave(member)


def _start_failure(supervised: SupervisedMember, cause: str) -> CommandError:
    lines = "\n".join(supervised.last_words)
    return CommandError(
        f"{supervised.member.name} did not start",
        cause=f"{cause}\n{lines}" if lines else cause,
        remedy=f"see logs/{supervised.member.name}.log in the data folder; the cluster was stopped again",
    )
