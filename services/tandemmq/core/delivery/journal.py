"""What a lease table writes down, so that a restart forgets nothing that was told to a client.

A journal is a sequence of frames, each the changes of one turn of the event loop:

    offset  size  name
    0       4     length   u32, bytes of the body
    4       4     crc      u32, CRC-32 of the body
    8       n     body     entries, one after the other

Times are lease time, see LeaseTable: about the wall clock, which it was in older versions.

A frame whose length or CRC does not fit ends the journal: it was torn by a crash, and nobody was told of it. A snapshot
is one frame with the entries that lead to the state, so that one reader serves both. All numbers are big-endian.

    entry          after its kind u8
    SUBSCRIPTION   number u32, group length u16, topic length u16, group, topic (UTF-8)
    POSITION       queue, committed i64            the queue starts here and nothing is pending
    GRANT          queue, nonce u64, granted i64, deadline i64, attempt u32, auto_renew u8, next i64, client length u16,
                   count u32, contiguous u8, client (UTF-8), offsets i64 each - only the first one when contiguous
    FINISH         queue, offset i64               one message is done with
    SKIP           queue, offset i64               never delivered ones below `offset` are not wanted
    TRIM           queue, offset i64               everything below `offset` is finished
    TRUNCATE       queue, offset i64               the queue ends at `offset`
    FORGET         number u32                      the subscription is gone
    SKIP           of subscription 2^32 - 1        whoever wrote the journal ended in order, if nothing follows
    queue          subscription number u32, queue id u32

Ends and renewals of leases are not written: the first follow from the deadline, and without the second a client that
lives through a restart of the broker has its leases renewed from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from zlib import crc32

from tandemmq.core.delivery.queue_progress import Lease, QueueProgress
from tandemmq.core.delivery.subscription import Subscription

if TYPE_CHECKING:
    from tandemmq.core.metadata.offset_tables import OperatorActs

_FRAME: Final = Struct(">II")
_SEARCHED_BYTES: Final = 64 << 10
"""Behind damage, for a frame that was written later."""
_SUBSCRIPTION: Final = Struct(">BIHH")
_AT: Final = Struct(">BIIq")
_GRANT: Final = Struct(">BIIQqqI?qHI?")
_FORGET: Final = Struct(">BI")
_OFFSET_BYTES: Final = 8


class EntryKind(IntEnum):
    """First byte of an entry."""

    SUBSCRIPTION = 1
    POSITION = 2
    GRANT = 3
    FINISH = 4
    SKIP = 5
    TRIM = 6
    TRUNCATE = 7
    FORGET = 8


_NO_SUBSCRIPTION: Final = (1 << 32) - 1
_KIND_FINISH: Final = int(EntryKind.FINISH)
_pack_at: Final = _AT.pack


class SubscriptionEntry(NamedTuple):
    """SUBSCRIPTION, or FORGET with empty names."""

    kind: EntryKind
    number: int
    group: str
    topic: str


class QueueEntryAt(NamedTuple):
    """POSITION, FINISH, SKIP, TRIM or TRUNCATE."""

    kind: EntryKind
    number: int
    queue_id: int
    offset: int


class GrantEntry(NamedTuple):
    number: int
    queue_id: int
    nonce: int
    granted_ms: int
    deadline_ms: int
    attempt: int
    auto_renew: bool
    next_offset: int
    client_id: str
    offsets: list[int]


JournalEntry: TypeAlias = SubscriptionEntry | QueueEntryAt | GrantEntry


class LeaseJournal:
    """Collects entries until they are taken as one frame."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []

    def subscription(self, subscription: Subscription) -> None:
        """Names a subscription; before anything else is said of it."""
        group, topic = subscription.group.encode(), subscription.topic.encode()
        head = _SUBSCRIPTION.pack(EntryKind.SUBSCRIPTION, subscription.number, len(group), len(topic))
        self._entries.append(head + group + topic)

    def forget(self, subscription: Subscription) -> None:
        """The subscription is gone with all its queues."""
        self._entries.append(_FORGET.pack(EntryKind.FORGET, subscription.number))

    def at(self, kind: EntryKind, queue: QueueProgress, offset: int) -> None:
        """One of the entries that hold a queue and an offset."""
        self._entries.append(_pack_at(kind, queue.subscription.number, queue.queue_id, offset))

    def finish(self, queue: QueueProgress, offset: int) -> None:
        """FINISH: the most frequent entry."""
        self._entries.append(_pack_at(_KIND_FINISH, queue.subscription.number, queue.queue_id, offset))

    def grant(self, lease: Lease, offsets: list[int], next_offset: int) -> None:
        """GRANT of `offsets`, ascending and not empty."""
        count = len(offsets)
        contiguous = offsets[-1] - offsets[0] == count - 1
        client = lease.client_id.encode()
        head = _GRANT.pack(
            EntryKind.GRANT,
            lease.queue.subscription.number,
            lease.queue.queue_id,
            lease.nonce,
            lease.granted_ms,
            lease.deadline_ms,
            lease.attempt,
            lease.auto_renew,
            next_offset,
            len(client),
            count,
            contiguous,
        )
        self._entries.append(head + client + (pack(">q", offsets[0]) if contiguous else pack(f">{count}q", *offsets)))

    def end(self) -> None:
        """Nothing follows. Older versions pass over it, like all that is of a subscription they do not know."""
        self._entries.append(_pack_at(EntryKind.SKIP, _NO_SUBSCRIPTION, 0, 0))

    def take(self) -> bytes:
        """The entries since the last call as a frame; empty without any."""
        if not self._entries:
            return b""
        body = b"".join(self._entries)
        self._entries.clear()
        return _FRAME.pack(len(body), crc32(body)) + body


def read_frames(data: bytes) -> tuple[list[JournalEntry], int]:
    """All entries of the whole frames in `data`, and how many bytes of it those frames are."""
    entries: list[JournalEntry] = []
    position = 0
    while position + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, position)
        start = position + _FRAME.size
        body = data[start : start + length]
        # Zeros are what a file holds where an append never reached the disk, and their CRC fits.
        if length == 0 or len(body) < length or crc32(body) != crc:
            break
        entries += _read_entries(body)
        position = start + length
    return entries, position


def is_beginning_of_frame(data: bytes) -> bool:
    """Whether the last frame of a journal just was not written whole; nothing at all is a beginning, too."""
    if len(data) >= _FRAME.size and len(data) - _FRAME.size >= int(_FRAME.unpack_from(data)[0]):
        return False
    return not any(_is_frame_at(data, position) for position in range(1, min(len(data), _SEARCHED_BYTES)))


def _is_frame_at(data: bytes, position: int) -> bool:
    if len(data) - position <= _FRAME.size:
        return False
    length, crc = _FRAME.unpack_from(data, position)
    start = position + _FRAME.size
    return 0 < length <= len(data) - start and bool(crc32(data[start : start + length]) == crc)


def _read_entries(body: bytes) -> Iterator[JournalEntry]:
    position = 0
    while position < len(body):
        kind = EntryKind(body[position])
        if kind is EntryKind.GRANT:
            entry, position = _read_grant(body, position)
            yield entry
        elif kind is EntryKind.SUBSCRIPTION:
            _, number, group_length, topic_length = _SUBSCRIPTION.unpack_from(body, position)
            topic_start = position + _SUBSCRIPTION.size + group_length
            group = body[position + _SUBSCRIPTION.size : topic_start].decode()
            position = topic_start + topic_length
            yield SubscriptionEntry(kind, number, group, body[topic_start:position].decode())
        elif kind is EntryKind.FORGET:
            yield SubscriptionEntry(kind, _FORGET.unpack_from(body, position)[1], "", "")
            position += _FORGET.size
        else:
            _, number, queue_id, offset = _AT.unpack_from(body, position)
            yield QueueEntryAt(kind, number, queue_id, offset)
            position += _AT.size


def _read_grant(body: bytes, position: int) -> tuple[GrantEntry, int]:
    (
        _,
        number,
        queue_id,
        nonce,
        granted_ms,
        deadline_ms,
        attempt,
        auto_renew,
        next_offset,
        client_length,
        count,
        contiguous,
    ) = _GRANT.unpack_from(body, position)
    client_start = position + _GRANT.size
    offsets_start = client_start + client_length
    client_id = body[client_start:offsets_start].decode()
    if contiguous:
        (first,) = unpack_from(">q", body, offsets_start)
        offsets = list(range(first, first + count))
        end = offsets_start + _OFFSET_BYTES
    else:
        offsets = list(unpack_from(f">{count}q", body, offsets_start))
        end = offsets_start + count * _OFFSET_BYTES
    entry = GrantEntry(
        number, queue_id, nonce, granted_ms, deadline_ms, attempt, auto_renew, next_offset, client_id, offsets
    )
    return entry, end


# Rebuilds the subscriptions of a lease table from its journal, and writes them as a snapshot.


class LeaseReplay:
    """Applies entries in the order they were written. An entry of an unknown subscription is passed over.

    `held` of leases and ready messages are not kept up on the way; whoever takes the subscriptions counts them.
    """

    def __init__(self) -> None:
        self.subscriptions: dict[int, Subscription] = {}
        self.last_grant_ms = 0
        """When the last lease was given that is known of, also one of a finished message."""
        self.has_ended = False
        """The last entry says that its writer ended in order."""
        self.orphan_count = 0
        """Entries of subscriptions that nothing before them names."""
        self.overtaken: set[tuple[int, int]] = set()
        """Nonce and queue offset of leases that later ones replaced although they do not look later: a delivery that
        does not count was given back, or both are of one moment."""
        self._named: set[int] = set()

    def apply(self, entries: Iterable[JournalEntry]) -> None:
        """Makes the transitions the entries stand for."""
        for entry in entries:
            self.has_ended = entry.number == _NO_SUBSCRIPTION
            if isinstance(entry, SubscriptionEntry):
                self._apply_subscription(entry)
                continue
            subscription = self.subscriptions.get(entry.number)
            if subscription is None:
                self.orphan_count += not self.has_ended and entry.number not in self._named
                continue
            queue = subscription.queues.get(entry.queue_id)
            if isinstance(entry, GrantEntry):
                self.last_grant_ms = max(self.last_grant_ms, entry.granted_ms)
                if queue is not None:
                    for offset in entry.offsets:
                        before = queue.pending.get(offset)
                        if before is not None and before.turn >= (entry.attempt, entry.granted_ms):
                            self.overtaken.add((before.nonce, offset))
                    queue.grant(_lease(queue, entry), entry.next_offset)
            elif entry.kind is EntryKind.POSITION:
                subscription.queues[entry.queue_id] = QueueProgress(subscription, entry.queue_id, entry.offset)
            elif queue is not None:
                _apply_at(queue, entry.kind, entry.offset)

    @classmethod
    def of_files(cls, snapshot: bytes, journal: bytes) -> LeaseReplay:
        """What both say together; nothing where the snapshot cannot be read."""
        replay = cls()
        entries, valid_bytes = read_frames(snapshot)
        if valid_bytes == len(snapshot):
            replay.apply(entries)
            replay.apply(read_frames(journal)[0])
        return replay

    def cut(self, queue_end: Callable[[str, int], int]) -> list[tuple[str, int, int]]:
        """Brings progress beyond a queue's end back to it: topic, queue id and how far it had come. `queue_end` knows
        the end of a queue by topic and queue id."""
        cuts: list[tuple[str, int, int]] = []
        for subscription in self.subscriptions.values():
            for queue in subscription.queues.values():
                if queue.next_offset > (end := queue_end(subscription.topic, queue.queue_id)):
                    cuts.append((subscription.topic, queue.queue_id, queue.next_offset))
                    queue.truncate(end)
        return cuts

    def obey(self, acts: OperatorActs) -> bool:
        """Does what operators did to the tables; False when it was about nothing that is held here."""
        numbers = {(one.group, one.topic): number for number, one in self.subscriptions.items()}
        removed = [numbers.pop(pair) for pair in acts.removed if pair in numbers]
        for number in removed:
            del self.subscriptions[number]
        is_changed = bool(removed)
        for group, topic, queue_id, offset in acts.resets:
            subscription = self.subscriptions.get(numbers.get((group, topic), -1))
            if subscription is not None and queue_id in subscription.queues:
                subscription.queues[queue_id] = QueueProgress(subscription, queue_id, offset)
                is_changed = True
        return is_changed

    def to_snapshot(self) -> bytes:
        """See `write_snapshot`."""
        return write_snapshot(self.subscriptions.values())

    def _apply_subscription(self, entry: SubscriptionEntry) -> None:
        if entry.kind is EntryKind.FORGET:
            self.subscriptions.pop(entry.number, None)
        else:
            self.subscriptions[entry.number] = Subscription(entry.number, entry.group, entry.topic)
            self._named.add(entry.number)


def _lease(queue: QueueProgress, entry: GrantEntry) -> Lease:
    return Lease(
        queue,
        entry.offsets,
        nonce=entry.nonce,
        attempt=entry.attempt,
        granted_ms=entry.granted_ms,
        deadline_ms=entry.deadline_ms,
        client_id=entry.client_id,
        auto_renew=entry.auto_renew,
    )


def _apply_at(queue: QueueProgress, kind: EntryKind, offset: int) -> None:
    if kind is EntryKind.FINISH:
        if offset in queue.pending:
            queue.finish(offset)
    elif kind is EntryKind.SKIP:
        queue.skip_to(offset)
    elif kind is EntryKind.TRIM:
        queue.trim(offset)
    elif kind is EntryKind.TRUNCATE:
        queue.truncate(offset)


def write_snapshot(subscriptions: Iterable[Subscription]) -> bytes:
    """The shortest journal that leads to the state of `subscriptions`."""
    journal = LeaseJournal()
    for subscription in subscriptions:
        journal.subscription(subscription)
        for queue in subscription.queues.values():
            journal.at(EntryKind.POSITION, queue, queue.committed)
            held: dict[Lease, list[int]] = {}
            for offset in sorted(queue.pending):
                held.setdefault(queue.pending[offset], []).append(offset)
            for lease, offsets in held.items():
                # The lowest offset comes with the first lease and keeps the committed offset where it is.
                journal.grant(lease, offsets, queue.next_offset)
    return journal.take()
