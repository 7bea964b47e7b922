"""Runs a command, and now and then stops all its processes for some seconds, as a busy machine does. Needs root.

    python tools/with_stalls.py [--seed N] .venv/bin/python -m pytest -q -n 3 --dist loadfile tests/integration

A test that fails here and passes elsewhere is decided by a clock. Time goes on while everything stands still, so every
deadline that is shorter than a stall may run out, and all that was to come meanwhile comes at once.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

STALL_S: Final = (1.0, 5.0)
BETWEEN_S: Final = (0.3, 20.0)
_V1: Final = Path("/sys/fs/cgroup/freezer")
_V2: Final = Path("/sys/fs/cgroup")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the times")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")
    options = parser.parse_args()
    if not options.command:
        parser.error("command: name what is to run")
    chance = random.Random(options.seed)
    group = (_V1 if _V1.exists() else _V2) / f"stalls-{os.getpid()}"
    switch, on, off = ("freezer.state", "FROZEN", "THAWED") if _V1.exists() else ("cgroup.freeze", "1", "0")
    group.mkdir()

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    running = subprocess.Popen(options.command, preexec_fn=enter)
    stalls = 0
    try:
        while running.poll() is None:
            time.sleep(chance.uniform(*BETWEEN_S))
            (group / switch).write_text(on)
            time.sleep(chance.uniform(*STALL_S))
            (group / switch).write_text(off)
            stalls += 1
    finally:
        (group / switch).write_text(off)
        with suppress(OSError):  # Something that was left behind still runs.
            group.rmdir()
    print(f"{stalls} stalls of {STALL_S[0]:.0f} to {STALL_S[1]:.0f} s", flush=True)
    return running.returncode


if __name__ == "__main__":
    raise SystemExit(main())
