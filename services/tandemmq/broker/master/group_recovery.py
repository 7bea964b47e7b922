"""Before a master serves: hear every replica its group ever had, and fetch what one of them has more (ADR 28).

`MasterStart` in the core decides; here NameServers and replicas are asked, and logs compared, cut and copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from tandemmq.broker.flush_worker import ROOM_PAUSE_S, ROOM_REMEDY
from tandemmq.broker.leases import NO_LEASES, LeaseChange, LeaseCopy, LeaseStorage
from tandemmq.broker.metadata_tables import MetadataTables
from tandemmq.broker.peer_client import PeerClient, PeerLog, PeerUnavailable
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import digest_of, find_common_end
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable, OperatorActs, OperatorMarks
from tandemmq.core.offsets import PhysicalOffset
from tandemmq.core.replication.common_prefix import tail_range
from tandemmq.core.replication.frames import RemoteProtocolError
from tandemmq.core.replication.log_history import Epoch, LogExtent, LogRange
from tandemmq.core.replication.master_start import (
    Fetch,
    MasterStart,
    OwnReplica,
    Relation,
    ReplicaAnswer,
    Serve,
    Wait,
    memory_of,
)
from tandemmq.core.replication.slave_catch_up import cut_refusal
from tandemmq.core.routing.values import BrokerIdentity, RegisteredBroker, ReplicaMemory
from tandemmq.core.storage.disk import DiskFull
from tandemmq.core.storage.dispatch import holds_record_header

if TYPE_CHECKING:
    from tandemmq.core.delivery.lease_table import LeaseTable
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

ASK_PAUSE_S: Final = 0.2
# While it waits for somebody, who may be away for hours.
ASK_PAUSE_MAX_S: Final = 2.0
_RETELL_MS: Final = 60_000
AnswerT = TypeVar("AnswerT")
_LEASES_ATTEMPTS: Final = 12
_AHEAD_ATTEMPTS: Final = 3
UNHEARD_MAX_MS: Final = 3_000
"""Of a log that goes on for longer behind what a NameServer heard of it, that NameServer knows nothing. Brokers send a
heartbeat a second."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """Where to ask. `told` asks every NameServer what it remembers of the group; None of one that did not answer."""

    name_servers: frozenset[str]
    own_endpoint: Callable[[], str]
    """Our metadata plane, as we are registered."""
    members: Callable[[], Sequence[RegisteredBroker]]
    """Those registered now, ourselves perhaps included."""
    told: Callable[[], Awaitable[Mapping[str, Sequence[ReplicaMemory] | None]]]
    forget: Callable[[str], Awaitable[None]]
    """Has all NameServers forget a disk; those that cannot be reached are asked at the next start."""


class GroupRecovery:
    """One start of a master. `run` or `begin_claimed`, once; meanwhile operators may ask for `waiting`, and
    `accept_loss`.

    `alone_with_store` keeps every job away while the log is cut or moved; `given_up` tells that the broker is to stop
    instead; `state_changed` is called when `waiting` changes. `fetch_metadata` brings tables and leases from replicas,
    the best first, and is told whether our disk lacked what others have; PeerUnavailable: what is needed cannot be had
    now. `queues_go_on` continues the numbers of
    queues whose messages have expired, and then `cut_progress` brings what groups have consumed beyond a queue's end
    back to that end, durably. `damaged_tables` are those that cannot be read and that nobody in reach has, by file;
    with `accepts_damage` it begins without them. In a group that fails over `claim` makes us the master of an epoch, of
    the given one or a later one, which it returns; 0: somebody else is master, or the authority has an older record
    than those who answered have seen, the second argument. `in_sync_epoch`: of the group's record, if it has our disk
    in the in-sync set; else 0. `others_in_sync` are that set's other members: our disk may not know them.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        replica: ReplicaIdentity,
        identity: BrokerIdentity,
        clock: Clock,
        group: GroupView,
        total_replicas: int,
        recovery_timeout_ms: int,
        accepts_loss: bool,
        alone_with_store: Callable[[], AbstractAsyncContextManager[None]],
        fetch_metadata: Callable[[Sequence[MetadataSource], bool], Awaitable[None]],
        cut_progress: Callable[[], Awaitable[None]],
        queues_go_on: Callable[[], None] = lambda: None,
        damaged_tables: Callable[[], Mapping[str, str]] = dict,
        accept_damage: Callable[[], object] = lambda: None,
        claim: Callable[[int, tuple[int, int]], Awaitable[int]] | None = None,
        in_sync_epoch: Callable[[], int] = lambda: 0,
        others_in_sync: Callable[[], Sequence[ReplicaMemory]] = tuple,
        given_up: Callable[[], bool] = lambda: False,
        state_changed: Callable[[], None] = lambda: None,
        connected_ids: Callable[[], Collection[int]] = tuple,
        forgotten: Callable[[int], None] = lambda _broker_id: None,
    ) -> None:
        self._store = store
        self._replica = replica
        self._identity = identity
        self._clock = clock
        self._group = group
        self._total_replicas = total_replicas
        self._recovery_timeout_ms = recovery_timeout_ms
        self._accepts_loss = accepts_loss
        self._alone_with_store = alone_with_store
        self._fetch_metadata = fetch_metadata
        self._cut_progress = cut_progress
        self._queues_go_on = queues_go_on
        self._damaged_tables = damaged_tables
        self._accept_damage = accept_damage
        # At the start an operator accepts all that is damaged by then; later, what he was told of.
        self._accepts_damage = accepts_loss
        self._given_up_disks: set[str] = set()
        self._half_records: dict[str, tuple[int, int]] = {}
        """Of a disk whose log ends within a record: its end, and the end of its last whole record."""
        self._claim = claim
        self._in_sync_epoch = in_sync_epoch
        self._others_in_sync = others_in_sync
        self._given_up = given_up
        self._state_changed = state_changed
        self._connected_ids = connected_ids
        self._forgotten = forgotten
        self.is_whole = False
        """Nothing of our log is known to be missing; as it is now."""
        self._was_behind = False
        self._first_rank = (0, 0)
        self._first_epochs: tuple[Epoch, ...] = ()
        """Of our disk as it was when this start began."""
        self._told_waiting_ms = 0
        self.waiting: Wait | None = None
        """What this start waits for; None while it works, and once it is over."""
        self.waiting_since_ms = 0
        """Monotonic."""
        self.gone_before = 0
        """Where the log begins that was, or is, fetched: what lies before it the group has let go."""

    @property
    def waited_ms(self) -> int:
        """For how long it has waited; 0 when it does not."""
        return 0 if self.waiting is None else self._clock.monotonic_ms() - self.waiting_since_ms

    def accept_loss(self, disk_ids: Sequence[str], damaged_tables: Sequence[str] = ()) -> str:
        """An operator gives up what is waited for, disks or tables; why not, or empty. The operator named them."""
        waiting = self.waiting
        if waiting is None:
            return "this broker does not wait for anything"
        if not waiting.is_acceptable:
            return f"no operator can give that up: {waiting.reason}"
        missing = {memory.disk_id for memory in waiting.missing}
        if set(disk_ids) != missing:
            return f"disk_ids: it waits for {', '.join(sorted(missing)) or 'no disk'} now; look again"
        tables = {file for file, _ in waiting.damaged_tables}
        if set(damaged_tables) != tables:
            return f"damaged_tables: it lacks {', '.join(sorted(tables)) or 'none'} now; look again"
        log.warning(
            "loss_accepted",
            disks=sorted(missing),
            damaged_tables=sorted(tables),
            lost_bytes=waiting.lost_bytes,
            reason=waiting.reason,
        )
        self._given_up_disks |= missing
        if tables:
            self._accepts_damage = True
        return ""

    def away(self) -> list[ReplicaMemory]:
        """Of a master that serves: members that it remembers and that are not connected. It keeps its log for them."""
        connected = self._connected_ids()
        return [memory for memory in self._replica.replicas if memory.broker_id not in connected]

    async def forget_away(self, disk_ids: Sequence[str]) -> str:
        """An operator says that the members that are away will never come back; why not, or empty."""
        away = {memory.disk_id: memory for memory in self.away()}
        if set(disk_ids) != away.keys():
            return f"disk_ids: {', '.join(sorted(away)) or 'none'} are away now; look again"
        log.warning("replicas_forgotten", disks=sorted(away))
        await self._forget(disk_ids)
        for memory in away.values():
            self._forgotten(memory.broker_id)
        return ""

    async def _forget(self, disk_ids: Sequence[str]) -> None:
        # Ours first: a NameServer hears of every disk that a broker remembers.
        await self._replica.forget(disk_ids)
        for disk_id in disk_ids:
            await self._group.forget(disk_id)

    async def run(self, *, is_whole: bool) -> bool:
        """Returns when this master may serve, in a new epoch that is durable; False: it is to stop instead. DiskFull:
        it has claimed its group, and lacks room to begin.

        `is_whole`: the last run of this disk lost nothing that its log held, as far as the disk knows.
        """
        self.is_whole = is_whole
        start = MasterStart(
            own=self._own(),
            total_replicas=self._total_replicas,
            name_servers=self._group.name_servers,
            recovery_timeout_ms=self._recovery_timeout_ms,
            started_ms=self._clock.monotonic_ms(),
        )
        self._first_rank, self._first_epochs = start.own.rank, start.own.history.epochs
        log.info("master_asks_its_group", end_offset=self._store.end_offset, is_whole=is_whole)
        pause_s = ASK_PAUSE_S
        while not self._given_up():
            start.remembered = (*self._replica.replicas, *self._others_in_sync())
            await self._ask_around(start)
            start.accepts_loss, start.given_up = self._accepts_loss, frozenset(self._given_up_disks)
            start.in_sync_epoch = self._in_sync_epoch()
            if start.run_of_us > self._replica.run:
                # This disk was rolled back: what is said of it from now on is newer than what is remembered.
                await self._replica.count_runs(start.run_of_us)
                self._state_changed()
            step = start.next_step(now_ms=self._clock.monotonic_ms())
            if isinstance(step, Fetch):
                self._note_waiting(None)
                await self._fetch(start, step)
                pause_s = ASK_PAUSE_S
                continue
            if isinstance(step, Serve) and self._claim is not None:
                if (lacking := await self._wait_before_claim(start)) is not None:
                    self._note_waiting(lacking)
                    await asyncio.sleep(pause_s)
                    pause_s = min(ASK_PAUSE_MAX_S, 1.2 * pause_s)
                    continue
                epoch = await self._claim(step.epoch, start.record_version)
                if not epoch:
                    return False
                step = replace(step, epoch=epoch)
            if isinstance(step, Serve) and not await self._is_promised(start, step.epoch):
                await asyncio.sleep(ASK_PAUSE_S)
                continue
            waiting = step if isinstance(step, Wait) else await self._metadata_wait(start)
            if isinstance(step, Serve) and waiting is None:
                return await self._begin(step, start.answers)
            self._note_waiting(waiting)
            await asyncio.sleep(pause_s)
            pause_s = min(ASK_PAUSE_MAX_S, 1.2 * pause_s)
        return False

    # Asking

    def _own(self) -> OwnReplica:
        return OwnReplica(
            broker_id=self._identity.broker_id,
            disk_id=self._replica.disk_id,
            extent=self._extent(),
            history=self._replica.history,
            is_whole=self.is_whole,
            is_proven=self._replica.is_proven,
            is_follower=self._replica.epoch_owner not in ("", self._replica.disk_id),
            promised_epoch=self._replica.greatest_epoch,
        )

    def _as_evidence(self, memory: ReplicaMemory) -> ReplicaMemory:
        """Who heard of this disk long before its log ended, and not since, does not know what it held in the end."""
        if memory.disk_id != self._replica.disk_id or memory.end_offset >= self._store.dispatched_offset:
            return memory
        unheard_ms = self._store.written_after_ms(memory.end_offset)
        is_old = unheard_ms is None or unheard_ms > UNHEARD_MAX_MS
        return replace(memory, unproven=True) if is_old else memory

    def _extent(self) -> LogExtent:
        return LogExtent(min_offset=self._store.min_offset, end_offset=self._store.end_offset)

    async def _ask_around(self, start: MasterStart) -> None:
        live = {
            (member.identity.broker_id, member.disk_id, member.endpoints.metadata) for member in self._group.members()
        }
        for address, memories in (await self._group.told()).items():
            if memories is not None:
                evidence = [self._as_evidence(memory) for memory in memories]
                start.name_server_told(address, evidence, now_ms=self._clock.monotonic_ms())
                # Who is registered comes by another stream, which may not have said anything yet.
                live |= {(each.broker_id, each.disk_id, each.metadata_endpoint) for each in memories if each.live}
        registered: set[str] = set()
        rivals: dict[str, str] = {}
        copies: set[str] = set()
        for broker_id, disk_id, endpoint in sorted(live):
            if not endpoint or endpoint == self._group.own_endpoint():
                continue
            registered.add(endpoint)
            if disk_id == self._replica.disk_id and disk_id:
                copies.add(endpoint)
            elif broker_id == self._identity.broker_id and disk_id:
                rivals[disk_id] = endpoint
        endpoints = sorted(registered | set(start.endpoints_remembered()))
        # All of them again each time: whoever is waited for may take hours, and meanwhile a replica that answered gets
        # more from a master that is alive elsewhere, or goes away.
        start.hear_anew()
        # All at once: one that is gone for good takes its time to say nothing.
        async with asyncio.TaskGroup() as tasks:
            asked = {endpoint: tasks.create_task(self._ask(start, endpoint)) for endpoint in endpoints}
        ourselves = [endpoint for endpoint, task in asked.items() if task.result()]
        start.rivals_are(
            {disk_id: endpoint for disk_id, endpoint in rivals.items() if endpoint not in ourselves},
            copies=copies.difference(ourselves),
        )

    async def _ask(self, start: MasterStart, endpoint: str) -> bool:
        """True when it was ourselves that answered: the address of a member that is no more."""
        try:
            async with PeerClient(endpoint) as peer:
                theirs = await peer.log()
                if theirs.disk_id == self._replica.disk_id and theirs.disk_id:
                    return theirs.nonce == self._replica.nonce
                if theirs.broker_name and (theirs.cluster, theirs.broker_name) != (
                    self._identity.cluster,
                    self._identity.broker_name,
                ):
                    return False  # Its address is another group's now.
                extent = self._whole(theirs.disk_id, theirs.extent)
                relation = await self._relation(peer, extent)
        except (PeerUnavailable, RemoteProtocolError) as error:
            log.debug("replica_silent", endpoint=endpoint, reason=str(error))
            return False
        remembers = tuple(self._as_evidence(memory) for memory in theirs.replicas)
        start.replica_answered(_answer_of(endpoint, theirs, extent, relation, remembers))
        return False

    async def _relation(self, peer: PeerClient, theirs: LogExtent) -> Relation:
        ours = self._extent()
        if theirs.is_empty:
            return Relation.WITHIN
        if ours.is_empty:
            return Relation.EXTENDS
        is_longer = theirs.end_offset > ours.end_offset
        shorter, floor_offset = (ours, theirs.min_offset) if is_longer else (theirs, ours.min_offset)
        holds_header = partial(holds_record_header, self._store)
        tail = tail_range(shorter, holds_header=holds_header, floor_offset=floor_offset)
        if tail.start_offset >= tail.end_offset:
            return Relation.PARTED if is_longer else Relation.WITHIN
        (their_digest,) = await peer.digests([tail])
        if their_digest != await digest_of(self._store, tail):
            return Relation.PARTED
        return Relation.EXTENDS if is_longer else Relation.WITHIN

    def _whole(self, disk_id: str, extent: LogExtent) -> LogExtent:
        """Without the part of a record at its end, if a fetch has shown that there is one."""
        raw_end, whole_end = self._half_records.get(disk_id, (-1, 0))
        return replace(extent, end_offset=whole_end) if extent.end_offset == raw_end else extent

    # Taking over

    async def _fetch(self, start: MasterStart, step: Fetch) -> None:
        """Makes our log the replica's, as far as it gets: when the replica goes away, what came is kept."""
        answer = step.answer
        log.warning(
            "fetching_log", replica=answer.endpoint, ours=self._store.end_offset, theirs=answer.extent.end_offset
        )
        # A log that was being fetched when the process dies is not whole, however it is stopped.
        self.is_whole = False
        self._was_behind = self._was_behind or step.is_newer
        await asyncio.to_thread(self._store.doubt_tail)
        history = self._replica.history
        try:
            async with PeerClient(answer.endpoint) as peer:
                refusal = await self._cut_to_common(peer, answer) if answer.relation is Relation.PARTED else ""
                if refusal:
                    log.error("log_cannot_be_taken_over", replica=answer.endpoint, reason=refusal)
                    start.cannot_fetch(answer, refusal)
                    return
                if answer.relation is Relation.PARTED or answer.history.epochs != history.epochs:
                    # What we know of groups beyond our end is of messages that we gave up or lost. Others may come to
                    # stand there, and would be passed over. Before each copy: a start that dies in the middle cuts no
                    # more. Where nobody else was master since, the very same messages come.
                    await self._cut_progress()
                # What our log holds now, it shares with theirs. A version without histories leaves us ours.
                history = answer.history if answer.history.epochs else history
                self.gone_before = answer.extent.min_offset
                await self._copy(peer, answer)
                if self._store.dispatched_offset < self._store.end_offset == answer.extent.end_offset:
                    # Nobody was promised a record of which this is a part; and there is no more of it to be had.
                    self._half_records[answer.disk_id] = (answer.extent.end_offset, self._store.dispatched_offset)
        except (PeerUnavailable, RemoteProtocolError) as error:
            # With it perhaps the only copy went: ask again. What the others said is void as well, since they may not
            # extend what came so far.
            log.error("fetch_failed", replica=answer.endpoint, reason=str(error), end_offset=self._store.end_offset)
        else:
            log.warning("log_fetched", replica=answer.endpoint, end_offset=self._store.end_offset)
        await self._cut_half_record()
        await self._replica.adopt_history(history)
        start.log_changed(self._own())

    async def _copy(self, peer: PeerClient, answer: ReplicaAnswer) -> None:
        """Waits for room where the disk is full: files that nobody needs any more may go meanwhile."""
        while not self._given_up():
            start_offset = answer.extent.min_offset if self._extent().is_empty else self._store.end_offset
            try:
                async with self._alone_with_store():
                    async for offset, data in peer.read_log(LogRange(start_offset, answer.extent.end_offset)):
                        self._store.append_raw(offset, data)
                        while self._store.dispatch():
                            await asyncio.sleep(0)
                return
            except DiskFull as error:
                reason = f"there is no room for what {answer.endpoint} has more ({error}): {ROOM_REMEDY}"
                self._note_waiting(Wait(reason, end_offset=answer.extent.end_offset, needs_operator=True))
            await asyncio.sleep(ROOM_PAUSE_S)

    async def _cut_to_common(self, peer: PeerClient, answer: ReplicaAnswer) -> str:
        """Cuts our log back to what the better one shares with it, and keeps the rest aside; why not, or empty."""
        ours = self._extent()
        common = await find_common_end(peer, self._store, answer.extent)
        refusal = cut_refusal(
            common.offset,
            our_history=self._replica.history.up_to(ours.end_offset),
            their_history=answer.history,
            record_is_damaged=common.ours_is_damaged,
        )
        if refusal:
            return refusal
        if not await self._cut(common.offset, reason="a replica had a better log"):
            return "this start ends before there is room to keep what is cut off"
        return ""

    async def _cut_half_record(self, *, waits: bool = True) -> bool:
        """A slave's log, or what we got of it, may end inside a record; such a record was never acknowledged. As of
        `_cut`."""
        whole_end = self._store.dispatched_offset
        return whole_end == self._store.end_offset or await self._cut(whole_end, reason="a half record", waits=waits)

    async def _cut(self, end_offset: int, *, reason: str, waits: bool = True) -> bool:
        """Cuts our log, and keeps the rest aside. Waits for room for that, or DiskFull; False: given up before there
        was any."""
        before = self._store.end_offset
        while True:
            try:
                async with self._alone_with_store():
                    kept = self._store.truncate(end_offset, reason=reason)
            except DiskFull as error:
                if not waits:
                    raise
                if self._given_up():
                    return False
                told = f"there is no room to keep what is cut off this log ({error}): {ROOM_REMEDY}"
                self._note_waiting(Wait(told, end_offset=before, needs_operator=True))
            else:
                self._note_waiting(None)
                path = None if kept is None else str(kept.path)
                log.warning("tail_kept", reason=reason, cut_from=end_offset, cut_to=before, kept_as=path)
                return True
            await asyncio.sleep(ROOM_PAUSE_S)

    async def _is_promised(self, start: MasterStart, epoch: int) -> bool:
        """Every member that answered takes no byte of an earlier epoch any more: not from a master that we know nothing
        of, either. False: one of them went away, knows of a later epoch, or has got more log meanwhile; ask again.
        """
        for answer in start.answers:
            try:
                async with PeerClient(answer.endpoint) as peer:
                    promise = await peer.promise_epoch(
                        epoch, disk_id=self._replica.disk_id, nonce=self._replica.nonce, identity=self._identity
                    )
            except PeerUnavailable as error:
                log.warning("epoch_not_promised", replica=answer.endpoint, reason=str(error))
                start.promise_refused(answer, 0)
                return False
            if promise is None:
                continue
            promised = self._whole(
                answer.disk_id, LogExtent(min(answer.extent.min_offset, promise.end_offset), promise.end_offset)
            )
            if not promise.is_promised or promised.end_offset > answer.extent.end_offset:
                log.info("epoch_promised_before", replica=answer.endpoint, epoch=promise.epoch, wanted=epoch)
                start.promise_refused(answer, promise.epoch)
                return False
        return True

    async def _wait_before_claim(self, start: MasterStart) -> Wait | None:
        """Who claims is alone in the in-sync set from then on: not while it lacks tables that others may have."""
        if self._accepts_damage or not self._damaged_tables():
            return None
        return await self._metadata_wait(start)

    async def _metadata_wait(self, start: MasterStart) -> Wait | None:
        """Takes tables and leases over from those that answered; what it has to wait for, if it cannot begin so."""
        try:
            sources = [
                MetadataSource(
                    answer.endpoint,
                    has_parted=self._has_parted(answer),
                    is_ahead=self._was_behind and answer.rank > self._first_rank,
                    shares_history=answer.history.epochs == self._first_epochs,
                    is_new=not answer.history.epochs and not answer.extent.end_offset,
                )
                for answer in start.answers
            ]
            await self._fetch_metadata(sources, self._was_behind)
        except PeerUnavailable as error:
            reason = f"a replica does not give its topics, groups and offsets: {error}"
            return Wait(reason, end_offset=self._store.end_offset)
        damaged = self._damaged_tables()
        if damaged and not self._accepts_damage:
            # Another member may come that has them.
            return _wait_for_tables(damaged, end_offset=self._store.end_offset)
        if damaged:
            log.warning("metadata_given_up", tables=sorted(damaged), kept="beside it, as .damaged")
            self._accept_damage()
        return None

    def _has_parted(self, answer: ReplicaAnswer) -> bool:
        """Its log differs from ours, or a later master that it has followed began below our end: groups have consumed
        other messages there."""
        last_epoch, end_offset = self._replica.history.last_epoch, self._store.end_offset
        later = (start_offset for epoch, start_offset in answer.history.epochs if epoch > last_epoch)
        return answer.relation is Relation.PARTED or min(later, default=end_offset) < end_offset

    async def begin_claimed(self, epoch: int) -> None:
        """Begins an epoch that the group's record gave us since we hold all that was acknowledged: nobody is asked."""
        await self._begin(Serve(epoch, "the group's record names this replica, which holds all that is acknowledged"))

    async def _begin(self, step: Serve, answers: Sequence[ReplicaAnswer] = ()) -> bool:
        self._note_waiting(None)
        # Whoever has claimed its group keeps it from the others: it ends, and waits for room when it starts.
        if not await self._cut_half_record(waits=self._claim is None):
            return False
        self._queues_go_on()
        # Of what a replica told, too: nobody in reach has those messages any more, and others will stand there.
        await self._cut_progress()
        history = self._replica.history.begun(step.epoch, self._store.end_offset)
        await self._replica.begin_epoch(history)
        await self._replica.remember(*(memory_of(answer) for answer in answers))
        if step.given_up:
            await self._forget([memory.disk_id for memory in step.given_up])
        self._replica.is_proven = True
        log.info(
            "epoch_begun",
            epoch=step.epoch,
            start_offset=self._store.end_offset,
            reason=step.reason,
            given_up=[memory.disk_id for memory in step.given_up],
            lost_bytes=step.lost_bytes,
        )
        return True

    def _note_waiting(self, waiting: Wait | None) -> None:
        if _is_same(waiting, self.waiting) and (
            waiting is None or self._clock.monotonic_ms() - self._told_waiting_ms < _RETELL_MS
        ):
            self.waiting = waiting
            return
        now_ms = self._clock.monotonic_ms()
        if self.waiting is None:
            self.waiting_since_ms = now_ms
        self.waiting = waiting
        self._told_waiting_ms = now_ms
        if waiting is not None and waiting.is_acceptable:
            log.error(
                "master_waits",
                reason=waiting.reason,
                lost_bytes=waiting.lost_bytes,
                remedy=f"start the missing replica, or: tandemmq broker accept-loss {self._identity.broker_name}",
            )
        elif waiting is not None and waiting.needs_operator:
            log.error("master_waits", reason=waiting.reason)
        elif waiting is not None:
            log.info("master_waits", reason=waiting.reason)
        self._state_changed()


def _is_same(waiting: Wait | None, before: Wait | None) -> bool:
    """To those who are told: when somebody was last seen is no news."""
    if waiting is None or before is None:
        return waiting is before
    return (waiting.reason, waiting.lost_bytes, waiting.is_acceptable) == (
        before.reason,
        before.lost_bytes,
        before.is_acceptable,
    )


def _wait_for_tables(damaged: Mapping[str, str], *, end_offset: int) -> Wait:
    told = tuple(sorted(damaged.items()))
    return Wait(
        "these tables are damaged, and no replica in reach has them: "
        + "; ".join(f"{file} ({problem})" for file, problem in told),
        end_offset=end_offset,
        damaged_tables=told,
        needs_operator=True,
    )


def _answer_of(
    endpoint: str, theirs: PeerLog, extent: LogExtent, relation: Relation, remembers: tuple[ReplicaMemory, ...]
) -> ReplicaAnswer:
    return ReplicaAnswer(
        broker_id=theirs.broker_id,
        endpoint=endpoint,
        disk_id=theirs.disk_id,
        extent=extent,
        history=theirs.history,
        relation=relation,
        serving=theirs.serving,
        remembers=remembers,
        promised_epoch=theirs.promised_epoch,
        record_version=theirs.record_version,
    )


@dataclass(frozen=True, slots=True)
class LeasesAhead:
    """Of a replica whose leases may say more than ours, and may not say all that ours do."""

    endpoint: str
    reason: str
    """Why it may know more."""
    replay: LeaseReplay
    min_offset: PhysicalOffset
    """Where its log begins."""


# Before a master serves: what it takes from its replicas beside the log. Nothing of it says that a log is whole.


@dataclass(frozen=True, slots=True)
class MetadataSource:
    """A replica that a starting master asks for tables and leases."""

    endpoint: str
    has_parted: bool = False
    """Its log differs from ours: what groups have consumed there may be of other messages."""
    is_ahead: bool = False
    """It has what our disk lacked, so its leases may be newer than ours."""
    shares_history: bool = False
    """It knows of no epoch that our disk had not heard of: what groups have consumed here they have consumed there."""
    is_new: bool = False
    """Nothing was ever written there: it most likely has nothing, and that it does not say so alarms nobody."""


async def fetch_metadata(
    sources: Sequence[MetadataSource],
    tables: MetadataTables,
    leases: LeaseStorage,
    *,
    is_behind: bool,
    is_whole: bool = True,
) -> list[LeasesAhead]:
    """Takes over what the replicas know better than we do; returns the leases that are to be merged into ours once they
    are loaded. PeerUnavailable: what is needed cannot be had yet. `is_whole`: our disk lost nothing with the last run;
    a journal that a loss of power made shorter looks like any other."""
    has_leases, ahead = False, list[LeasesAhead]()
    is_less = bool(sources) and (not is_whole or await asyncio.to_thread(lambda: leases.is_damaged))
    for source in sources:
        try:
            async with PeerClient(source.endpoint) as peer:
                await recover_metadata(peer, tables, leases, with_progress=not source.has_parted)
        except PeerUnavailable as error:
            if is_behind or tables.damaged:
                raise
            log.warning("metadata_not_compared", replica=source.endpoint, reason=str(error))
        if source.has_parted:
            continue
        if not has_leases:
            # Of who is ahead: it may be about to open them, as the slave that it becomes when it hears of us.
            attempts = _LEASES_ATTEMPTS if source.is_ahead else 1
            replaces = source.is_ahead and not source.shares_history
            recover = partial(recover_leases, tables=tables, storage=leases, replace=replaces)
            has_leases = await _asked(source, recover, attempts=attempts, effect="messages come again") or False
            if not has_leases and (is_less or (source.is_ahead and source.shares_history)):
                # Its copy may be older than what our disk kept beside the damaged log, or in a damaged journal.
                reason = "ours may have lost something" if is_less else "it had what this disk lacked"
                copied = partial(copied_leases, tables=tables, reason=reason)
                found = await _asked(source, copied, attempts=attempts, effect="messages come again")
                if found is not None:
                    ahead.append(found)
        # It answered a moment ago, and what was acknowledged there is known nowhere else.
        found = await _asked(
            source,
            partial(leases_ahead, tables=tables),
            attempts=_AHEAD_ATTEMPTS,
            effect="acknowledged messages come again",
        )
        if found is not None:
            ahead.append(found)
    return ahead


def merge_leases(ahead: Sequence[LeasesAhead], leases: LeaseTable, *, now_ms: int) -> bool:
    """Into a starting master's leases, once they are loaded, and before it gives anything. Whether there was any."""
    for one in ahead:
        merged = leases.merge(one.replay, now_ms=now_ms, their_min_offset=one.min_offset)
        log.warning(
            "slave_progress_merged",
            replica=one.endpoint,
            finished=merged.finished_count,
            leased=merged.leased_count,
            reason=one.reason,
        )
    return bool(ahead)


async def _asked(
    source: MetadataSource, ask: Callable[[PeerClient], Awaitable[AnswerT]], *, attempts: int, effect: str
) -> AnswerT | None:
    """A replica's leases, if it gives them in so many attempts: no master stays away for them."""
    reason = ""
    for attempt in range(attempts):
        if attempt:
            await asyncio.sleep(ASK_PAUSE_S)
        try:
            async with PeerClient(source.endpoint) as peer:
                return await ask(peer)
        except PeerUnavailable as error:
            reason = str(error)
    tell = log.info if source.is_new else log.warning
    tell("leases_not_fetched", replica=source.endpoint, reason=reason, effect=effect)
    return None


async def recover_metadata(
    peer: PeerClient, tables: MetadataTables, storage: LeaseStorage, *, with_progress: bool = True
) -> list[str]:
    """Fetches the tables of one replica into a starting master's, durably; one line for each entry that came of it.
    What operators did, and this disk does not know of, is done in its leases as well.

    To be called for each replica that answered. PeerUnavailable when it went away meanwhile: ask it again, what came
    stays.
    """
    came: list[str] = []
    for file in tables.by_file:
        if file is MetadataFile.CONSUMER_OFFSETS and not with_progress:
            continue
        _, text = await peer.metadata_table(file, None, accept_copy=True)
        if not text:
            if text is None:
                log.warning("metadata_damaged_at_replica", table=file.value, replica=peer.endpoint)
            continue
        try:
            if file is MetadataFile.CONSUMER_OFFSETS:
                acts = _acts_in(text, tables.consumer_offsets.marks)
                # First: once the table knows of an act, nobody asks for it any more.
                await asyncio.to_thread(storage.obey, acts)
            await tables.settled()
            lines = tables.merge_replica(file, text)
        except MetadataCorrupt as error:
            log.error("metadata_unreadable", table=file.value, replica=peer.endpoint, error=str(error))
            continue
        if lines:
            log.warning("metadata_recovered", table=file.value, replica=peer.endpoint, entries=len(lines))
        came += lines
    return came


def _acts_in(text: str, marks: OperatorMarks) -> OperatorActs:
    """What operators did as a replica's table says, and one with these marks does not know."""
    theirs = ConsumerOffsetTable()
    theirs.load_json(text)
    return theirs.acts_since(marks)


async def recover_leases(peer: PeerClient, tables: MetadataTables, storage: LeaseStorage, *, replace: bool) -> bool:
    """Before a starting master's `load`: takes a replica's copy of the leases in place of files that hold nothing, or
    with `replace`, because the disk is older than the replica, of any. True when it did. What operators did as `tables`
    say, and the replica's own do not, is done in them.

    PeerUnavailable when the replica has none, or went away: leases may be forgotten, their messages come again.
    """
    if not replace and not await asyncio.to_thread(lambda: storage.is_blank):
        return False
    # Before its leases: of what it is told meanwhile they may know more, and never less.
    acts = await _acts_unknown_to(peer, tables)
    change = (await peer.leases(NO_LEASES, accept_copy=True)).obeying(acts)
    copy = LeaseCopy(storage.disk)
    await asyncio.to_thread(copy.take, change)
    await asyncio.to_thread(copy.close)
    log.warning(
        "leases_fetched",
        replica=peer.endpoint,
        snapshot_bytes=len(change.snapshot or b""),
        journal_bytes=len(change.journal),
    )
    return True


async def copied_leases(peer: PeerClient, tables: MetadataTables, *, reason: str) -> LeasesAhead:
    """A replica's copy of the leases, to be merged. PeerUnavailable when it has none, or went away."""
    acts = await _acts_unknown_to(peer, tables)
    change = await peer.leases(NO_LEASES, accept_copy=True)
    return await _leases_of(peer, change, acts, reason=reason)


async def leases_ahead(peer: PeerClient, tables: MetadataTables) -> LeasesAhead | None:
    """What a slave that served reads knows of groups; None: it knows no more than its master did. PeerUnavailable."""
    if await peer.leases_ahead() is None:
        return None
    acts = await _acts_unknown_to(peer, tables)
    change = await peer.leases_ahead()
    if change is None:
        return None
    return await _leases_of(peer, change, acts, reason="it served reads while the group had no master")


async def _leases_of(peer: PeerClient, change: LeaseChange, acts: OperatorActs, *, reason: str) -> LeasesAhead:
    extent = (await peer.log()).extent
    replay = LeaseReplay.of_files(change.snapshot or b"", change.journal)
    replay.obey(acts)
    return LeasesAhead(peer.endpoint, reason, replay, PhysicalOffset(extent.min_offset))


async def _acts_unknown_to(peer: PeerClient, tables: MetadataTables) -> OperatorActs:
    """What operators did as our tables say, and the replica's own do not."""
    theirs = ConsumerOffsetTable()
    _, text = await peer.metadata_table(MetadataFile.CONSUMER_OFFSETS, None, accept_copy=True)
    with suppress(MetadataCorrupt):
        theirs.load_json(text or "{}")
    return tables.consumer_offsets.acts_since(theirs.marks)
