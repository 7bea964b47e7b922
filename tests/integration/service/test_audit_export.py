"""Audit lines over a real connection to a receiver: of a service's own process, and where the receiver is away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from support.cluster_processes import wait_until
from support.otlp_receiver import OtlpReceiver
from support.running_time import PATIENCE_S
from tandemmq.service.telemetry.audit_export import _QUEUE_LINES, AuditExport, AuditLine, open_audit_export

_LINE = {"timestamp": "2026-11-22T04:20:00.125000Z", "level": "warning", "event": "access_refused", "user": "mallory"}
_PROGRAM = """
import os, sys
from tandemmq.service.logging import configure_logging, get_logger
configure_logging(os.environ, service="broker", cluster="C", broker_name="broker-a", broker_id=0)
get_logger().info("store_recovered", end_offset=1)
get_logger().info("operator_change", who="alice", action="topic delete", subject="orders", outcome="done")
sys.stdin.read()
"""


def test_what_a_process_changed_arrives_and_nothing_else() -> None:
    with OtlpReceiver() as receiver:
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": receiver.target}
        command = [sys.executable, "-c", _PROGRAM]
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            receiver.wait_until(lambda receiver: len(receiver.lines("operator_change")) == 1, limit_s=PATIENCE_S)
            output, _ = process.communicate()
        [line] = receiver.lines("operator_change")
        assert receiver.lines("store_recovered") == []
    assert process.returncode == 0
    assert "operator_change" in output
    assert {"who": "alice", "subject": "orders", "outcome": "done"}.items() <= line.attributes.items()
    assert (line.level, line.resource["service.name"]) == ("info", "tandemmq-broker")
    assert line.resource["service.instance.id"] == "C/broker-a/0"


def test_every_part_of_a_line_arrives() -> None:
    with OtlpReceiver() as receiver:
        export = open_audit_export(receiver.target, {"service": "nameserver"})
        export.note({**_LINE, "event": "route_changed"})
        export.note(dict(_LINE))
        receiver.wait_until(lambda receiver: len(receiver.lines("access_refused")) == 1, limit_s=PATIENCE_S)
        export.close()
        assert receiver.lines("route_changed") == []
        [line] = receiver.lines("access_refused")
    assert (line.time_ns, line.level, line.attributes) == (1_795_321_200_125_000_000, "warning", {"user": "mallory"})
    assert line.resource["service.name"] == "tandemmq-nameserver"


class _Receiver:
    """Takes what it is given from the time on that it is there."""

    def __init__(self) -> None:
        self.is_there = False
        self.refused = 0
        self.taken: list[AuditLine] = []

    def send(self, lines: Sequence[AuditLine]) -> str:
        if not self.is_there:
            self.refused += 1
            return "away"
        self.taken += lines
        return ""

    def abort(self) -> None:
        self.is_there = False


def test_lines_wait_for_a_receiver_that_is_away_the_newest_of_them() -> None:
    receiver = _Receiver()
    export = AuditExport(lambda: receiver, target="collector:4317", pause_s=0.01, retry_pause_s=0.01)
    for number in range(_QUEUE_LINES + 10):
        export.note({**_LINE, "number": number})
    wait_until(lambda: receiver.refused > 1, limit_s=PATIENCE_S, what="it was asked again")
    receiver.is_there = True
    wait_until(lambda: len(receiver.taken) >= _QUEUE_LINES, limit_s=PATIENCE_S, what="all that waited came")
    export.close()
    assert [int(line.fields["number"]) for line in receiver.taken] == list(range(10, _QUEUE_LINES + 10))
