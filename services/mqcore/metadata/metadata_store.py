"""Keeps metadata tables in the files RocketMQ keeps them in, below `config/`.

Beside each file lies `<file>.bak` with the content before the last change. `Disk.write_file` is atomic, so that our own
crashes never need it; it serves stores whose main file a Java broker, an editor or a bad disk left unreadable.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from mqcore.metadata.errors import MetadataCorrupt
from mqcore.storage.disk import Disk

__all__ = ["LoadedFrom", "MetadataFile", "MetadataStore", "MetadataTable"]

FOLDER: Final = "config"


class MetadataFile(Enum):
    """The files; each value is RocketMQ's name."""

    TOPICS = "topics.json"
    SUBSCRIPTION_GROUPS = "subscriptionGroup.json"
    CONSUMER_OFFSETS = "consumerOffset.json"
    DELAY_OFFSETS = "delayOffset.json"


class LoadedFrom(Enum):
    """Where a table came from."""

    MAIN = "main"
    BACKUP = "backup"
    """The main file was missing, empty or unreadable: an operator should know."""
    NOWHERE = "nowhere"
    """There is neither file: the first start of this store."""


class MetadataTable(Protocol):
    """What a table offers to be kept."""

    def load_json(self, text: str) -> None:
        """Replaces its content; MetadataCorrupt leaves it as it was."""


class MetadataStore:
    """Loads and persists the tables of one broker. Calls block; two of them must not run on one file at once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._readable: dict[MetadataFile, bytes] = {}
        """Content of each main file known to be readable: the only one worth a place in the .bak file."""
        self._damaged: dict[MetadataFile, bytes] = {}
        """Content of each main file that could not be read, until it is kept elsewhere."""

    def load(self, file: MetadataFile, table: MetadataTable) -> LoadedFrom:
        """Fills `table` from the main file or else its `.bak`. MetadataCorrupt when neither is readable and one exists.

        An unreadable table is no empty one, nor is a file of no bytes: with no topics and offsets every group would
        start over at the tail. What is damaged is kept beside the file that takes its place: `<file>.damaged`.
        """
        problems: list[str] = []
        for path, source in ((_path(file), LoadedFrom.MAIN), (_backup_path(file), LoadedFrom.BACKUP)):
            data = self._disk.read_file(path)
            if data is None:
                continue
            try:
                if not data:
                    raise MetadataCorrupt("the file is empty")
                table.load_json(data.decode())
            except (MetadataCorrupt, UnicodeDecodeError) as error:
                problems.append(f"{path}: {error}")
                if source is LoadedFrom.MAIN and data:
                    self._damaged[file] = data
                continue
            if source is LoadedFrom.MAIN:
                self._readable[file] = data
            return source
        if problems:
            raise MetadataCorrupt("; ".join(problems))
        return LoadedFrom.NOWHERE

    def persist(self, file: MetadataFile, text: str) -> bool:
        """Makes `text`, a table's `to_json()`, durable; the content before goes to `.bak` first. False: no change.

        Takes the text and not the table, so that it may run in a thread while the table goes on changing.
        """
        data = text.encode()
        before = self._readable.get(file)
        if before == data:
            return False
        if (damaged := self._damaged.get(file)) is not None:
            self._disk.write_file(f"{_path(file)}.damaged", damaged)
            del self._damaged[file]
        if before is not None:
            self._disk.write_file(_backup_path(file), before)
        self._disk.write_file(_path(file), data)
        self._readable[file] = data
        return True

    def keep_aside(self, file: MetadataFile) -> str:
        """Copies the file as it is now beside itself, before a change that removes much; gives the copy's path."""
        path = f"{_path(file)}.before-removal"
        if (before := self._readable.get(file)) is not None:
            self._disk.write_file(path, before)
        return path


def _path(file: MetadataFile) -> str:
    return f"{FOLDER}/{file.value}"


def _backup_path(file: MetadataFile) -> str:
    return f"{FOLDER}/{file.value}.bak"
