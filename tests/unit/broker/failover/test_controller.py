"""What a broker that fails over confirms. Who becomes master, and when, is the simulator's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from support.group_records import RECORD
from tandemmq.broker.failover.authority import AuthorityUnavailable, Held, SwapLost
from tandemmq.broker.failover.controller import Failover, boot_time_ms
from tandemmq.broker.metadata_tables import NotSpread
from tandemmq.core.replication.mastership import FailoverOptions


@pytest.mark.parametrize(("is_master", "is_serving"), [(True, False), (False, True), (False, False)])
async def test_a_change_whose_write_outlasts_the_master_s_role_is_not_confirmed(
    is_master: bool, is_serving: bool
) -> None:
    """The next master has copied the tables, perhaps a moment before."""
    unused: Any = None
    host: Any = SimpleNamespace(role=SimpleNamespace(is_master=is_master, is_serving=is_serving))
    failover = Failover(host, authority=unused, options=FailoverOptions(), nonce="")
    with pytest.raises(NotSpread, match="master no more"):
        await failover.spread()


class SlowAuthority:
    """Has no answer to the first swaps, which may be applied all the same, and to some reads."""

    def __init__(self, *, unanswered: int, is_applied: bool, unread: int) -> None:
        self.held = Held(RECORD, "1")
        self.swaps = 0
        self._unanswered, self._is_applied, self._unread = unanswered, is_applied, unread

    async def read(self) -> Held:
        self._unread -= 1
        if self._unread >= 0:
            raise AuthorityUnavailable("silent")
        return self.held

    async def swap(self, before: Held, record: Any) -> Held:
        self.swaps += 1
        if before != self.held:
            raise SwapLost("another version")
        if self.swaps <= self._unanswered and not self._is_applied:
            raise AuthorityUnavailable("silent")
        self.held = Held(record, f"{before.version}+")
        if self.swaps <= self._unanswered:
            raise AuthorityUnavailable("silent")
        return self.held


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("unread", [0, 2])
@pytest.mark.parametrize(("unanswered", "lease_ms"), [(0, 60_000), (1, 60_000), (3, 60_000), (1_000, 50)])
async def test_a_resignation_is_written_although_the_authority_is_slow_for_a_moment(
    unanswered: int, lease_ms: int, unread: int, is_applied: bool
) -> None:
    """The successor would wait for the lease. A swap without an answer is looked for, and not written twice."""
    authority: Any = SlowAuthority(unanswered=unanswered, is_applied=is_applied, unread=unread)

    async def see_record(record: Any) -> None:
        """It is on our disk."""

    host: Any = SimpleNamespace(member=SimpleNamespace(see_record=see_record, record_version=(1, 1)))
    heard = []
    member: Any = SimpleNamespace(
        heard=lambda record, version, now_ms: heard.append((record, version)), put_back_behind=None
    )
    failover = Failover(host, authority=authority, options=FailoverOptions(), nonce="")
    failover._mastership, failover._held = member, authority.held
    resignation = replace(RECORD, successor=1, renewals=RECORD.renewals + 1)
    await failover._write_resignation(resignation, boot_time_ms() + lease_ms)
    is_written = is_applied or unanswered < 1_000
    assert (authority.held.record == resignation) is is_written
    if is_written:
        assert heard[-1] == (resignation, authority.held.version)
        assert authority.swaps == (1 if is_applied else unanswered + 1)
