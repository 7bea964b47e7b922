"""Tables of topics and of groups, and what becomes of their entries when another replica's copy is heard.

A copy that lacks an entry says nothing: its disk may be new, or rolled back. Only an operator removes an entry, and
each removal leaves a mark: the wall clock in ms, never the same twice for one name. A mark stays when an entry of the
name is made again; and a topic that gets fewer queues is removed and made again. Of two copies, the one with the newer
mark for a name knows what became of it. So no entry is lost that any replica held and nobody removed, whoever is older,
empty or heard first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeVar

from tandemmq.core.metadata.metadata_store import (
    DataVersion,
    JavaObject,
    JavaText,
    JavaValue,
    read_java_json,
    write_java_json,
)

EntryT = TypeVar("EntryT")
ContentT = TypeVar("ContentT")
NamedT = TypeVar("NamedT", bound="NamedEntry")

_SECRET: Final = "sealedPassword"
"""A field of users that no line tells."""
MARKS_KEPT_MS: Final = 30 * 24 * 3_600_000
"""A replica that was away for longer keeps what it had. Of users and policies nothing comes back: their marks stay."""
REMOVALS_MAX: Final = 10_000
"""Marks of removals, some 60 bytes of the file each; beyond it the oldest go."""
REMOVALS: Final = "operatorRemovals"
"""Their field in the files. It is ours: RocketMQ passes over fields it does not know."""


@dataclass(frozen=True, slots=True)
class Entries(Generic[EntryT]):
    held: dict[str, EntryT]
    removals: dict[str, int]
    """Marks of names that were removed at some time, held again or not; oldest first."""


class NamedEntry(Protocol):
    """A topic or a group, as its table sees it."""

    @property
    def name(self) -> str: ...

    def check(self) -> None:
        """Raises unless the entry may be made."""

    def to_fields(self) -> dict[str, JavaValue]:
        """RocketMQ's JSON object, fields in its order."""

    @classmethod
    def from_object(cls, name: str, fields: JavaObject) -> Self: ...


@dataclass(frozen=True, slots=True)
class PrintedNames(Generic[NamedT]):
    """A table at one moment. No copy of the table: `copy.copy` of a compiled class shares its attributes."""

    field: str
    kept_field: str
    version: DataVersion
    entries: Entries[NamedT]
    kept: Mapping[str, JavaValue]
    texts: dict[str, tuple[NamedT, JavaText]]
    """Entries as they were printed last; shared with the table."""

    def to_json(self) -> str:
        fields: dict[str, JavaValue] = {"dataVersion": self.version.to_fields()}
        if self.kept_field:
            fields[self.kept_field] = self.kept
        fields[self.field] = {name: self._text_of(entry) for name, entry in self.entries.held.items()}
        if self.entries.removals:
            fields[REMOVALS] = self.entries.removals
        return write_java_json(fields)

    def _text_of(self, entry: NamedT) -> JavaText:
        known = self.texts.get(entry.name)
        if known is None or known[0] is not entry:
            known = self.texts[entry.name] = (entry, JavaText(entry.to_fields(), depth=2))
        return known[1]


class NamedTable(Generic[NamedT]):
    """All entries of this broker by name, with the marks of removals. The version changes with every change."""

    def __init__(
        self,
        entry: type[NamedT],
        *,
        kind: str,
        field: str,
        kept_field: str = "",
        marks_kept_ms: int | None = MARKS_KEPT_MS,
        is_whole: bool = False,
    ) -> None:
        """`kind` names an entry to people, `field` the entries in the file; `kept_field` is one more, kept for Java
        readers as it was read. `marks_kept_ms`: how long it is known what was removed; None: for ever. `is_whole`: a
        text without its version or its entries is damaged, and no empty table."""
        self._needed: Final = ("dataVersion", field) if is_whole else ()
        self._marks_kept_ms = marks_kept_ms
        self._entry, self._kind, self._field, self._kept_field = entry, kind, field, kept_field
        self._entries: Entries[NamedT] = Entries({}, {})
        self._kept: Mapping[str, JavaValue] = {}
        self._made_by_brokers: frozenset[str] = frozenset()
        self._texts: dict[str, tuple[NamedT, JavaText]] = {}
        self._version = DataVersion()

    @property
    def version(self) -> DataVersion:
        return self._version

    def get(self, name: str) -> NamedT | None:
        """The entry, if this broker has it."""
        return self._entries.held.get(name)

    def __iter__(self) -> Iterator[NamedT]:
        return iter(self._entries.held.values())

    def __len__(self) -> int:
        return len(self._entries.held)

    def was_removed(self, name: str) -> bool:
        """An operator removed an entry of the name, not too long ago to be remembered; there may be one again."""
        return name in self._entries.removals

    def put(self, config: NamedT, *, now_ms: int) -> bool:
        """Adds or changes an entry; False when it was just so already. Raises what its `check` does."""
        config.check()
        if self.get(config.name) == config:
            return False
        self._entries.held[config.name] = config
        self._version = self._version.next(now_ms)
        return True

    def add_system(self, entries: Iterable[NamedT]) -> None:
        """Adds those of a new broker that are missing. The table looks no newer for it: a new disk's is the oldest."""
        made = list(entries)
        self._made_by_brokers = frozenset(entry.name for entry in made)
        for entry in made:
            if self.get(entry.name) is None:
                self.put(entry, now_ms=self._version.timestamp_ms)

    def remove(self, name: str, *, now_ms: int) -> bool:
        """Removes an entry on an operator's word and leaves a mark; False when there is no such entry."""
        if self.get(name) is None:
            return False
        self._entries = removed(self._entries, name, now_ms=now_ms, marks_kept_ms=self._marks_kept_ms)
        self._version = self._version.next(now_ms)
        return True

    def to_json(self) -> str:
        return self.copied().to_json()

    def copied(self) -> PrintedNames[NamedT]:
        """The table as it is now, to be printed in a thread. What was printed before is shared."""
        if len(self._texts) > 2 * len(self):
            self._texts = {name: self._texts[name] for name in self._entries.held if name in self._texts}
        entries = Entries(dict(self._entries.held), self._entries.removals)
        return PrintedNames(self._field, self._kept_field, self._version, entries, self._kept, self._texts)

    def load_json(self, text: str) -> None:
        """Replaces everything, version included, by the text. MetadataCorrupt leaves the table as it was."""
        self._version, self._entries, self._kept = self._read(text)

    def apply_from_master(self, text: str, version: DataVersion) -> list[str]:
        """Takes the master's table, without losing what no operator removed; one line for each entry kept."""
        _, master, self._kept = self._read(text)
        self._entries, kept = follow_master(
            self._entries, master, made_by_brokers=self._made_by_brokers, marks_kept_ms=self._marks_kept_ms
        )
        self._version = version
        return [f"{self._kind} {name}: kept, since the master lacks it and nobody deleted it" for name in kept]

    def give_way(self, text: str, *, is_needed: Callable[[str], bool]) -> list[str]:
        """Lets go what our master's table lacks and no operator removed; one line for each entry, with what it was, but
        for secrets.

        Of a member that was master before, or followed one, and whose group confirms nothing that a later master may
        lack: such an entry, and such a mark, was confirmed to nobody. What `is_needed` stays.
        """
        _, master, _ = self._read(text)
        held, lines = dict(self._entries.held), []
        for name, entry in self._entries.held.items():
            if name in master.held or name in self._made_by_brokers or is_needed(name):
                continue
            if master.removals.get(name, 0) <= self._entries.removals.get(name, 0):
                del held[name]
                told = {key: value for key, value in entry.to_fields().items() if key != _SECRET}
                lines.append(f"{self._kind} {name}: {json.dumps(told, default=dict)}")
        kept = {name: mark for name, mark in self._entries.removals.items() if mark <= master.removals.get(name, 0)}
        lines += [
            f"{self._kind} {name}: its removal"
            for name in self._entries.removals
            if name not in kept and name in master.held and name not in self._entries.held
        ]
        self._entries = Entries(held, kept)
        return lines

    def renew(self, *, now_ms: int) -> None:
        """Of a new master. A slave that keeps what its master lacks holds other entries than that one under the same
        version, and slaves take each version once: all of them take this one."""
        self._version = self._version.renewed(now_ms)

    def merge_replica(self, text: str) -> list[str]:
        """Takes what a replica holds beside ours, before a master serves; one line for each entry that came of it."""
        before, before_kept = self._entries, self._kept
        their_version, theirs, their_kept = self._read(text)
        theirs_newer = their_version.is_newer_than(self._version)
        self._entries = merge_replica(before, theirs, theirs_newer=theirs_newer, marks_kept_ms=self._marks_kept_ms)
        older, newer = (before_kept, their_kept) if theirs_newer else (their_kept, before_kept)
        self._kept = {**older, **newer}
        self._version = merged_version(
            (self._version, (before, before_kept)),
            (their_version, (theirs, their_kept)),
            (self._entries, self._kept),
        )
        return [f"{self._kind} {name}" for name in self._entries.held if name not in before.held]

    def _read(self, text: str) -> tuple[DataVersion, Entries[NamedT], Mapping[str, JavaValue]]:
        fields = read_java_json(text)
        fields.require(*self._needed)
        entries = fields.object(self._field)
        held = {name: self._entry.from_object(name, entries.object(name)) for name in entries}
        return (
            DataVersion.from_object(fields.object("dataVersion")),
            Entries(held, read_removals(fields)),
            fields.raw(self._kept_field) if self._kept_field else {},
        )


def removed(
    entries: Entries[EntryT], name: str, *, now_ms: int, marks_kept_ms: int | None = MARKS_KEPT_MS
) -> Entries[EntryT]:
    """Without an entry, and with a mark that an operator took it away."""
    held = {key: entry for key, entry in entries.held.items() if key != name}
    removals = dict(entries.removals)
    removals[name] = max(now_ms, removals.pop(name, 0) + 1)
    return Entries(held, _without_old(removals, marks_kept_ms))


def merge_replica(
    ours: Entries[EntryT],
    theirs: Entries[EntryT],
    *,
    theirs_newer: bool,
    marks_kept_ms: int | None = MARKS_KEPT_MS,
) -> Entries[EntryT]:
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
    return Entries(held, _newest(ours.removals, theirs.removals, marks_kept_ms))


def follow_master(
    ours: Entries[EntryT],
    master: Entries[EntryT],
    *,
    made_by_brokers: Collection[str],
    marks_kept_ms: int | None = MARKS_KEPT_MS,
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
    return Entries(held, _newest(ours.removals, master.removals, marks_kept_ms)), kept


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


def _newest(ours: Mapping[str, int], theirs: Mapping[str, int], kept_ms: int | None) -> dict[str, int]:
    marks = {name: max(ours.get(name, 0), theirs.get(name, 0)) for name in {**ours, **theirs}}
    return _without_old(dict(sorted(marks.items(), key=lambda mark: mark[1])), kept_ms)


def _without_old(removals: dict[str, int], kept_ms: int | None) -> dict[str, int]:
    """Old by the newest of the marks: a clock is not needed for it."""
    if not removals:
        return removals
    oldest_ms = 0 if kept_ms is None else max(removals.values()) - kept_ms
    surplus = len(removals) - REMOVALS_MAX
    return {
        name: mark for number, (name, mark) in enumerate(removals.items()) if number >= surplus and mark >= oldest_ms
    }
