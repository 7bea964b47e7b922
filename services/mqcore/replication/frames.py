"""The bytes of the raw replication plane, in this module and nowhere else.

Slave to master, a report, 8 bytes:

| offset | size | name | meaning |
|---|---|---|---|
| 0 | 8 | reported_offset | end of the slave's CommitLog; request, acknowledgement and heartbeat in one |

Master to slave, a transfer, 12 + size bytes:

| offset | size | name | meaning |
|---|---|---|---|
| 0 | 8 | start_offset | absolute position of the body's first byte; of the next byte in a heartbeat |
| 8 | 4 | body_bytes | 0 = heartbeat |
| 12 | body_bytes | body | CommitLog bytes of one file; may begin and end inside a record |

Big-endian, signed. Mirrors DefaultHAConnection and DefaultHAClient of RocketMQ 5.5.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

__all__ = ["BODY_BYTES_MAX", "REPORT", "REPORT_BYTES", "TRANSFER_HEADER", "TRANSFER_HEADER_BYTES", "Transfer"]

REPORT: Final = Struct(">q")
REPORT_BYTES: Final = REPORT.size
TRANSFER_HEADER: Final = Struct(">qi")
TRANSFER_HEADER_BYTES: Final = TRANSFER_HEADER.size

# A Java slave parses frames out of a buffer of 4 MiB: a larger one could never be complete.
BODY_BYTES_MAX: Final = (4 << 20) - TRANSFER_HEADER_BYTES


class Transfer(NamedTuple):
    """One frame to send: `header`, then CommitLog bytes [start_offset, start_offset + length). Length 0: heartbeat."""

    header: bytes
    start_offset: int
    length: int
