"""Reads a stopped or killed broker's CommitLog files with the product's own decoder."""

from __future__ import annotations

from pathlib import Path

from mqcore.message import Blank, RecordFound, decode_properties, scan_record


def logged_message_ids(store: Path) -> set[str]:
    """UNIQ_KEY of every whole record in a store's CommitLog."""
    found = set()
    for path in sorted((store / "commitlog").iterdir()):
        data = path.read_bytes()
        position, start = 0, int(path.name)
        while position < len(data):
            scanned = scan_record(data, position, len(data), physical_offset=start + position, check_crc=True)
            if isinstance(scanned, RecordFound):
                found.add(decode_properties(bytes(scanned.properties)).get("UNIQ_KEY", ""))
                position += scanned.size
            elif isinstance(scanned, Blank):
                break
            else:
                break
    return found
