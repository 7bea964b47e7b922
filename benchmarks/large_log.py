"""A large group of replicas on disk, quickly: a store made by the storage engine itself, and real copies of it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.message.properties import encode_properties, tags_code
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.metadata.metadata_store import MetadataFile, MetadataStore
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import PutStatus
from tandemmq.service.event_loop import SystemClock

BODY_BYTES: Final = (256, 512, 1024, 1024, 1024, 2048, 4096, 8192)
"""Sizes in turn; 2.3 KB on average."""
TOPICS: Final = ("orders", "payments", "shipments", "ledger")
_QUEUES: Final = 8
_TAGS: Final = ("created", "paid", "shipped")
_BATCH: Final = 64
_BATCHES_PER_FLUSH: Final = 4096
_COPY_BYTES: Final = 64 << 20
# A disk that gets as full as this one is no reason to refuse.
_OPTIONS: Final = StoreOptions(disk_max_used_ratio=0.999, disk_clean_forcibly_ratio=0.999, disk_warning_ratio=0.999)


def append_messages(folder: Path, end_offset: int, *, seed: int) -> int:
    """Puts messages into the store in `folder` until its log ends beyond `end_offset`; returns how many these were.

    The store is made if it is not there, with its topics, and ended in order. About 40,000 messages a second.
    """
    host = Host.parse("127.0.0.1", 10_911)
    disk = PosixDisk(folder)
    MetadataStore(disk).persist(MetadataFile.TOPICS, _topics().to_json())
    store = MessageStore(disk, SystemClock(), _OPTIONS, store_host=host)
    store.load()
    block = random.Random(seed).randbytes(1 << 20)
    prefix = f"7F000001{os.getpid() & 0xFFFFFFFF:08X}"
    count = batches = 0
    while store.end_offset < end_offset:
        batch = [_message(count + place, block, prefix, host) for place in range(_BATCH)]
        assert store.put_batch(batch)[-1].status is PutStatus.PUT_OK
        count += _BATCH
        batches += 1
        if batches % _BATCHES_PER_FLUSH == 0:
            _flush(store)
    _flush(store)
    store.close()
    return count


def _topics() -> TopicTable:
    topics = TopicTable()
    for name in TOPICS:
        topics.put(TopicConfig(name, read_queue_count=_QUEUES, write_queue_count=_QUEUES), now_ms=1)
    return topics


def _message(number: int, block: bytes, prefix: str, host: Host) -> OutgoingMessage:
    size = BODY_BYTES[number % len(BODY_BYTES)]
    start = number * 977 % (len(block) - size)
    keys = (f"{prefix}{number:016X}", f"order-{number:010d}")
    tag = _TAGS[number % len(_TAGS)]
    # One request is one topic and queue; a batch of them follows each other in the log.
    turn = number // _BATCH
    return OutgoingMessage(
        topic=TOPICS[turn % len(TOPICS)],
        queue_id=turn // len(TOPICS) % _QUEUES,
        body=block[start : start + size],
        properties=encode_properties(
            [
                ("UNIQ_KEY", keys[0]),
                ("KEYS", keys[1]),
                ("TAGS", tag),
                ("WAIT", "true"),
                ("TRACE_ON", "true"),
                ("MSG_REGION", "DefaultRegion"),
                ("CLUSTER", "DefaultCluster"),
            ]
        ),
        tags_code=tags_code(tag),
        index_keys=keys,
        tag=tag,
        born_timestamp_ms=SystemClock().wall_ms(),
        born_host=host,
    )


def _flush(store: MessageStore) -> None:
    """What is written goes to the disk now and then, as a broker's does; else it all would at the end."""
    for job in (store.log_flush_job(), store.queue_flush_job()):
        if job is not None:
            job.run()
            store.flush_finished(job)


def copy_store(source: Path, target: Path) -> int:
    """Makes `target` hold the same files, byte by byte on blocks of its own; returns how many bytes were copied.

    A file that has the same time and size already is left alone: only what grew is copied again.
    """
    copied = 0
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists() or _mark(place) != _mark(path):
            copied += path.stat().st_size
            _copy(path, place)
            shutil.copystat(path, place)
    return copied


def _copy(source: Path, target: Path) -> None:
    """In pieces, each of which is let go of: 20 GB that nobody reads soon have no place in the page cache."""
    size = source.stat().st_size
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        writer.truncate(size)
        for start, end in _written_ranges(reader.fileno(), size):
            while start < end:
                piece = os.pread(reader.fileno(), min(_COPY_BYTES, end - start), start)
                start += os.pwrite(writer.fileno(), piece, start)
                os.fdatasync(writer.fileno())
                os.posix_fadvise(writer.fileno(), 0, start, os.POSIX_FADV_DONTNEED)


def _written_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """A file begun ahead is mostly a hole, and stays one."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
