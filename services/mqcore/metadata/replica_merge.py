"""What becomes of named entries, topics or groups, when another replica's copy of the table is heard.

A copy that lacks an entry says nothing: its disk may be new, or rolled back. Only an operator removes, and each removal
leaves a mark beside the entries: the wall clock in ms, never the same twice for one name. A mark stays when an entry of
the name is made again, so that of two copies the one with the newer mark for a name knows what came of it. So no entry
is lost that any replica held and nobody removed, whoever is older, empty or heard first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from mqcore.metadata.data_version import DataVersion
from mqcore.metadata.java_json import JavaObject

__all__ = [
    "MARKS_KEPT_MS",
    "REMOVALS",
    "REMOVALS_MAX",
    "Entries",
    "follow_master",
    "merge_replica",
    "merged_version",
    "read_removals",
    "removed",
]

EntryT = TypeVar("EntryT")
ContentT = TypeVar("ContentT")

MARKS_KEPT_MS: Final = 30 * 24 * 3_600_000
"""A replica that was away for longer keeps what it had."""
REMOVALS_MAX: Final = 10_000
"""Marks of removals, some 60 bytes of the file each; beyond it the oldest go."""
REMOVALS: Final = "operatorRemovals"
"""Their field in the files. It is ours: RocketMQ passes over fields it does not know."""


@dataclass(frozen=True, slots=True)
class Entries(Generic[EntryT]):
    """What one replica holds."""

    held: dict[str, EntryT]
    removals: dict[str, int]
    """Marks of names that were removed at some time, held again or not; oldest first."""


def removed(entries: Entries[EntryT], name: str, *, now_ms: int) -> Entries[EntryT]:
    """Without an entry, and with a mark that an operator took it away."""
    held = {key: entry for key, entry in entries.held.items() if key != name}
    removals = dict(entries.removals)
    removals[name] = max(now_ms, removals.pop(name, 0) + 1)
    return Entries(held, _without_old(removals))


def merge_replica(ours: Entries[EntryT], theirs: Entries[EntryT], *, theirs_newer: bool) -> Entries[EntryT]:
    """Both together: of a name removed by one side alone what that side knows, else what either side holds.

    Where both hold a name it is as in the newer table.
    """
    held: dict[str, EntryT] = {}
    for name in {**ours.held, **theirs.held}:
        our_mark, their_mark = ours.removals.get(name, 0), theirs.removals.get(name, 0)
        if our_mark == their_mark:
            first, second = (theirs.held, ours.held) if theirs_newer else (ours.held, theirs.held)
            held[name] = first[name] if name in first else second[name]
            continue
        known = ours.held if our_mark > their_mark else theirs.held
        if name in known:
            held[name] = known[name]
    return Entries(held, _newest(ours.removals, theirs.removals))


def follow_master(
    ours: Entries[EntryT], master: Entries[EntryT], *, made_by_brokers: Collection[str]
) -> tuple[Entries[EntryT], list[str]]:
    """What a slave holds after its master's table, and the names it kept although its master lacks them.

    What brokers make by themselves is the master's to say.
    """
    held, kept = dict(master.held), []
    for name, entry in ours.held.items():
        if name in master.held or name in made_by_brokers:
            continue
        if master.removals.get(name, 0) <= ours.removals.get(name, 0):
            held[name] = entry
            kept.append(name)
    return Entries(held, _newest(ours.removals, master.removals)), kept


def merged_version(
    ours: tuple[DataVersion, ContentT], theirs: tuple[DataVersion, ContentT], merged: ContentT
) -> DataVersion:
    """The version of what came of two copies: another than either's unless the content is just theirs or ours."""
    newer, older = (theirs, ours) if theirs[0].is_newer_than(ours[0]) else (ours, theirs)
    if merged == newer[1]:
        return newer[0]
    return newer[0].after(older[0])


def read_removals(fields: JavaObject) -> dict[str, int]:
    """The marks in a table's text."""
    marks = fields.object(REMOVALS)
    return {name: marks.integer(name, 0) for name in marks}


def _newest(ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
    marks = {name: max(ours.get(name, 0), theirs.get(name, 0)) for name in {**ours, **theirs}}
    return _without_old(dict(sorted(marks.items(), key=lambda mark: mark[1])))


def _without_old(removals: dict[str, int]) -> dict[str, int]:
    """Old by the newest of the marks: a clock is not needed for it."""
    if not removals:
        return removals
    oldest_ms = max(removals.values()) - MARKS_KEPT_MS
    surplus = len(removals) - REMOVALS_MAX
    return {
        name: mark for number, (name, mark) in enumerate(removals.items()) if number >= surplus and mark >= oldest_ms
    }
