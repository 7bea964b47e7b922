"""One replica's files as a store: the log as bytes, ConsumeQueues, index, metadata, and what a folder says of itself.

A check sees files only as `ReplicaFiles`. A folder (a volume, a snapshot), an object store and a running broker over
gRPC all offer that; the checks do not know which they read.

A folder does not say where its log ended: files have their full length from the start. `inspect_replica` finds the end
by walking over the last records. Then it asks the ConsumeQueues whether there was more: they are files of their own, so
they contradict a log that lost its tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from tandemmq.core.message.record import Blank, RecordFound, ScanStop, scan_record
from tandemmq.core.message.record_layout import SMALLEST_RECORD_BYTES, V1_MAGIC, V2_MAGIC
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.replication.log_history import REPLICA_FILE, LogRange, RecordDamaged, ReplicaRecord
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.storage.consume_queue import ENTRY, QueueEntry, first_false
from tandemmq.core.storage.disk import LOST_AND_FOUND
from tandemmq.core.storage.flush_jobs import StoreCheckpoint

if TYPE_CHECKING:
    from tandemmq.core.storage.record_batch import RecordBatch


# How a check reads a replica, and what is known of it besides.


class ReplicaUnreadable(Exception):
    """A file or a broker does not answer. The run is incomplete for this replica; nothing is said about its bytes."""


class NotShown(ReplicaUnreadable):
    """A broker does not give this file away, whatever is in it: one of another version, or none that reads it."""


class StoreEntry(NamedTuple):
    """A file or folder of a store."""

    name: str
    """Without its folder."""
    size: int
    """Bytes; -1 for a folder, and for whatever else is no file."""

    @property
    def is_folder(self) -> bool:
        return self.size < 0


STORE_MARKS: Final = ("commitlog", "consumequeue", "config", "index", "checkpoint", REPLICA_FILE, "abort")
"""What a broker makes in the folder of its store: one that lost its log is a store all the same."""
_QUEUE_IDS_MAX: Final = 1 << 31
_BROKER_IDS_MAX: Final = 1 << 63


def is_number(name: str) -> bool:
    """Whether a file's name is a number as brokers write it."""
    return name.isascii() and name.isdecimal()


def is_queue_id(name: str) -> bool:
    return is_number(name) and str(int(name)) == name and int(name) < _QUEUE_IDS_MAX


def is_broker_id(name: str) -> bool:
    """Whether it is the id of a broker: 64 bits."""
    return is_number(name) and int(name) < _BROKER_IDS_MAX


def is_of_others(name: str) -> bool:
    """Whether a name is none that a broker gives, but one of file systems and of people: lost+found, .snapshot, .nfs…,
    .DS_Store, @eaDir, copies of editors."""
    return name in (LOST_AND_FOUND, "@eaDir") or name[0] in ".#" or name[-1] in "~#"


def shown_name(name: str) -> str:
    """A name as it can be told: bytes that are no UTF-8 are spelled out."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class ReplicaFiles(Protocol):
    """Files below one store's root, read-only, by path with slashes: commitlog/00000000000000000000. Calls block."""

    def list_folder(self, path: str) -> list[StoreEntry]:
        """What lies in it, by name; [] if there is no such folder. Raises ReplicaUnreadable."""

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """Bytes from `offset`; fewer at the file's end, none if there is no such file, or a folder. Raises
        ReplicaUnreadable."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What is known of one replica before its bytes are read."""

    group: str
    broker_id: int
    """0 for the master."""
    min_offset: int
    """First byte held."""
    end_offset: int
    """One past the last byte that was ever whole here, by the best evidence: of a folder the end of the last record
    that follows without a break, or what its own ConsumeQueues know of, if that is further."""
    segment_bytes: int
    """CommitLog file size."""
    is_running: bool
    """False: the store was ended in order and all its derived files are complete."""
    queues_offset: int
    """Every record that starts below it has its ConsumeQueue entry in the files."""
    index_offset: int
    """The same for the index."""
    lag_bytes: int = 0
    """Behind its master, as a broker says; 0 for folders."""
    holes: tuple[LogRange, ...] = ()
    """Parts of [min_offset, end_offset) without a file, or beyond the end of a short one."""
    queued_from: int | None = None
    """The lowest offset that a ConsumeQueue leads to: the replica once held it. None: none does, or nobody looked."""
    disk_id: str = ""
    """Of `replica.json`. Empty: another disk cannot be told from this one."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"holes": [list(hole) for hole in self.holes]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**(values | {"holes": tuple(LogRange(*hole) for hole in values["holes"])}))


MAX_RECORD_BYTES: Final = (4 << 20) + (64 << 10) + 128
"""The largest record of a broker with RocketMQ's `maxMessageSize`: body, its head-room, head."""

ENTRY_BYTES: Final = ENTRY.size
_NAME_DIGITS: Final = 20
_DEFAULT_SEGMENT_BYTES: Final = 1 << 30
CHECKPOINT_BYTES: Final = 4096
_GROWTH_BYTES: Final = 64 << 10
_RECORD_BYTES_MAX: Final = 1 << 20
"""Of `replica.json`."""
_MARGIN_MS: Final = 3000
"""RocketMQ's: so much earlier than its checkpoint says it starts to recover."""
_PROBE_ENTRIES: Final = 200
"""Read at once while the end of a ConsumeQueue is looked for: about a page."""
_WALK_BYTES: Final = 4 << 20
_HEAD_BYTES: Final = 8
_FILE_HEADS_MAX: Final = 16
_RECORD_MAGICS: Final = (V1_MAGIC, V2_MAGIC)
_OWN_OFFSET: Final = slice(28, 36)
"""Where a record has its own offset."""
_FILE_HEAD_BYTES: Final = 88
"""Of a record, up to its body."""
_SHORT_BATCH: Final = 16
_INDEX_HEAD: Final = Struct(">16xqqii")
"""First and last record of an IndexFile, used slots, next entry."""
_WITNESSES_MAX: Final = 4
_SAMPLE_ENTRIES: Final = 8
"""Of a queue's end, and of its beginning."""
_PAUSE_BYTES: Final = 64 << 10
"""Walked over one by one after a batch that was shorter, or none."""


class ReplicaStore:
    """One replica, read-only. Calls block, and raise ReplicaUnreadable when its files do not answer. One thread only:
    what `read_log` returns may lie in a buffer that the next call of anything here uses again."""

    def __init__(self, files: ReplicaFiles, facts: ReplicaFacts) -> None:
        self.files: Final = files
        self.facts: Final = facts
        self.bytes_read = 0
        """Bytes of files, so far."""
        self.marks_over_messages: Final[dict[int, bool]] = {}
        """Kept by `log_walk`: of marks of a file's end, whether messages lay there."""
        self._queue_files: dict[tuple[str, int], list[StoreEntry]] = {}

    def read_log(self, start_offset: int, end_offset: int) -> memoryview:
        """The log's bytes [start_offset, end_offset); zeros where there is no file (`facts.holes` says where)."""
        length = end_offset - start_offset
        within = start_offset % self.facts.segment_bytes
        if 0 < length <= self.facts.segment_bytes - within:
            data = self._read(self.segment_path(start_offset), within, length)
            if len(data) == length:
                return memoryview(data)
        buffer = bytearray(max(0, length))
        offset = start_offset
        while offset < end_offset:
            within = offset % self.facts.segment_bytes
            count = min(end_offset - offset, self.facts.segment_bytes - within)
            data = self._read(self.segment_path(offset), within, count)
            buffer[offset - start_offset : offset - start_offset + len(data)] = data
            offset += count
        return memoryview(buffer)

    def segment_path(self, offset: int) -> str:
        """The CommitLog file that holds the byte at `offset`, below the store's root."""
        return f"commitlog/{offset - offset % self.facts.segment_bytes:020d}"

    def segment_end(self, offset: int) -> int:
        """Where the file of the byte at `offset` ends."""
        return offset - offset % self.facts.segment_bytes + self.facts.segment_bytes

    def is_in_hole(self, offset: int) -> bool:
        """Whether no file holds this byte."""
        return any(hole.start_offset <= offset < hole.end_offset for hole in self.facts.holes)

    def file_heads(self) -> dict[int, str]:
        """By the offset at which a CommitLog file begins, its first bytes in hex: of some files, the same in replicas
        that are about as long."""
        size, end = self.facts.segment_bytes, self.facts.end_offset - _FILE_HEAD_BYTES
        numbers = range(-(-self.facts.min_offset // size), end // size + 1)
        step = 1
        while len(numbers) > step * _FILE_HEADS_MAX:
            step *= 2
        chosen = sorted({number for number in numbers if number % step == 0} | {*numbers[:1], *numbers[-1:]})
        return {
            number * size: self.read_log(number * size, number * size + _FILE_HEAD_BYTES).hex() for number in chosen
        }

    # Derived files

    def queues(self) -> Iterator[tuple[str, int]]:
        """Topic and queue id of every ConsumeQueue that has a folder."""
        for topic in self.files.list_folder("consumequeue"):
            if topic.is_folder and topic.name != LOST_AND_FOUND:
                for queue in self.files.list_folder(f"consumequeue/{topic.name}"):
                    if queue.is_folder and is_queue_id(queue.name):
                        yield topic.name, int(queue.name)

    def read_queue(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """Entries [first, first + count) of 20 bytes each; shorter where the last file ends, zeros where one is missing
        before it."""
        start, end = first * ENTRY_BYTES, (first + count) * ENTRY_BYTES
        found = self._queue_files_up_to(topic, queue_id, end)
        if not found:
            return b""
        file_bytes = _usual_size(found)
        end = min(end, int(found[-1].name) + found[-1].size)
        parts = []
        while start < end:
            within = start % file_bytes
            length = min(end - start, file_bytes - within)
            path = f"consumequeue/{topic}/{queue_id}/{start - within:020d}"
            data = bytes(self._read(path, within, length))
            parts.append(data if len(data) == length else data.ljust(length, b"\0"))
            start += length
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The positions [first, end) that the files of a queue have room for; (0, 0) without files."""
        found = self._queue_files_up_to(topic, queue_id, 0)
        if not found:
            return 0, 0
        return int(found[0].name) // ENTRY_BYTES, (int(found[-1].name) + found[-1].size) // ENTRY_BYTES

    def queue_end(self, topic: str, queue_id: int) -> int | None:
        """The position behind the last entry of a queue; None without files."""
        return _QueueTail(self, topic, queue_id).end if self._queue_files_up_to(topic, queue_id, 0) else None

    def queue_file(self, topic: str, queue_id: int, queue_offset: int) -> str | None:
        """The file that holds, or would hold, an entry; None if the queue has no file."""
        found = self._queue_files_up_to(topic, queue_id, 0)
        if not found:
            return None
        position = queue_offset * ENTRY_BYTES
        return f"consumequeue/{topic}/{queue_id}/{position - position % _usual_size(found):020d}"

    def index_files(self) -> list[StoreEntry]:
        """Oldest first."""
        found = self.files.list_folder("index")
        return sorted(entry for entry in found if not entry.is_folder and is_number(entry.name) and entry.size)

    def metadata(self, file: MetadataFile) -> str | None:
        """The text of a metadata file, or of its .bak where the broker would take that; None: there is neither."""
        return metadata_texts(self.files, (file,))[file]

    def checkpoint(self) -> StoreCheckpoint:
        """What is said to be durable; all zeros without such a file."""
        data = bytes(self._read("checkpoint", 0, CHECKPOINT_BYTES))
        return StoreCheckpoint.decode(data) if len(data) == CHECKPOINT_BYTES else StoreCheckpoint()

    def read_file(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """Bytes of any file; fewer at its end."""
        return self._read(path, offset, length)

    def _read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        data = self.files.read(path, offset, length)
        self.bytes_read += len(data)
        return data

    def _queue_files_up_to(self, topic: str, queue_id: int, end: int) -> list[StoreEntry]:
        """Files of a queue; looked up again when more is asked for than there was."""
        known = self._queue_files.get((topic, queue_id))
        if known is None or (self.facts.is_running and known and end > int(known[-1].name) + known[-1].size):
            # The name in a damaged record may be none of a folder, or lead out of the store.
            is_folder = topic not in ("", ".", "..") and not {"/", "\0"} & set(topic)
            known = _numbered(self.files.list_folder(f"consumequeue/{topic}/{queue_id}")) if is_folder else []
            self._queue_files[topic, queue_id] = known
        return known


def inspect_replica(
    files: ReplicaFiles, *, group: str, broker_id: int, segment_bytes: int | None = None
) -> ReplicaFacts:
    """What the files of one replica say of it. `segment_bytes`: as the files are long, if it is not given.

    Costs a walk over the records behind the newest that a ConsumeQueue knows of, or over the last file without one, and
    a page of each ConsumeQueue.
    """
    found = files.list_folder("commitlog")
    segments = _numbered(found)
    is_running = any(entry.name == "abort" and not entry.is_folder for entry in files.list_folder(""))
    segment_bytes = segment_bytes or _segment_bytes(segments)
    segments = _in_their_places(files, segments, segment_bytes)
    min_offset = _min_offset(segments, found, segment_bytes)
    room_end = int(segments[-1].name) + segment_bytes if segments else 0
    facts = ReplicaFacts(
        group=group,
        broker_id=broker_id,
        min_offset=min_offset,
        end_offset=room_end,
        segment_bytes=segment_bytes,
        is_running=is_running,
        queues_offset=min_offset,
        index_offset=min_offset,
    )
    store = ReplicaStore(files, facts)
    queues = [_QueueTail(store, topic, queue_id) for topic, queue_id in store.queues()]
    end_offset = _log_end(store, segments, queues)
    # Without any file there is no log, whatever other files say of it.
    end_offset = _claimed_end(store, end_offset, queues) if segments else 0
    return ReplicaFacts(
        group=group,
        broker_id=broker_id,
        min_offset=min_offset,
        end_offset=max(min_offset, end_offset),
        segment_bytes=segment_bytes,
        is_running=is_running,
        queues_offset=_queues_offset(store, segments, end_offset),
        index_offset=_index_offset(store),
        holes=_holes(segments, segment_bytes, LogRange(min_offset, end_offset)),
        queued_from=min((offset for tail in queues if (offset := tail.lowest()) is not None), default=None),
        disk_id=disk_id(files),
    )


def whole_file(files: ReplicaFiles, path: str, listed_bytes: int) -> bytes:
    """A file that its owner exchanges as a whole, perhaps since it was listed. What it is by now may be longer: as much
    of it as was listed would be the beginning of a table."""
    length = listed_bytes + _GROWTH_BYTES
    while len(data := bytes(files.read(path, 0, length))) == length:
        length *= 2
    return data


def metadata_texts(
    files: ReplicaFiles, wanted: Iterable[MetadataFile] = tuple(MetadataFile)
) -> dict[MetadataFile, str | None]:
    """Texts of metadata files, or of their .bak where the broker would take that; None: there is neither."""
    sizes = {entry.name: entry.size for entry in files.list_folder("config") if not entry.is_folder}
    texts: dict[MetadataFile, str | None] = {}
    for file in wanted:
        name = next((name for name in (file.value, f"{file.value}.bak") if sizes.get(name, 0) > 0), None)
        data = b"" if name is None else whole_file(files, f"config/{name}", sizes[name])
        # What is no UTF-8 stays visible: no broker reads it.
        texts[file] = None if name is None else data.decode("utf-8", "surrogateescape")
    return texts


def disk_id(files: ReplicaFiles) -> str:
    """Which disk it is, as `replica.json` says; empty if nothing does."""
    data = bytes(files.read(REPLICA_FILE, 0, _RECORD_BYTES_MAX))
    try:
        return ReplicaRecord.from_json(data.decode()).disk_id if data else ""
    except (RecordDamaged, UnicodeDecodeError):
        return ""


def _numbered(found: list[StoreEntry]) -> list[StoreEntry]:
    """Files named by the offset of their first byte, in order; one that was only just made has no length yet."""
    return sorted(entry for entry in found if entry.size > 0 and _is_numbered(entry))


def _is_numbered(entry: StoreEntry) -> bool:
    return len(entry.name) == _NAME_DIGITS and is_number(entry.name)


def _min_offset(segments: list[StoreEntry], found: list[StoreEntry], segment_bytes: int) -> int:
    """Where the first file begins. Retention deletes files: one in front that is empty has lost what it held."""
    first = int(segments[0].name) if segments else 0
    empty = {int(entry.name) for entry in found if not entry.size and _is_numbered(entry)}
    while segments and first - segment_bytes in empty:
        first -= segment_bytes
    return first


def _usual_size(found: list[StoreEntry]) -> int:
    """The length of most files, the greater of two that are as frequent."""
    sizes = [entry.size for entry in found]
    return max(set(sizes), key=lambda size: (sizes.count(size), size))


def _segment_bytes(segments: list[StoreEntry]) -> int:
    if not segments:
        return _DEFAULT_SEGMENT_BYTES
    starts = [int(entry.name) for entry in segments]
    steps = [later - earlier for earlier, later in pairwise(starts)]
    sizes = [entry.size for entry in segments]
    # Neighbours are one length apart: better evidence than sizes where there are few.
    return max({*sizes, *steps}, key=lambda size: (sizes.count(size) + steps.count(size), -size))


def _in_their_places(files: ReplicaFiles, segments: list[StoreEntry], segment_bytes: int) -> list[StoreEntry]:
    """Without files whose name is none that the log could have, and those that stand alone and begin with a record that
    was written for elsewhere: somebody renamed or copied them, and the log neither begins nor ends there."""
    remainders = [int(entry.name) % segment_bytes for entry in segments]
    usual = max(remainders, key=lambda remainder: (remainders.count(remainder), -remainder), default=0)
    fitting = [entry for entry, remainder in zip(segments, remainders) if remainder == usual]
    starts = {int(entry.name) for entry in fitting}
    placed = []
    for entry in fitting:
        start = int(entry.name)
        is_alone = not starts & {start - segment_bytes, start + segment_bytes}
        if not (is_alone and len(starts) > 1 and written_for(files, entry.name) not in (None, start)):
            placed.append(entry)
    return [] if _are_renamed(files, placed) else placed


def _are_renamed(files: ReplicaFiles, segments: list[StoreEntry]) -> bool:
    """Whether the names of all files are other ones by as much than their records were written for."""
    if not segments or written_for(files, segments[0].name) in (None, int(segments[0].name)):
        return False
    first = f"commitlog/{segments[0].name}"
    size = int.from_bytes(files.read(first, 0, 4), "big")
    # The first record's own offset may be what was changed: the next one tells.
    second = _written_for(files.read(first, size, _OWN_OFFSET.stop))
    places = [(written_for(files, entry.name), int(entry.name)) for entry in segments]
    places.append((second, int(segments[0].name) + size))
    shifts = [own - place for own, place in places if own is not None]
    return len(shifts) > 1 and len(set(shifts)) == 1


def written_for(files: ReplicaFiles, name: str) -> int | None:
    """The offset that the record says of itself with which a CommitLog file begins; None: it begins with none."""
    return _written_for(files.read(f"commitlog/{name}", 0, _OWN_OFFSET.stop))


def _written_for(data: bytes | memoryview) -> int | None:
    head = bytes(data)
    is_record = len(head) == _OWN_OFFSET.stop and int.from_bytes(head[4:8], "big") in _RECORD_MAGICS
    return int.from_bytes(head[_OWN_OFFSET], "big") if is_record else None


class _QueueTail:
    """The newest entries of one ConsumeQueue."""

    __slots__ = ("_first", "_queue_id", "_store", "_topic", "end")

    def __init__(self, store: ReplicaStore, topic: str, queue_id: int) -> None:
        self._store = store
        self._topic = topic
        self._queue_id = queue_id
        self._first, room_end = store.queue_bounds(topic, queue_id)
        blocks = (room_end - self._first) // _PROBE_ENTRIES

        def has_more(block: int) -> bool:
            return any(self._read(self._first + (block + 1) * _PROBE_ENTRIES, 1))

        block_start = self._first + first_false(0, blocks, has_more) * _PROBE_ENTRIES
        entries = self._read(block_start, _PROBE_ENTRIES)
        used = next((number for number in range(len(entries), 0, -1) if entries[number - 1].size > 0), 0)
        self.end = block_start + used

    def lowest(self) -> int | None:
        """Where the first message lies that an entry leads to: in a ConsumeQueue offsets never go back."""
        for entry in self.oldest():
            if not entry.is_filler and entry.size > 0 and entry.physical_offset >= 0:
                return entry.physical_offset
        return None

    def oldest(self) -> list[QueueEntry]:
        """Some of the first entries."""
        return self._read(self._first, min(_PROBE_ENTRIES, self.end - self._first))

    def newest(self) -> QueueEntry | None:
        """The last message's entry."""
        return next((entry for entry in self.backwards() if not entry.is_filler), None)

    def backwards(self) -> Iterator[QueueEntry]:
        """Entries, newest first."""
        end = self.end
        while end > self._first:
            start = max(self._first, end - _PROBE_ENTRIES)
            yield from reversed(self._read(start, end - start))
            end = start

    def _read(self, first: int, count: int) -> list[QueueEntry]:
        data = self._store.read_queue(self._topic, self._queue_id, first, count)
        found = [QueueEntry(*fields) for fields in ENTRY.iter_unpack(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])]
        while found and found[-1].size <= 0:
            found.pop()
        return found


class _Claim(NamedTuple):
    """What a ConsumeQueue says lies in the log."""

    physical_offset: int
    size: int


def _log_end(store: ReplicaStore, segments: list[StoreEntry], queues: list[_QueueTail]) -> int:
    """Where the chain of records ends, as the log itself says."""
    if not segments:
        return 0
    used = [int(entry.name) for entry in segments if any(store.read_log(int(entry.name), int(entry.name) + 8))]
    start = used[-1] if used else int(segments[0].name)
    newest = (tail.newest() for tail in queues)
    claims = sorted({_Claim(entry.physical_offset, entry.size) for entry in newest if entry is not None}, reverse=True)
    for claim in claims:
        if claim.physical_offset <= start:
            break
        if _is_record(store, claim):
            start = claim.physical_offset + claim.size
            break
    end = _walk(store, start)
    if end == start and len(used) > 1 and start == used[-1] == used[-2] + store.facts.segment_bytes:
        # No record begins the last file. Where the log ended before it, that is none of its files.
        end = _walk(store, used[-2])
    return end


def _is_record(store: ReplicaStore, claim: _Claim) -> bool:
    if not _is_plausible(store, claim):
        return False
    view = store.read_log(claim.physical_offset, claim.physical_offset + claim.size)
    found = scan_record(view, 0, claim.size, physical_offset=claim.physical_offset, check_crc=False)
    return isinstance(found, RecordFound) and found.size == claim.size


def _is_plausible(store: ReplicaStore, claim: _Claim) -> bool:
    """Whether a record could be so long and lie there. The next file may be lost, but not more than the next."""
    is_near = claim.physical_offset <= store.facts.end_offset + store.facts.segment_bytes
    return is_near and _fits_a_file(store, claim)


def _fits_a_file(store: ReplicaStore, claim: _Claim) -> bool:
    return (
        claim.size >= SMALLEST_RECORD_BYTES
        and store.facts.min_offset <= claim.physical_offset
        and claim.physical_offset + claim.size + _HEAD_BYTES <= store.segment_end(claim.physical_offset)
    )


def _walk(store: ReplicaStore, start: int) -> int:
    """The end of the chain of records from `start` on.

    After an unclean stop the last records may be torn, and the next start would cut them off: so they are not counted
    if their bodies are not what they were. Before a record that is whole it is bit rot, and no end.
    """
    offset = sound_end = start
    length = _WALK_BYTES
    batches_from = start
    while offset < store.facts.end_offset:
        file_end = store.segment_end(offset)
        limit = min(file_end, offset + length)
        view = store.read_log(offset, limit)
        position = 0
        while True:
            found = scan_record(view, position, len(view), physical_offset=offset + position, check_crc=False)
            if not isinstance(found, RecordFound):
                break
            batch = _batch(view, offset, position) if offset + position >= batches_from else None
            if batch is not None:
                if len(batch) < _SHORT_BATCH:
                    batches_from = batch.end_offset + _PAUSE_BYTES
                position = batch.end_offset - offset
                sound_end = batch.end_offset
                continue
            if offset + position >= batches_from:
                # Uncommon records come in numbers, and looking for a batch costs as much as reading ten of them.
                batches_from = offset + position + _PAUSE_BYTES
            checked = scan_record(view, position, len(view), physical_offset=offset + position)
            position += found.size
            if isinstance(checked, RecordFound):
                sound_end = offset + position
        offset += position
        if isinstance(found, Blank) and found.size == file_end - offset:
            offset = sound_end = file_end
        elif found is not ScanStop.INCOMPLETE or limit == file_end:
            break
        # A record may be longer than what was read.
        length = _WALK_BYTES if position else 2 * length
    return sound_end if store.facts.is_running else offset


def _batch(view: memoryview, offset: int, position: int) -> RecordBatch | None:
    """The common records that begin at a position of the view from `offset` on; None if the first is none."""
    # Needs numpy, a third of a second: nothing to walk over is the usual case of a log that was closed in order.
    from tandemmq.core.storage.record_batch import read_batch

    return read_batch(view, position, len(view), physical_offset=offset + position)


def _claimed_end(store: ReplicaStore, log_end: int, queues: list[_QueueTail]) -> int:
    """`log_end`, or how far the ConsumeQueues know of records that follow it without a break."""
    claims: dict[int, int] = {}
    for tail in queues:
        own: list[_Claim] = []
        for entry in tail.backwards():
            if entry.is_filler or entry.physical_offset < log_end:
                break
            claim = _Claim(entry.physical_offset, entry.size)
            if _fits_a_file(store, claim):
                own.append(claim)
        if own and not _is_of_another_log(store, tail, log_end):
            claims.update(own)
    end = log_end
    # A wrong entry may say anything. Many files may be lost as well, but some entries lead into each of them.
    reach = store.facts.end_offset + store.facts.segment_bytes
    for offset in sorted(claims):
        if offset > reach:
            del claims[offset]
        else:
            reach = max(reach, offset + store.facts.segment_bytes)
    # Not every record has an entry: where the chain breaks, the rest is believed if there is more than one of it.
    for offset in sorted(claims):
        is_next = offset == end or (offset == store.segment_end(end - 1 if end else 0) and offset > end)
        if is_next or len(claims) > 1:
            end = max(end, offset + claims[offset])
    return end


def _is_of_another_log(store: ReplicaStore, tail: _QueueTail, log_end: int) -> bool:
    """Whether hardly an entry of a queue leads to a record, neither the oldest nor the newest of those that lead into
    files of the log which begin as they should: it is the queue of another store, and knows nothing of this one's end.
    Logs begin at 0, and their first messages may be as long."""

    begins_well: dict[int, bool] = {}

    def leads_into_log(entry: QueueEntry) -> bool:
        if entry.is_filler or not store.facts.min_offset <= entry.physical_offset < log_end:
            return False
        start = store.segment_end(entry.physical_offset) - store.facts.segment_bytes
        if start not in begins_well:
            begins_well[start] = _written_for(store.read_log(start, start + _OWN_OFFSET.stop)) == start
        return begins_well[start]

    newest = filter(leads_into_log, islice(tail.backwards(), _PROBE_ENTRIES))
    oldest = filter(leads_into_log, tail.oldest())
    sample = {*islice(newest, _SAMPLE_ENTRIES), *islice(oldest, _SAMPLE_ENTRIES)}
    if len(sample) < _SAMPLE_ENTRIES:
        return False
    right = 0
    for own in sample:
        head = bytes(store.read_log(own.physical_offset, own.physical_offset + _OWN_OFFSET.stop))
        held = QueueEntry(int.from_bytes(head[_OWN_OFFSET], "big"), int.from_bytes(head[:4], "big"), own.tags_code)
        right += held == own
    return right <= len(sample) // _SAMPLE_ENTRIES


def known_of_lost_log(store: ReplicaStore) -> tuple[LogRange, str] | None:
    """Of a replica whose log holds nothing: what its other files know of it, and which; None: it may have had none.

    A slave that starts empty has its master's tables at once, and nothing else.
    """
    starts: list[int] = []
    ends: list[int] = []
    witnesses: list[str] = []
    for topic, queue_id in store.queues():
        tail = _QueueTail(store, topic, queue_id)
        newest = tail.newest()
        if newest is not None and newest.physical_offset >= 0:
            starts.append(tail.lowest() or 0)
            ends.append(newest.physical_offset + newest.size)
    if ends:
        witnesses.append("ConsumeQueues lead to messages")
    elif not store.facts.is_running and any(
        _is_numbered(entry)
        for queue in store.queues()
        for entry in store.files.list_folder("consumequeue/{}/{}".format(*queue))
    ):
        witnesses.append("there are files of ConsumeQueues, which a first message makes")
    for entry in store.index_files():
        head = bytes(store.read_file(f"index/{entry.name}", 0, _INDEX_HEAD.size))
        begin, end, _, next_entry = _INDEX_HEAD.unpack(head) if len(head) == _INDEX_HEAD.size else (0, 0, 0, 0)
        if next_entry > 1 and 0 <= begin <= end:
            starts.append(begin)
            ends.append(end + 1)
            witnesses.append(f"{entry.name} knows messages")
    checkpoint = store.checkpoint()
    if max(checkpoint.physic_message_timestamp_ms, checkpoint.logics_message_timestamp_ms) > 0:
        ends.append(max(0, checkpoint.logics_physical_offset) + 1)
        witnesses.append("the checkpoint vouches for messages")
    if not witnesses:
        return None
    start = min(starts, default=0)
    return LogRange(start, max(*ends, start + 1, 0)), ", ".join(witnesses[:_WITNESSES_MAX])


def _queues_offset(store: ReplicaStore, segments: list[StoreEntry], end_offset: int) -> int:
    """Below it every record's entry is in the files."""
    if not store.facts.is_running:
        return end_offset
    checkpoint = store.checkpoint()
    if checkpoint.logics_physical_offset > 0:
        return min(end_offset, checkpoint.logics_physical_offset + 1)
    durable_ms = checkpoint.logics_message_timestamp_ms - _MARGIN_MS
    found = store.facts.min_offset
    for entry in segments:
        start = int(entry.name)
        view = store.read_log(start, min(start + _WALK_BYTES, start + store.facts.segment_bytes))
        first = scan_record(view, 0, len(view), physical_offset=start, check_crc=False)
        if not isinstance(first, RecordFound) or first.store_timestamp_ms > durable_ms:
            break
        found = start
    return min(end_offset, found)


def _index_offset(store: ReplicaStore) -> int:
    """Below it every record's index entries are in the files: the last record may be there in part."""
    found = store.index_files()
    if not found:
        return store.facts.min_offset
    header = bytes(store.read_file(f"index/{found[-1].name}", 0, 40))
    end_physical_offset = int.from_bytes(header[24:32], "big", signed=True)
    return max(store.facts.min_offset, end_physical_offset + (0 if store.facts.is_running else 1))


def holes_of(files: ReplicaFiles, facts: ReplicaFacts) -> tuple[LogRange, ...]:
    """Parts of the log without bytes, as the files are now."""
    segments = _numbered(files.list_folder("commitlog"))
    return _holes(segments, facts.segment_bytes, LogRange(facts.min_offset, facts.end_offset))


def _holes(segments: list[StoreEntry], segment_bytes: int, log_range: LogRange) -> tuple[LogRange, ...]:
    """Parts of the log without bytes."""
    if not segments:
        return ()
    sizes = {int(entry.name): min(entry.size, segment_bytes) for entry in segments}
    holes: list[LogRange] = []
    for start in range(log_range.start_offset, log_range.end_offset, segment_bytes):
        hole = LogRange(start + sizes.get(start, 0), min(start + segment_bytes, log_range.end_offset))
        if hole.start_offset < hole.end_offset:
            if holes and holes[-1].end_offset == hole.start_offset:
                hole = LogRange(holes.pop().start_offset, hole.end_offset)
            holes.append(hole)
    return tuple(holes)


# Digests of a log's extents, by which replicas are compared first.


EXTENT_BYTES: Final = 4 << 20


class Hash(Protocol):
    """What hashlib's objects, xxhash's and blake3's have in common."""

    def update(self, data: memoryview, /) -> object: ...

    def digest(self) -> bytes: ...


class ExtentDigest(NamedTuple):
    """The digest of the bytes [start_offset, end_offset) of one replica."""

    start_offset: int
    end_offset: int
    digest: bytes
    """Empty: some of these bytes have no file."""


def extents_of(log_range: LogRange, extent_bytes: int) -> Iterator[LogRange]:
    """The extents of a range, the first and the last cut to it."""
    start = log_range.start_offset
    while start < log_range.end_offset:
        end = min(start - start % extent_bytes + extent_bytes, log_range.end_offset)
        yield LogRange(start, end)
        start = end


def digest_extents(
    store: ReplicaStore,
    log_range: LogRange,
    *,
    extent_bytes: int,
    new_hash: Callable[[], Hash],
    piece_bytes: int | None = None,
) -> Iterator[ExtentDigest]:
    """The digest of each extent of a range, in order. Holes of the log are not read.

    `piece_bytes`: read and hashed at once, an extent if it is not given; it does not change a digest. A piece that fits
    the processor's cache costs half as much where every read copies; large ones suit reads past the page cache.
    Bytes within one file are not copied here; where a piece spans two they are joined first.
    """
    holes = store.facts.holes
    for start, end in extents_of(log_range, extent_bytes):
        if holes and any(hole.start_offset < end and start < hole.end_offset for hole in holes):
            yield ExtentDigest(start, end, b"")
            continue
        hashed = new_hash()
        for piece in extents_of(LogRange(start, end), piece_bytes or extent_bytes):
            hashed.update(store.read_log(piece.start_offset, piece.end_offset))
        yield ExtentDigest(start, end, hashed.digest())


class DigestingStore(ReplicaStore):
    """A replica whose extents of one range are digested while somebody else reads it, in about the log's order.

    So a log that is checked record by record is read once. What the other one left out is read at the end.
    """

    def __init__(
        self,
        files: ReplicaFiles,
        facts: ReplicaFacts,
        log_range: LogRange,
        *,
        extent_bytes: int,
        new_hash: Callable[[], Hash],
    ) -> None:
        super().__init__(files, facts)
        self._left = extents_of(log_range, extent_bytes)
        self._new_hash = new_hash
        self._gap_bytes_max = extent_bytes
        self._digests: list[ExtentDigest] = []
        self._hash = new_hash()
        self._start = self._next = self._end = log_range.start_offset
        self._begin_extent()

    def read_log(self, start_offset: int, end_offset: int) -> memoryview:
        gap_bytes = start_offset - self._next
        if 0 < gap_bytes <= self._gap_bytes_max and self._next < self._end:
            self._take(super().read_log(self._next, start_offset))
        view = super().read_log(start_offset, end_offset)
        if start_offset <= self._next < end_offset:
            self._take(view[self._next - start_offset :])
        return view

    def digests(self) -> list[ExtentDigest]:
        """Of all extents, in order; see `digest_extents`."""
        while self._next < self._end:
            self._take(super().read_log(self._next, self._end))
        return self._digests

    def _take(self, view: memoryview) -> None:
        """The bytes from `_next` on, as far as they are wanted."""
        while len(view) and self._next < self._end:
            count = min(len(view), self._end - self._next)
            self._hash.update(view[:count])
            self._next += count
            view = view[count:]
            if self._next == self._end:
                self._digests.append(ExtentDigest(self._start, self._end, self._hash.digest()))
                before = self._next
                self._begin_extent()
                view = view[self._start - before :]

    def _begin_extent(self) -> None:
        """The next one that no hole is in; none: `_next` is `_end`."""
        for start, end in self._left:
            if any(hole.start_offset < end and start < hole.end_offset for hole in self.facts.holes):
                self._digests.append(ExtentDigest(start, end, b""))
                continue
            self._hash = self._new_hash()
            self._start, self._next, self._end = start, start, end
            return
        self._start = self._next = self._end


# What a broker says of its own replica to those who prove replicas equal.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica at one moment. Offsets are bytes in the CommitLog; what they mean is said in the proto."""

    identity: BrokerIdentity
    min_offset: int
    end_offset: int
    flushed_offset: int
    confirm_offset: int
    segment_bytes: int
    queues_offset: int
    index_offset: int
    lag_bytes: int
    serving: bool

    def facts(self) -> ReplicaFacts:
        """The same for the checks. A running broker's files have no holes: it does not start with any."""
        return ReplicaFacts(
            group=self.identity.broker_name,
            broker_id=self.identity.broker_id,
            min_offset=self.min_offset,
            end_offset=self.end_offset,
            segment_bytes=self.segment_bytes,
            is_running=True,
            queues_offset=self.queues_offset,
            index_offset=self.index_offset,
            lag_bytes=self.lag_bytes,
        )


# The hash functions a digest may be made with. Imported where bytes are, which need not have both libraries.

DIGEST_BYTES: Final = {"xxh3_128": 16, "blake3": 32}
DIGEST_ALGORITHMS: Final = tuple(DIGEST_BYTES)


def hash_maker(algorithm: str) -> Callable[[], Hash]:
    """Makes empty hashes of that name. KeyError for an unknown one."""
    if algorithm == "xxh3_128":
        import xxhash

        return xxhash.xxh3_128
    if algorithm == "blake3":
        import blake3

        return blake3.blake3
    raise KeyError(algorithm)
