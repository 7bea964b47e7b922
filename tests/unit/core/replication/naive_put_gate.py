"""The put gate as one would write it first: looks at every put and every link each time."""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.core.replication.put_gate import ProvenAck, WaitingPut
from tandemmq.core.storage.put_result import PutStatus


class NaivePutGate:
    """Same behaviour as `PutGate`, cost aside."""

    def __init__(self, *, needed_slaves: int, slave_timeout_ms: int, sync_flush_timeout_ms: int) -> None:
        self._needed_slaves = needed_slaves
        self._slave_timeout_ms = slave_timeout_ms
        self._sync_flush_timeout_ms = sync_flush_timeout_ms
        self._puts: list[tuple[int, WaitingPut]] = []
        self._replica: dict[int, PutStatus] = {}
        self._flush: dict[int, PutStatus] = {}
        self._completed: set[tuple[int, PutStatus]] = set()

    def add(self, put: WaitingPut, *, now_ms: int) -> None:
        self._puts.append((now_ms, put))
        if not put.needs_slaves:
            self._replica[put.start_offset] = PutStatus.PUT_OK
        if not put.needs_flush:
            self._flush[put.start_offset] = PutStatus.PUT_OK

    def add_without_slaves(self, put: WaitingPut, *, now_ms: int) -> None:
        self._puts.append((now_ms, put))
        self._replica[put.start_offset] = PutStatus.SLAVE_NOT_AVAILABLE

    def slaves_hold(self, acks: Sequence[ProvenAck]) -> None:
        for _, put in self._puts:
            holders = [
                ack for ack in acks if ack.proven_from_offset <= put.start_offset and ack.acked_offset >= put.end_offset
            ]
            if len(holders) >= self._needed_slaves:
                self._replica.setdefault(put.start_offset, PutStatus.PUT_OK)
        self._complete()

    def flushed(self, flushed_offset: int) -> None:
        for _, put in self._puts:
            if put.end_offset <= flushed_offset:
                self._flush.setdefault(put.start_offset, PutStatus.PUT_OK)
        self._complete()

    def next_deadline_ms(self) -> int | None:
        replica = [at_ms + self._slave_timeout_ms for at_ms, put in self._puts if put.start_offset not in self._replica]
        flush = [
            at_ms + self._sync_flush_timeout_ms for at_ms, put in self._puts if put.start_offset not in self._flush
        ]
        return min(replica + flush, default=None)

    def deadline_reached(self, *, now_ms: int) -> None:
        for at_ms, put in self._puts:
            if at_ms + self._slave_timeout_ms <= now_ms:
                self._replica.setdefault(put.start_offset, PutStatus.FLUSH_SLAVE_TIMEOUT)
            if at_ms + self._sync_flush_timeout_ms <= now_ms:
                self._flush.setdefault(put.start_offset, PutStatus.FLUSH_DISK_TIMEOUT)
        self._complete()

    def take_completed(self) -> set[tuple[int, PutStatus]]:
        completed, self._completed = self._completed, set()
        return completed

    @property
    def waiting_offsets(self) -> list[int]:
        return [put.start_offset for _, put in self._puts]

    def _complete(self) -> None:
        for entry in list(self._puts):
            start_offset = entry[1].start_offset
            if start_offset in self._replica and start_offset in self._flush:
                self._puts.remove(entry)
                replica = self._replica[start_offset]
                status = self._flush[start_offset] if replica is PutStatus.PUT_OK else replica
                self._completed.add((start_offset, status))
