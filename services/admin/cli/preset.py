"""The presets: RocketMQ's sample configurations for two broker groups, with every port written out."""

from __future__ import annotations

from importlib import resources
from typing import Final

__all__ = ["DEFAULT_PRESET", "PRESETS", "admin_file", "preset_files"]

# Name and what is said about it in the help text.
PRESETS: Final = {
    "2m-2s-sync": "two groups of a master and a slave; a send is acknowledged when both hold it",
    "2m-2s-async": "two groups of a master and a slave; the slave follows",
    "2m-noslave": "two masters without copies",
}
DEFAULT_PRESET: Final = "2m-2s-sync"


def preset_files(name: str) -> dict[str, str]:
    """Member name to the text of its configuration, NameServers first, then masters, then slaves."""
    folder = resources.files(__package__) / "presets" / name
    texts = {
        entry.name.removesuffix(".properties"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".properties")
    }
    return {member: texts[member] for member in sorted(texts, key=_start_order)}


def admin_file() -> str:
    """The configuration of an admin service beside any preset."""
    return (resources.files(__package__) / "presets" / "admin.properties").read_text(encoding="utf-8")


def _start_order(member: str) -> tuple[bool, bool, str]:
    return (not member.startswith("namesrv-"), member.endswith("-s"), member)
