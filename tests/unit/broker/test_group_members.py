"""Whom a broker takes for the members of its group."""

from __future__ import annotations

from dataclasses import replace

from tandemmq.broker.group_members import GroupMembers
from tandemmq.broker.slave.follower import MasterAddress
from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.values import BrokerEndpoints, BrokerIdentity, RegisteredBroker
from tandemmq.service.name_server_link import ClusterView

_SLAVE = BrokerIdentity("c", "broker-a", 1)


def _broker(name: str, broker_id: int, *, ha: str = "", metadata: str = "", cluster: str = "c") -> RegisteredBroker:
    endpoints = BrokerEndpoints(client="h:8081", metadata=metadata, ha=ha, client_external="")
    return RegisteredBroker(BrokerIdentity(cluster, name, broker_id), endpoints, 1, DataVersion())


def _members(*brokers: RegisteredBroker, stated_master: str = "") -> GroupMembers:
    return GroupMembers(_SLAVE, view=lambda: ClusterView(1, brokers), stated_master=stated_master)


def test_master_is_the_member_with_id_0_of_the_same_group_and_cluster() -> None:
    members = _members(
        _broker("broker-a", 0, ha="other:1", metadata="other:2", cluster="d"),
        _broker("broker-b", 0, ha="b:1", metadata="b:2"),
        _broker("broker-a", 0, ha="a:1", metadata="a:2"),
    )
    assert members.master_address() == MasterAddress(ha="a:1", metadata="a:2")
    assert members.master_metadata() == "a:2"


def test_master_is_who_registered_as_it_whatever_its_id_and_never_ourselves() -> None:
    former = replace(_broker("broker-a", 0, ha="a:1", metadata="a:2"), is_master=False)
    ourselves = replace(_broker("broker-a", 1, ha="a1:1", metadata="a1:2"), is_master=True, role_epoch=5)
    master = replace(_broker("broker-a", 2, ha="a2:1", metadata="a2:2"), is_master=True, role_epoch=4)
    assert _members(former, ourselves, master).master_address() == MasterAddress(ha="a2:1", metadata="a2:2")
    assert _members(former, ourselves).master_address() is None


def test_clients_are_passed_on_to_the_master_or_to_who_serves_reads_without_one() -> None:
    reader = _broker("broker-a", 2)
    reader = replace(reader, endpoints=replace(reader.endpoints, client="a2:8081", reads=True))
    starting = replace(_broker("broker-a", 0), recovering="it asks the replicas of its group")
    ourselves = replace(reader, identity=_SLAVE)
    assert _members(_broker("broker-a", 0), reader).server_client() == "h:8081"
    assert _members(starting, reader).server_client() == "a2:8081"
    assert _members(reader).server_client() == "a2:8081"
    assert _members(starting, ourselves).server_client() is None
    assert _members(_broker("broker-b", 0)).server_client() is None


def test_master_that_is_not_registered_is_not_known() -> None:
    members = _members(_broker("broker-a", 1, metadata="a1:2"))
    assert members.master_address() is None
    assert members.master_metadata() is None


def test_stated_address_goes_before_the_registered_one_and_keeps_its_metadata_plane() -> None:
    members = _members(_broker("broker-a", 0, ha="a:1", metadata="a:2"), stated_master="stated:1")
    assert members.master_address() == MasterAddress(ha="stated:1", metadata="a:2")


def test_stated_master_that_nobody_registered_has_no_metadata_plane() -> None:
    assert _members(stated_master="stated:1").master_address() == MasterAddress(ha="stated:1", metadata=None)


def test_members_are_those_of_the_group_that_are_registered() -> None:
    members = _members(
        _broker("broker-a", 0, metadata="a0:2"),
        _broker("broker-a", 1, metadata="a1:2"),
        _broker("broker-a", 2),
        _broker("broker-b", 1, metadata="b1:2"),
    )
    assert [member.identity.broker_id for member in members.registered()] == [0, 1, 2]
    assert members.member_metadata(2) is None
    assert members.member_metadata(0) == "a0:2"


def test_another_process_on_our_disk_is_one_that_was_not_started_before_us() -> None:
    def other(*, run: int, incarnation: int, disk_id: str = "d1", broker_id: int = 1) -> str | None:
        broker = replace(
            _broker("broker-a", broker_id, metadata="copy:2"), disk_id=disk_id, run=run, incarnation=incarnation
        )
        return _members(broker).other_process("d1", run=5, incarnation=100)

    assert other(run=6, incarnation=90) == "copy:2"
    assert other(run=5, incarnation=101) == "copy:2"
    # It is ourselves, perhaps at an address that we had before; or whom we follow on the disk.
    assert other(run=5, incarnation=100) is None
    assert other(run=4, incarnation=90) is None
    assert other(run=6, incarnation=101, disk_id="d2") is None
    assert other(run=6, incarnation=101, broker_id=2) is None
    assert _members().other_process("", run=0, incarnation=0) is None
