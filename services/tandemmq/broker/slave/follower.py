"""Keeps a slave on its master: find it, prove our log or repair it, follow, and again after every break.

    waiting -> verifying -> transfer
                  |            |
                  v            v (connection lost)
            resynchronising   waiting

The steps themselves are decided by `catch_up_step` and `CommonPrefixSearch` in the core; here they are performed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from tandemmq.broker.flush_worker import ROOM_PAUSE_S, ROOM_REMEDY, ROOM_TOLD_EVERY_S
from tandemmq.broker.ha_transport import HaTls
from tandemmq.broker.peer_client import PeerClient, PeerLog, PeerUnavailable, ReplicaClaim
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import digest_of, find_common_end
from tandemmq.broker.slave.ha_connection import HaConnection
from tandemmq.core.clock import Clock
from tandemmq.core.replication.common_prefix import tail_range
from tandemmq.core.replication.frames import RemoteProtocolError, SlaveOptions
from tandemmq.core.replication.log_history import LogExtent, LogRange
from tandemmq.core.replication.sessions import DispatchPace
from tandemmq.core.replication.slave_catch_up import CatchUpStep, catch_up_step, cut_refusal, stale_reason
from tandemmq.core.routing.values import Address, BrokerIdentity, ReplicaMemory, connection_end, parse_address
from tandemmq.core.storage.disk import DiskError, DiskFull, RecordCorrupt
from tandemmq.core.storage.dispatch import holds_record_header
from tandemmq.core.tracing.send_spans import ReplicaTimelines

if TYPE_CHECKING:
    from tandemmq.core.storage.message_store import MessageStore

MasterLeft: TypeAlias = Callable[[int, Callable[[], Awaitable[bool | None]]], None]
"""Is told that the master of an epoch has left, and what looks again: whether anybody listens there, None where nothing
is heard."""

log = structlog.get_logger(__name__)

# RocketMQ waits 5 s after an error; a master that restarts is back sooner than that.
RETRY_PAUSE_S: Final = 0.5
FLUSH_POLL_S: Final = 0.005
_LOOK_PAUSES_S: Final = (0.0, 0.05, 0.2, 0.5)
# Between two attempts at a record that is corrupt each time it comes.
CORRUPT_PAUSE_MAX_S: Final = 60.0
# Between two comparisons of a log with a master's that contradicts it: each may read all of both.
_VAIN_PAUSE_MAX_S: Final = 10.0
# Records dispatched one by one in a turn of the loop: about 10 ms. A batch counts as a turn of its own.
# How soon a slave notices that another master is registered.
MASTER_LOOK_S: Final = 1.0
LEAVE_POLL_S: Final = 0.005
LEAVE_LIMIT_S: Final = 3.0
"""Whoever asks for it waits no longer."""
DISPATCH_SLICE: Final = 2_048
# Records gather for so long, unless they are due before: in a batch each costs a tenth. Nobody reads a slave's
# ConsumeQueues within that time, and what ends its life as a slave dispatches the rest.
GATHER_S: Final = 0.030


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """Where a master is followed: its HA plane and, unless it is a foreign one, its metadata plane, as host:port."""

    ha: str
    metadata: str | None
    disk_id: str = ""
    """Empty while it is not known: another one is another master."""


class Follower:
    """One task of a slave. Event loop only; digests run on a worker thread.

    `cut_progress` brings what groups have consumed beyond a queue's end back to that end, durably, before a later
    epoch is followed. `begins` is waited for before the first byte of a connection, and when what the log holds is
    in doubt. `master_left` is told when the master ended the connection and its machine says that nobody listens
    there any more. `other_process` tells where another one runs on a copy of this very disk. To the master they are
    one replica, and what it counts for one the other may lack: so this one follows nobody meanwhile, and has caught up
    with nobody.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        options: SlaveOptions,
        identity: BrokerIdentity,
        replica: ReplicaIdentity,
        metadata_endpoint: Callable[[], str],
        master: Callable[[], MasterAddress | None],
        reports_flushed_only: bool,
        kick_flush: Callable[[], None],
        flushes_paused: Callable[[], AbstractAsyncContextManager[None]],
        failed: Callable[[DiskError], None],
        cut_progress: Callable[[], Awaitable[None]],
        begins: Callable[[], Awaitable[None]] | None = None,
        master_left: MasterLeft = lambda epoch, listens: None,
        other_process: Callable[[], str | None] = lambda: None,
        timelines: ReplicaTimelines | None = None,
        tls: HaTls | None = None,
    ) -> None:
        self._tls = tls
        self._store = store
        self._clock = clock
        self._identity = identity
        self._replica = replica
        self._metadata_endpoint = metadata_endpoint
        self._master = master
        self._reports_flushed_only = reports_flushed_only
        self._kick_flush = kick_flush
        self._flushes_paused = flushes_paused
        self._failed = failed
        self._cut_progress = cut_progress
        self._begins = begins
        self._master_left = master_left
        self._other_process = other_process
        self._corrupt_at: int | None = None
        self._last_corrupt_at: int | None = None
        self._corrupt_pause_s = RETRY_PAUSE_S
        self._vain_count = 0
        """How often in a row the logs were compared, and nothing followed from it."""
        self._no_room_told_ms: int | None = None
        self._bytes_came = asyncio.Event()
        self._dispatch_handle: asyncio.Handle | None = None
        self._pace = DispatchPace(walk_bytes_max=store.walk_bytes_max)
        self._has_caught_up = True
        self._caught_up_epoch = 0
        self._followed_since_ms = 0
        self._followed_from = 0
        self._connection = HaConnection(
            log=store,
            clock=clock,
            options=options,
            acknowledged_end=self._acknowledged_end,
            appended=self._appended,
            timelines=timelines,
        )
        self._timelines = timelines
        self.state = "waiting"
        self.master_address = ""
        self.master_end_offset = 0
        self.problem = ""
        """Why the master that is there is not followed, in words; an operator has to look. Empty: it is, or may be."""
        self.remedy = ""
        self.has_accepted_master = False
        """Whether the master that was reached last is one that may be followed: its tables may be taken, too."""

    @property
    def lag_bytes(self) -> int:
        """How far the master's log is ahead of ours, as far as we know."""
        ahead = max(self.master_end_offset, self._connection.master_end_offset)
        return max(0, ahead - self._store.end_offset)

    @property
    def caught_up_epoch(self) -> int:
        """The epoch in which this process last had all that its master had; 0: it never had, or another process may
        have been counted for it since."""
        return 0 if self._other_process() is not None else self._caught_up_epoch

    @property
    def silent_ms(self) -> int | None:
        """Since anything came from the master's machine; None: not connected, or not known."""
        return self._connection.silent_ms

    @property
    def is_following(self) -> bool:
        """True while the master's log flows to us: proven, connected, not repairing."""
        return self.state == "transfer" and self._connection.is_open

    @property
    def is_refusing(self) -> bool:
        """True while the master that is there is not followed, however often it is asked again."""
        return bool(self.problem and self.master_address)

    def flushed(self) -> None:
        """The flush worker finished a job: a slave that promises its disk reports now."""
        if self._timelines is not None:
            self._timelines.flushed.note(self._store.flushed_offset, self._clock.monotonic_ns())
        if self._reports_flushed_only:
            self._connection.acknowledge()

    async def leave_master(self) -> None:
        """Ends the connection to the master that is followed; when it returns no byte of it comes any more.
        TimeoutError: some may still."""
        async with asyncio.timeout(LEAVE_LIMIT_S):
            while self.state == "transfer":
                self._connection.drop("another master begins an epoch")
                await asyncio.sleep(LEAVE_POLL_S)

    async def run(self) -> None:
        try:
            await self._follow_for_ever()
        finally:
            self._cancel_dispatch()
            # Nobody waits for it to leave a master that it follows no more.
            self.state = "waiting"

    async def _follow_for_ever(self) -> None:
        while True:
            master = self._master()
            if master is None:
                self.state, self.master_address, self.has_accepted_master = "waiting", "", False
                await asyncio.sleep(RETRY_PAUSE_S / 5)
                continue
            if master.ha != self.master_address:
                self.master_address, self.has_accepted_master = master.ha, False
                self._vain_count = 0
            try:
                self._check_rest()
                if self._corrupt_at is not None:
                    await asyncio.sleep(self._corrupt_pause_s - RETRY_PAUSE_S)
                    await self._cut(self._corrupt_at, reason="a record in it is corrupt")
                    self._corrupt_at = None
                sock = await self._connected(master)
                if sock is not None:
                    self.problem, self.remedy, self.has_accepted_master = "", "", True
                    self._vain_count = 0
                    await self._follow(sock, master)
                    if self._connection.no_room is not None:
                        await self._wait_for_room(self._connection.no_room)
            except (OSError, TimeoutError, PeerUnavailable, RemoteProtocolError) as error:
                log.info("master_unreachable", master=master.ha, reason=str(error) or type(error).__name__)
            except DiskFull as error:
                await self._wait_for_room(error)
            except DiskError as error:
                self._failed(error)
                return
            if self.state != "refusing":
                self.state = "waiting"
            await asyncio.sleep(RETRY_PAUSE_S)
            await self._wait_after_vain_comparison(master)

    async def _wait_after_vain_comparison(self, master: MasterAddress) -> None:
        """Twice as long each time; not for a master that is no longer the one."""
        pause_s = min(_VAIN_PAUSE_MAX_S, RETRY_PAUSE_S * (2 ** min(self._vain_count, 16) - 1))
        until_ms = self._clock.monotonic_ms() + round(1_000 * pause_s)
        while self._clock.monotonic_ms() < until_ms and self._master() == master:
            await asyncio.sleep(min(RETRY_PAUSE_S, pause_s))

    async def _follow(self, sock: socket.socket, master: MasterAddress) -> None:
        if self._begins is not None:
            await self._begins()
        self.state = "transfer"
        log.info("following_master", master=master.ha, end_offset=self._store.end_offset)
        self._has_caught_up = False
        self._followed_since_ms = self._clock.monotonic_ms()
        self._followed_from = self._store.min_offset if self._extent().is_empty else self._store.end_offset
        if self._store.dispatched_offset == self._store.end_offset and not self.lag_bytes:
            self._reached_the_end()
        watch, epoch = asyncio.create_task(self._leave_replaced(master)), self._replica.history.last_epoch
        try:
            if self._extent().is_empty:
                reason = await self._follow_from_nothing(sock)
            else:
                reason = await self._connection.follow(sock)
        finally:
            watch.cancel()
        log.info("master_link_lost", master=master.ha, reason=reason, end_offset=self._store.end_offset)
        if self._connection.is_ended_there:
            await self._look_whether_it_left(epoch)

    async def _look_whether_it_left(self, epoch: int) -> None:
        """Whoever acts as master listens. A process that dies closes one socket after the other."""
        assert self._connection.dialled is not None, "a connection was dialled"
        listens = partial(self._connection.listens, *self._connection.dialled)
        for pause_s in _LOOK_PAUSES_S:
            await asyncio.sleep(pause_s)
            if await listens() is False:
                log.info("master_left", master=self.master_address, epoch=epoch)
                self._master_left(epoch, listens)
                return

    async def _leave_replaced(self, master: MasterAddress) -> None:
        """Drops the connection when another master is registered: this one may go on and not know it."""
        while True:
            await asyncio.sleep(MASTER_LOOK_S)
            now = self._master()
            if now is not None and now != master:
                self._connection.drop("another master is registered")
                return
            if self._other_process() is not None:
                self._may_lack_what_was_counted()
                self._connection.drop("another process runs on a copy of this very disk")
                return

    async def _follow_from_nothing(self, sock: socket.socket) -> str:
        """Follows with an empty log, which may start anywhere: no job may be out while it moves to its start."""
        self._bytes_came.clear()
        following = asyncio.create_task(self._connection.follow(sock))
        came = asyncio.create_task(self._bytes_came.wait())
        try:
            async with self._flushes_paused():
                await asyncio.wait((following, came), return_when=asyncio.FIRST_COMPLETED)
            return await following
        except asyncio.CancelledError:
            following.cancel()
            await asyncio.wait((following,))  # Not before its last write is settled.
            raise
        finally:
            following.cancel()
            came.cancel()

    async def _connected(self, master: MasterAddress) -> socket.socket | None:
        """Takes the next step towards a connection that may be followed, which is returned once it is there."""
        if (endpoint := self._other_process()) is not None:
            self._may_lack_what_was_counted()
            if self._begins is not None:
                await self._begins()
            self._refuse(
                master.ha,
                f"another process runs on a copy of this very disk, at {endpoint}, and the master counts that one",
                remedy="stop one of the two, and keep the disk that was used last",
            )
            return None
        address = parse_address(master.ha)
        if address is None:
            log.error("master_address_unusable", master=master.ha, remedy="set brokerIP2 on the master")
            return None
        while self._reports_flushed_only and self._store.flushed_offset < self._store.end_offset:
            # The first report acknowledges, too.
            self._kick_flush()
            await asyncio.sleep(FLUSH_POLL_S)
        if master.metadata is None:
            self._tls_with(None)
            return await self._connection.connect(address.host, address.port)
        self.state = "verifying"
        async with PeerClient(master.metadata) as peer:
            theirs = await peer.log()
            group = (self._identity.cluster, self._identity.broker_name)
            if theirs.broker_name and (theirs.cluster, theirs.broker_name) != group:
                self._refuse(
                    master.ha,
                    f"it is of group {theirs.broker_name} of {theirs.cluster}, we are of {group[1]} of {group[0]}",
                    remedy="set brokerName, brokerClusterName or haMasterAddress",
                )
                return None
            self.master_end_offset = theirs.extent.end_offset
            ours, our_epoch = self._extent(), self._replica.greatest_epoch
            step = catch_up_step(
                ours=ours,
                theirs=theirs.extent,
                our_segment_bytes=self._store.segment_bytes,
                their_segment_bytes=theirs.segment_bytes,
                serving=theirs.serving,
                our_epoch=our_epoch,
                followed_epoch=self._replica.followed_epoch,
                their_history=theirs.history,
                is_other_owner=self._is_other_owner(theirs),
            )
            match step:
                case CatchUpStep.CONNECT:
                    # Nothing is to be proven, but the master learns which slave the connection belongs to.
                    return await self._proven_connection(peer, theirs, address, LogRange(0, 0), b"")
                case CatchUpStep.WAIT:
                    pass
                case CatchUpStep.REFUSE:
                    self._refuse(
                        master.ha,
                        f"its CommitLog files have {theirs.segment_bytes} bytes, ours {self._store.segment_bytes}",
                        remedy="set mappedFileSizeCommitLog as the master has it and start with an empty store",
                    )
                case CatchUpStep.STALE:
                    self._refuse(
                        master.ha,
                        stale_reason(
                            ours=ours,
                            theirs=theirs.extent,
                            our_epoch=our_epoch,
                            followed_epoch=self._replica.followed_epoch,
                            their_history=theirs.history,
                            is_other_owner=self._is_other_owner(theirs),
                        ),
                        remedy="restart that master: it asks us before it serves, and fetches what it lacks",
                    )
                    # So that it hears of it even while it follows nobody: it stops.
                    await peer.verify(
                        self._claim(), tail=LogRange(ours.end_offset, ours.end_offset), digest=b"", connection=""
                    )
                case CatchUpStep.VERIFY:
                    holds_header = partial(holds_record_header, self._store)
                    tail = tail_range(ours, holds_header=holds_header, floor_offset=theirs.extent.min_offset)
                    digest = await digest_of(self._store, tail)
                    sock = await self._proven_connection(peer, theirs, address, tail, digest)
                    if sock is not None:
                        return sock
                    await self._resynchronise(peer, master, ours, theirs)
                case CatchUpStep.RESYNCHRONISE:
                    await self._resynchronise(peer, master, ours, theirs)
                case CatchUpStep.START_OVER:
                    await self._cut(self._store.min_offset, reason="the master's log starts behind our end")
        return None

    def _is_other_owner(self, theirs: PeerLog) -> bool:
        """The greatest epoch that we know of was begun on another disk than the master's."""
        owner = self._replica.epoch_owner
        return bool(owner and theirs.disk_id) and owner != theirs.disk_id

    def _refuse(self, master: str, reason: str, *, remedy: str) -> None:
        """The master is there, and not followed: an operator has to know, once."""
        self.state, self.has_accepted_master = "refusing", False
        if reason != self.problem:
            log.error("master_not_followed", master=master, reason=reason, remedy=remedy)
        self.problem, self.remedy = reason, remedy

    def _claim(self) -> ReplicaClaim:
        return ReplicaClaim(
            identity=self._identity,
            disk_id=self._replica.disk_id,
            run=self._replica.run,
            epoch=self._replica.greatest_epoch,
            metadata_endpoint=self._metadata_endpoint(),
        )

    async def _proven_connection(
        self, peer: PeerClient, theirs: PeerLog, address: Address, tail: LogRange, digest: bytes
    ) -> socket.socket | None:
        """Opens a connection, and proves our log for it before anything is said there; None: the logs differ."""
        tls = self._tls_with(theirs)
        sock = await self._connection.connect(address.host, address.port)
        is_proven = False
        try:
            host, port = sock.getsockname()[:2]
            history = await peer.verify(self._claim(), tail=tail, digest=digest, connection=connection_end(host, port))
            if tls is not None:
                sock = await self._connection.secure(sock, tls)
            if history is not None and history.last_epoch > self._replica.history.last_epoch:
                # From our end on it may differ from what we followed, and what groups have consumed there would be
                # taken for other messages. What the master knows of it comes again.
                await self._cut_progress()
            if history is not None:
                # Before the first report: whoever asks us from now on hears of this epoch.
                await self._replica.adopt_history(history, owner=theirs.disk_id)
                await self._replica.remember(
                    ReplicaMemory(
                        broker_id=theirs.broker_id,
                        disk_id=theirs.disk_id,
                        run=theirs.run,
                        epoch=history.last_epoch,
                        end_offset=tail.end_offset,
                        metadata_endpoint=peer.endpoint,
                        master_epoch=history.last_epoch,
                    )
                )
                # Another master may have been promised a later epoch meanwhile. Nothing is awaited from here until the
                # state says that we follow.
                is_proven = history.last_epoch >= self._replica.greatest_epoch and not self._is_other_owner(theirs)
        finally:
            if not is_proven:
                sock.close()
        return sock if is_proven else None

    def _tls_with(self, theirs: PeerLog | None) -> HaTls | None:
        """What the connection is to begin with. OSError: the master takes no TLS, and we speak nothing else."""
        if self._tls is None or (theirs is not None and theirs.ha_tls):
            return self._tls
        if self._tls.is_needed:
            raise OSError("the master takes no TLS for replication, and here haTlsMode=enforcing")
        return None

    async def _resynchronise(self, peer: PeerClient, master: MasterAddress, ours: LogExtent, theirs: PeerLog) -> None:
        """Finds the last common record and cuts back to it, if the master's history is a newer one."""
        if not self._vain_count:
            log.warning(
                "slave_resynchronising",
                end_offset=ours.end_offset,
                master_end_offset=theirs.extent.end_offset,
            )
        common = await find_common_end(peer, self._store, theirs.extent)
        if common.offset >= self._store.end_offset:
            return
        refusal = cut_refusal(
            common.offset,
            our_history=self._replica.history,
            their_history=theirs.history,
            record_is_damaged=common.ours_is_damaged,
        )
        if refusal:
            self._vain_count += 1
            self._refuse(
                master.ha, refusal, remedy="tandemmq verify names the messages that differ; tandemmq repair mends them"
            )
            return
        self.state, self._vain_count = "resynchronising", 0
        await self._cut(common.offset, reason="it differs from the master's log")

    async def _cut(self, end_offset: int, *, reason: str) -> None:
        before = self._store.end_offset
        async with self._flushes_paused():
            # On the loop on purpose: nothing may dispatch or append meanwhile, and a slave in this state serves nobody.
            kept = self._store.truncate(end_offset, reason=reason)
        log.warning(
            "tail_kept",
            reason=reason,
            cut_from=end_offset,
            cut_to=before,
            kept_as=None if kept is None else str(kept.path),
        )

    def _extent(self) -> LogExtent:
        return LogExtent(min_offset=self._store.min_offset, end_offset=self._store.end_offset)

    def _check_rest(self) -> None:
        """The first report on a connection vouches for all that came on the last one."""
        try:
            checked = self._store.checked_offset
            while (now_checked := self._store.check_appended()) > checked:
                checked = now_checked
        except RecordCorrupt as error:
            self._found_corrupt(error)

    def _acknowledged_end(self) -> int:
        """What a report may vouch for: only whole records that are what their sender wrote."""
        try:
            sound = self._store.check_appended()
        except RecordCorrupt as error:
            self._found_corrupt(error)
            sound = self._store.checked_offset
        return min(self._store.flushed_offset, sound) if self._reports_flushed_only else sound

    def _appended(self) -> None:
        self._bytes_came.set()
        if self._reports_flushed_only:
            self._kick_flush()
        self._schedule_dispatch()

    def _note_catching_up(self) -> None:
        """Says once a connection when everything the master had at its beginning is here and can be consumed."""
        if self._store.dispatched_offset == self._store.end_offset and not self.lag_bytes:
            self._has_caught_up = True
            self._reached_the_end()
            log.info(
                "caught_up_with_master",
                end_offset=self._store.end_offset,
                copied_bytes=self._store.end_offset - self._followed_from,
                duration_ms=self._clock.monotonic_ms() - self._followed_since_ms,
            )

    def _reached_the_end(self) -> None:
        self._caught_up_epoch = self._replica.history.last_epoch
        self._replica.is_proven = True

    def _may_lack_what_was_counted(self) -> None:
        """Another process was taken for this one: our disk is an older copy, until the master's end is here again."""
        self._caught_up_epoch, self._replica.is_proven = 0, False

    def _schedule_dispatch(self) -> None:
        """Later, for a batch to gather; at once, if it is due: then before the next read, which waits in the kernel."""
        waiting_bytes = self._store.end_offset - self._store.dispatched_offset
        if self._pace.is_due(waiting_bytes, self._clock.monotonic_ns()):
            self._cancel_dispatch()
            self._dispatch_handle = asyncio.get_running_loop().call_soon(self._dispatch)
        elif self._dispatch_handle is None:
            self._dispatch_handle = asyncio.get_running_loop().call_later(GATHER_S, self._dispatch)

    def _cancel_dispatch(self) -> None:
        if self._dispatch_handle is not None:
            self._dispatch_handle.cancel()
            self._dispatch_handle = None

    def _dispatch(self) -> None:
        """Builds ConsumeQueues and Index in slices, so that reports and heartbeats get their turn in between."""
        self._dispatch_handle = None
        self._pace.dispatched(self._clock.monotonic_ns())
        try:
            dispatched = self._store.dispatch(max_records=DISPATCH_SLICE)
        except RecordCorrupt as error:
            self._found_corrupt(error)
        except DiskError as error:
            self._failed(error)
        else:
            # A read may have brought more records than are checked before its report.
            self._connection.acknowledge()
            if dispatched >= DISPATCH_SLICE:
                self._schedule_dispatch()
            elif not self._has_caught_up:
                self._note_catching_up()

    async def _wait_for_room(self, error: DiskFull) -> None:
        """What is here stays and is served; what is missing is asked for again. An operator hears of it, once a minute.

        Nothing that was promised is at stake: what had no room was never reported.
        """
        self.state = "disk full"
        now_ms = self._clock.monotonic_ms()
        if self._no_room_told_ms is None or now_ms - self._no_room_told_ms >= 1_000 * ROOM_TOLD_EVERY_S:
            self._no_room_told_ms = now_ms
            log.error(
                "slave_disk_full",
                reason=str(error),
                end_offset=self._store.end_offset,
                lag_bytes=self.lag_bytes,
                remedy=ROOM_REMEDY,
            )
        await asyncio.sleep(ROOM_PAUSE_S)

    def _found_corrupt(self, error: RecordCorrupt) -> None:
        """The bytes were damaged on their way, on our disk, or at the master: they are dropped, and asked for again.

        Nothing of them was acknowledged.
        """
        if self._corrupt_at is not None:
            return
        # Once is chance. Where it comes again the master's own bytes are bad, and asking without pause mends nothing.
        is_again = error.offset == self._last_corrupt_at
        self._corrupt_pause_s = min(2 * self._corrupt_pause_s, CORRUPT_PAUSE_MAX_S) if is_again else RETRY_PAUSE_S
        self._corrupt_at = self._last_corrupt_at = error.offset
        log.error(
            "replicated_record_corrupt",
            offset=error.offset,
            error=str(error),
            again=is_again,
            remedy="look at the master's memory and disk: tandemmq verify names the record" if is_again else "",
        )
        self._connection.drop("a replicated record is corrupt")
