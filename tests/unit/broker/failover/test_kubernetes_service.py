"""Where a group's Service leads: to the master of the newest epoch, whatever becomes of the slice meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from support.authority_places import LEASE, LeasePlace, lease_place
from tandemmq.broker.failover.kubernetes_service import EPOCH_ANNOTATION, GroupService, service_of_pod
from tandemmq.core.routing.values import Address, parse_address

ENDPOINT = f"{LEASE}.mq.svc.cluster.local:8081"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LeasePlace]:
    with lease_place(tmp_path) as place:
        place.put_slice()
        yield place


def service_of(host: str) -> GroupService:
    return service_of_pod(ENDPOINT, master=_address(host))


def _address(host: str) -> Address:
    address = parse_address(f"{host}:8081")
    assert address is not None
    return address


def leads_to(place: LeasePlace) -> list[str]:
    return [address for endpoint in place.slice()["endpoints"] for address in endpoint["addresses"]]


async def test_the_service_follows_the_master(place: LeasePlace) -> None:
    first, second = service_of("10.0.0.1"), service_of("10.0.0.2")
    await first.lead_here(1, now_ms=0)
    assert leads_to(place) == ["10.0.0.1"]
    assert place.slice()["ports"] == [{"name": "grpc", "port": 8081, "protocol": "TCP", "appProtocol": "grpc"}]
    await second.lead_here(2, now_ms=0)
    assert leads_to(place) == ["10.0.0.2"]
    assert place.slice()["metadata"]["annotations"] == {EPOCH_ANNOTATION: "2"}
    await first.close()
    await second.close()


async def test_a_member_stands_in_until_there_is_a_master(place: LeasePlace) -> None:
    first, second = service_of("10.0.0.1"), service_of("10.0.0.2")
    await first.lead_here(1, now_ms=0)
    await second.stand_in(1)
    assert leads_to(place) == ["10.0.0.2"]
    await second.lead_here(2, now_ms=0)
    assert place.slice()["metadata"]["annotations"] == {EPOCH_ANNOTATION: "2"}
    await first.stand_in(1)
    assert leads_to(place) == ["10.0.0.2"]
    await first.close()
    await second.close()


async def test_a_master_that_is_there_after_all_takes_its_service_back(place: LeasePlace) -> None:
    first, second = service_of("10.0.0.1"), service_of("10.0.0.2")
    await first.lead_here(1, now_ms=0)
    await second.stand_in(1)
    await first.lead_here(1, now_ms=10_000)
    assert leads_to(place) == ["10.0.0.1"]
    await first.close()
    await second.close()


async def test_a_former_master_leads_nobody_to_itself(place: LeasePlace) -> None:
    former, master = service_of("10.0.0.1"), service_of("10.0.0.2")
    await master.lead_here(2, now_ms=0)
    with capture_logs() as logs:
        await former.lead_here(1, now_ms=0)
    assert leads_to(place) == ["10.0.0.2"]
    assert "master of epoch 2" in logs[0]["reason"]
    await former.close()
    await master.close()


async def test_it_looks_again_each_ten_seconds_and_writes_what_differs(place: LeasePlace) -> None:
    service = service_of("10.0.0.1")
    await service.lead_here(1, now_ms=0)
    written = place.write_count
    place.put_slice()
    await service.lead_here(1, now_ms=9_999)
    assert leads_to(place) == []
    await service.lead_here(1, now_ms=10_000)
    assert leads_to(place) == ["10.0.0.1"]
    await service.lead_here(1, now_ms=20_000)
    assert place.write_count == written + 1
    await service.close()


@pytest.mark.parametrize("status", [403, 404, 422, 500])
async def test_a_slice_that_cannot_be_written_is_told_once_and_tried_again(place: LeasePlace, status: int) -> None:
    service = service_of("10.0.0.1")
    place.status = status
    with capture_logs() as logs:
        await service.lead_here(1, now_ms=0)
        await service.lead_here(1, now_ms=1)
    assert [line["event"] for line in logs] == ["service_does_not_lead_here"]
    place.status = 200
    await service.lead_here(1, now_ms=2)
    assert leads_to(place) == ["10.0.0.1"]
    await service.close()


def test_outside_a_pod_there_is_no_service() -> None:
    with pytest.raises(ValueError, match="needs a pod's ServiceAccount"):
        service_of("10.0.0.1")
