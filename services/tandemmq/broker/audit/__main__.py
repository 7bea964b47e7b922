"""`python -m tandemmq.broker.audit ROOT BYTES_PER_SECOND`: the helper process; ADR 14 says why it is one.

Started by its broker and by nobody else. Everybody else's work comes first: lowest priority for the processor, idle
class for the disk.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import queue
import sys
import threading
import time
from typing import Any, Final

from tandemmq.broker.audit.jobs import IDLE_LIMIT_S, JobRunner, job_from_json, line_of
from tandemmq.broker.audit.store_files import JobCancelled, ReadPace

_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS: Final = 1
_IOPRIO_CLASS_IDLE: Final = 3 << 13
_NICE_LOWEST: Final = 19
_SLEEP_S_MIN: Final = 0.2
"""Several reads pay for their pauses together: each time the process wakes it finds the processor's caches cold."""


class _Orders:
    """What arrives on standard input: jobs, cancellations and changes of pace; read by a thread, so that they reach a
    job at work."""

    def __init__(self, pace: ReadPace) -> None:
        self._pace = pace
        self._jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._cancelled_up_to = 0
        self._cancelled = threading.Event()
        self._current = 0

    def read(self) -> None:
        """Ends the process when the broker has closed the pipe, or is no more."""
        for line in sys.stdin.buffer:
            order = json.loads(line)
            if "job" in order:
                self._jobs.put(order)
                continue
            if "bytes_per_second" in order:
                self._pace.change(order["bytes_per_second"])
                continue
            with self._lock:
                # Jobs are numbered in their order and never overtake each other.
                self._cancelled_up_to = max(self._cancelled_up_to, order["cancel"])
                if self._current <= self._cancelled_up_to:
                    self._cancelled.set()
        os._exit(0)

    def next(self) -> dict[str, Any] | None:
        """The next job that is still wanted; None when there was none for a while."""
        while True:
            try:
                order = self._jobs.get(timeout=IDLE_LIMIT_S)
            except queue.Empty:
                return None
            with self._lock:
                self._current = order["job"]
                if self._current > self._cancelled_up_to:
                    self._cancelled.clear()
                    return order

    def wait(self, limit_s: float) -> None:
        """Sleeps, if it is worth it; raises JobCancelled once the current job is not wanted any more."""
        if self._cancelled.wait(limit_s) if limit_s > _SLEEP_S_MIN else self._cancelled.is_set():
            raise JobCancelled


def main() -> None:
    """See the module's docstring."""
    root, bytes_per_second = sys.argv[1], int(sys.argv[2])
    _stand_back()
    pace = ReadPace(bytes_per_second)
    orders = _Orders(pace)

    def pause(byte_count: int) -> None:
        orders.wait(pace.wait_s(byte_count, now_s=time.monotonic()))

    runner = JobRunner(root, pause=pause)
    threading.Thread(target=orders.read, name="orders", daemon=True).start()
    while (order := orders.next()) is not None:
        try:
            for frame in runner.run(job_from_json(order)):
                sys.stdout.buffer.write(line_of({"job": order["job"]} | frame))
                sys.stdout.buffer.flush()
        except JobCancelled:
            continue
        except BrokenPipeError:
            break
    # Not by returning: the interpreter's end would wait for standard input, which the thread is reading, and abort.
    os._exit(0)


def _stand_back() -> None:
    os.nice(_NICE_LOWEST)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:  # Elsewhere niceness decides for the disk, too.
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_CLASS_IDLE)


if __name__ == "__main__":
    main()
