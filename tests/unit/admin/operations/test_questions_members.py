"""Who is read from and who must be there for a change, with all of a cluster, half of it and none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.cluster_states import healthy_cluster, master, slave, with_broker
from tandemmq.admin.cluster_state import BrokerState, ClusterState
from tandemmq.admin.operations.questions import FailureKind, Members, OperationFailed


def _silent(broker: BrokerState) -> BrokerState:
    return replace(broker, status=None, error="UNAVAILABLE: refused")


def _two_groups() -> ClusterState:
    return with_broker(with_broker(healthy_cluster(), master("broker-b")), slave("broker-b"))


def _members(*brokers: BrokerState, state: ClusterState | None = None) -> Members:
    state = state or _two_groups()
    for broker in brokers:
        state = with_broker(state, broker)
    return Members(lambda: state)


def _keys(brokers: list[BrokerState] | tuple[BrokerState, ...]) -> list[str]:
    return [broker.key for broker in brokers]


def test_masters_are_read_from() -> None:
    readers = _members().readers()
    assert _keys(list(readers.brokers)) == ["broker-a:0", "broker-b:0"]
    assert readers.unseen == []


def test_a_slave_stands_in_for_its_master_and_says_so() -> None:
    members = _members(_silent(master("broker-b")))
    readers = members.readers()
    assert _keys(list(readers.brokers)) == ["broker-a:0", "broker-b:1"]
    [unseen] = readers.unseen
    assert unseen.subject == "broker-b:0"
    assert unseen.reason.endswith("(UNAVAILABLE: refused); its slave broker-b:1 was asked instead")
    masters = members.masters()
    assert _keys(list(masters.brokers)) == ["broker-a:0"]
    assert "instead" not in masters.unseen[0].reason


def test_a_master_that_no_name_server_knows_is_missed() -> None:
    state = _two_groups()
    state = replace(state, brokers=tuple(broker for broker in state.brokers if broker.key != "broker-b:0"))
    members = _members(state=state)
    assert "not known to any NameServer" in members.readers().unseen[0].reason
    with pytest.raises(OperationFailed, match="broker-b:0 does not answer; nothing was changed") as refused:
        members.masters_to_change()
    assert refused.value.kind is FailureKind.REFUSED
    assert _keys(members.masters_to_change(["broker-a"])) == ["broker-a:0"]


def test_a_group_that_is_away_is_left_out() -> None:
    readers = _members(_silent(master("broker-b")), _silent(slave("broker-b"))).readers()
    assert _keys(list(readers.brokers)) == ["broker-a:0"]
    assert [each.subject for each in readers.unseen] == ["broker-b:0", "broker-b:1"]


def test_a_change_is_not_begun_without_all_its_masters() -> None:
    members = _members(_silent(master("broker-b")))
    with pytest.raises(OperationFailed, match="broker-b:0 does not answer") as refused:
        members.masters_to_change()
    assert "UNAVAILABLE: refused" in refused.value.cause
    assert _keys(members.masters_to_change(["broker-a"])) == ["broker-a:0"]
    with pytest.raises(OperationFailed, match="no broker group broker-z"):
        members.masters_to_change(["broker-z"])


def test_a_broker_is_found_by_its_key() -> None:
    members = _members(_silent(slave("broker-b")))
    assert members.broker("broker-a:1").broker_id == 1
    with pytest.raises(OperationFailed) as unknown:
        members.broker("broker-a:7")
    assert (unknown.value.kind, "broker-a:0, broker-a:1" in unknown.value.remedy) == (FailureKind.NOT_FOUND, True)
    with pytest.raises(OperationFailed) as silent:
        members.broker("broker-b:1")
    assert silent.value.kind is FailureKind.UNAVAILABLE


def test_nobody_is_there() -> None:
    healthy = healthy_cluster()
    servers = tuple(replace(server, error="refused") for server in healthy.name_servers)
    for state, problem in (
        (replace(healthy, brokers=()), "no broker is registered"),
        (replace(healthy, brokers=tuple(map(_silent, healthy.brokers))), "no broker answers"),
        (ClusterState(servers, ()), "no NameServer answers"),
    ):
        members = _members(state=state)
        for ask in (members.all, members.readers, members.masters):
            with pytest.raises(OperationFailed) as nobody:
                ask()
            assert (nobody.value.kind, nobody.value.problem) == (FailureKind.UNAVAILABLE, problem)
    members = _members(state=replace(healthy, brokers=tuple(map(_silent, healthy.brokers))))
    with pytest.raises(OperationFailed, match="no broker of broker-a answers") as one_group:
        members.readers("broker-a")
    assert "broker-b" not in one_group.value.cause
    # Brokers seen earlier are still asked when all NameServers are down.
    assert len(_members(state=replace(healthy, name_servers=servers)).all()) == 2


def test_before_the_first_reading_nobody_is_known() -> None:
    with pytest.raises(OperationFailed, match="not been read yet"):
        Members(lambda: None).readers()


def test_only_slaves_are_left() -> None:
    members = _members(_silent(master()), state=healthy_cluster())
    assert _keys(list(members.readers().brokers)) == ["broker-a:1"]
    with pytest.raises(OperationFailed, match="no master answers"):
        members.masters()


def test_the_master_is_asked_first_whatever_its_id() -> None:
    members = _members(replace(slave("broker-b"), named_master=True), replace(master("broker-b"), named_master=False))
    assert _keys(members.of_group("broker-b")) == ["broker-b:1", "broker-b:0"]
    assert _keys(list(members.readers().brokers)) == ["broker-a:0", "broker-b:1"]
    assert _keys(members.masters_to_change(["broker-b"])) == ["broker-b:1"]


def test_a_group_whose_members_are_all_slaves_has_no_master_to_change() -> None:
    members = _members(replace(master("broker-b"), named_master=False))
    with pytest.raises(OperationFailed, match="the master of broker-b does not answer; nothing was changed"):
        members.masters_to_change(["broker-b"])
