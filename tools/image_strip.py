"""Takes from shared objects what only a debugger reads. Runs inside the image build, on what the wheels brought.

    python tools/image_strip.py FOLDER      # every ELF file below it; says how many bytes that saved

Wheels of zstandard, lz4, xxhash and others carry debug information, ten times their code. What the loader maps is told
by the program headers; everything behind the last of those segments (`.debug_*`, `.symtab`, the section table itself)
it never reads, so the file ends there and the table is given up. Nothing moves: libraries that were patched after
linking (those of auditwheel) load as before, which binutils' strip does not promise. It needs the standard library
only, and no packages of the distribution.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Final

# ELF64, little-endian: offsets of the fields in the file's header, and in a program header.
_IDENTITY: Final = b"\x7fELF\x02\x01"
_SHARED: Final = 3  # ET_DYN
_TYPE: Final = struct.Struct("<16xH")
_PROGRAM_TABLE: Final = struct.Struct("<32xQ14xHH")  # e_phoff, e_phentsize, e_phnum
_EXTENT: Final = struct.Struct("<8xQ16xQ")  # p_offset, p_filesz
_SECTION_TABLE_AT: Final = 40  # e_shoff, 8 bytes
_SECTION_COUNTS_AT: Final = 58  # e_shentsize, e_shnum, e_shstrndx, 2 bytes each


def stripped(content: bytes) -> bytes:
    """The same object without what no loader reads; as it came if it is no shared object of ELF64."""
    if not content.startswith(_IDENTITY) or len(content) < 64 or _TYPE.unpack_from(content)[0] != _SHARED:
        return content
    table, entry_bytes, count = _PROGRAM_TABLE.unpack_from(content)
    end = table + entry_bytes * count
    for number in range(count):
        offset, size = _EXTENT.unpack_from(content, table + number * entry_bytes)
        end = max(end, offset + size)
    if not count or end >= len(content):
        return content
    kept = bytearray(content[:end])
    kept[_SECTION_TABLE_AT : _SECTION_TABLE_AT + 8] = bytes(8)
    kept[_SECTION_COUNTS_AT : _SECTION_COUNTS_AT + 6] = bytes(6)
    return bytes(kept)


def strip_folder(folder: Path) -> int:
    """Strips every shared object below `folder`, in place; returns the bytes saved."""
    saved = 0
    for path in sorted(folder.rglob("*")):
        if ".so" not in path.name or path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        shorter = stripped(content)
        if len(shorter) < len(content):
            path.write_bytes(shorter)
            saved += len(content) - len(shorter)
    return saved


if __name__ == "__main__":
    print(f"image_strip: {strip_folder(Path(sys.argv[1])) / 1_000_000:.1f} MB of debug information removed")
