"""What every authority does, whatever keeps its records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support.authority_places import AuthorityPlace, FilePlace, LeasePlace, etcd_place, lease_place, patient
from support.group_records import RECORD
from support.running_time import PATIENCE_S
from tandemmq.broker.failover.authority import Authority, AuthorityUnavailable, Held, SwapLost

# Far more than a call may take: without a limit the test would fail here, not hang.


@pytest.fixture(params=["file", "etcd", "kubernetes"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AuthorityPlace]:
    async with AsyncExitStack() as stack:
        if request.param == "file":
            yield FilePlace(tmp_path / "records")
        elif request.param == "etcd":
            yield await stack.enter_async_context(etcd_place())
        else:
            yield stack.enter_context(lease_place(tmp_path))


@pytest.fixture
async def authority(place: AuthorityPlace) -> AsyncIterator[Authority]:
    opened = place.open()
    yield opened
    await opened.close()


async def _held(authority: Authority) -> Held:
    held = await authority.read()
    assert held is not None
    return held


@asynccontextmanager
async def _opened(authority: Authority) -> AsyncIterator[Authority]:
    yield authority
    await authority.close()


async def test_record_is_created_and_read(authority: Authority) -> None:
    assert await authority.read() is None
    created = await authority.swap(None, RECORD)
    assert created.record == RECORD
    assert await authority.read() == created


async def test_record_is_created_once(place: AuthorityPlace, authority: Authority) -> None:
    created = await authority.swap(None, RECORD)
    other = place.open()
    with pytest.raises(SwapLost):
        await other.swap(None, replace(RECORD, nonce="other"))
    assert await other.read() == created
    await other.close()


async def test_swap_replaces_the_version_that_was_read_and_no_other(
    place: AuthorityPlace, authority: Authority
) -> None:
    first = await authority.swap(None, RECORD)
    second = await authority.swap(first, replace(RECORD, renewals=1))
    other = place.open()
    for stale in (first, Held(RECORD, "999999")):
        with pytest.raises(SwapLost):
            await other.swap(stale, replace(RECORD, epoch=2))
    # Who has only read it may swap it as well.
    third = await other.swap(await _held(other), replace(RECORD, epoch=2))
    assert await authority.read() == third
    with pytest.raises(SwapLost):
        await authority.swap(second, RECORD)
    await other.close()


async def test_same_record_is_another_version(authority: Authority) -> None:
    first = await authority.swap(None, RECORD)
    second = await authority.swap(first, RECORD)
    assert first.version != second.version
    with pytest.raises(SwapLost):
        await authority.swap(first, RECORD)


async def test_of_many_that_swap_at_once_one_wins(place: AuthorityPlace) -> None:
    members = [place.open() for _ in range(4)]
    before: Held | None = None
    for epoch in range(1, 16):
        outcomes = await asyncio.gather(
            *(
                member.swap(before, replace(RECORD, epoch=epoch, nonce=f"{number}"))
                for number, member in enumerate(members)
            ),
            return_exceptions=True,
        )
        [before] = [outcome for outcome in outcomes if isinstance(outcome, Held)]
        assert sum(isinstance(outcome, SwapLost) for outcome in outcomes) == len(members) - 1
        assert await members[epoch % len(members)].read() == before
    for member in members:
        await member.close()


async def test_groups_have_records_of_their_own(place: AuthorityPlace, authority: Authority) -> None:
    created = await authority.swap(None, RECORD)
    async with _opened(place.open("broker/../broker-a")) as other:
        if isinstance(place, LeasePlace):
            # A Lease is one group's, and says whose.
            with pytest.raises(AuthorityUnavailable, match="give each group a Lease of its own"):
                await other.read()
            with pytest.raises(AuthorityUnavailable, match="give each group a Lease of its own"):
                await other.swap(None, RECORD)
        else:
            assert await other.read() is None
            await other.swap(None, replace(RECORD, nonce="other"))
    assert await authority.read() == created


@pytest.mark.parametrize("text", ["", "half a rec", '{"epoch": 1}', "[]"])
async def test_text_that_is_no_record_is_kept(place: AuthorityPlace, authority: Authority, text: str) -> None:
    place.plant(text)
    with pytest.raises(
        AuthorityUnavailable, match="put back a copy of it; if there is none, remove it, and name the master"
    ):
        await authority.read()
    with pytest.raises((AuthorityUnavailable, SwapLost)):
        await authority.swap(None, RECORD)
    assert place.text() == text


async def test_silent_authority_is_unavailable_and_changes_nothing(place: AuthorityPlace, authority: Authority) -> None:
    held = await authority.swap(None, RECORD)
    async with asyncio.timeout(PATIENCE_S):
        with place.silent(), patient(1):
            with pytest.raises(AuthorityUnavailable):
                await authority.read()
            with pytest.raises(AuthorityUnavailable):
                await authority.swap(held, replace(RECORD, renewals=1))
    async with _opened(place.open()) as other:
        assert await other.read() == held


async def test_swap_without_an_answer_is_asked_once_and_may_be_there(
    place: AuthorityPlace, authority: Authority
) -> None:
    held = await authority.swap(None, RECORD)
    asked = place.writes()
    async with asyncio.timeout(PATIENCE_S):
        with place.applying_silently(), patient(1), pytest.raises(AuthorityUnavailable):
            await authority.swap(held, replace(RECORD, renewals=1))
        if asked is not None:
            assert place.writes() == asked + 1
        after = await _held(authority)
        assert after.record.renewals == 1
        with pytest.raises(SwapLost):
            await authority.swap(held, replace(RECORD, renewals=2))
        assert (await authority.swap(after, replace(RECORD, renewals=2))).record.renewals == 2
