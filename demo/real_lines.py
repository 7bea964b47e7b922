"""Text that exists on nearly every machine, so that the demo moves real lines and not counters."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

SOURCES = (Path("/var/log/dpkg.log"), Path("/var/lib/dpkg/status"))


def real_lines(count: int, *, fallback: Path) -> tuple[list[str], str]:
    """`count` lines without blank ones, and where they are from. The fallback is repeated."""
    for source in (*SOURCES, fallback):
        try:
            lines = [line for line in source.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
        except OSError:
            continue
        if len(lines) >= count or source == fallback:
            return list(islice(cycle(lines), count)), str(source)
    raise FileNotFoundError(fallback)
