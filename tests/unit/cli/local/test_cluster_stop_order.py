"""In which order `tandemmq down` has the members stop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tandemmq.cli.local.cluster import ClusterSupervisor
from tandemmq.cli.local.folder import Member
from tandemmq.cli.local.members import MemberState

_AUTHORITY = "file:/data/authority"


class _Running:
    """A member that serves until it is stopped, and notes when that was."""

    def __init__(self, name: str, stopped: list[str], *, acts: bool = False, **settings: str) -> None:
        self.member = Member(name, settings)
        self.state = MemberState.SERVING
        self.failed_to_start = False
        self._acts = acts
        self._stopped = stopped
        self._end = asyncio.Event()

    async def run(self) -> None:
        await self._end.wait()

    async def is_acting_master(self) -> bool:
        return self._acts

    async def stop(self, *, limit_s: float) -> None:
        self._stopped.append(self.member.name)
        self._end.set()


async def _stopped(*members: _Running) -> None:
    stop = asyncio.Event()
    supervisor = ClusterSupervisor(cast("Any", members), start_limit_s=10)
    await supervisor.run(stop, ready=stop.set, stopping=lambda: None)


async def test_masters_stop_before_their_slaves() -> None:
    order: list[str] = []
    await _stopped(
        _Running("namesrv-0", order),
        _Running("broker-a", order, brokerRole="SYNC_MASTER"),
        _Running("broker-a-s", order, brokerRole="SLAVE"),
    )
    assert order == ["broker-a", "broker-a-s", "namesrv-0"]


async def test_who_acts_as_the_master_of_a_group_that_fails_over_stops_last_of_it() -> None:
    order: list[str] = []
    await _stopped(
        _Running("namesrv-0", order),
        _Running("broker-a-s", order, acts=True, brokerRole="SLAVE", failoverAuthority=_AUTHORITY),
        _Running("broker-a", order, brokerRole="SYNC_MASTER", failoverAuthority=_AUTHORITY),
    )
    assert order == ["broker-a", "broker-a-s", "namesrv-0"]
