"""A file that goes between the reading of its folder and the look at it: a broker beside the reader replaces files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def let_vanish(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Removes the file as soon as a folder has been read, before anybody asks for its size."""
    scandir = os.scandir

    @contextmanager
    def removing(folder: str | int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(folder) as entries:
            listed: list[os.DirEntry[str]] = list(entries)
        path.unlink(missing_ok=True)
        yield listed

    monkeypatch.setattr(os, "scandir", removing)
