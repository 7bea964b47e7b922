"""Pictures of pages by headless Chromium."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Final

from e2e.chromium import chromium

_LIMIT_S: Final = 300
# What a page may take to fetch its data and draw, in the browser's own time: more if it has drawn nothing by then.
_SETTLE_MS: Final = (6_000, 20_000, 60_000)
# A page without anything on it is smaller, and so is one that says "loading".
_DRAWN_BYTES_MIN: Final = 15_000


def picture(url: str, target: Path, *, width: int, height: int) -> None:
    """A PNG of a page, made anew. AssertionError with the browser's words when there is none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    words = ""
    for settle_ms in _SETTLE_MS:
        words = _shot(url, target, width=width, height=height, settle_ms=settle_ms)
        if target.exists() and target.stat().st_size >= _DRAWN_BYTES_MIN:
            return
    raise AssertionError(f"{url} shows nothing: {words}")


def _shot(url: str, target: Path, *, width: int, height: int, settle_ms: int) -> str:
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                *(chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--user-data-dir={profile}", f"--window-size={width},{height}", "--force-device-scale-factor=1"),
                *(f"--virtual-time-budget={settle_ms}", f"--screenshot={target}", url),
            ],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    return done.stderr
