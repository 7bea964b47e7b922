"""A master that knows its slaves by certificates: a report counts after a proof for its connection, or not at all."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.replication.frames import REPORT, LinkClosed, MasterOptions, ReportRefused
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.put_gate import WaitingPut
from tandemmq.core.storage.put_result import PutStatus

from .memory_log import MemoryLog

END = 4_096
SLAVE = "10.0.0.2:40001"
STRANGER = "10.6.6.6:40001"


def _master(**options: object) -> MasterReplica:
    log = MemoryLog(min_offset=0, end_offset=END, segment_bytes=1 << 30)
    return MasterReplica(log, MasterOptions(needed_slaves=1, proof_needed=True, **options))  # type: ignore[arg-type]


def _report(replica: MasterReplica, peer: str, offset: int = END, *, now_ms: int = 0) -> int:
    link = replica.slave_connected(peer, now_ms=now_ms)
    replica.receive_data(link, REPORT.pack(offset), now_ms=now_ms)
    return link


@given(st.lists(st.integers(min_value=-(2**63), max_value=2**63 - 1), min_size=1, max_size=5))
def test_a_stranger_acknowledges_nothing_whatever_it_reports(offsets: list[int]) -> None:
    replica = _master()
    link = replica.slave_connected(STRANGER, now_ms=0)
    for offset in offsets:
        replica.receive_data(link, REPORT.pack(offset), now_ms=0)
    assert replica.slaves() == []
    assert replica.acked_offset(link) == -1
    assert replica.take_transfers(link, budget_bytes=1 << 20, now_ms=0) == []
    put = WaitingPut(0, END, needs_slaves=True, needs_flush=False)
    assert replica.submit(put, 0) is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_strangers_report_is_refused_with_a_reason_and_its_connection_closed() -> None:
    replica = _master()
    link = _report(replica, STRANGER)
    refused, closed = replica.take_events()
    assert isinstance(refused, ReportRefused)
    assert "certificate" in refused.reason
    assert isinstance(closed, LinkClosed)
    assert (closed.link, closed.counter) == (link, "unproven_report")


def test_a_member_that_proved_its_connection_is_counted_and_given_the_log() -> None:
    replica = _master()
    replica.verified(1, END - 96, peer=SLAVE, now_ms=0, disk_id="disk")
    link = _report(replica, SLAVE, END - 96)
    assert [slave.broker_id for slave in replica.slaves()] == [1]
    (transfer,) = replica.take_transfers(link, budget_bytes=1 << 20, now_ms=0)
    assert transfer.length == 96


def test_a_proof_serves_the_connection_it_names_and_no_other() -> None:
    replica = _master()
    replica.verified(1, END, peer=SLAVE, now_ms=0)
    _report(replica, STRANGER)
    assert replica.slaves() == []
    _report(replica, SLAVE)
    assert len(replica.slaves()) == 1


def test_a_proof_serves_once() -> None:
    replica = _master()
    replica.verified(1, END, peer=SLAVE, now_ms=0)
    link = _report(replica, SLAVE)
    replica.slave_disconnected(link, now_ms=0)
    _report(replica, SLAVE)
    assert replica.slaves() == []


def test_a_proof_is_of_no_use_when_it_is_too_old() -> None:
    replica = _master()
    replica.verified(1, END, peer=SLAVE, now_ms=0)
    _report(replica, SLAVE, now_ms=MasterOptions().proof_lifetime_ms)
    assert replica.slaves() == []


@pytest.mark.parametrize(
    ("peer", "counts"), [("10.1.2.3:9", True), ("10.1.3.3:9", False), ("[fd00::7]:9", True), ("localhost:9", False)]
)
def test_a_stock_slave_counts_from_the_addresses_that_are_named(peer: str, counts: bool) -> None:
    replica = _master(unproven_peers=(ip_network("10.1.2.0/24"), ip_network("fd00::7")))
    _report(replica, peer)
    assert bool(replica.slaves()) == counts


def test_who_is_expected_is_told_from_who_only_connected() -> None:
    replica = _master()
    silent = replica.slave_connected(STRANGER, now_ms=0)
    slave = replica.slave_connected(SLAVE, now_ms=0)
    assert not replica.is_expected(silent, now_ms=0)
    assert not replica.is_expected(slave, now_ms=0)
    replica.verified(1, END, peer=SLAVE, now_ms=0)
    assert replica.is_expected(slave, now_ms=0)
    assert not replica.is_expected(silent, now_ms=0)
    assert not replica.is_expected(99, now_ms=0)
