"""What consumers read far behind the log's end: from a slave, or brought into memory by a thread, never on the loop.

Theory of operation. The newest part of the log, `accessMessageInMemoryMaxRatio` percent of the machine's memory, is
read from the map: it was just written. What lies before is *far*. A page of it that the disk has to bring would stop
the whole broker, sends included, and push out of memory what others are about to read. So a receive does not read it:
it notes what it wants, waits like one that found nothing, and is woken when the bytes are here.

    slaveReadEnable=true    a slave that follows us sends them: our disk is left to those that send
    otherwise, or where     a thread reads them into the page cache; what is there already is read at once
    that slave fails

The group's `whichBrokerWhenConsumeSlowly` names the slave; where it is none now, as after a change of master, another
one is asked, and 0 is the master itself (RocketMQ's names, and its rule of who is slow). Leases, filters and offsets
stay the master's. So clients notice nothing: no route changes, and no call is passed on. A slave is believed as far as
it has acknowledged on a connection that proved its log to be ours (ADR 3), and each record by its CRC and its place.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.broker.queries import stored_records
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

WINDOW_BYTES: Final = 1 << 20
"""Wanted at once, or one record if that is larger."""
_HELD_MAX: Final = 32
"""Windows that are kept for their readers: 32 MiB with records of ordinary size."""
_WANTED_MAX: Final = 64
"""Who comes later reads the map, as all did before."""
_AT_ONCE: Final = 4
_SLAVE_LIMIT_S: Final = 2.0
_SLAVE_PAUSE_MS: Final = 10_000
"""A slave that failed is not asked for so long."""
_CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(slots=True)
class _Window:
    """Bytes [start, end) of the log: a slave's, or without `data` those of our own map, which are in memory."""

    start: int
    end: int
    generation: int
    data: bytes | None = None
    topics: set[str] = field(default_factory=set)

    def holds(self, offset: int, size: int = 1) -> bool:
        return self.start <= offset and offset + size <= self.end


def memory_bytes() -> int:
    """Of the machine, or what the container may use of it."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):
            continue  # There is none, or it says `max`.
    return min(limits)


class FarReads:
    """Event loop only. `near_bytes`: what lies at most so far behind the log's end is not far. `arrived` is told the
    topics whose receives may look again."""

    def __init__(
        self,
        log: MessageStore,
        pages: stored_records.CommitLogPages,
        *,
        near_bytes: int,
        now_ms: Callable[[], int],
        arrived: Callable[[str], None],
        slaves: SlaveLogs | None = None,
    ) -> None:
        """`slaves` None: none is asked."""
        self._log = log
        self._pages = pages
        self.near_bytes: Final = near_bytes
        self._now_ms = now_ms
        self._arrived = arrived
        self._slaves = slaves
        self.slave_id = 0
        """The slave that whoever reads next is to get it from; 0: none."""
        self.from_slave_bytes = 0
        self.from_disk_bytes = 0
        self._held: OrderedDict[int, _Window] = OrderedDict()
        self._wanted: dict[int, tuple[_Window, int]] = {}
        """By start; with the slave to be asked."""
        self._has_wanted = asyncio.Event()
        self._avoid_until_ms: dict[int, int] = {}
        self._generation = 0

    def piece(self, topic: str, offset: int, size: int) -> memoryview | None:
        """The log from `offset` on, the record of `size` bytes at least; None: it is on its way, and `arrived` tells.

        A record that cannot be one, since it leaves its file or the log, is read from the map: it is damage, which the
        caller has to see.
        """
        for window in reversed(self._held.values()):
            if window.holds(offset, size):
                if window.data is None:
                    return self._log.read_log(offset, window.end - offset)
                return memoryview(window.data)[offset - window.start :]
        file_end = offset - offset % self._log.segment_bytes + self._log.segment_bytes
        limit = min(file_end, self._log.end_offset)
        if size <= 0 or offset + size > limit:
            return self._log.read_log(offset, self._log.segment_bytes)
        end = min(offset + max(size, WINDOW_BYTES), limit)
        slave_id = self.slave_id if self._may_ask(self.slave_id) else 0
        if not slave_id and self._pages.are_resident([(offset, end)]):
            return self._log.read_log(offset, end - offset)
        known = self._wanted.get(offset)
        if known is None:
            if len(self._wanted) >= _WANTED_MAX:
                return self._log.read_log(offset, end - offset)
            known = self._wanted[offset] = (_Window(offset, end, self._generation), slave_id)
            self._has_wanted.set()
        known[0].topics.add(topic)
        return None

    async def run(self) -> None:
        """Fetches what is wanted, until it is cancelled."""
        at_once = asyncio.Semaphore(_AT_ONCE)
        begun: set[int] = set()
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._has_wanted.wait()
                    self._has_wanted.clear()
                    for start in self._wanted.keys() - begun:
                        begun.add(start)
                        tasks.create_task(self._fetch(start, at_once, begun))
        finally:
            if self._slaves is not None:
                await self._slaves.close()

    async def _fetch(self, start: int, at_once: asyncio.Semaphore, begun: set[int]) -> None:
        window, slave_id = self._wanted[start]
        async with at_once:
            if slave_id:
                window.data = await self._from_slave(slave_id, LogRange(window.start, window.end))
            if window.data is None:
                await self._pages.fetch([(window.start, window.end)])
                self.from_disk_bytes += window.end - window.start
            else:
                window.end = window.start + len(window.data)
                self.from_slave_bytes += len(window.data)
        del self._wanted[start]
        begun.discard(start)
        if window.generation == self._generation:
            self._hold(window)
        for topic in window.topics:
            self._arrived(topic)

    def _hold(self, window: _Window) -> None:
        self._held[window.start] = window
        self._held.move_to_end(window.start)
        if len(self._held) > _HELD_MAX:
            self._held.popitem(last=False)

    def _may_ask(self, slave_id: int) -> bool:
        return bool(slave_id) and self._slaves is not None and self._now_ms() >= self._avoid_until_ms.get(slave_id, 0)

    async def _from_slave(self, slave_id: int, wanted: LogRange) -> bytes | None:
        """None: the slave is not connected, or fails, and our own disk has to give it."""
        assert self._slaves is not None, "only who may ask a slave wants something of one"
        try:
            async with asyncio.timeout(_SLAVE_LIMIT_S):
                data = await self._slaves.read(slave_id, wanted)
            reason = "none follows that has acknowledged so far"
        except (OSError, TimeoutError) as error:
            data, reason = None, str(error) or f"no answer within {_SLAVE_LIMIT_S} s"
        if data is not None and len(data) == wanted.end_offset - wanted.start_offset:
            return data
        self._avoid_until_ms[slave_id] = self._now_ms() + _SLAVE_PAUSE_MS
        log.warning("slave_read_failed", slave=slave_id, offset=wanted.start_offset, reason=reason, effect="own disk")
        return None

    def distrust(self, topic: str, offset: int) -> bool:
        """The bytes there are not the record they should be. True: they were a slave's, and our own come. False: they
        are our own."""
        wrong = [window for window in self._held.values() if window.data is not None and window.holds(offset)]
        for window in wrong:
            log.error("slave_read_wrong", offset=offset, remedy="tandemmq verify says which replica is damaged")
            # Our own from now on; in memory or not.
            window.data = None
        if wrong:
            # Whoever asks waits only once this has returned.
            asyncio.get_running_loop().call_soon(self._arrived, topic)
        return bool(wrong)

    def forget(self) -> None:
        """The log may be cut now, and go on differently: what is held, or under way, is no part of it any more."""
        self._generation += 1
        self._held.clear()


class SlaveLogs:
    """Reads from slaves that follow this master. `slaves` are those connected, `endpoint` knows their metadata planes
    by broker id, None if it does not. Event loop only."""

    def __init__(self, slaves: Callable[[], Sequence[SlaveView]], endpoint: Callable[[int], str | None]) -> None:
        self._slaves = slaves
        self._endpoint = endpoint
        self._peers: dict[str, PeerClient] = {}

    async def read(self, slave_id: int, wanted: LogRange) -> bytes | None:
        holders = [
            slave.broker_id
            for slave in self._slaves()
            if slave.broker_id is not None and slave.verified and slave.acked_offset >= wanted.end_offset
        ]
        if not holders:
            return None
        endpoint = self._endpoint(slave_id if slave_id in holders else min(holders))
        if endpoint is None:
            return None
        peer = self._peers.get(endpoint)
        if peer is None:
            await self.close()  # There is one slave, or seldom another.
            peer = self._peers[endpoint] = PeerClient(endpoint)
        try:
            return b"".join([data async for _, data in peer.read_log(wanted)])
        except PeerUnavailable as error:
            raise ConnectionError(str(error)) from error

    async def close(self) -> None:
        """Gives the connections back."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.close()
