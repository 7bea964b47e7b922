"""What the files of a cluster prove: which messages a CommitLog holds, and whether two of them are the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import RecordFound, scan_record

CHUNK_BYTES = 1 << 20
# RocketMQ's property for the id the client gave the message.
MESSAGE_ID_PROPERTY = "UNIQ_KEY"


@dataclass(frozen=True)
class LogComparison:
    """Two CommitLogs byte by byte, over the extent of the longer one."""

    compared_bytes: int
    differing_bytes: int


def logged_message_ids(store: Path) -> set[str]:
    """Ids of all messages in a broker's CommitLog, running or not: every record is read and its checksum verified."""
    ids: set[str] = set()
    for path in _log_files(store):
        data = path.read_bytes()
        position = 0
        while True:
            found = scan_record(data, position, len(data), physical_offset=int(path.name) + position)
            if not isinstance(found, RecordFound):
                break
            ids.add(decode_properties(bytes(found.properties)).get(MESSAGE_ID_PROPERTY, ""))
            position += found.size
    return ids


def compare_logs(one: Path, other: Path, *, end_offset: int) -> LogComparison:
    """Compares [0, end_offset) of two stores. A byte that only one of them has counts as different."""
    compared = differing = 0
    while compared < end_offset:
        length = min(CHUNK_BYTES, end_offset - compared)
        left, right = _read(one, compared, length), _read(other, compared, length)
        if left != right:
            differing += sum(a != b for a, b in zip(left, right, strict=False)) + abs(len(left) - len(right))
        compared += length
    return LogComparison(compared_bytes=compared, differing_bytes=differing)


def _read(store: Path, offset: int, length: int) -> bytes:
    """Bytes of the log from `offset`, joined over files; fewer where there is no file."""
    parts = []
    for path in _log_files(store):
        start = int(path.name)
        size = path.stat().st_size
        if start + size <= offset or start >= offset + length:
            continue
        with path.open("rb") as source:
            source.seek(max(0, offset - start))
            parts.append(source.read(min(length, offset + length - max(start, offset))))
    return b"".join(parts)


def _log_files(store: Path) -> list[Path]:
    """In the log's order. A file that is being made has another name until it is whole."""
    return sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
