"""Where addresses that pods advertise are dialled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.kubernetes_release import pod
from tandemmq.cli.kube.release import way_to_pods
from tandemmq.service.kubernetes_api import PodStream


class _Network:
    def __init__(self, *, inside: bool) -> None:
        self.is_inside = inside

    async def open_stream(self, pod: str, port: int) -> PodStream:
        raise NotImplementedError(f"{pod}:{port}")


_BROKER_PORTS = {"grpc-client": 8081, "grpc-metadata": 10911}
_PODS = (
    pod("mq-nameserver-0", component="nameserver", ports={"grpc": 9876}),
    # It has no address yet.
    pod("mq-nameserver-1", component="nameserver", ports={"grpc": 9876}, ip=""),
    pod("mq-broker-a-0", ports=_BROKER_PORTS),
    pod("mq-broker-a-1", ports=_BROKER_PORTS, terminating=True),
)


async def test_from_inside_pods_are_dialled_by_their_addresses() -> None:
    async with way_to_pods(_Network(inside=True), _PODS) as way:
        assert way.address.name_servers == ("10.0.0.1:9876",)
        assert way.dial is None


async def test_from_outside_each_port_of_a_pod_has_a_tunnel_of_its_own() -> None:
    async with way_to_pods(_Network(inside=False), _PODS) as way:
        assert way.address.name_servers == ("mq-nameserver-0:9876",)
        dial = way.dial
        assert dial is not None
        advertised = "mq-broker-a-0.mq-broker-a.mq.svc:{}"
        ends = {dial(advertised.format(port)) for port in (8081, 10911)} | {dial("mq-nameserver-0:9876")}
        assert len(ends) == 3
        assert all(end.startswith("127.0.0.1:") for end in ends)


@pytest.mark.parametrize("master", [0, 1])
async def test_the_service_of_a_group_leads_to_the_master(master: int) -> None:
    names = ("mq-broker-a-master-0", "mq-broker-a-slave-1")
    members = [
        replace(pod(name, ports=_BROKER_PORTS), role="master" if number == master else "slave")
        for number, name in enumerate(names)
    ]
    others = [pod(f"mq-broker-{name}-master-0", ports=_BROKER_PORTS) for name in ("b", "a-x")]
    async with way_to_pods(_Network(inside=False), [*members, *others]) as way:
        assert way.dial is not None
        group = way.dial("mq-broker-a.mq.svc.cluster.local:8081")
        assert group == way.dial(f"{names[master]}.mq-brokers.mq.svc:8081")
        assert way.dial("mq-broker-b.mq.svc.cluster.local:8081") != group


async def test_what_is_no_pod_is_dialled_as_it_is() -> None:
    async with way_to_pods(_Network(inside=False), _PODS) as way:
        assert way.dial is not None
        for address in ("mq.example.org:8082", "mq-broker-a-1.mq-broker-a:8081", "mq-broker-a-0:5557", "nonsense"):
            assert way.dial(address) == address
