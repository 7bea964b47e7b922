"""Both halves of one replication connection, without sockets or clock: the master's, then the slave's.

Theory of operation.

    accepted --first report--> transferring --refused report, silence, log trimmed--> closed

Before the first report nothing is sent, not even a heartbeat: a 4.x Java slave reports only 5 s after it connected, and
every slave closes a link whose heartbeat does not name the end of its own log. The first report decides the start:

| first report | start | |
|---|---|---|
| 0 | the log's min offset | the whole retained log; the start of the last file with `sync_from_last_file` |
| min..end | that offset | the slave's bytes below it are unproven unless it was verified |
| below min, above end | refused | RocketMQ would send heartbeats for ever and believe the report |
| -1 | ignored | RocketMQ's "not yet reported" |
| below -1 | refused | undefined in RocketMQ |

A later report acknowledges. It lies between the last one and what was sent here; anything else is refused. Reports are
no window: everything is sent to a slave that reported once. Only the last whole report of a read counts, as in
RocketMQ's ReadSocketService.
"""

from __future__ import annotations

from typing import Final

from tandemmq.core.replication.frames import (
    BODY_BYTES_MAX,
    REPORT,
    REPORT_BYTES,
    TRANSFER_HEADER,
    TRANSFER_HEADER_BYTES,
    AppendBytes,
    LocalProtocolError,
    MasterHeartbeat,
    MasterOptions,
    RemoteProtocolError,
    SlaveEvent,
    SlaveOptions,
    Transfer,
)
from tandemmq.core.replication.log_history import ReplicatedLog

_NOT_YET_REPORTED: Final = -1


class MasterSession:
    """One slave as the master sees it. The caller moves bytes and tells the time (monotonic ms).

    Invariant once started: start_offset <= acked_offset <= sent_offset <= the log's end.
    """

    def __init__(self, link: int, peer: str, log: ReplicatedLog, options: MasterOptions, *, now_ms: int) -> None:
        self.link = link
        self.peer = peer
        self._log = log
        self._options = options
        self._unparsed = b""
        self._last_heard_ms = now_ms
        self._last_sent_ms = now_ms
        self._heartbeat_announced = False
        self.started = False
        self.in_sync = False
        self.broker_id: int | None = None
        """Who the slave is, when its log was verified before it connected; the wire itself does not tell."""
        self.disk_id = ""
        """Of the disk that was verified; empty: of none, or of a version that names none."""
        self.start_offset = 0
        """Where transfer began."""
        self.proven_from_offset = 0
        """An acknowledgement counts for puts that start here or behind; 0 when the slave's whole log was verified."""
        self.acked_offset = 0
        self.sent_offset = 0

    @property
    def verified(self) -> bool:
        """True when the slave's log was compared with ours before it connected."""
        return self.broker_id is not None

    @property
    def lag_bytes(self) -> int:
        """Bytes of the log the slave has not acknowledged."""
        return self._log.end_offset - self.acked_offset

    def receive_data(self, data: bytes, *, now_ms: int) -> int | None:
        """Takes bytes of the slave; returns its newest report, or None if no whole one came.

        The report is not believed yet: `start` or `acknowledge` does that.
        """
        self._last_heard_ms = now_ms
        if self._unparsed:
            data = self._unparsed + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._unparsed = data[whole:]
        if whole == 0:
            return None
        reported_offset: int = REPORT.unpack_from(data, whole - REPORT_BYTES)[0]
        if reported_offset == _NOT_YET_REPORTED and not self.started:
            return None
        return reported_offset

    def start(self, reported_offset: int, *, broker_id: int | None, disk_id: str = "") -> None:
        """Believes the first report, or raises RemoteProtocolError. `broker_id`, and the disk if it told one, are given
        for a verified end."""
        low, end = self._log.min_offset, self._log.end_offset
        if reported_offset < 0:
            raise RemoteProtocolError("report_negative", f"reports {reported_offset}")
        if reported_offset > end:
            raise RemoteProtocolError("report_beyond_end", f"reports {reported_offset}, our log ends at {end}")
        if reported_offset == 0:
            start_offset = low
            if self._options.sync_from_last_file:
                start_offset = max(low, end - end % self._log.segment_bytes)
        elif reported_offset < low:
            raise RemoteProtocolError("report_below_start", f"reports {reported_offset}, our log starts at {low}")
        else:
            start_offset = reported_offset
        self.broker_id, self.disk_id = broker_id, disk_id
        self.start_offset = self.acked_offset = self.sent_offset = start_offset
        # An empty slave proved nothing even if we know who it is: with `sync_from_last_file` it never gets the rest.
        self.proven_from_offset = 0 if self.verified and reported_offset > 0 else start_offset
        self.started = True

    def acknowledge(self, reported_offset: int) -> bool:
        """Believes a later report, or raises RemoteProtocolError; True when it acknowledges something new."""
        acked_offset = self.acked_offset
        if acked_offset < reported_offset <= self.sent_offset:
            self.acked_offset = reported_offset
            return True
        if reported_offset == acked_offset:
            return False
        # An empty slave repeats its 0 as heartbeat until the first body arrives.
        if reported_offset == 0 and acked_offset == self.start_offset:
            return False
        if reported_offset > self.sent_offset:
            raise RemoteProtocolError(
                "report_beyond_sent", f"reports {reported_offset}, only {self.sent_offset} was sent to it"
            )
        raise RemoteProtocolError("report_backwards", f"reports {reported_offset} after {acked_offset}")

    def count_new_bytes_only(self) -> None:
        """From now on an acknowledgement counts for puts only that were not sent here yet, verified or not."""
        self.proven_from_offset = max(self.proven_from_offset, self.sent_offset)

    def take_transfers(self, *, budget_bytes: int, now_ms: int) -> list[Transfer]:
        """Frames to send now: data up to the first frame past `budget_bytes` (> 0), else a heartbeat when one is due.

        Each frame lies within one CommitLog file. Taking them counts as sent. Raises RemoteProtocolError when the log
        was trimmed above what the slave needs next.
        """
        assert budget_bytes > 0, "no room for a transfer: do not ask"
        if not self.started:
            return []
        log, options = self._log, self._options
        end, offset = log.end_offset, self.sent_offset
        if offset == end:
            if now_ms - self._last_sent_ms <= options.heartbeat_interval_ms:
                return []
            transfers = [Transfer(TRANSFER_HEADER.pack(offset, 0), offset, 0)]
        else:
            if offset < log.min_offset:
                raise RemoteProtocolError("fell_off_log", f"needs {offset}, our log starts at {log.min_offset} by now")
            transfers = []
            segment_bytes, batch_bytes = log.segment_bytes, options.transfer_batch_bytes
            while offset < end and budget_bytes > 0:
                length = min(batch_bytes, end - offset, segment_bytes - offset % segment_bytes)
                transfers.append(Transfer(TRANSFER_HEADER.pack(offset, length), offset, length))
                offset += length
                budget_bytes -= length
            self.sent_offset = offset
        self._last_sent_ms = now_ms
        self._heartbeat_announced = False
        return transfers

    def next_deadline_ms(self) -> int:
        """When `deadline_reached` has something to do although nothing happened."""
        silent_ms = self._last_heard_ms + self._options.housekeeping_interval_ms + 1
        if not self.started or self._heartbeat_announced:
            return silent_ms
        return min(silent_ms, self._last_sent_ms + self._options.heartbeat_interval_ms + 1)

    def deadline_reached(self, *, now_ms: int) -> None:
        """A heartbeat may be due: `take_transfers` has it. Raises RemoteProtocolError when the slave is silent.

        A heartbeat wakes the caller once. A caller whose socket is full takes no transfers, and would spin otherwise.
        """
        if now_ms - self._last_heard_ms > self._options.housekeeping_interval_ms:
            raise RemoteProtocolError("slave_silent", "nothing heard within haHousekeepingInterval")
        if now_ms - self._last_sent_ms > self._options.heartbeat_interval_ms:
            self._heartbeat_announced = True


# Slave half of one replication connection, without sockets or clock.
#
# Theory of operation.
#
#     connected --report at once--> following --offset mismatch, bad size, silence--> closed
#
# The first report says where to go on: the end of the local log, or 0 when nothing is held, wherever the log would go
# on. Each transfer must then start at that end, heartbeats included; a slave that holds nothing takes any start. Bodies
# are handed on as they arrive, whole frames or parts of them, so nothing is buffered but an incomplete header. The
# report after a read covers everything appended by it: one report a read, whole 8 bytes, never a part.
#
# A master may be Java's: frames of 32 KiB by default and 4 MiB - 12 at most, cut anywhere in a record, and nothing but
# heartbeats while it has nothing new. It closes links that are silent for 20 s, so a report is repeated when idle.


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
FEW_BYTES: Final = 32 << 10
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
