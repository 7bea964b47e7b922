"""The record in a Lease: what is written beside it, what is left alone, and what a refusal says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.authority_places import LEASE, LeasePlace, lease_place
from support.group_records import MASTER, RECORD
from support.manual_time import ManualTime
from tandemmq.broker.failover.authority import AuthorityUnavailable, LeaseAuthority, SwapLost, open_authority
from tandemmq.core.replication.mastership import Replica
from tandemmq.service.kubernetes_api import api_of_pod


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LeasePlace]:
    with lease_place(tmp_path) as place:
        yield place


async def test_fields_of_the_lease_say_who_is_master(place: LeasePlace) -> None:
    # A full second, which must be written with its fraction.
    time = ManualTime(wall_ms=1_700_000_000_000)
    authority = LeaseAuthority(
        api_of_pod(time_limit_s=1), LEASE, cluster="DefaultCluster", broker_name="broker-a", clock=time
    )
    held = await authority.swap(None, replace(RECORD, lease_ms=5_500))
    first = {
        "holderIdentity": "broker-a-0",
        "leaseDurationSeconds": 6,
        "acquireTime": "2023-11-14T22:13:20.000000Z",
        "renewTime": "2023-11-14T22:13:20.000000Z",
        "leaseTransitions": 0,
    }
    assert place.leases[LEASE]["spec"] == first
    time.advance(1_500)
    held = await authority.swap(held, replace(held.record, renewals=1))
    assert place.leases[LEASE]["spec"] == {**first, "renewTime": "2023-11-14T22:13:21.500000Z"}
    other = Replica(1, "disk-of-1")
    await authority.swap(held, replace(RECORD, epoch=2, master=other, in_sync=frozenset({MASTER, other})))
    changed = place.leases[LEASE]["spec"]
    assert (changed["holderIdentity"], changed["leaseTransitions"]) == ("broker-a-1", 1)
    assert changed["acquireTime"] == "2023-11-14T22:13:21.500000Z"
    await authority.close()


async def test_lease_of_the_chart_is_filled_and_keeps_what_it_has(place: LeasePlace) -> None:
    place.put_lease({"helm.sh/resource-policy": "keep"}, labels={"app.kubernetes.io/name": "tandemmq"}, ofTomorrow=[1])
    authority = place.open()
    assert await authority.read() is None
    await authority.swap(None, RECORD)
    metadata = place.leases[LEASE]["metadata"]
    assert metadata["annotations"]["helm.sh/resource-policy"] == "keep"
    assert metadata["labels"] == {"app.kubernetes.io/name": "tandemmq"}
    assert metadata["ofTomorrow"] == [1]
    assert metadata["uid"] == "uid-of-somebody"
    await authority.close()


async def test_lease_that_was_removed_or_made_anew_is_lost(place: LeasePlace) -> None:
    authority = place.open()
    held = await authority.swap(None, RECORD)
    del place.leases[LEASE]
    with pytest.raises(SwapLost):
        await authority.swap(held, replace(RECORD, renewals=1))
    place.put_lease({})
    place.leases[LEASE]["metadata"]["resourceVersion"] = held.version
    with pytest.raises(SwapLost):
        await authority.swap(held, replace(RECORD, renewals=1))
    await authority.close()


@pytest.mark.parametrize("status", [401, 403])
async def test_refusal_names_verb_and_resource(place: LeasePlace, status: int) -> None:
    authority = place.open()
    held = await authority.swap(None, RECORD)
    place.status = status
    with pytest.raises(AuthorityUnavailable, match=r"may not get leases\.coordination\.k8s\.io mq-broker-a in .* mq;"):
        await authority.read()
    with pytest.raises(AuthorityUnavailable, match=r"may not update leases\.coordination\.k8s\.io"):
        await authority.swap(held, RECORD)
    await authority.close()


async def test_broken_api_server_is_unavailable(place: LeasePlace) -> None:
    authority = place.open()
    held = await authority.swap(None, RECORD)
    place.status = 500
    with pytest.raises(AuthorityUnavailable, match="Lease mq-broker-a, update: 500"):
        await authority.swap(held, RECORD)
    await authority.close()


def test_outside_a_pod_there_is_no_lease() -> None:
    with pytest.raises(ValueError, match="needs a pod with a ServiceAccount's token"):
        open_authority("kubernetes:mq-broker-a", cluster="c", broker_name="b")
