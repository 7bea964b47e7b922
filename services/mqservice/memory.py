"""How much memory this process holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["resident_bytes"]

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident set in bytes; mapped files count while their pages are in memory. 0 where /proc is missing."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
