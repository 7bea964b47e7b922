from __future__ import annotations

import asyncio

from support.manual_time import ManualTime
from tandemmq.broker.group_members import PeerProbe, PeerProbes, ProbeTarget, probe_targets
from tandemmq.core.clock import Clock
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.values import BrokerEndpoints, BrokerIdentity, RegisteredBroker

NAME_SERVERS = ("mq-nameserver-0:9876", "mq-nameserver-1:9876")


def member(name: str, broker_id: int, *, cluster: str = "DefaultCluster") -> RegisteredBroker:
    host = f"{name}-{broker_id}"
    ha = f"{host}:10912" if broker_id == 0 else ""
    endpoints = BrokerEndpoints(f"{host}:8081", f"{host}:10911", ha)
    return RegisteredBroker(BrokerIdentity(cluster, name, broker_id), endpoints, 1, DataVersion())


BROKERS = (
    member("broker-a", 0),
    member("broker-a", 1),
    member("broker-b", 0),
    member("broker-a", 2, cluster="Other"),
)


def targets_of(broker_id: int) -> list[tuple[str, str, str]]:
    targets = probe_targets(
        BrokerIdentity("DefaultCluster", "broker-a", broker_id), name_servers=NAME_SERVERS, brokers=BROKERS
    )
    return [(target.peer, target.plane, target.address) for target in targets]


def test_slave_dials_its_master_on_both_planes() -> None:
    assert targets_of(1) == [
        ("broker-a:0", "ha", "broker-a-0:10912"),
        ("broker-a:0", "metadata", "broker-a-0:10911"),
        ("mq-nameserver-0:9876", "nameserver", "mq-nameserver-0:9876"),
        ("mq-nameserver-1:9876", "nameserver", "mq-nameserver-1:9876"),
    ]


def test_master_dials_its_slaves_metadata_plane_and_no_other_group() -> None:
    assert targets_of(0)[0] == ("broker-a:1", "metadata", "broker-a-1:10911")
    assert len(targets_of(0)) == 3


async def test_those_who_ask_within_a_second_share_one_probe() -> None:
    time = ManualTime()
    dialled: list[str] = []

    async def dial(target: ProbeTarget, _clock: Clock) -> PeerProbe:
        dialled.append(target.address)
        await asyncio.sleep(0)
        return PeerProbe(target, "10.0.0.9", 3, "")

    probes = PeerProbes(clock=time, targets=lambda: [ProbeTarget("broker-a:0", "ha", "broker-a-0:10912")], dial=dial)
    first, second = await asyncio.gather(probes.run(), probes.run())
    assert first == second
    assert len(dialled) == 1
    time.advance(1_000)
    await probes.run()
    assert len(dialled) == 2
