"""Prometheus's promtool, fetched if this machine has none."""

from __future__ import annotations

import functools
import subprocess
from typing import Final

from chart.rendering import ROOT
from support.running_time import PATIENCE_S

# Unpacking Debian's package on a slow line.
_TOOL_LIMIT_S: Final = 300


@functools.cache
def promtool() -> str:
    """Its path. AssertionError with what is missing."""
    done = subprocess.run(
        [str(ROOT / "tools" / "prometheus.sh"), "promtool"],
        capture_output=True,
        text=True,
        timeout=_TOOL_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def run_promtool(*arguments: str) -> tuple[int, str]:
    """Its exit code and what it says."""
    done = subprocess.run([promtool(), *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stdout + done.stderr
