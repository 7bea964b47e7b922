"""Whether a process noted down earlier still runs: a pid alone may belong to another program by now."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["is_running", "start_mark"]


def start_mark(pid: int) -> str | None:
    """Tells two processes of one pid apart: when it started, as the system writes it. None when it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _ask_ps(pid)
    # The command, in parentheses, may hold anything; state is the first field after it, start time the twentieth.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def is_running(pid: int, mark: str) -> bool:
    """True when the process that had this mark is still there."""
    return start_mark(pid) == mark


def _ask_ps(pid: int) -> str | None:
    # macOS and the BSDs have no /proc.
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
