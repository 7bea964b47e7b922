"""The index of a store: IndexFiles one after the other, the newest of which grows (RocketMQ's IndexService).

The index is a help for people who look for a message; nothing else depends on it. What a crash takes from it can be
entered again from the CommitLog as long as that still has the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from struct import Struct
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, write_i64_le
from mypy_extensions import i64

from tandemmq.core.offsets import PhysicalOffset
from tandemmq.core.storage.consume_queue_table import StopKind
from tandemmq.core.storage.disk import Disk, DiskFull, FolderEntry, MappedSegment, SegmentSizeMismatch
from tandemmq.core.storage.index_file import (
    HASH_BYTES,
    IndexFile,
    add_term_hashes,
    hashes_of,
    index_file_bytes,
    key_hash,
    tag_hash,
    term_hashes,
)

if TYPE_CHECKING:
    from tandemmq.core.storage.record_batch import IndexColumns


# Pages of a mapped file, brought before its writer comes to them (docs/adr/0022).

_AHEAD_BYTES: Final = 16 << 20
_LEFT_BYTES_MIN: Final = _AHEAD_BYTES // 2
"""While more than that is left of what was brought, nobody is woken. An index needs a second and more for it."""


@dataclass(frozen=True, slots=True)
class PagesAheadJob:
    """Brings the pages of [start, end) of a file, in a thread."""

    segment: MappedSegment
    start: int
    end: int

    def run(self) -> None:
        """Blocks; never raises DiskError."""
        self.segment.fetch_pages(self.start, self.end)


class PagesAhead:
    """Follows one writer that fills files from front to back."""

    def __init__(self) -> None:
        self._segment: MappedSegment | None = None
        # Where the pages end that were brought of that file.
        self._end = 0

    def ahead_of(self, segment: MappedSegment, position: int) -> PagesAheadJob | None:
        """What is to be brought for a writer that is at `position`, and counts as brought now; None: nothing."""
        if segment is not self._segment:
            self._segment, self._end = segment, 0
        start = max(self._end, position)
        end = min(position + _AHEAD_BYTES, segment.size)
        if start >= end or start - position > _LEFT_BYTES_MIN:
            return None
        self._end = end
        return PagesAheadJob(segment, start, end)


_INDEX_FOLDER: Final = "index"
_NAME_DIGITS: Final = 17
_GAP_FILES_MAX: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SLOT_BYTES: Final = 4
"""What a file's length is a multiple of, whatever the counts are."""
_COUNTS_SET_BACK: Final = (
    "set maxHashSlotNum and maxIndexNum back to what the store was created with; if nobody changed them, the file is "
    f"damaged: move the folder {_INDEX_FOLDER} away, and the start makes it again from the newest part of the CommitLog"
)

_WAITING_MAX: Final = 512
"""Records that wait to be entered at once: half a millisecond's work."""
_COLUMNS_FROM: Final = 64
"""Records. Fewer are entered faster one by one."""
_WAITING: Final = Struct("<qqq")
"""A record that waits: how many hashes are its, its offset and store timestamp."""
_WAITING_BYTES: Final = _WAITING.size


class IndexTable:
    """All IndexFiles, oldest first. One thread only, but full files may be synced in another."""

    def __init__(self, disk: Disk, *, slot_count: int, entry_count: int) -> None:
        """The counts are `maxHashSlotNum` and `maxIndexNum`; they may not change while there are files."""
        self._disk: Final = disk
        self._slot_count: Final = slot_count
        self._entry_count: Final = entry_count
        self._file_bytes: Final = index_file_bytes(slot_count=slot_count, entry_count=entry_count)
        self._files: Final[list[IndexFile]] = []
        self._full_files: Final[list[IndexFile]] = []
        self._pages: Final = PagesAhead()
        self._prepared: MappedSegment | None = None
        """The next file, made ahead; named later than every other."""
        # Records that wait to be entered: all their hashes, and a `_WAITING` for each. They are kept as bytes: these
        # need no objects, and numpy takes them as they are.
        self._waiting_hashes = BytesWriter()
        self._waiting_records = BytesWriter()
        self._columns: type[IndexColumns] | None = None
        self._behind_gap: list[IndexFile] = []
        """Files behind the place where one is missing, while it is made again."""
        self._full_behind_gap: list[IndexFile] = []
        """What was in `_full_files` before."""
        self.damaged: Final[list[str]] = []
        """Names of files that `load` deleted because they are damaged."""
        self.durable_timestamp_ms = 0
        """End of the last file that `load` found to be full and synced. The checkpoint must not say more while the
        store runs: a file that was closed half full may yet become full within the same millisecond."""

    def load(self, stop: StopKind, *, durable_timestamp_ms: int) -> PhysicalOffset | None:
        """Maps every file. Returns from which physical offset on records have to be entered again, None: none.

        After a power loss that is always the end of the files that are left: an earlier start may have deleted the
        others and crashed before it had entered their records.

        After a power loss only full files are believed, up to the one that `durable_timestamp_ms` (the checkpoint's
        index_message_timestamp_ms) names; the others may be torn and are deleted. A killed process leaves its files
        sound. What has another length than the rest, or no entry though others come after it, is damaged and deleted
        too: `damaged`. Raises SegmentSizeMismatch if all have one other length: the counts were changed.
        """
        self.load_columns()
        self._begin_anew()
        is_believed = True
        is_last_lost = False
        found_files = [
            found for found in self._disk.list_folder(_INDEX_FOLDER) if not found.is_folder and found.name.isdecimal()
        ]
        self._check_lengths(found_files)
        for found in found_files:
            path = f"{_INDEX_FOLDER}/{found.name}"
            is_newest = found is found_files[-1]
            if found.size != self._file_bytes:
                self.damaged.append(found.name)
                self._disk.remove(path)
                is_last_lost = is_newest
                continue
            file = self._mapped(path, create=False)
            if file.is_empty:  # A crash came before its first entry, or after its last one was taken back.
                if is_newest:
                    is_last_lost = True
                else:
                    self.damaged.append(found.name)
                file.close()
                self._disk.remove(path)
                continue
            is_durable = self._is_durable(file, durable_timestamp_ms)
            is_believed = is_believed and file.is_plausible and (is_durable or stop is not StopKind.POWER_LOST)
            if is_believed:
                self._files.append(file)
                if is_durable:
                    self.durable_timestamp_ms = file.end_timestamp_ms
                elif file.is_full:
                    self._full_files.append(file)
            else:
                file.close()
                self._disk.remove(path)
        if self._files and is_believed and not is_last_lost and stop is not StopKind.POWER_LOST:
            return None
        return PhysicalOffset(self._files[-1].end_physical_offset if self._files else 0)

    def _begin_anew(self) -> None:
        """A load that found no room left what it had come to."""
        self._close([*self._files, *self._behind_gap])
        for known in (self._files, self._full_files, self._behind_gap, self._full_behind_gap, self.damaged):
            known.clear()
        self.forget_waiting()
        self.durable_timestamp_ms = 0

    def _check_lengths(self, found_files: Sequence[FolderEntry]) -> None:
        sizes = {found.size for found in found_files}
        if len(sizes) == 1 and (size := sizes.pop()) != self._file_bytes and size > 0 and size % _SLOT_BYTES == 0:
            raise SegmentSizeMismatch(
                f"{_INDEX_FOLDER}/{found_files[0].name}",
                found_bytes=size,
                expected_bytes=self._file_bytes,
                remedy=_COUNTS_SET_BACK,
            )

    @property
    def files(self) -> list[IndexFile]:
        """Oldest first."""
        return list(self._files)

    def start_offset(self) -> int:
        """Where the first record starts that is in the oldest file; -1 without any."""
        return self._files[0].begin_physical_offset if self._files and not self._files[0].is_empty else -1

    @property
    def last_physical_offset(self) -> int:
        """Where the last record starts that was entered; -1 without any."""
        return self._files[-1].end_physical_offset if self._files else -1

    def load_columns(self) -> None:
        """Has `enter_waiting` enter many records at once from now on, if numpy is there. Takes a tenth of a second."""
        if find_spec("numpy") is not None:
            from tandemmq.core.storage.record_batch import IndexColumns

            self._columns = IndexColumns

    def put(  # Not by keyword: the hot path cannot spare what that costs.
        self,
        topic: str,
        keys: Sequence[str],
        tag: str | None,
        physical_offset: int,
        store_timestamp_ms: int,
        wall_ms: int,
    ) -> None:
        """Enters a record under each key and then under its tag. `wall_ms` names a new file, if one is needed.

        A record that was entered before is left alone, so dispatching twice does no harm.
        """
        self.enter_waiting()
        hashes = term_hashes(topic, keys, tag)
        if hashes:
            self._put_hashes(hashes, physical_offset, store_timestamp_ms, wall_ms)

    def put_later(
        self, topic: str, keys: tuple[str, ...], tag: str | None, physical_offset: int, store_timestamp_ms: int
    ) -> None:
        """Takes a record for `enter_waiting`, which has the same result as `put` now, in half the time.

        Until then a query does not find it, and only the CommitLog knows it. So it must be entered before a checkpoint
        vouches for it. DiskError as for `enter_waiting`, which it calls when many are waiting.
        """
        self.note(topic, keys, tag, physical_offset, store_timestamp_ms)
        if self.has_many_waiting:
            self.enter_waiting()

    def put_hashes_later(self, hashes: list[int], physical_offset: int, store_timestamp_ms: int) -> None:
        """The same for what `term_hashes` gives."""
        for hashed in hashes:
            write_i64_le(self._waiting_hashes, hashed)
        self._note_count(len(hashes), physical_offset, store_timestamp_ms)
        if self.has_many_waiting:
            self.enter_waiting()

    def note(
        self, topic: str, keys: tuple[str, ...], tag: str | None, physical_offset: int, store_timestamp_ms: int
    ) -> None:
        """`put_later` for who looks after several records whether there are many: `has_many_waiting`."""
        added = add_term_hashes(self._waiting_hashes, topic, keys, tag)
        self._note_count(added, physical_offset, store_timestamp_ms)

    def _note_count(self, added: i64, physical_offset: i64, store_timestamp_ms: i64) -> None:
        """Notes how many hashes of a record were added to those that wait."""
        if added:
            write_i64_le(self._waiting_records, added)
            write_i64_le(self._waiting_records, physical_offset)
            write_i64_le(self._waiting_records, store_timestamp_ms)

    @property
    def has_many_waiting(self) -> bool:
        """Whether it is time for `enter_waiting`."""
        return len(self._waiting_records) >= _WAITING_MAX * _WAITING_BYTES

    def enter_waiting(self) -> None:
        """Enters what `put_later` was given. After a DiskError nothing is lost; the call may be repeated."""
        hashes, records = self._waiting_hashes, self._waiting_records
        if len(records) == 0:
            return
        self.forget_waiting()
        try:
            if self._columns is not None and len(records) >= _COLUMNS_FROM * _WAITING_BYTES:
                self.put_columns(self._columns.of_records(hashes.getvalue(), records.getvalue()))
            else:
                self._put_records(hashes_of(hashes), records.getvalue())
        except BaseException:
            self._waiting_hashes, self._waiting_records = hashes, records
            raise

    def forget_waiting(self) -> None:
        """Gives up what waits, so it is not found by its keys.

        For a store that goes on without room, in which entries must not gather for ever.
        """
        self._waiting_hashes, self._waiting_records = BytesWriter(), BytesWriter()

    def _put_records(self, hashes: list[int], records: bytes) -> None:
        start = 0
        for count, physical_offset, store_timestamp_ms in _WAITING.iter_unpack(records):
            end = start + count
            self._put_hashes(hashes[start:end], physical_offset, store_timestamp_ms, store_timestamp_ms)
            start = end

    def put_columns(self, columns: IndexColumns) -> None:
        """Enters many records, with the same result as `put` one after the other, `wall_ms` their store timestamps."""
        self.enter_waiting()
        row = 0
        while row < len(columns):
            file = self._files[-1] if self._files else None
            end = row
            if file is not None and not file.is_empty:
                row = max(row, columns.first_from(file.end_physical_offset))
                if row == len(columns) or int(columns.physical_offsets[row]) > file.end_physical_offset:
                    end = columns.record_start(min(len(columns), row + file.room))
            if file is not None and end > row:
                file.add_columns(columns.part(row, end))
                row = end
            elif row < len(columns):
                # The first record of a file, or the one that does not fit whole into what is left of one, or the last
                # one that was entered, perhaps not whole.
                end = columns.record_end(row)
                store_timestamp_ms = int(columns.store_timestamps_ms[row])
                self._put_hashes(
                    columns.hashes[row:end].tolist(),
                    int(columns.physical_offsets[row]),
                    store_timestamp_ms,
                    store_timestamp_ms,
                )
                row = end

    def _put_hashes(self, hashes: list[int], physical_offset: int, store_timestamp_ms: int, wall_ms: int) -> None:
        if not self._files:
            self._files.append(self._new_file(wall_ms))
        file = self._files[-1]
        if physical_offset <= file.end_physical_offset and not file.is_empty:
            if physical_offset < file.end_physical_offset:
                return
            hashes = hashes[file.last_record_entries :]
            if not hashes:
                return
        added = file.add(hashes, physical_offset, store_timestamp_ms)
        while added < len(hashes):
            file = self._roll(wall_ms)
            del hashes[:added]
            added = file.add(hashes, physical_offset, store_timestamp_ms)

    def query(self, topic: str, key: str, *, begin_ms: int, end_ms: int, max_count: int) -> list[PhysicalOffset]:
        """Where records of `topic` with `key` may start, newest first, at most `max_count`.

        The caller reads them and compares the key, as hashes collide, and the store time, known here to the second.
        """
        return self._query(key_hash(topic, key), begin_ms=begin_ms, end_ms=end_ms, max_count=max_count)

    def walk(self, topic: str, key: str, *, begin_ms: int, end_ms: int) -> Iterator[PhysicalOffset | None]:
        """As `query`, one entry of the index after the other: None for an entry that is another's, so that who looks
        for much may let others have a turn in between."""
        hashed = key_hash(topic, key)
        for file in list(reversed(self._files)):
            if file.overlaps(begin_ms=begin_ms, end_ms=end_ms):
                yield from file.chain(hashed, begin_ms=begin_ms, end_ms=end_ms)

    def query_tag(self, topic: str, tag: str, *, begin_ms: int, end_ms: int, max_count: int) -> list[PhysicalOffset]:
        """The same for a tag; records entered by RocketMQ before 5.5 are not found."""
        return self._query(tag_hash(topic, tag), begin_ms=begin_ms, end_ms=end_ms, max_count=max_count)

    def open_gap(self, before: IndexFile | None) -> None:
        """Records that come next belong behind `before` and in front of the file behind it: one between them is
        missing. None: the oldest. Until `close_gap`."""
        place = 0 if before is None else self._files.index(before) + 1
        self._behind_gap = self._files[place:]
        self._full_behind_gap = list(self._full_files)
        self._full_files.clear()
        del self._files[place:]

    def close_gap(self) -> None:
        """What was entered since `open_gap` is durable when it returns. What had no room is given up."""
        self.forget_waiting()
        for file in (*self._full_files, *self._files[-1:]):
            file.sync()
        self._full_files[:] = self._full_behind_gap
        self._files.extend(self._behind_gap)
        self._behind_gap.clear()

    def truncate(self, physical_end: int, stored_ms: Callable[[int], int | None]) -> None:
        """Takes back the entries of records that start at or beyond `physical_end`, where the CommitLog is cut, or from
        where on they are entered anew. `stored_ms` knows the store time of a record."""
        kept = kept_hashes = 0
        for count, physical_offset, _ in _WAITING.iter_unpack(self._waiting_records.getvalue()):
            if physical_offset >= physical_end:
                break
            kept += 1
            kept_hashes += count
        self._waiting_records.truncate(kept * _WAITING_BYTES)
        self._waiting_hashes.truncate(kept_hashes * HASH_BYTES)
        while self._files:
            file = self._files[-1]
            if file.end_physical_offset < physical_end and not file.is_empty:
                return
            file.truncate(physical_end, stored_ms)
            if file in self._full_files:
                self._full_files.remove(file)
            if not file.is_empty:
                return
            self._remove(file)

    def forget_expired_files(self, log_min_offset: int) -> list[MappedSegment]:
        """Gives up files whose records are all gone from the CommitLog, never the newest; the caller removes them."""
        expired = [file for file in self._files[:-1] if file.end_physical_offset < log_min_offset]
        for file in expired:
            self._forget(file)
        return [file.segment for file in expired]

    def remove_all(self) -> None:
        """Deletes every file: the CommitLog is empty, or starts anew somewhere else."""
        self.forget_waiting()
        for file in list(self._files):
            self._remove(file)

    def take_full_files(self) -> list[IndexFile]:
        """Files that became full since the last call. Once they are synced, the checkpoint's
        index_message_timestamp_ms may be the last one's end_timestamp_ms."""
        full_files = list(self._full_files)
        self._full_files.clear()
        return full_files

    def next_file(self, *, wall_ms: int) -> Callable[[], MappedSegment] | None:
        """How to make the file that will be needed next, in a thread; `wall_ms` names it.

        None if it is there, or if the newest one is not half full. A crash leaves it empty, and then `load` removes it.
        """
        if self._prepared is not None or (self._files and self._files[-1].room > self._entry_count // 2):
            return None
        path = self._next_path(wall_ms)
        return lambda: self._make_file(path)

    def _make_file(self, path: str) -> MappedSegment:
        segment = self._disk.map_segment(path, self._file_bytes, create=True)
        # Its slots are filled in no order, so that nearly every one of the first entries would need new pages.
        segment.fetch_pages(0, index_file_bytes(slot_count=self._slot_count, entry_count=0))
        return segment

    def pages_ahead_job(self) -> PagesAheadJob | None:
        """What brings the pages that the next entries go to; None: they are there, or there is no file."""
        if not self._files or self._files[-1].is_full:
            return None
        return self._pages.ahead_of(self._files[-1].segment, self._files[-1].entries_end)

    def take_prepared(self, segment: MappedSegment) -> None:
        """The next file was made ahead. If one was needed meanwhile, it is that one, or comes too late and goes."""
        if not self._files or segment.path > self._files[-1].path:
            self._prepared = segment
        elif all(file.path != segment.path for file in self._files):
            segment.close()
            self._disk.remove(segment.path)

    def close(self) -> int:
        """Makes everything durable, closes the files and returns the timestamp for the checkpoint, 0 without files.

        What is waiting and has no room is given up: no checkpoint vouches for it.
        """
        with suppress(DiskFull):
            self.enter_waiting()
        end_timestamp_ms = self._files[-1].end_timestamp_ms if self._files else 0
        for file in {*self._full_files, *self._files[-1:]}:
            file.sync()
        self._close(self._files)
        self._files.clear()
        if self._prepared is not None:
            self._prepared.close()
            self._disk.remove(self._prepared.path)
            self._prepared = None
        return end_timestamp_ms

    def _query(self, hashed: int, *, begin_ms: int, end_ms: int, max_count: int) -> list[PhysicalOffset]:
        offsets: list[PhysicalOffset] = []
        for file in reversed(self._files):
            if not file.overlaps(begin_ms=begin_ms, end_ms=end_ms):
                continue
            for physical_offset in file.records(hashed, begin_ms=begin_ms, end_ms=end_ms):
                if len(offsets) >= max_count:
                    return offsets
                offsets.append(physical_offset)
        return offsets

    def _is_durable(self, file: IndexFile, durable_timestamp_ms: int) -> bool:
        """Whether a file was synced when the checkpoint was written. Of two that end in the same millisecond only the
        first is known to be; and one that is not full may have been added to since."""
        if not file.is_full or file.end_timestamp_ms > durable_timestamp_ms:
            return False
        return not self._files or self._files[-1].end_timestamp_ms < durable_timestamp_ms

    def _roll(self, wall_ms: int) -> IndexFile:
        full = self._files[-1]
        file = self._new_file(wall_ms)
        file.continue_after(full)
        self._full_files.append(full)
        self._files.append(file)
        return file

    def _new_file(self, wall_ms: int) -> IndexFile:
        if self._prepared is None:
            path = self._next_path(wall_ms)
            assert not self._behind_gap or path < self._behind_gap[0].path, f"there is no place for {path}"
            return self._mapped(path, create=True)
        segment, self._prepared = self._prepared, None
        return self._index_file(segment)

    def _next_path(self, wall_ms: int) -> str:
        """Named after the time, a millisecond after the newest file if the clock did not advance. A file that is
        missing had a name between those of its neighbours; the oldest one an earlier name, with room for more."""
        newest = self._files[-1].path.rpartition("/")[2] if self._files else ""
        name = _file_name(wall_ms)
        if self._behind_gap and not newest:
            room_end = int(self._behind_gap[0].path.rpartition("/")[2]) - _GAP_FILES_MAX
            name = str(min(int(name), max(0, room_end))).zfill(_NAME_DIGITS)
        elif name <= newest or self._behind_gap:
            name = str(int(newest) + 1).zfill(_NAME_DIGITS)
        return f"{_INDEX_FOLDER}/{name}"

    def _mapped(self, path: str, *, create: bool) -> IndexFile:
        return self._index_file(self._disk.map_segment(path, self._file_bytes, create=create))

    def _index_file(self, segment: MappedSegment) -> IndexFile:
        return IndexFile(segment, slot_count=self._slot_count, entry_count=self._entry_count)

    def _remove(self, file: IndexFile) -> None:
        self._forget(file)
        file.close()
        self._disk.remove(file.path)

    def _forget(self, file: IndexFile) -> None:
        self._files.remove(file)
        if file in self._full_files:
            self._full_files.remove(file)

    @staticmethod
    def _close(files: Iterable[IndexFile]) -> None:
        for file in files:
            file.close()


def _file_name(wall_ms: int) -> str:
    """yyyyMMddHHmmssSSS; UTC, where RocketMQ takes local time: a name must not fall back in autumn."""
    moment = _EPOCH + timedelta(milliseconds=wall_ms)
    return f"{moment:%Y%m%d%H%M%S}{wall_ms % 1000:03d}"
