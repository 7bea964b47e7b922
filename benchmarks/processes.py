"""What the operating system says about processes: CPU time, private memory, ports; and ends processes by their pid.

All figures come from /proc, so that a Java and a Python broker are counted by the same rule and by neither's runtime.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
STOP_LIMIT_S: Final = 40.0
# Below the range Linux takes outgoing ports from (32768 on), so that no connection of ours can take one meanwhile.
PORT_RANGE: Final[Sequence[int]] = range(21_000, 32_000, 7)
ESTABLISHED: Final = "01"

_handed_out: set[int] = set()


class MeasurementFailed(Exception):
    """A figure could not be had; the message says of what and where to look. Other measurements may go on."""


def cpu_seconds(pid: int) -> float:
    """User and system CPU seconds of a process so far, all its threads; resolution is one tick (10 ms)."""
    # The name in parentheses may hold spaces; fields count from behind it: utime is the 12th, stime the 13th.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def host_cpu_seconds() -> float:
    """Busy CPU seconds of the whole machine so far, stolen time included: user, nice, system, irq, softirq, steal."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def private_bytes(pid: int) -> int:
    """Resident memory that is not page cache: RssAnon + RssShmem of /proc/PID/status.

    Left out is RssFile: pages of mapped CommitLogs, ConsumeQueues and jars, which the kernel may drop at any time.
    """
    found = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            found += int(line.split()[1]) * 1024
    return found


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(*, also_below: int = 0) -> int:
    """A port nobody listens on; with `also_below`, the port that many below it is free too. Never the same twice."""
    # Each process begins elsewhere: two runs at a time must not choose one port before either listens on it.
    first = os.getpid() % len(PORT_RANGE)
    for port in (*PORT_RANGE[first:], *PORT_RANGE[:first]):
        wanted = {port, port - also_below}
        if not wanted & _handed_out and all(map(_can_bind, wanted)):
            _handed_out.update(wanted)
            return port
    raise MeasurementFailed(f"no free port on 127.0.0.1 in {PORT_RANGE[0]}..{PORT_RANGE[-1]}")


def has_connection(port: int) -> bool:
    """True when somebody is connected to local `port`."""
    suffix = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(suffix) and fields[3] == ESTABLISHED:
                return True
    return False


def wait_for(condition: Callable[[], bool], *, limit_s: float, what: str, pause_s: float = 0.05) -> None:
    """Polls until `condition` holds; MeasurementFailed naming `what` when the limit passes."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"not within {limit_s:g} s: {what}")
        time.sleep(pause_s)


@dataclass
class ChildProcess:
    """A program we started, with its output in a file; only its own pid is ever signalled."""

    name: str
    command: Sequence[str]
    log_path: Path
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id; the program was started."""
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """True from start to end."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment},
                cwd=self.log_path.parent,
            )

    def stop(self, *, by: signal.Signals = signal.SIGTERM) -> None:
        """Ends the program and waits for its end; after 40 s with SIGKILL."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(by)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_LIMIT_S)

    def wait_until(self, condition: Callable[[], bool], *, limit_s: float, what: str) -> None:
        """As `wait_for`, but ends at once, with the log's tail, when the program dies."""

        def holds() -> bool:
            if not self.is_running:
                raise MeasurementFailed(f"{self.name} ended; {self.log_path}:\n{self.log_tail()}")
            return condition()

        wait_for(holds, limit_s=limit_s, what=f"{self.name}: {what}; see {self.log_path}")

    def log_tail(self, lines: int = 15) -> str:
        """Last lines of the output."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


def sum_of(read: Callable[[int], float], pids: Iterable[int]) -> float:
    """Adds a figure over processes."""
    return sum(read(pid) for pid in pids)


@contextmanager
def memory_in_use(size: int) -> Iterator[None]:
    """Holds memory until just before it is needed.

    On a virtual machine the first use of a page costs ten times what later ones do; that is not what is measured. It
    has to be huge pages: a large write takes pages in large pieces, and would find those only where nobody was yet.
    And it has to be held: what lies free for some seconds a machine may give back to its host.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, size, mmap.PAGESIZE):
            memory[start] = 1
        yield
