"""Golden bytes of the raw replication plane: what Java masters and slaves send and take."""

from __future__ import annotations

import pytest

from tandemmq.core.replication.frames import (
    BODY_BYTES_MAX,
    REPORT,
    REPORT_BYTES,
    TRANSFER_HEADER,
    TRANSFER_HEADER_BYTES,
    AppendBytes,
    MasterHeartbeat,
    MasterOptions,
    SlaveOptions,
)
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.sessions import SlaveSession


class Log:
    min_offset = 0
    segment_bytes = 1 << 30

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset


@pytest.mark.parametrize(
    ("offset", "wire"),
    [
        (0, "0000000000000000"),
        (165, "00000000000000a5"),
        (3 * (1 << 30) + 32_768, "00000000c0008000"),
        (-1, "ffffffffffffffff"),
        ((1 << 63) - 1, "7fffffffffffffff"),
    ],
)
def test_report(offset: int, wire: str) -> None:
    assert REPORT.pack(offset) == bytes.fromhex(wire)
    assert REPORT_BYTES == 8


@pytest.mark.parametrize(
    ("start_offset", "body_bytes", "wire"),
    [
        (0, 165, "0000000000000000 000000a5"),
        (165, 0, "00000000000000a5 00000000"),
        (3 * (1 << 30), 32_768, "00000000c0000000 00008000"),
        (3 * (1 << 30) + 32_768, 7_232, "00000000c0008000 00001c40"),
        (0, BODY_BYTES_MAX, "0000000000000000 003ffff4"),
    ],
)
def test_transfer_header(start_offset: int, body_bytes: int, wire: str) -> None:
    assert TRANSFER_HEADER.pack(start_offset, body_bytes) == bytes.fromhex(wire)
    assert TRANSFER_HEADER_BYTES == 12


def test_largest_frame_fits_the_buffer_of_a_java_slave() -> None:
    assert TRANSFER_HEADER_BYTES + BODY_BYTES_MAX == 4 * 1024 * 1024


def test_master_sends_the_worked_example() -> None:
    replica = MasterReplica(Log(end_offset=165), MasterOptions())
    link = replica.slave_connected("slave", now_ms=0)
    replica.receive_data(link, bytes.fromhex("0000000000000000"), now_ms=0)
    (transfer,) = replica.take_transfers(link, budget_bytes=1, now_ms=0)
    replica.receive_data(link, bytes.fromhex("00000000000000a5"), now_ms=1)
    (heartbeat,) = replica.take_transfers(link, budget_bytes=1, now_ms=5_001)

    assert transfer == (bytes.fromhex("0000000000000000 000000a5"), 0, 165)
    assert heartbeat == (bytes.fromhex("00000000000000a5 00000000"), 165, 0)


def test_slave_sends_the_worked_example() -> None:
    session = SlaveSession(end_offset=0, options=SlaveOptions(), now_ms=0)
    assert session.data_to_send() == bytes.fromhex("0000000000000000")

    body = bytes(range(165))
    transfer = bytes.fromhex("0000000000000000 000000a5") + body
    assert session.receive_data(transfer, now_ms=0) == [AppendBytes(0, memoryview(body))]
    session.appended(165)
    assert session.data_to_send() == bytes.fromhex("00000000000000a5")

    assert session.receive_data(bytes.fromhex("00000000000000a5 00000000"), now_ms=5_001) == [MasterHeartbeat(165)]
    session.deadline_reached(now_ms=5_001)
    assert session.data_to_send() == bytes.fromhex("00000000000000a5")
