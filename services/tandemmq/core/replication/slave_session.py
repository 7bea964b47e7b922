"""Slave half of one replication connection, without sockets or clock.

Theory of operation.

    connected --report at once--> following --offset mismatch, bad size, silence--> closed

The first report says where to go on: the end of the local log, or 0 when nothing is held, wherever the log would go on.
Each transfer must then start at that end, heartbeats included; a slave that holds nothing takes any start. Bodies are
handed on as they arrive, whole frames or parts of them, so nothing is buffered but an incomplete header. The report
after a read covers everything appended by it: one report a read, whole 8 bytes, never a part.

A master may be Java's: frames of 32 KiB by default and 4 MiB - 12 at most, cut anywhere in a record, and nothing but
heartbeats while it has nothing new. It closes links that are silent for 20 s, so a report is repeated when idle.
"""

from __future__ import annotations

from typing import Final

from tandemmq.core.replication.frames import (
    BODY_BYTES_MAX,
    REPORT,
    TRANSFER_HEADER,
    TRANSFER_HEADER_BYTES,
    AppendBytes,
    LocalProtocolError,
    MasterHeartbeat,
    RemoteProtocolError,
    SlaveEvent,
    SlaveOptions,
)

__all__ = ["DispatchPace", "SlaveSession"]


class SlaveSession:
    """One connection to a master. The caller appends what `receive_data` returns, in order, then calls `appended`.

    Invariant: reported offset <= end of the local CommitLog; bytes are only ever appended at that end.
    """

    def __init__(self, *, end_offset: int, options: SlaveOptions, now_ms: int, min_offset: int = 0) -> None:
        """A session for a log that holds [min_offset, end_offset). Times are monotonic ms.

        A slave that promises its disk flushes before it connects: the first report acknowledges, too.
        """
        self._options = options
        self._is_empty = min_offset == end_offset
        self._next_offset = 0 if self._is_empty else end_offset
        self._header = b""
        self._body_left = 0
        self._reported_offset = self._next_offset
        self._report_due = True
        self._last_report_ms = now_ms
        self._last_heard_ms = now_ms
        self._now_ms = now_ms

    def receive_data(self, data: bytes | memoryview, *, now_ms: int) -> list[SlaveEvent]:
        """Bytes of the master. Raises RemoteProtocolError: the caller closes the connection.

        Events are views of `data`. An error takes the whole frames before it in the same read along; they come again.
        """
        self._last_heard_ms = self._now_ms = now_ms
        events: list[SlaveEvent] = []
        view = memoryview(data)
        position, end = 0, len(view)
        while position < end:
            if self._body_left:
                length = min(self._body_left, end - position)
                events.append(AppendBytes(self._next_offset, view[position : position + length]))
                self._next_offset += length
                self._body_left -= length
                position += length
                continue
            if not self._header and position + TRANSFER_HEADER_BYTES <= end:
                frame: tuple[int, int] = TRANSFER_HEADER.unpack_from(view, position)
                position += TRANSFER_HEADER_BYTES
            else:
                missing = TRANSFER_HEADER_BYTES - len(self._header)
                header = self._header + bytes(view[position : position + missing])
                position += len(header) - len(self._header)
                if len(header) < TRANSFER_HEADER_BYTES:
                    self._header = header
                    break
                self._header = b""
                frame = TRANSFER_HEADER.unpack(header)
            start_offset, body_bytes = frame
            self._check(start_offset, body_bytes)
            if body_bytes == 0:
                events.append(MasterHeartbeat(start_offset))
            else:
                self._body_left = body_bytes
        return events

    def appended(self, acknowledged_offset: int) -> None:
        """Everything below `acknowledged_offset` may be reported: appended, and flushed if the slave promises that.

        Offsets at or below the last report change nothing. LocalProtocolError: it was never received.
        """
        if self._is_empty or acknowledged_offset <= self._reported_offset:
            return
        if acknowledged_offset > self._next_offset:
            raise LocalProtocolError(f"reporting {acknowledged_offset}, received up to {self._next_offset}")
        self._reported_offset = acknowledged_offset
        self._report_due = True

    def data_to_send(self) -> bytes:
        """The report that is due, else nothing. Taking it counts as sent: a report must leave whole or not at all."""
        if not self._report_due:
            return b""
        self._report_due = False
        self._last_report_ms = self._now_ms
        return REPORT.pack(self._reported_offset)

    def next_deadline_ms(self) -> int:
        """When `deadline_reached` is due."""
        return min(
            self._last_report_ms + self._options.heartbeat_interval_ms + 1,
            self._last_heard_ms + self._options.housekeeping_interval_ms + 1,
        )

    def deadline_reached(self, *, now_ms: int) -> None:
        """Makes a heartbeat report due. Raises RemoteProtocolError when the master has been silent too long."""
        self._now_ms = now_ms
        if now_ms - self._last_heard_ms > self._options.housekeeping_interval_ms:
            raise RemoteProtocolError("master_silent", "nothing heard from the master within haHousekeepingInterval")
        if now_ms - self._last_report_ms > self._options.heartbeat_interval_ms:
            self._report_due = True

    def _check(self, start_offset: int, body_bytes: int) -> None:
        if not 0 <= body_bytes <= BODY_BYTES_MAX:
            raise RemoteProtocolError("bad_frame_size", f"the master sent a frame of {body_bytes} bytes")
        if start_offset != self._next_offset:
            if not self._is_empty or start_offset < 0:
                raise RemoteProtocolError(
                    "offset_mismatch", f"the master goes on at {start_offset}, our log ends at {self._next_offset}"
                )
            self._next_offset = start_offset
        if body_bytes:
            self._is_empty = False


# When a slave dispatches what it has appended. While it dispatches it reports nothing, so every send in flight waits. A
# log that grows at a moderate rate is dispatched often, some hundred records in 0.3 ms. One that grows fast is
# dispatched in batches, in which a record costs half as much (docs/adr/0023).

GATHERED_BYTES: Final = 2 << 20
"""A batch that waits for no more: half of a full read, each record of which costs a tenth of what it would alone."""
FEW_BYTES: Final = 128 << 10
MODERATE_BYTES_PER_S: Final = 64 << 20
_NS_PER_S: Final = 1_000_000_000


class DispatchPace:
    """One slave's pace. Up to `walk_bytes_max` of log is walked; 0: nothing is, and few records are no cheaper."""

    def __init__(self, *, walk_bytes_max: int) -> None:
        self._walk_bytes_max = walk_bytes_max
        self._dispatched_ns = 0

    def is_due(self, waiting_bytes: int, now_ns: int) -> bool:
        """Whether what is waiting is to be dispatched at once. If not, some time may bring more."""
        if waiting_bytes >= GATHERED_BYTES:
            return True
        if not FEW_BYTES <= waiting_bytes <= self._walk_bytes_max:
            return False
        return waiting_bytes * _NS_PER_S <= MODERATE_BYTES_PER_S * (now_ns - self._dispatched_ns)

    def dispatched(self, now_ns: int) -> None:
        """A dispatch begins, of everything that is waiting."""
        self._dispatched_ns = now_ns
