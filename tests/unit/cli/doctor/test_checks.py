"""What `tandemmq doctor` says of what it has seen of a cluster."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from support.cluster_states import healthy_cluster, master, slave, with_broker
from tandemmq.admin.cluster_state import BrokerState, ClusterState, DiskState
from tandemmq.cli.doctor.checks import (
    BrokerLook,
    Check,
    ClusterLook,
    Dial,
    Memory,
    PeerLook,
    Verdict,
    check_cluster,
    is_bad,
)
from tandemmq.cli.doctor.command import doctor_document, doctor_table
from tandemmq.cli.output import drawing

_GIB = 1 << 30
_DISK = DiskState("/var/lib/tandemmq/store", 50 * _GIB, 40 * _GIB, used_ratio=0.2, warning_ratio=0.9)


def _somewhere(broker: BrokerState) -> BrokerState:
    host = f"mq-{broker.broker_name}-{broker.broker_id}.mq.svc"
    return replace(
        broker,
        client_endpoint=f"{host}:8081",
        metadata_endpoint=f"{host}:10911",
        ha_endpoint=f"{host}:10912" if broker.is_master else "",
    )


def _state() -> ClusterState:
    state = healthy_cluster()
    servers = tuple(
        replace(server, address=f"mq-nameserver-{index}:9876") for index, server in enumerate(state.name_servers)
    )
    return ClusterState(servers, tuple(_somewhere(broker) for broker in state.brokers))


def _peer(peer: str, plane: str, **changes: object) -> PeerLook:
    look = PeerLook(peer, plane, f"{peer}.mq.svc:1", "10.0.0.9", 1, "")
    return replace(look, **changes)  # type: ignore[arg-type]


def _broker_look(broker: BrokerState, **changes: object) -> BrokerLook:
    other = "broker-a:1" if broker.is_master else "broker-a:0"
    peers = [_peer("mq-nameserver-0:9876", "nameserver"), _peer(other, "metadata")]
    if not broker.is_master:
        peers.append(_peer(other, "ha"))
    look = BrokerLook(
        broker,
        dials=(Dial("client", broker.client_endpoint, ("10.0.0.9",), ""),),
        peers=tuple(peers),
        clock_offset_ms=3,
        disk=_DISK,
    )
    return replace(look, **changes)  # type: ignore[arg-type]


def _look(*changed: BrokerLook, state: ClusterState | None = None) -> ClusterLook:
    state = state or _state()
    looks = {broker.key: _broker_look(broker) for broker in state.brokers}
    looks |= {look.broker.key: look for look in changed}
    dials = tuple(Dial("nameserver", server.address, ("10.0.0.1",), "") for server in state.name_servers)
    return ClusterLook(state, dials, tuple(looks.values()))


def _changed(broker_id: int, **changes: object) -> BrokerLook:
    return _broker_look(_state().brokers[broker_id], **changes)


def _not_ok(look: ClusterLook) -> list[Check]:
    found = [check for check in check_cluster(look) if check.verdict is not Verdict.OK]
    assert all(check.remedy for check in found), found
    return found


def _only(look: ClusterLook) -> Check:
    found = _not_ok(look)
    assert len(found) == 1, found
    return found[0]


def test_everything_is_fine_in_a_healthy_cluster_and_every_area_is_named() -> None:
    checks = check_cluster(_look())
    assert {check.verdict for check in checks} == {Verdict.OK}
    areas = {"health", "agreement", "advertised", "ports", "peers", "clock", "disk", "versions", "settings"}
    assert {check.area for check in checks} == areas


def test_findings_of_the_health_model_come_first() -> None:
    state = _state()
    refusing = replace(state.brokers[0], status=replace(master().status, write_refusal="disk is full"))  # type: ignore[type-var]
    first = check_cluster(_look(state=with_broker(state, refusing)))[0]
    assert (first.area, first.verdict) == ("health", Verdict.PROBLEM)
    assert "disk is full" in first.fact


def test_loopback_advertised_in_a_cluster_is_a_problem() -> None:
    state = _state()
    local = replace(state.brokers[1], client_endpoint="127.0.0.1:8081")
    check = _only(_look(state=with_broker(state, local)))
    assert (check.area, check.subject, check.verdict) == ("advertised", "broker-a:1", Verdict.PROBLEM)
    assert "brokerIP1" in check.remedy


def test_loopback_is_right_on_one_machine() -> None:
    state = healthy_cluster()
    assert _not_ok(_look(state=state)) == []


def test_name_that_does_not_resolve_is_a_problem() -> None:
    dialled = Dial("metadata", "mq-broker-a-0.mq.svc:10911", (), "the name does not resolve: not known")
    check = _only(_look(_changed(0, dials=(dialled,))))
    assert (check.area, check.verdict) == ("dns", Verdict.PROBLEM)


@pytest.mark.parametrize(
    ("dialled", "verdict"),
    [
        (Dial("client", "b:8081", ("10.0.0.9",), "Connection refused", refused=True), Verdict.PROBLEM),
        # The other plane is reached: a policy may be meant.
        (Dial("client", "b:8081", ("10.0.0.9",), "no answer within 2 s"), Verdict.WARNING),
    ],
)
def test_port_that_refuses_is_worse_than_one_that_is_silent(dialled: Dial, verdict: Verdict) -> None:
    check = _only(_look(_changed(0, dials=(dialled, Dial("metadata", "b:10911", ("10.0.0.9",), "")))))
    assert (check.area, check.verdict) == ("ports", verdict)


def test_replication_port_a_slave_does_not_reach_is_a_problem() -> None:
    peers = (_peer("broker-a:0", "ha", error="no answer within 2 s"), _peer("broker-a:0", "metadata"))
    check = _only(_look(_changed(1, peers=peers)))
    assert check.subject == "broker-a:1"
    assert "does not reach ha of broker-a:0" in check.fact
    assert "haListenPort" in check.remedy


def test_master_that_does_not_reach_its_slave_is_a_problem() -> None:
    check = _only(_look(_changed(0, peers=(_peer("broker-a:1", "metadata", error="refused"),))))
    assert check.subject == "broker-a:0"
    assert "metadata of broker-a:1" in check.fact


def test_member_a_broker_has_never_heard_of_is_told() -> None:
    check = _only(_look(_changed(1, peers=(_peer("mq-nameserver-0:9876", "nameserver"),))))
    assert check.verdict is Verdict.WARNING
    assert "does not know broker-a:0 of its own group (metadata, ha not tried)" in check.fact


def test_broker_that_cannot_tell_is_a_warning() -> None:
    check = _only(_look(_changed(1, peers=None, probe_error="UNIMPLEMENTED", clock_offset_ms=None, disk=None)))
    assert (check.area, check.verdict) == ("peers", Verdict.WARNING)


def test_name_that_stands_for_different_machines_is_a_warning() -> None:
    dialled = Dial("metadata", "broker-a:0.mq.svc:1", ("10.9.9.9",), "")
    check = _only(_look(_changed(0, dials=(dialled,))))
    assert (check.area, check.verdict) == ("dns", Verdict.WARNING)
    assert "10.9.9.9 (here)" in check.fact


@pytest.mark.parametrize(
    ("offset_ms", "verdict"), [(1_900, None), (2_500, Verdict.WARNING), (-11_000, Verdict.PROBLEM)]
)
def test_clock_skew(offset_ms: int, verdict: Verdict | None) -> None:
    found = _not_ok(_look(_changed(1, clock_offset_ms=offset_ms)))
    assert [check.verdict for check in found] == ([] if verdict is None else [verdict])
    assert all("broker-a:0" in check.fact and "broker-a:1" in check.fact for check in found)


def test_own_clock_that_is_wrong_is_a_note_only() -> None:
    check = _only(_look(_changed(0, clock_offset_ms=60_000), _changed(1, clock_offset_ms=60_010)))
    assert (check.subject, check.verdict) == ("this machine", Verdict.NOTE)


@pytest.mark.parametrize(
    ("ratio", "warning_ratio", "verdict"),
    [
        (0.79, 0.9, None),
        (0.85, 0.9, Verdict.WARNING),
        (0.93, 0.9, Verdict.PROBLEM),
        # A developer's disk, that is shared with everything else.
        (0.97, 0.99, None),
        (0.985, 0.99, Verdict.WARNING),
    ],
)
def test_disk_that_fills_up(ratio: float, warning_ratio: float, verdict: Verdict | None) -> None:
    found = _not_ok(_look(_changed(0, disk=replace(_DISK, used_ratio=ratio, warning_ratio=warning_ratio))))
    assert [check.verdict for check in found] == ([] if verdict is None else [verdict])


def test_versions_that_differ_are_a_warning() -> None:
    state = _state()
    newer = replace(state.brokers[1], status=replace(slave().status, version="0.2.0"))  # type: ignore[type-var]
    check = _only(_look(state=with_broker(state, newer)))
    assert check.fact == "0.1.0: broker-a:0; 0.2.0: broker-a:1"


def test_flush_type_must_agree_in_a_group() -> None:
    state = _state()
    other = replace(state.brokers[1], status=replace(slave().status, flush_disk_type="SYNC_FLUSH"))  # type: ignore[type-var]
    assert "flushDiskType differs" in _only(_look(state=with_broker(state, other))).fact


def test_registration_and_role_that_contradict_are_a_problem() -> None:
    state = _state()
    wrong = replace(state.brokers[1], status=replace(slave().status, role="ASYNC_MASTER"))  # type: ignore[type-var]
    assert _only(_look(state=with_broker(state, wrong))).fact == "is registered as slave and has role ASYNC_MASTER"


def test_cluster_names_that_differ_are_a_problem() -> None:
    state = _state()
    assert is_bad(_only(_look(state=with_broker(state, replace(state.brokers[1], cluster="Other")))))


def test_what_a_broker_says_of_itself_is_passed_on() -> None:
    assert _only(_look(_changed(0, problems=("NameServer x: no route stream yet",)))).subject == "broker-a:0"


def test_views_name_every_check_and_every_remedy() -> None:
    checks = check_cluster(_look(_changed(0, disk=replace(_DISK, used_ratio=0.95))))
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(drawing(doctor_table(checks)))
    text = console.export_text()
    assert "problem: broker-a:0" in text
    assert "remedy: make room on it or enlarge it" in text
    assert "not fine" in text
    document = json.loads(json.dumps(doctor_document(checks)))
    assert document["healthy"] is False
    assert len(document["checks"]) == len(checks)


def test_a_log_that_ends_before_what_is_remembered_is_a_problem() -> None:
    """Of a disk that is here, of one that is not, and of one whose bytes a better disk has."""
    state = healthy_cluster()
    state = with_broker(state, master(disk_id="m", epoch=4))
    state = with_broker(state, slave(disk_id="s", epoch=4))

    def verdicts(*memories: Memory) -> list[Verdict]:
        look = replace(_look(), state=state, memories=memories)
        return [check.verdict for check in check_cluster(look) if check.area == "log"]

    def memory(disk_id: str, end_offset: int, epoch: int = 4) -> Memory:
        return Memory("127.0.0.1:9876", "broker-a", 1, disk_id, epoch, end_offset)

    assert verdicts(memory("m", 1_234_567), memory("s", 1_234_500)) == [Verdict.OK]
    assert verdicts(memory("m", 1_234_568)) == [Verdict.PROBLEM]
    assert verdicts(memory("s", 1_234_501)) == [Verdict.NOTE]
    assert verdicts(memory("gone", 1_234_568)) == [Verdict.PROBLEM]
    assert verdicts(memory("gone", 1_234_568, epoch=3)) == [Verdict.OK]
    assert verdicts(memory("gone", 1_234_567)) == [Verdict.OK]
