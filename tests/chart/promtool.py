"""Prometheus's promtool, fetched if this machine has none."""

from __future__ import annotations

import functools
from typing import Final

from chart.rendering import ROOT
from support.running_time import run_program

# Unpacking Debian's package on a slow line.
_TOOL_LIMIT_S: Final = 300


@functools.cache
def promtool() -> str:
    """Its path. AssertionError with what is missing."""
    done = run_program([str(ROOT / "tools" / "prometheus.sh"), "promtool"], limit_s=_TOOL_LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def run_promtool(*arguments: str) -> tuple[int, str]:
    """Its exit code and what it says."""
    done = run_program([promtool(), *arguments])
    return done.returncode, done.stdout + done.stderr
