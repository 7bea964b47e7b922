"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

# Spark is started by fork; what gRPC then does in the child, while others call, now and then ends it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# How long an example takes says what else the machine does.
settings.register_profile("any_machine", deadline=None)
settings.load_profile("any_machine")

_BUILD = Path(__file__).resolve().parent.parent / "build"


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, for who asks which pages are in memory: `tmp_path` may be in memory as a whole."""
    _BUILD.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=_BUILD, prefix="on-disk-") as folder:
        yield Path(folder)
