"""Master half of one replication connection, without sockets or clock.

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
    REPORT,
    REPORT_BYTES,
    TRANSFER_HEADER,
    MasterOptions,
    RemoteProtocolError,
    Transfer,
)
from tandemmq.core.replication.log_history import ReplicatedLog

__all__ = ["MasterSession"]

_NOT_YET_REPORTED: Final = -1


class MasterSession:
    """One slave as the master sees it. The caller moves bytes and tells the time (monotonic ms).

    Invariant once started: start_offset <= acked_offset <= sent_offset <= the log's end.
    """

    __slots__ = (
        "_heartbeat_announced",
        "_last_heard_ms",
        "_last_sent_ms",
        "_log",
        "_options",
        "_unparsed",
        "acked_offset",
        "broker_id",
        "disk_id",
        "in_sync",
        "link",
        "peer",
        "proven_from_offset",
        "sent_offset",
        "start_offset",
        "started",
    )

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
