"""Other ways to compare two replicas, for measuring ours against them. Each is a process of its own.

python benchmarks/replica_readers.py digest STORE STORE...         # plain multiprocessing: xxh3_128 of 4 MiB pieces
python benchmarks/replica_readers.py messages STORE STORE...       # one reader, message by message, as Kafka's tool
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final

import xxhash

from tandemmq.core.message.record import Blank, RecordFound, scan_record

PIECE_BYTES: Final = 4 << 20


def log_files(store: Path) -> list[Path]:
    """CommitLog files of a store, in order."""
    return sorted((store / "commitlog").iterdir())


def digests(path: Path) -> list[bytes]:
    """Of a file, piece by piece, into one buffer."""
    found = []
    buffer = bytearray(PIECE_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            found.append(xxhash.xxh3_128_digest(view[:count]))
    return found


def compare_by_digest(stores: list[Path]) -> bool:
    """Files of all replicas over as many processes as there are CPUs."""
    with multiprocessing.Pool(os.cpu_count()) as pool:
        replicas = [pool.map_async(digests, log_files(store), chunksize=1) for store in stores]
        found = [replica.get() for replica in replicas]
    return all(other == found[0] for other in found)


def messages(store: Path) -> Iterator[tuple[int, int, str, int]]:
    """Offset, size, topic and queue offset of each message, its checksum verified."""
    for path in log_files(store):
        data = memoryview(path.read_bytes())
        start, position = int(path.name), 0
        while isinstance(
            found := scan_record(data, position, len(data), physical_offset=start + position), RecordFound | Blank
        ):
            if isinstance(found, RecordFound):
                yield found.physical_offset, found.size, found.topic, found.queue_offset
            position += found.size


def compare_by_message(stores: list[Path]) -> bool:
    """Kafka's ReplicaVerificationTool fetches the same partitions of all replicas and compares, on one thread."""
    return all(len(set(row)) == 1 for row in zip_longest(*map(messages, stores)))


def main() -> int:
    """Exit code 0 when equal."""
    way, *stores = sys.argv[1:]
    compare = {"digest": compare_by_digest, "messages": compare_by_message}[way]
    return 0 if compare([Path(store) for store in stores]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
