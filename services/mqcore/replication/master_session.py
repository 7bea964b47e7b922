"""Master half of one replication connection, without sockets or clock.

    accepted --first report--> transferring --refused report, silence--> closed

Before the first report nothing is sent but a heartbeat after an idle interval (a 4.x Java slave reports 5 s after it
connects). The first report decides the start:

| first report | start | |
|---|---|---|
| 0 | the log's min offset | the whole retained log; the start of the last file with `sync_from_last_file` |
| min..end | that offset | the slave's bytes below it are unproven unless it was verified |
| below min, above end | refused | RocketMQ would send heartbeats for ever and believe the report |
| below 0 | ignored | RocketMQ's "not yet reported" |

A later report acknowledges. It lies between the last report and what was sent here; anything else is refused.
Only the last whole 8 bytes of a read count, as in RocketMQ's ReadSocketService.
"""

from __future__ import annotations

from mqcore.replication.errors import RemoteProtocolError
from mqcore.replication.frames import REPORT, REPORT_BYTES, TRANSFER_HEADER, Transfer
from mqcore.replication.log_extent import ReplicatedLog
from mqcore.replication.options import MasterOptions
from mqcore.replication.put_gate import ProvenAck

__all__ = ["MasterSession"]


class MasterSession:
    """One slave as the master sees it. The caller moves bytes and tells the time (monotonic ms).

    Invariant once started: base_offset <= acked_offset <= sent_offset <= the log's end.
    """

    __slots__ = (
        "_last_heard_ms",
        "_last_sent_ms",
        "_log",
        "_options",
        "_unparsed",
        "acked_offset",
        "base_offset",
        "broker_id",
        "in_sync",
        "peer",
        "sent_offset",
        "started",
    )

    def __init__(self, peer: str, log: ReplicatedLog, options: MasterOptions, *, now_ms: int) -> None:
        self.peer = peer
        self._log = log
        self._options = options
        self._unparsed = b""
        self._last_heard_ms = now_ms
        self._last_sent_ms = now_ms
        self.started = False
        self.broker_id: int | None = None
        self.base_offset = 0
        self.acked_offset = 0
        self.sent_offset = 0
        self.in_sync = False

    @property
    def verified(self) -> bool:
        """True when the slave's log was compared with ours before it connected."""
        return self.broker_id is not None

    @property
    def lag_bytes(self) -> int:
        """Bytes of the log the slave has not acknowledged."""
        return self._log.end_offset - self.acked_offset

    @property
    def proven(self) -> ProvenAck:
        """What this slave provably holds."""
        return ProvenAck(0 if self.verified else self.base_offset, self.acked_offset)

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
        return int(REPORT.unpack_from(data, whole - REPORT_BYTES)[0])

    def start(self, reported_offset: int, *, broker_id: int | None) -> None:
        """Believes the first report, or raises RemoteProtocolError. `broker_id` is given for a verified end."""
        low, end = self._log.min_offset, self._log.end_offset
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
        self.broker_id = broker_id
        self.base_offset = self.acked_offset = self.sent_offset = start_offset
        self.started = True

    def acknowledge(self, reported_offset: int) -> bool:
        """Believes a later report, or raises RemoteProtocolError; True when it acknowledges something new."""
        if reported_offset == self.acked_offset:
            return False
        # An empty slave repeats its 0 as heartbeat until the first body arrives.
        if reported_offset == 0 and self.acked_offset == self.base_offset:
            return False
        if reported_offset > self.sent_offset:
            raise RemoteProtocolError(
                "report_beyond_sent", f"reports {reported_offset}, only {self.sent_offset} was sent to it"
            )
        if reported_offset < self.acked_offset:
            raise RemoteProtocolError("report_backwards", f"reports {reported_offset} after {self.acked_offset}")
        self.acked_offset = reported_offset
        return True

    def take_transfers(self, *, budget_bytes: int, now_ms: int) -> list[Transfer]:
        """Frames to send now, about `budget_bytes` of bodies at most: data, else a heartbeat when one is due.

        Raises RemoteProtocolError when the log was trimmed above what the slave needs next.
        """
        end = self._log.end_offset
        transfers = []
        if self.started and self.sent_offset < end:
            if self.sent_offset < self._log.min_offset:
                raise RemoteProtocolError(
                    "fell_off_log", f"needs {self.sent_offset}, our log starts at {self._log.min_offset} by now"
                )
            segment_bytes, batch_bytes = self._log.segment_bytes, self._options.transfer_batch_bytes
            offset = self.sent_offset
            while offset < end and budget_bytes > 0:
                length = min(batch_bytes, end - offset, segment_bytes - offset % segment_bytes)
                transfers.append(Transfer(TRANSFER_HEADER.pack(offset, length), offset, length))
                offset += length
                budget_bytes -= length
            self.sent_offset = offset
        elif now_ms - self._last_sent_ms > self._options.heartbeat_interval_ms:
            offset = self.sent_offset if self.started else end
            transfers.append(Transfer(TRANSFER_HEADER.pack(offset, 0), offset, 0))
        if transfers:
            self._last_sent_ms = now_ms
        return transfers

    def next_deadline_ms(self) -> int:
        """When `take_transfers` or `is_silent` has something to say although nothing happened."""
        return min(
            self._last_sent_ms + self._options.heartbeat_interval_ms + 1,
            self._last_heard_ms + self._options.housekeeping_interval_ms + 1,
        )

    def is_silent(self, *, now_ms: int) -> bool:
        """True when nothing was heard for longer than the housekeeping interval."""
        return now_ms - self._last_heard_ms > self._options.housekeeping_interval_ms
