"""An image holds the packages of its extra in uv.lock and no others: what runs in it imports with those alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
# Rooms of an image beside those that all have, and its extra.
IMAGES: Final = {
    "nameserver": ("nameserver",),
    "broker": ("broker",),
    "admin": ("admin", "cli"),
    "consistency": ("consistency",),
}
IMPORT_ALL: Final = """
import importlib, pkgutil, sys

rooms, absent = sys.argv[1].split(","), set(sys.argv[2].split(","))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in absent:
            raise ModuleNotFoundError(f"No module named {name!r}: the image does not hold it", name=name)

sys.meta_path.insert(0, Absent())
for room in rooms:
    package = importlib.import_module(f"tandemmq.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
"""


@pytest.mark.parametrize("image", IMAGES)
def test_every_module_of_an_image_imports_with_its_packages(image: str) -> None:
    held = _locked(image)
    absent = [name for name, owners in packages_distributions().items() if not held & {_plain(o) for o in owners}]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, ",".join(IMAGES[image]), ",".join(absent)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _locked(extra: str) -> set[str]:
    """Names of what `uv export --extra` lists, and of tandemmq."""
    packages = {found["name"]: found for found in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ours = packages["tandemmq"]
    held = {"tandemmq"}
    waiting: list[dict[str, Any]] = [*ours["dependencies"], *ours["optional-dependencies"].get(extra, [])]
    while waiting:
        wanted = waiting.pop()
        package = packages[wanted["name"]]
        added = [need for name in wanted.get("extra", []) for need in package["optional-dependencies"][name]]
        if wanted["name"] not in held:
            added += package.get("dependencies", [])
        held.add(wanted["name"])
        waiting += added
    return held


def _plain(name: str) -> str:
    """As uv.lock spells it."""
    return name.lower().replace("_", "-").replace(".", "-")
