"""What the tests on a real Kubernetes report of faults: how long each was felt, rounds of one kind as one line."""

from __future__ import annotations

from pathlib import Path

from e2e.kubernetes.client_pod import Acknowledged
from e2e.kubernetes.faults import Fault, felt
from e2e.kubernetes.report import FaultRow, Report


def test_a_fault_is_felt_from_its_begin_to_the_last_groups_return() -> None:
    sends = [Acknowledged(number, "id", f"mq-broker-{'ab'[number % 2]}", number / 10) for number in range(600)]
    # broker-a (even numbers) is silent from 10 to 14 s, both from 11 to 12.5 s; nothing is delivered from 11 to 13 s.
    kept = [
        each for each in sends if not (10 < each.at_s < 14 and each.is_of("broker-a")) and not 11 < each.at_s < 12.5
    ]
    fault = Fault("cut", ("broker-a", "broker-b"), began_s=10.2, ended_s=10.2, healthy_s=16.2, over_s=20)
    row = felt(fault, kept, [at_s for at_s in range(30) if at_s != 12])
    assert (round(row.no_acknowledgement_s, 1), row.no_delivery_s) == (1.6, 2)
    assert row.group_s is not None
    assert round(row.group_s, 1) == 3.8
    assert round(row.healthy_s, 1) == 6.0


def test_a_fault_that_nobody_felt_says_so(tmp_path: Path) -> None:
    sends = [Acknowledged(number, "id", "mq-broker-a", number / 10) for number in range(600)]
    row = felt(Fault("nothing", ("broker-a",), 10, 10, 11, 20), sends)
    assert (row.group_s, row.no_delivery_s) == (None, None)
    report = Report(tmp_path, keep=False)
    report.begin("faults")
    report.add_fault(row)
    assert "| nothing | 1 | 0.1 s | not felt |  | 1.0 s | 101 |  |" in report.page()


def test_rounds_of_a_fault_are_one_line_with_the_longest_and_all_that_was_lost(tmp_path: Path) -> None:
    report = Report(tmp_path, keep=False)
    report.begin("failover")
    for seconds, lost in ((1.0, 0), (9.0, 2), (2.0, 1)):
        report.add_fault(FaultRow("kill", seconds, seconds + 1, 10 * seconds, 100, lost, seconds))
    line = (
        "| kill | 3 | 2.0, at most 9.0 s | 3.0, at most 10.0 s | 2.0, at most 9.0 s | 20.0, at most 90.0 s | 300 | 3 |"
    )
    assert line in report.page()
    # A later run that plays other parts keeps it.
    assert Report(tmp_path, keep=True).page() == report.page()
