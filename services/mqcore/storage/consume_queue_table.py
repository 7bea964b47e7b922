"""All ConsumeQueues of a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from mqcore.message.checksum import crc32
from mqcore.storage.consume_queue import ConsumeQueue, QueueEntry
from mqcore.storage.consume_queue_files import (
    CONSUME_QUEUE_FOLDER,
    ConsumeQueueFiles,
    ConsumeQueueSync,
)
from mqcore.storage.consume_queue_loading import StopKind, load_consume_queue
from mqcore.storage.disk import Disk

__all__ = ["ConsumeQueueTable"]

_KEPT_ENTRIES_TOTAL: Final = 2_000_000
"""Entries all queues together keep in memory for consumers at their tails: 40 MB."""
_KEPT_ENTRIES_MIN: Final = 32
_KEPT_ENTRIES_MAX: Final = 4096
"""Bounds of what one queue keeps: one receive of the usual size, and as much as a fast queue gets in a moment."""

_NEW_FILE_COST: Final = 8
"""Writing a queue's first entries against writing some more: two folders and a file are made (ext4: 290 µs, 33 µs)."""


_ENDS_PATH: Final = "consumequeue-ends"
"""Eight hexadecimal digits, the CRC of what follows; a line's end; JSON: [logics_physical_offset, [[topic, queue id,
start of the first file, max offset], ...]]."""


class ConsumeQueueTable:
    """Finds a queue by topic and queue id, and does to all queues what is done to all."""

    def __init__(self, disk: Disk, *, file_bytes: int) -> None:
        """`file_bytes` is the length of every file, a multiple of 20 that may not change while there are files."""
        self._disk: Final = disk
        self._files: Final = ConsumeQueueFiles(disk, file_bytes=file_bytes)
        self._queues: Final[dict[tuple[str, int], ConsumeQueue]] = {}
        self._ids: Final[dict[str, set[int]]] = {}
        """Queue ids by topic: of 80,000 queues, a topic's are found without looking at all."""
        self._dirty: Final[list[ConsumeQueue]] = []
        """Shared with the queues, which enter themselves."""
        self._round: Final[list[ConsumeQueue]] = []
        """What is left of the queues that were dirty when the round began."""
        self.damaged: Final[list[tuple[str, int, int]]] = []
        """Queues whose files `load` found damaged, and the first entry that was lost: topic, queue id, queue offset."""
        self.new_count = 0
        """Queues that got their first message since the last round began: each has a file to be made."""

    def load(
        self,
        stop: StopKind,
        *,
        durable_offset: int,
        log_end: int = sys.maxsize,
        farthest: Callable[[QueueEntry], None] = lambda _entry: None,
    ) -> int | None:
        """Finds every queue on disk; see consume_queue_loading for what is dropped after an unclean stop.

        What it changes in the files is durable when it returns. `durable_offset` is the checkpoint's
        logics_physical_offset; no record ends beyond `log_end`. `farthest` is told an entry of each queue, after an
        unclean stop, before anything of the queue is dropped. Returns from where on records have to be entered again
        because files are damaged; None: none. Blocks: about 0.1 ms for a queue.
        """
        damaged_from: int | None = None
        self.damaged.clear()
        for topic in self._disk.list_folder(CONSUME_QUEUE_FOLDER):
            for queue_id in self._disk.list_folder(f"{CONSUME_QUEUE_FOLDER}/{topic.name}"):
                if queue_id.is_folder and queue_id.name.isdecimal():
                    queue = self._new_queue(topic.name, int(queue_id.name))
                    loaded = load_consume_queue(
                        queue, self._files, stop, durable_offset, log_end=log_end, farthest=farthest
                    )
                    if loaded.has_files:
                        self._enter(queue)
                    if loaded.damaged_from is not None:
                        self.damaged.append((queue.topic, queue.queue_id, queue.max_offset))
                        damaged_from = (
                            loaded.damaged_from if damaged_from is None else min(damaged_from, loaded.damaged_from)
                        )
        if stop is StopKind.CLEAN:
            damaged_from = self._compare_with_ends(durable_offset, damaged_from)
        # All at once: after a kill there may be something to erase in each of 80,000 files.
        repairs = self.take_sync()
        if repairs is not None:
            repairs.run()
        return damaged_from

    def save_ends(self, durable_offset: int) -> None:
        """Writes down where every queue ends, durably: the last step before an orderly stop. Entries that are lost
        from the end of a file, and whole files, leave no other trace."""
        queues = [
            [queue.topic, queue.queue_id, queue.first_file_start, queue.max_offset]
            for queue in self
            if not queue.is_empty
        ]
        data = json.dumps([durable_offset, queues], separators=(",", ":")).encode()
        self._disk.write_file(_ENDS_PATH, b"%08x\n" % crc32(data) + data)

    def _compare_with_ends(self, durable_offset: int, damaged_from: int | None) -> int | None:
        """`damaged_from`, or an earlier place where a queue is not what it was at the stop."""
        checksum, _, data = (self._disk.read_file(_ENDS_PATH) or b"").partition(b"\n")
        if checksum != b"%08x" % crc32(data):
            return damaged_from
        stopped_at, ends = json.loads(data)
        if stopped_at != durable_offset:
            return damaged_from  # Of another stop: a Java broker ran since.
        for topic, queue_id, first_file_start, max_offset in ends:
            queue = self.get(topic, queue_id)
            if queue is not None and (queue.first_file_start, queue.max_offset) == (first_file_start, max_offset):
                continue
            lost_from = 0
            if queue is not None and queue.first_file_start == first_file_start and queue.max_offset < max_offset:
                lost_from = queue.last_physical_end
            elif queue is not None:
                self._remove([(topic, queue_id)])
                self._files.remove_queue(queue.folder)
            self.damaged.append((topic, queue_id, queue.max_offset if queue is not None and lost_from else 0))
            damaged_from = lost_from if damaged_from is None else min(damaged_from, lost_from)
        return damaged_from

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, or None if it never had a message here."""
        return self._queues.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; an empty one if there is none. Its first file is made when its first entry is written out."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._new_queue(topic, queue_id)
            self._enter(queue)
            self.new_count += 1
        return queue

    def ids_of(self, topic: str) -> list[int]:
        """Ids of the topic's queues that ever had a message here, ascending."""
        return sorted(self._ids.get(topic, ()))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def last_physical_end(self) -> int:
        """End in the CommitLog of the last record any queue has."""
        return max((queue.last_physical_end for queue in self), default=0)

    def write_out(self) -> None:
        """Writes all entries that are not yet in a file. Not durable before the next sync."""
        self.begin_round()
        while not self.write_out_some(cost_max=len(self._round)):
            pass

    @property
    def dirty_count(self) -> int:
        """About how many queues have something to write."""
        return len(self._dirty)

    def begin_round(self) -> None:
        """Takes up every queue that has something to write, for `write_out_some`; also what an earlier round left."""
        self._round.extend(self._dirty)
        self._dirty.clear()
        self.new_count = 0

    def write_out_some(self, *, cost_max: int) -> bool:
        """Writes out queues of the round, at least one; True if none is left of it.

        Then, and after the next sync, every entry made before the round began is durable. A queue costs 1, or 8 if it
        begins a file. After a DiskError the call may be repeated.
        """
        kept_entries = self._kept_entries()
        cost = 0
        while self._round and cost < cost_max:
            queue = self._round[-1]
            cost += _NEW_FILE_COST if queue.begins_file else 1
            queue.write_out(kept_entries=kept_entries)
            self._round.pop()
        return not self._round

    def take_sync(self) -> ConsumeQueueSync | None:
        """The files written since the last call, for a thread to sync; None if there are none.

        After `write_out`, and once its `run` returned, every entry made before is durable, if what was taken before
        has run as well. One at a time.
        """
        return self._files.take_sync()

    def truncate(self, physical_end: int) -> None:
        """Drops the entries of all records that end beyond `physical_end`, durably. Call it before the log is cut."""
        for queue in self:
            queue.truncate(physical_end)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Moves every queue's min_offset to its first record that the CommitLog still has."""
        for queue in self:
            queue.correct_min_offset(log_min_offset)

    def remove_expired_files(self, log_min_offset: int) -> int:
        """Deletes files whose records are all gone from the CommitLog, but no queue's last one. Returns how many."""
        return sum(queue.remove_expired_files(log_min_offset) for queue in self)

    def remove_topic(self, topic: str) -> None:
        """Forgets and deletes every queue of a topic."""
        self._remove([key for key in self._queues if key[0] == topic])
        self._files.remove_folder(f"{CONSUME_QUEUE_FOLDER}/{topic}")

    def remove_all(self) -> None:
        """Forgets and deletes every queue: the CommitLog is empty, or starts anew somewhere else."""
        self._remove(list(self._queues))
        self._files.remove_folder(CONSUME_QUEUE_FOLDER)

    def close(self) -> None:
        """Closes what is open. Entries neither written out nor synced are not saved by it."""
        self._files.close()

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(self._files, self._dirty, topic=topic, queue_id=queue_id)

    def _enter(self, queue: ConsumeQueue) -> None:
        self._queues[queue.topic, queue.queue_id] = queue
        self._ids.setdefault(queue.topic, set()).add(queue.queue_id)

    def _remove(self, keys: Iterable[tuple[str, int]]) -> None:
        removed = set()
        for topic, queue_id in keys:
            removed.add(id(self._queues.pop((topic, queue_id))))
            ids = self._ids[topic]
            ids.discard(queue_id)
            if not ids:
                del self._ids[topic]
        for waiting in (self._dirty, self._round):
            waiting[:] = [queue for queue in waiting if id(queue) not in removed]

    def _kept_entries(self) -> int:
        fair_share = _KEPT_ENTRIES_TOTAL // max(1, len(self._queues))
        return max(_KEPT_ENTRIES_MIN, min(_KEPT_ENTRIES_MAX, fair_share))
