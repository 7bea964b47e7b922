"""The metadata tables of one broker, their files, and who is told when they change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from tandemmq.broker.leases import LeaseFiles
from tandemmq.core.access.users_and_policies import Acl, AclTable, User, UserTable
from tandemmq.core.clock import Clock
from tandemmq.core.delivery.lite_topics import LMQ_PREFIX
from tandemmq.core.metadata.metadata_store import (
    FOLDER,
    ROCKETMQ_FILES,
    DataVersion,
    LoadedFrom,
    MetadataCorrupt,
    MetadataFile,
    MetadataStore,
    MetadataTable,
)
from tandemmq.core.metadata.offset_tables import OFFSETS_MAX, ConsumerOffsetTable, DelayOffsetTable, ProgressCut
from tandemmq.core.metadata.subscription_group_table import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    system_subscription_groups,
)
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable, system_topics
from tandemmq.core.storage.disk import Disk

if TYPE_CHECKING:
    from tandemmq.core.delivery.lease_table import LeaseTable
    from tandemmq.core.storage.consume_queue_table import ConsumeQueueTable
    from tandemmq.core.storage.message_store import MessageStore

log = structlog.get_logger(__name__)

_WRITING_ORDER: Final = (
    # Progress before its group or topic: what is still there after a crash can be removed again.
    MetadataFile.CONSUMER_OFFSETS,
    MetadataFile.DELAY_OFFSETS,
    MetadataFile.TOPICS,
    MetadataFile.SUBSCRIPTION_GROUPS,
    # A user before its policies, in either direction: nobody gets more than was meant.
    MetadataFile.USERS,
    MetadataFile.ACLS,
)
_ACCESS: Final = (MetadataFile.USERS, MetadataFile.ACLS)
_CUTS_TOLD: Final = 20
_LOSS_TOLD_MS: Final = 24 * 3_600_000
_DAMAGE_REMEDY: Final = (
    "start the other replicas of this broker group, so that the table is fetched from one of them; or restore the file "
    "from a backup"
)


class PrintedTable(Protocol):
    def to_json(self) -> str:
        """The table in RocketMQ's shape."""


class ChangeSignal:
    """Tells any number of waiters that something changed; changes between two looks fold into one."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Is set at the next change after this call."""
        return self._changed


class KeptTable(MetadataTable, PrintedTable, Protocol):
    """What each table offers: to be kept in a file, served to slaves, taken from a master, and from a replica."""

    def __len__(self) -> int: ...

    @property
    def version(self) -> DataVersion:
        """Changes with every change of the table."""

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Takes the master's table; returns what an operator should know, one line each."""

    def merge_replica(self, text: str) -> list[str]:
        """Takes what a replica holds beside ours; one line for each entry that came of it."""

    def copied(self) -> PrintedTable:
        """The table as it is now, to be printed in a thread."""


class TableWrite(NamedTuple):
    """One table as it was."""

    file: MetadataFile
    table: PrintedTable
    version: DataVersion
    is_kept: bool
    """The file before is kept aside."""
    goes_back: bool
    """The file before is of a later version."""


@dataclass(slots=True)
class MetadataWrite:
    """Tables as they were at one moment, for the thread that writes them, and who waits for it."""

    files: MetadataStore
    tables: list[TableWrite]
    """In the order of writing."""
    waiting: list[Callable[[], object]]
    new_groups: set[str]

    def run(self) -> None:
        """Blocks; DiskError when the disk refuses."""
        for file, table, version, is_kept, goes_back in self.tables:
            if is_kept:
                self.files.keep_aside(file)
            self.files.persist(file, table.to_json(), version=version, goes_back=goes_back)
        self.files.vouch()


@dataclass(slots=True)
class _Unwritten:
    """What was changed since the last write began."""

    files: set[MetadataFile] = field(default_factory=set)
    kept_aside: set[MetadataFile] = field(default_factory=set)
    waiting: list[Callable[[], object]] = field(default_factory=list)
    new_groups: set[str] = field(default_factory=set)


class NotSpread(Exception):
    """A change is durable here, and a change of master may undo it. The text says what to do."""


class MetadataTables:
    """Topics, groups and offsets.

    `topics_changed` is told after every change of the topic table, so that the routes follow. A change is written by
    one thread, together with all others that came while it wrote: who answers for a change waits for `written`. Until
    a writer is attached, and after it was closed, a change is durable when its method returns.
    """

    def __init__(self, disk: Disk, clock: Clock, *, topics_changed: Callable[[], None]) -> None:
        self._files = MetadataStore(disk)
        self._clock = clock
        self._topics_changed = topics_changed
        self.topics = TopicTable()
        self.groups = SubscriptionGroupTable()
        self.consumer_offsets = ConsumerOffsetTable()
        self.delay_offsets = DelayOffsetTable()
        self.users = UserTable()
        self.acls = AclTable()
        self.by_file: Final[dict[MetadataFile, KeptTable]] = {
            MetadataFile.TOPICS: self.topics,
            MetadataFile.SUBSCRIPTION_GROUPS: self.groups,
            MetadataFile.CONSUMER_OFFSETS: self.consumer_offsets,
            MetadataFile.DELAY_OFFSETS: self.delay_offsets,
            MetadataFile.USERS: self.users,
            MetadataFile.ACLS: self.acls,
        }
        self.access_changed: Callable[[], None] | None = None
        """Told after every change of users or policies, a master's or one that a slave took."""
        self.changes = ChangeSignal()
        self.damaged: Final[dict[MetadataFile, str]] = {}
        """Tables whose files are there and unreadable, with what is wrong; not written before another replica gave
        them."""
        self.kept: Final[dict[MetadataFile, list[str]]] = {}
        """What a slave kept although its master's table lacks it, one line each."""
        self._entries_written: dict[MetadataFile, int] = {}
        self._versions_written: dict[MetadataFile, DataVersion] = {}
        self._system_topics: Sequence[TopicConfig] = ()
        self.spread: Callable[[], Awaitable[None]] | None = None
        """In a group that fails over: has the members that may become master take the tables now."""
        self._kick: Callable[[], None] | None = None
        self._unwritten = _Unwritten()
        self._write: MetadataWrite | None = None
        self._cuts: dict[tuple[str, int], int] = {}
        """By topic and queue id how far a group had come beyond the end, since the last `settle_cuts`."""
        self._lost_places: dict[tuple[str, int], tuple[int, int]] = {}
        self._lost_ms = 0

    def note_cut(self, topic: str, queue_id: int, offset: int) -> None:
        """A group had come so far in a queue that ends before."""
        if offset <= OFFSETS_MAX:
            self._cuts[topic, queue_id] = max(offset, self._cuts.get((topic, queue_id), 0))

    def load(self, *, cluster: str, broker_name: str, auto_create_topic: bool, was_used: bool = False) -> None:
        """Reads the files and adds what every broker has from its first boot; see `damaged`. `was_used`: messages came
        to this disk, so that each of RocketMQ's files was there, and one that is gone is damaged as well. An older copy
        is then no table either: its last change was confirmed. One of users or policies never is: it may have somebody
        who was removed since. Nor are there policies without users."""
        missing: list[str] = []
        for file, table in self.by_file.items():
            try:
                source = self._files.load(file, table, accepts_backup=not was_used and file not in _ACCESS)
                is_missed = was_used and file in ROCKETMQ_FILES
                if file is MetadataFile.USERS:
                    is_missed = self._files.read(MetadataFile.ACLS) is not None
                if source is LoadedFrom.NOWHERE and is_missed and not self._files.is_untouched(file):
                    raise MetadataCorrupt(f"{FOLDER}/{file.value}: the file is gone")
            except MetadataCorrupt as error:
                self.damaged[file] = str(error)
                log.error("metadata_damaged", file=file.value, error=str(error), remedy=_DAMAGE_REMEDY)
                continue
            if source is LoadedFrom.BACKUP:
                log.warning("metadata_from_backup", file=file.value)
            elif source is LoadedFrom.NOWHERE and file in ROCKETMQ_FILES:
                missing.append(file.value)
            self._note_written(file)
        if 0 < len(missing) < len(ROCKETMQ_FILES):
            log.warning("metadata_missing", files=missing)
        self._system_topics = system_topics(
            cluster=cluster, broker_name=broker_name, auto_create_topic=auto_create_topic
        )
        self._add_system()
        self.persist_all()

    def _add_system(self) -> None:
        self.topics.add_system(self._system_topics)
        self.groups.add_system(system_subscription_groups())

    def accept_damage(self) -> list[str]:
        """An operator goes on without what is damaged, or with the older copy of it where there is one; what that was,
        one line each. Files are kept: `.damaged`."""
        given_up = list(self.damaged.values())
        for file in list(self.damaged):
            with suppress(MetadataCorrupt):
                if self._files.load_newest(file, self.by_file[file]) is LoadedFrom.BACKUP:
                    log.warning("metadata_from_backup", file=file.value)
        self._add_system()
        self.damaged.clear()
        self.persist_all()
        for file in (MetadataFile.TOPICS, MetadataFile.USERS):
            self._tell(file)
        return given_up

    def merge_replica(self, file: MetadataFile, text: str) -> list[str]:
        """Takes, durably, what a replica holds beside ours, before a master serves; one line for each entry that came
        of it. MetadataCorrupt: the text is none; nothing was changed.

        Again, or in another order of the replicas, it comes to the same. A table that nobody ever changed says nothing
        about a damaged one: the replica's disk may be new.
        """
        table = self.by_file[file]
        came = table.merge_replica(text)
        if file is MetadataFile.DELAY_OFFSETS or table.version.timestamp_ms > 0:
            self.damaged.pop(file, None)
        self.persist(file)
        self._tell(file)
        return came

    def renew(self) -> None:
        """Of a master that begins: each slave takes the tables once, whatever it holds under a version of before."""
        now_ms = self._clock.wall_ms()
        for file, table in (
            (MetadataFile.TOPICS, self.topics),
            (MetadataFile.SUBSCRIPTION_GROUPS, self.groups),
            (MetadataFile.CONSUMER_OFFSETS, self.consumer_offsets),
            (MetadataFile.USERS, self.users),
            (MetadataFile.ACLS, self.acls),
        ):
            table.renew(now_ms=now_ms)
            self._changed(file)
        self.changes.notify()

    def note_queue_ends(self, store: MessageStore) -> None:
        """Writes down the next numbers of queues that have no messages, for every member that comes after."""
        queues = store.queues
        ends, log_offset = queues.without_records(), max(store.min_offset, queues.told_from)
        if self.consumer_offsets.note_queue_ends(ends, log_offset, now_ms=self._clock.wall_ms()):
            self._edited(MetadataFile.CONSUMER_OFFSETS)

    def empty_queues_go_on(self, store: MessageStore) -> None:
        """Of a master that begins, before progress is cut: queues of which its log has no message go on with the
        highest number that anybody knows."""
        self.note_queue_ends(store)

        def is_empty(topic: str, queue_id: int) -> bool:
            return not topic.startswith(LMQ_PREFIX) and not store.queues.has_records(topic, queue_id)

        if self.consumer_offsets.note_consumed_ends(is_empty, store.min_offset, now_ms=self._clock.wall_ms()):
            self._edited(MetadataFile.CONSUMER_OFFSETS)
        ends = self.consumer_offsets.queue_ends()
        count = sum(store.queues.go_on_at(topic, queue_id, end.next_number) for topic, queue_id, end in ends)
        if count:
            log.info("queues_go_on", reason="their messages expired before this disk had them", queues=count)

    def queues_begun_again(self, queues: ConsumeQueueTable) -> dict[tuple[str, int], int]:
        """Queues whose numbers began again after they had come further, with the first one that is still there."""
        found: dict[tuple[str, int], int] = {}
        for topic, queue_id, end in self.consumer_offsets.queue_ends():
            queue = queues.get(topic, queue_id)
            if queue is None or queue.min_offset >= end.next_number:
                continue
            first = queue.first_behind(end.log_offset)
            if first is not None and first < end.next_number:
                found[topic, queue_id] = first
        return found

    def forget_queue_ends(self, queues: Collection[tuple[str, int]]) -> None:
        """Another numbering is valid in these queues."""
        if queues:
            self.consumer_offsets.forget_queue_ends(queues, now_ms=self._clock.wall_ms())
            self._edited(MetadataFile.CONSUMER_OFFSETS)

    def cut_progress(self, queue_end: Callable[[str, int], int]) -> list[ProgressCut]:
        """Brings groups' progress beyond a queue's end back to it. `queue_end` knows the end of a queue by topic and
        queue id."""
        cuts = self.consumer_offsets.cut(queue_end, now_ms=self._clock.wall_ms())
        if cuts:
            self._edited(MetadataFile.CONSUMER_OFFSETS)
        return cuts

    def settle_cuts(self, queue_end: Callable[[str, int], int]) -> None:
        """Of a master that begins to serve: what a group had got and no log in reach has is lost. What a replica has
        given back meanwhile is not."""
        ends = {queue: (queue_end(*queue), offset) for queue, offset in self._cuts.items()}
        self._cuts.clear()
        self._lost_places = {queue: span for queue, span in ends.items() if span[0] < span[1]}
        self._lost_ms = self._clock.monotonic_ms()

    def lost_places(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """By topic and queue id the queue offsets, half-open, of messages that groups have got and that are lost. For a
        day: nobody can give them back."""
        if self._clock.monotonic_ms() - self._lost_ms > _LOSS_TOLD_MS:
            self._lost_places = {}
        return self._lost_places

    def attach(self, kick: Callable[[], None]) -> None:
        """From now on a worker writes: `kick` wakes it, `take_write` gives it what to do."""
        self._kick = kick

    def take_write(self) -> MetadataWrite | None:
        """Everything that was changed; None without anything."""
        unwritten, self._unwritten = self._unwritten, _Unwritten()
        if not unwritten.files:
            return None
        tables: list[TableWrite] = []
        for file in _WRITING_ORDER:
            if file in unwritten.files:
                goes_back = self._note_written(file)
                table, is_kept = self.by_file[file], file in unwritten.kept_aside
                tables.append(TableWrite(file, table.copied(), table.version, is_kept, goes_back))
        self._write = MetadataWrite(self._files, tables, unwritten.waiting, unwritten.new_groups)
        return self._write

    def write_finished(self, write: MetadataWrite) -> None:
        """Answers who waited."""
        self._write = None
        for done in write.waiting:
            done()

    def when_written(self, done: Callable[[], object]) -> None:
        """Calls `done` when everything changed so far is durable; at once when it is."""
        if self._unwritten.files:
            self._unwritten.waiting.append(done)
        elif self._write is not None:
            self._write.waiting.append(done)
        else:
            done()

    async def settled(self) -> None:
        """Returns when no thread writes a table. `persist_all` and `merge_replica` come then, before anybody else runs:
        of two that write a file at once one fails, or the older text stays."""
        while self._write is not None:
            is_written = asyncio.Event()
            self._write.waiting.append(is_written.set)
            await is_written.wait()

    def when_group_written(self, group: str, done: Callable[[], object]) -> None:
        """The same for a group that `put_group` made: others do not wait for it."""
        if group in self._unwritten.new_groups:
            self._unwritten.waiting.append(done)
        elif self._write is not None and group in self._write.new_groups:
            self._write.waiting.append(done)
        else:
            done()

    async def written(self) -> None:
        """Returns when everything changed so far is durable here."""
        is_written = asyncio.Event()
        self.when_written(is_written.set)
        await is_written.wait()

    async def confirmed(self) -> None:
        """Of a serving master, before anybody is told of a change: it is durable, and outlives a change of master.
        NotSpread."""
        await self.written()
        if self.spread is not None:
            await self.spread()

    def _changed(self, file: MetadataFile) -> None:
        if file in self.damaged:
            return
        if self._kick is None:
            self.persist(file)
        else:
            self._unwritten.files.add(file)
            self._kick()

    def put_topic(self, config: TopicConfig) -> None:
        """Adds or changes a topic of the broker's own accord. Raises InvalidTopic."""
        if self.topics.put(config, now_ms=self._clock.wall_ms()):
            self.topics_edited()
            log.info("topic_created", by="broker", topic=config.topic_name, write_queues=config.write_queue_count)

    def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Adds or changes a group of the broker's own accord. Raises InvalidGroup."""
        if self.groups.put(config, now_ms=self._clock.wall_ms()):
            self.groups_edited()
            if MetadataFile.SUBSCRIPTION_GROUPS in self._unwritten.files:
                self._unwritten.new_groups.add(config.group_name)
            log.info("consumer_group_created", by="broker", group=config.group_name)

    def topics_edited(self) -> None:
        """The topic table was changed in place."""
        self._edited(MetadataFile.TOPICS)

    def groups_edited(self) -> None:
        """The group table was changed in place."""
        self._edited(MetadataFile.SUBSCRIPTION_GROUPS)

    def _edited(self, file: MetadataFile) -> None:
        self._changed(file)
        self._tell(file)

    def _tell(self, file: MetadataFile) -> None:
        """Routes follow topics, who may call follows users and policies, and slaves follow all."""
        if file is MetadataFile.TOPICS:
            self._topics_changed()
        if file in _ACCESS and self.access_changed is not None:
            self.access_changed()
        self.changes.notify()

    # Users and policies

    def put_user(self, user: User) -> bool:
        """Adds or changes a user; False: it is just so. Raises InvalidUser."""
        is_new = self.users.put(user, now_ms=self._clock.wall_ms())
        if is_new:
            self._edited(MetadataFile.USERS)
        return is_new

    def remove_user(self, username: str) -> bool:
        """Removes a user and its policies; False: there is no such user."""
        now_ms = self._clock.wall_ms()
        existed = self.users.remove(username, now_ms=now_ms)
        if existed:
            self._edited(MetadataFile.USERS)
        if self.acls.remove(f"User:{username}", now_ms=now_ms):
            self._edited(MetadataFile.ACLS)
        return existed

    def put_acl(self, acl: Acl) -> bool:
        """Adds or changes the policies of a subject; False: they are just so. Raises InvalidAcl."""
        is_new = self.acls.put(acl, now_ms=self._clock.wall_ms())
        if is_new:
            self._edited(MetadataFile.ACLS)
        return is_new

    def remove_acl(self, subject: str) -> bool:
        """Removes the policies of a subject; False: it has none."""
        existed = self.acls.remove(subject, now_ms=self._clock.wall_ms())
        if existed:
            self._edited(MetadataFile.ACLS)
        return existed

    def keep_aside(self, file: MetadataFile) -> None:
        """The file as it is now stays beside the one that is written next."""
        if self._kick is None:
            self._files.keep_aside(file)
        else:
            self._unwritten.kept_aside.add(file)

    def applied_from_master(self, file: MetadataFile, kept: list[str]) -> None:
        """A slave took its master's table, and `kept` what its master lacks. The table that was more than twice as
        long is kept aside: an operator may have removed more than was meant."""
        self.damaged.pop(file, None)
        self.kept[file] = kept
        if len(self.by_file[file]) * 2 < self._entries_written.get(file, 0):
            log.warning("metadata_table_shrank", table=file.value, before=self._entries_written[file])
            self.keep_aside(file)
        self._edited(file)

    def remove_group(self, group: str) -> bool:
        """Removes a group and its progress; False when there is no such group. Progress goes in any case.

        And it goes first: a group that is still there after a crash can be removed again, while progress without its
        group would be found by nobody until a group of that name came back to it.
        """
        now_ms = self._clock.wall_ms()
        self.consumer_offsets.remove_group(group, now_ms=now_ms)
        self._edited(MetadataFile.CONSUMER_OFFSETS)
        is_removed = self.groups.remove(group, now_ms=now_ms)
        if is_removed:
            self.groups_edited()
        return is_removed

    def forget_progress_in(self, topic: str) -> None:
        """Removes the progress of all groups in a deleted topic."""
        self.consumer_offsets.remove_topic(topic, now_ms=self._clock.wall_ms())
        self._edited(MetadataFile.CONSUMER_OFFSETS)

    def forget_progress(self, pairs: Sequence[tuple[str, str]]) -> None:
        """The same of groups in topics: of each pair the group and the topic."""
        self.consumer_offsets.remove_pairs(pairs, now_ms=self._clock.wall_ms())
        self._edited(MetadataFile.CONSUMER_OFFSETS)

    def collect_progress(self, leases: LeaseTable) -> None:
        """Moves the groups' progress into the offset table and its file, and tells the slaves."""
        resets, moves = leases.take_reset_offsets(), leases.take_moved_offsets()
        if not resets and not moves:
            return
        now_ms = self._clock.wall_ms()
        self.consumer_offsets.reset_all(resets, now_ms=now_ms)
        for kept in self.consumer_offsets.commit_all(moves, now_ms=now_ms):
            log.warning("consumer_offset_kept", notice=str(kept))
        self._edited(MetadataFile.CONSUMER_OFFSETS)

    def read_file(self, file: MetadataFile) -> bytes | None:
        """What is on the disk; None: no file. Blocks."""
        return self._files.read(file)

    def is_unwritten(self, file: MetadataFile) -> bool:
        """Whether a change of the table is not in its file yet."""
        return file in self._unwritten.files or self._write is not None

    def write_again(self, file: MetadataFile) -> None:
        """The file holds something else than the table: it is written, though nothing changed."""
        self._files.forget(file)
        self._changed(file)

    def put_back(self, file: MetadataFile, text: str) -> None:
        """An operator takes a repair back: the table is what it was before. MetadataCorrupt leaves it as it is."""
        self.by_file[file].load_json(text)
        self.write_again(file)
        self._tell(file)

    def persist(self, file: MetadataFile) -> bool:
        """Writes one table's file; False when it is unchanged, or damaged and not recovered yet."""
        if file in self.damaged or (file in _ACCESS and self.by_file[file].version == DataVersion()):
            return False
        goes_back, table = self._note_written(file), self.by_file[file]
        is_changed = self._files.persist(file, table.to_json(), version=table.version, goes_back=goes_back)
        self._files.vouch()
        return is_changed

    def _note_written(self, file: MetadataFile) -> bool:
        """Whether the table that is written now is of an earlier version than the file."""
        version, before = self.by_file[file].version, self._versions_written.get(file)
        self._entries_written[file], self._versions_written[file] = len(self.by_file[file]), version
        return before is not None and before.is_newer_than(version)

    def persist_all(self) -> None:
        """Writes every file that changed."""
        for file in self.by_file:
            self.persist(file)


async def cut_progress(
    tables: MetadataTables,
    leases: LeaseFiles,
    queues: ConsumeQueueTable,
    queue_end: Callable[[str, int], int],
) -> None:
    """Progress of groups beyond a queue's end goes back to it, durably: before a starting master's `load`, and before a
    slave follows a later epoch.

    No operator did it, and no mark says so: where a replica knows that a group came further, that counts. Where a
    master that did not know a queue's numbers has begun them again, what groups consumed before says nothing any more.
    """
    begun_again = tables.queues_begun_again(queues)

    def limit(topic: str, queue_id: int) -> int:
        if (first := begun_again.get((topic, queue_id))) is not None:
            return first
        known = tables.consumer_offsets.queue_end(topic, queue_id)
        if known is None or queues.has_records(topic, queue_id):
            return queue_end(topic, queue_id)
        return max(known.next_number, queue_end(topic, queue_id))

    in_tables = tables.cut_progress(limit)
    in_leases = await asyncio.to_thread(leases.cut, limit)
    for topic, queue_id, offset in (*((cut.topic, cut.queue_id, cut.offset) for cut in in_tables), *in_leases):
        if (topic, queue_id) not in begun_again:
            tables.note_cut(topic, queue_id, offset)
    tables.forget_queue_ends(begun_again)
    await tables.written()
    for (topic, queue_id), first in begun_again.items():
        log.warning("queue_numbers_began_again", topic=topic, queue_id=queue_id, first_number=first)
    if in_tables or in_leases:
        log.warning(
            "progress_cut",
            reason="it lay beyond the end of its queue: messages that come there are delivered",
            queues=max(len(in_tables), len(in_leases)),
            first=[str(cut) for cut in in_tables[:_CUTS_TOLD]],
        )
