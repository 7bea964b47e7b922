"""What a command costs with everything it starts: a JVM, its workers, and whatever outlives its parent."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

_PR_SET_CHILD_SUBREAPER: Final = 36
_READ_BLOCK_BYTES: Final = 512
# Workers of a JVM that has ended notice it by a closed pipe.
_ORPHANS_LIMIT_S: Final = 20.0
_WATCH_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command and all its descendants."""

    exit_code: int
    wall_s: float
    cpu_s: float
    """User and system."""
    disk_bytes: int
    """Read from the disk; the rest came from the page cache."""

    def mb_per_core(self, read_bytes: int) -> float:
        """Megabytes read for each second of CPU."""
        return read_bytes / 1e6 / self.cpu_s


def measure_command(command: Sequence[str | Path], *, log: Path) -> Cost:
    """Runs the command to its end; its output goes to `log`. No other child of this process may end meanwhile.

    This process adopts orphans, so that the kernel adds their times to those of our children. What it does not add are
    processes whose parent ignores their end (PySpark's workers): these are looked at ten times a second.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    log.parent.mkdir(parents=True, exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.monotonic()
    with log.open("ab") as output, _UnreapedWatch() as unreaped:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
        wall_s = time.monotonic() - started_s
        _reap_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(
        exit_code=code,
        wall_s=wall_s,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + unreaped.cpu_s,
        disk_bytes=(after.ru_inblock - before.ru_inblock) * _READ_BLOCK_BYTES + unreaped.disk_bytes,
    )


class _UnreapedWatch:
    """Follows those descendants of this process whose times nobody adds up, because their parent ignores SIGCHLD."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, int]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="unreaped-watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        """Of all of them, as they were seen last."""
        return sum(cpu_s for cpu_s, _ in self._seen.values())

    @property
    def disk_bytes(self) -> int:
        """Read from the disk by all of them."""
        return sum(disk_bytes for _, disk_bytes in self._seen.values())

    def _follow(self) -> None:
        while not self._stopping.wait(_WATCH_INTERVAL_S):
            for process in psutil.Process().children(recursive=True):
                try:
                    if _ignores_children(process.ppid()):
                        times = process.cpu_times()
                        self._seen[process.pid] = times.user + times.system, process.io_counters().read_bytes
                except (psutil.Error, OSError):
                    continue


def _ignores_children(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
    return False


def _reap_orphans() -> None:
    deadline_s = time.monotonic() + _ORPHANS_LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.05)
