"""Broker groups on disk for the consistency job: copies of real stores, with something changed in each.

A group costs only the files that were changed; all others are hard links to the originals, which nobody may write any
more. So a change is made to a whole copy of its own, and what it touched is moved into the group.

    <folder>/<group>/<broker id>/     as the job's setting `path` takes it
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_NOT_COPIED: Final = frozenset({"lock"})


class GroupFolder:
    """Makes groups below `folder` out of `originals`, the stores of one group by broker id, master first."""

    def __init__(self, folder: Path, originals: Sequence[Path], *, workshop: Path) -> None:
        """`workshop` is for the copies that are changed; on the same file system as the rest."""
        self.folder = folder
        self._originals = tuple(originals)
        self._copies = tuple(workshop / str(broker_id) for broker_id in range(len(originals)))
        for original, copy in zip(self._originals, self._copies, strict=True):
            shutil.copytree(original, copy, ignore=shutil.ignore_patterns(*_NOT_COPIED))

    def add(self, group: str, *, replicas: int) -> list[Path]:
        """A group of the first `replicas` stores as they are; returns its store folders."""
        stores = [self.folder / group / str(broker_id) for broker_id in range(replicas)]
        for original, store in zip(self._originals, stores, strict=False):
            link_store(original, store)
        return stores

    def add_changed(self, group: str, change: Callable[[list[Path]], T], *, replicas: int) -> T:
        """A group whose stores `change` has changed in place; returns what `change` returned."""
        result = change(list(self._copies[:replicas]))
        for broker_id in range(replicas):
            _take_over(self._originals[broker_id], self._copies[broker_id], self.folder / group / str(broker_id))
        return result


def link_store(original: Path, store: Path, *, without: Sequence[str] = ()) -> None:
    """Hard links of all files of a store at another place, but for `without` (paths below the store)."""
    for path in _files(original) - set(without):
        target = store / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(original / path, target)


def _take_over(original: Path, copy: Path, store: Path) -> None:
    """Moves what differs in `copy` to `store`, links the rest from `original`, and makes `copy` equal again."""
    before, after = _files(original), _files(copy)
    for path in before | after:
        is_changed = path in after and (path not in before or _mark(copy / path) != _mark(original / path))
        target = store / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_changed:
            (copy / path).rename(target)
        elif path in after:
            os.link(original / path, target)
        if path in before and not (copy / path).exists():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(original / path, copy / path)


def _mark(path: Path) -> tuple[int, int]:
    """Tells whether a file was written: a copy has its original's time until then."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _files(root: Path) -> set[str]:
    """All files of a store, by path below it."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name not in _NOT_COPIED}
