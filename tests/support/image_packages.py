"""The broker's image as far as a test can have it: without those parts of numpy that the image does without."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

_INSTALL: Final = Path(__file__).resolve().parents[2] / "tools" / "image_install.sh"


def left_out_of_numpy() -> frozenset[str]:
    """Packages and modules that tools/image_install.sh removes."""
    (removed,) = re.findall(r"cd numpy && rm -rf (.*?)\)", _INSTALL.read_text().replace("\\\n", " "))
    names = [name.removesuffix(".py") for name in removed.split() if "*" not in name]
    return frozenset("numpy." + name.replace("/", ".") for name in names)


class _Absent:
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}: the broker's image does not hold it", name=name)
        return None


@contextmanager
def without_what_the_image_leaves_out() -> Iterator[None]:
    """Nothing of it can be imported inside the block. What was imported before stays; random numbers are, as hypothesis
    asks for them."""
    importlib.import_module("numpy.random")
    finder = _Absent(left_out_of_numpy())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
