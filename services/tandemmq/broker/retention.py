"""Lets old files go that nobody needs, and tells when a full disk or a wrong clock is in the way.

The core decides (`tandemmq/core/storage/retention.py`); here is found out who needs what. That is
asked only when a file should go or the disk is short of room: with ten thousand topics it takes a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.lite_topics import LiteTopics, parent_of_lmq, split_lmq_name
from tandemmq.core.delivery.timer_queue import TimerQueue
from tandemmq.core.message.record import TIMER_TOPIC
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.replication.master_replica import SlaveView
from tandemmq.core.routing.values import host_of
from tandemmq.core.storage.consume_queue import ConsumeQueue
from tandemmq.core.storage.disk import Disk, DiskError
from tandemmq.core.storage.retention import BelievedTime, ExpiryWish, Hold, RetentionFloor, SavedTime
from tandemmq.service.event_loop import TurnLimit

if TYPE_CHECKING:
    from tandemmq.broker.slave.follower import MasterAddress
    from tandemmq.core.delivery.lease_table import LeaseTable
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 10.0
_CLOCK_PATH: Final = "config/retentionClock.json"
_TICKS_PER_SAVE: Final = 30
_HOSTS_MAX: Final = 16
_LOSS_TOLD_MS: Final = 24 * 3_600_000


class Floor(Protocol):
    """Who needs what of the log, in one role."""

    @property
    def takes_sends(self) -> bool:
        """Producers notice a full disk in this role."""

    async def floor(self, wish: ExpiryWish) -> RetentionFloor:
        """Asked every ten seconds. An empty wish needs no answer."""


class Retention:
    """One task of a broker. Files are deleted off the loop, where it blocks. `floor` gives that of the role it has."""

    def __init__(
        self,
        store: MessageStore,
        *,
        disk: Disk,
        clock: Clock,
        floor: Callable[[], Floor],
        expired: Callable[[], None] = lambda: None,
    ) -> None:
        """`expired` is told when files have gone, and queues are in line with it."""
        self._expired = expired
        self._store = store
        self._disk = disk
        self._clock = clock
        self._floor = floor
        self._time: BelievedTime | None = None
        self._ticks_until_save = 0
        self._told_refusal = False
        self._told_jump = False
        self._loss: str | None = None
        self._lost_ms = 0
        self.deleted_needed_bytes = 0
        """Bytes that somebody still needed, deleted because a setting allows it."""

    @property
    def problems(self) -> list[str]:
        """What an operator should know of, with its remedy; empty when all is well."""
        clock = self._time.problem if self._time is not None else None
        if self._loss is not None and self._clock.monotonic_ms() - self._lost_ms > _LOSS_TOLD_MS:
            self._loss = None
        return [problem for problem in (clock, self._store.retention_problem, self._loss) if problem is not None]

    @property
    def clock_jumped_ms(self) -> int:
        """How far the wall clock is ahead (below 0: behind) while it is not believed, else 0."""
        return self._time.jumped_ms if self._time is not None else 0

    async def run(self) -> None:
        """Looks every ten seconds until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Lets go what may go now."""
        time = await self._believed_time()
        wish = self._store.expiry_wish(time)
        floor = self._floor()
        job = self._store.expire(wish, await floor.floor(wish))
        if job is not None:
            log.info("files_expired", files=job.paths)
            for hold, lost_bytes in job.lost:
                self._tell_of_loss(hold, lost_bytes)
            await asyncio.to_thread(job.run)
        while self._store.trim_queues():
            await asyncio.sleep(0)
        if job is not None:
            self._expired()
        if floor.takes_sends:
            self._tell_of_full_disk()

    # Time

    async def _believed_time(self) -> BelievedTime:
        time = self._time
        if time is None:
            time = self._time = await asyncio.to_thread(self._first_time)
        else:
            time.look(
                wall_ms=self._clock.wall_ms(),
                monotonic_ms=self._clock.monotonic_ms(),
                jump_max_ms=self._store.clock_jump_max_ms,
            )
        has_changed = self._tell_of_clock(time)
        if has_changed or self._ticks_until_save <= 0:
            self._ticks_until_save = _TICKS_PER_SAVE
            # A disk that fails is found out by those who need it. Without this file files are kept for longer.
            with suppress(DiskError):
                await asyncio.to_thread(self._disk.write_file, _CLOCK_PATH, time.to_save().to_json())
        self._ticks_until_save -= 1
        return time

    def _first_time(self) -> BelievedTime:
        """Blocks."""
        text = self._disk.read_file(_CLOCK_PATH)
        return BelievedTime(
            boot_id=self._disk.boot_id(),
            saved=None if text is None else SavedTime.from_json(text),
            newest_ms=self._store.newest_file_ms(),
            wall_ms=self._clock.wall_ms(),
            monotonic_ms=self._clock.monotonic_ms(),
            jump_max_ms=self._store.clock_jump_max_ms,
        )

    def _tell_of_clock(self, time: BelievedTime) -> bool:
        """One line when the wall clock is not believed any more, and one when it is again; True if there was one."""
        has_jumped = time.problem is not None
        if has_jumped == self._told_jump:
            return False
        self._told_jump = has_jumped
        if has_jumped:
            log.error("clock_jumped", by_ms=time.jumped_ms, problem=time.problem)
        else:
            log.info("clock_believed_again")
        return True

    # Words

    def _tell_of_loss(self, hold: Hold, lost_bytes: int) -> None:
        self.deleted_needed_bytes += lost_bytes
        log.error("needed_files_deleted", bytes=lost_bytes, holder=hold.holder)
        self._lost_ms = self._clock.monotonic_ms()
        self._loss = (
            f"{lost_bytes} bytes were deleted that were kept for {hold.holder}: unreadReservedTime or "
            "unreplicatedReservedTime was over; this is told for a day after the last such deletion"
        )

    def _tell_of_full_disk(self) -> None:
        """One line when sends begin to be refused, and one when they are taken again."""
        refusal = self._store.refusal
        if (refusal is not None) == self._told_refusal:
            return
        self._told_refusal = refusal is not None
        if refusal is not None:
            log.error("sends_refused", reason=refusal)
        else:
            log.info("sends_taken_again")


class SlaveFloor:
    """A slave deletes what its master has deleted: asked for when something should go."""

    takes_sends: Final = False

    def __init__(self, master: Callable[[], MasterAddress | None]) -> None:
        self._master = master
        self._has_known_metadata = False

    async def floor(self, wish: ExpiryWish) -> RetentionFloor:
        if wish.is_empty:
            return RetentionFloor()
        address = self._master()
        if address is not None and address.metadata is not None:
            self._has_known_metadata = True
            with suppress(PeerUnavailable):
                async with PeerClient(address.metadata) as peer:
                    return RetentionFloor(master=_master_hold((await peer.log()).extent.min_offset))
        elif address is not None and not self._has_known_metadata:
            # A foreign master does not say what it deleted: what is older than it keeps its files.
            return RetentionFloor(unread=_master_hold(0))
        return RetentionFloor(
            master=Hold(0, "the master, which does not say what it has deleted", "start it, or make room on this disk")
        )


def _master_hold(min_offset: int) -> Hold:
    remedy = "a slave deletes only what its master has deleted; make room here, or lower fileReservedTime on the master"
    return Hold(min_offset, "the master, which has them too", remedy)


_NOT_KNOWN_YET: Final = (
    "a master that begins, and does not know yet who needs them",
    "see `tandemmq status` for what it waits for",
)


class _Place(NamedTuple):
    """Where a group goes on in a queue."""

    offset: int
    holder: str
    group_count: int
    """How many groups have a place in the queue; this one's is the lowest."""


class MasterFloor:
    """A master keeps what a slave or a consumer group needs, delayed messages that wait (`timers`), and undecided
    transactions. What these are it reads from its log as it begins: all is kept until it serves, but for what its group
    has let go. `begins_behind` gives the end of that; None: it serves.

    `absent_replicas` gives the last known end of the log of slaves by broker id, of this run or before; connected ones
    may be among them. `forget_replica` when one has left for good.
    """

    takes_sends: Final = True

    def __init__(
        self,
        store: MessageStore,
        *,
        clock: Clock,
        leases: LeaseTable,
        stored: ConsumerOffsetTable,
        topics: TopicTable,
        is_system_topic: Callable[[str], bool],
        slaves: Callable[[], Sequence[SlaveView]],
        slave_count: int,
        begins_behind: Callable[[], int | None] = lambda: None,
        transactions: Callable[[], Hold | None] = lambda: None,
        timers: TimerQueue | None = None,
        lite: LiteTopics | None = None,
        absent_replicas: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._store = store
        self._clock = clock
        self._leases = leases
        self._stored = stored
        self._topics = topics
        self._is_system_topic = is_system_topic
        self._slaves = slaves
        self._slave_count = slave_count
        self._begins_behind = begins_behind
        self._transactions = transactions
        self._timers = timers
        self._lite = lite
        self._absent_replicas = absent_replicas
        self._heard: dict[int, int] = {}
        """Last acknowledged offset by broker id."""
        self._nameless: dict[str, int] = {}
        """The same of slaves that did not say who they are, by host."""
        self._physical: dict[tuple[str, int], tuple[int, int]] = {}
        """Where the record lies a queue was held at last: reading an entry may wait for the disk."""

    def forget_replica(self, broker_id: int) -> None:
        """The slave is none any more: nothing is kept for it."""
        self._heard.pop(broker_id, None)

    async def floor(self, wish: ExpiryWish) -> RetentionFloor:
        """See Floor. Others have their turn after each millisecond."""
        if wish.is_empty:
            return RetentionFloor(replica=self._replica_hold())
        if (gone_before := self._begins_behind()) is not None:
            return RetentionFloor(master=Hold(gone_before, *_NOT_KNOWN_YET), replica=self._replica_hold())
        reader, unread = await self._reader_holds()
        undecided = self._transactions()
        if undecided is not None and (reader is None or undecided.offset < reader.offset):
            reader = undecided
        # After the wait: a slave may have come meanwhile.
        return RetentionFloor(replica=self._replica_hold(), reader=reader, unread=unread)

    # Slaves

    def _replica_hold(self) -> Hold | None:
        needs = [(offset, f"slave {broker_id}") for broker_id, offset in self._replica_ends().items()]
        needs += [(offset, f"the slave at {host}") for host, offset in self._nameless.items()]
        if not needs:
            return None
        offset, name = min(needs)
        remedy = "start it; if it is gone for good, see 'The disk fills up' in docs/operations/what-to-do-when.md"
        return Hold(offset, f"{name}, which does not have them", remedy)

    def _replica_ends(self) -> dict[int, int]:
        """By broker id; looks at the nameless ones on the way."""
        connected = self._slaves()
        for slave in connected:
            host = host_of(slave.peer)
            if slave.broker_id is not None:
                self._heard[slave.broker_id] = slave.acked_offset
                self._nameless.pop(host, None)
            else:
                self._nameless[host] = slave.acked_offset
        ends = dict(self._absent_replicas()) | self._heard
        ends |= {slave.broker_id: slave.acked_offset for slave in connected if slave.broker_id is not None}
        here = {host_of(slave.peer) for slave in connected if slave.broker_id is None}
        if len(ends) >= self._slave_count:
            # All are known by name: who left without one came back, perhaps from elsewhere.
            self._nameless = {host: offset for host, offset in self._nameless.items() if host in here}
        while len(self._nameless) > max(_HOSTS_MAX, len(here)):
            del self._nameless[next(host for host in self._nameless if host not in here)]
        return ends

    # Groups

    async def _reader_holds(self) -> tuple[Hold | None, Hold | None]:
        """Of the group that has read least, and of what no group has ever read from."""
        turn = TurnLimit(self._clock)
        places, group_counts = await self._places(turn)
        reader: tuple[int, str] | None = None
        unread: tuple[int, str] | None = None
        seen: set[tuple[str, int]] = set()
        for queue in list(self._store.queues):
            topic, queue_id = queue.topic, queue.queue_id
            key = (topic, queue_id)
            seen.add(key)
            if turn.is_reached:
                await turn.pause()
            config, place = self._topics.get(topic), places.get(key)
            group_count = group_counts.get(topic, 0)
            is_delivered = config is not None and queue_id < config.read_queue_count
            if is_delivered and group_count and (place is None or place.group_count < group_count):
                # In a queue that is new to it a group begins at the oldest message.
                place = _Place(0, "a group of the topic", 0)
            if place is None and (config is None or self._is_system_topic(topic)):
                continue
            offset = self._physical_offset(queue, place.offset if place is not None else 0)
            if offset is None:
                continue
            if place is None:
                if unread is None or offset < unread[0]:
                    unread = offset, f"topic {topic}, of which no group has read queue {queue_id}"
            elif reader is None or offset < reader[0]:
                reader = offset, f"{place.holder}, which has not read them in queue {queue_id} of topic {topic}"
        self._physical = {key: place for key, place in self._physical.items() if key in seen}
        return (
            None
            if reader is None
            else Hold(*reader, "start its consumers, move it on (tandemmq group reset), or delete it"),
            None
            if unread is None
            else Hold(*unread, "let a group read it, lower fileReservedTime, or set deleteUnreadWhenFull=true"),
        )

    async def _places(self, turn: TurnLimit) -> tuple[dict[tuple[str, int], _Place], dict[str, int]]:
        """Of each queue that groups have read the lowest place, and how many groups have read of each topic."""
        places: dict[tuple[str, int], _Place] = {}
        group_counts: dict[str, int] = {}
        lite_parents: set[str] = set()
        for group, topic in dict.fromkeys([*self._leases.pairs(), *self._stored.pairs()]):
            offsets: dict[int, int] = self._stored.offsets_of(group, topic)
            offsets.update({state.queue_id: state.committed_offset for state in self._leases.progress_of(group, topic)})
            if self._lite is not None and (parent := parent_of_lmq(topic)) is not None:
                self._lite_place(self._lite, group, topic, offsets, places)
                lite_parents.add(parent)
                if turn.is_reached:
                    await turn.pause()
                continue
            if offsets:
                group_counts[topic] = group_counts.get(topic, 0) + 1
            for queue_id, offset in offsets.items():
                before = places.get((topic, queue_id))
                if before is None:
                    places[topic, queue_id] = _Place(offset, f"group {group}", 1)
                elif offset < before.offset:
                    places[topic, queue_id] = _Place(offset, f"group {group}", before.group_count + 1)
                else:
                    places[topic, queue_id] = before._replace(group_count=before.group_count + 1)
            if turn.is_reached:
                await turn.pause()
        if self._lite is not None:
            for parent in lite_parents.intersection(self._lite.parents()):
                # Of what is in no lite topic that a group reads nothing is kept, but for what is not read yet.
                for queue_id in self._store.queues.ids_of(parent):
                    place = _Place(self._lite.followed_offset(parent, queue_id), "a group of a lite topic", 0)
                    places.setdefault((parent, queue_id), place)
        if self._timers is not None:
            lowest = self._timers.lowest_offset
            lowest = self._timers.timer_next if lowest is None else lowest
            places[TIMER_TOPIC, 0] = _Place(lowest, "a delayed message that waits for its time", 0)
        return places, group_counts

    @staticmethod
    def _lite_place(
        lite: LiteTopics, group: str, lmq: str, offsets: dict[int, int], places: dict[tuple[str, int], _Place]
    ) -> None:
        """A group needs its parent's queue from the first message of a lite topic that it has not finished."""
        place = lite.place(lmq, offsets[0]) if 0 in offsets else None
        if place is None:
            return
        parent, lite_topic = split_lmq_name(lmq)
        before = places.get((parent, place[0]))
        if before is None or place[1] < before.offset:
            places[parent, place[0]] = _Place(place[1], f"group {group} in lite topic {lite_topic}", 0)

    def _physical_offset(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Where the first message from `offset` on lies; None when there is none. What cannot be read holds all."""
        store, key = self._store, (queue.topic, queue.queue_id)
        offset = max(offset, store.queue_min_offset(*key))
        if offset >= queue.max_offset:
            return None
        known = self._physical.get(key)
        if known is not None and known[0] == offset:
            return known[1]
        try:
            physical_offset = queue.entry(offset).physical_offset
        except DiskError as error:
            log.error("queue_unreadable", topic=queue.topic, queue_id=queue.queue_id, error=str(error))
            return store.min_offset
        if not store.min_offset <= physical_offset < store.end_offset:
            return store.min_offset
        self._physical[key] = offset, physical_offset
        return physical_offset
