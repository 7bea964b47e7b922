"""The browser of the system, which tests look at pages with."""

from __future__ import annotations

import os
import shutil
import subprocess


def chromium() -> str:
    """Path of Chromium, installed if there is none and that is possible."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"], env=quiet, check=True
        )
        found = next(filter(None, map(shutil.which, names)), None)
    assert found is not None, "Chromium is missing; install it, or run as root where apt-get works"
    return found
