"""Keeps metadata tables in the files where RocketMQ keeps them, below `config/`, with RocketMQ's versions and JSON.

Beside each file lies `<file>.bak` with the content before the last change. Our own crashes never need it, because
`Disk.write_file` is atomic. It serves a store whose main file a Java broker, an editor or a bad disk left unreadable,
and it tells an older copy that somebody put back: no file that was written here is of an earlier version than its
`.bak`. A table that goes back to an earlier version, a master's or an operator's, is written to both.

Who puts back all of `config/` puts back the `.bak` files, too. So the versions that were written stand in a file of
their own, outside of that folder. It is written after the tables it tells of, and before one that goes back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from tandemmq.core.storage.disk import Disk


# What can be wrong with metadata.


class MetadataError(ValueError):
    """Root of everything this package raises on purpose."""


class MetadataCorrupt(MetadataError):
    """A table's text is not what RocketMQ or we write: a torn file or a broken peer.

    The loader falls back to the `.bak` file and refuses to start when that is no better: going on with an empty table
    would let every consumer group start at the tail. A slave keeps its copy.
    """


class InvalidTopic(MetadataError):
    """A topic cannot be made as asked; the message says why and what is allowed. The operator's or client's fault."""


class InvalidGroup(MetadataError):
    """A subscription group cannot be made as asked; the message says why. The operator's or client's fault."""


FOLDER: Final = "config"
VERSIONS_FILE: Final = "tableVersions.json"
"""At the root of the store; JSON: {file name: dataVersion as in that file}."""


class MetadataFile(Enum):
    """The files; each value is RocketMQ's name."""

    TOPICS = "topics.json"
    SUBSCRIPTION_GROUPS = "subscriptionGroup.json"
    CONSUMER_OFFSETS = "consumerOffset.json"
    DELAY_OFFSETS = "delayOffset.json"
    USERS = "users.json"
    """Ours: RocketMQ keeps users and policies in RocksDB."""
    ACLS = "acls.json"


ROCKETMQ_FILES: Final = (
    MetadataFile.TOPICS,
    MetadataFile.SUBSCRIPTION_GROUPS,
    MetadataFile.CONSUMER_OFFSETS,
    MetadataFile.DELAY_OFFSETS,
)
"""Those that RocketMQ keeps as files as well. A broker of an older version has no others."""


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
        self._versions: dict[MetadataFile, DataVersion] = {}
        """Of each table that was written, now or as VERSIONS_FILE said."""
        self._vouched: dict[MetadataFile, DataVersion] | None = None
        """As VERSIONS_FILE has it; None: it has not been read."""

    def load(self, file: MetadataFile, table: MetadataTable, *, accepts_backup: bool = True) -> LoadedFrom:
        """Fills `table` from the main file or else its `.bak`. MetadataCorrupt when neither is readable and one exists;
        without `accepts_backup` also where only the `.bak` is, which lacks the last change, and that was confirmed, or
        where the main file is older than that, or than what was written here last.

        An unreadable table is no empty one, nor is a file of no bytes: with no topics and offsets every group would
        start over at the tail. What is damaged is kept beside the file that takes its place: `<file>.damaged`. But one
        that nobody ever changed was empty: NOWHERE.
        """
        problems: list[str] = []
        for path, source in ((_path(file), LoadedFrom.MAIN), (_backup_path(file), LoadedFrom.BACKUP)):
            data = self._disk.read_file(path)
            if data is None:
                continue
            if source is LoadedFrom.BACKUP and not accepts_backup:
                problems = problems or [f"{_path(file)}: the file is gone"]
                problems.append(f"{path} is what it was before its last change")
                break
            try:
                if not data:
                    raise MetadataCorrupt("the file is empty")
                if source is LoadedFrom.MAIN and not accepts_backup:
                    self._refuse_older(file, data)
                table.load_json(data.decode())
            except (MetadataCorrupt, UnicodeDecodeError) as error:
                problems.append(f"{path}: {error}")
                if source is LoadedFrom.MAIN and data:
                    self._damaged[file] = data
                continue
            if source is LoadedFrom.MAIN:
                self._readable[file] = data
            return source
        if not problems and not accepts_backup and file in self._known_versions() and not self.is_untouched(file):
            problems.append(f"{_path(file)}: the file is gone")
        if problems and not (file in ROCKETMQ_FILES and self.is_untouched(file)):
            raise MetadataCorrupt("; ".join(problems))
        return LoadedFrom.NOWHERE

    def _refuse_older(self, file: MetadataFile, data: bytes) -> None:
        """MetadataCorrupt: others tell that this disk had a later version than `data` is."""
        tell = [_backup_path(file)] if self._newer_backup(file, data) is not None else []
        written = self._known_versions().get(file)
        if written is not None and written.is_newer_than(_version_of(data)):
            tell.append(VERSIONS_FILE)
        if tell:
            files, has = " and ".join(tell), "has" if len(tell) == 1 else "have"
            raise MetadataCorrupt(
                f"it is an older copy, since {files} {has} a later version; to go on with it all the same, move "
                f"{files} away"
            )

    def _known_versions(self) -> Mapping[MetadataFile, DataVersion]:
        """What VERSIONS_FILE said at the start; nothing if it is gone, or is damaged: it accuses nobody then."""
        if self._vouched is None:
            self._vouched = {}
            with suppress(MetadataCorrupt, UnicodeDecodeError):
                fields = read_java_json((self._disk.read_file(VERSIONS_FILE) or b"").decode())
                names = {file.value: file for file in MetadataFile}
                self._vouched = {
                    names[name]: DataVersion.from_object(fields.object(name)) for name in fields if name in names
                }
            self._versions = {**self._vouched, **self._versions}
        return self._vouched

    def is_untouched(self, file: MetadataFile) -> bool:
        """Nobody ever changed the table, as far as was written down: of its file nothing is lost. A change is written
        down before it is confirmed."""
        written = self._known_versions().get(file)
        if written is None or written.timestamp_ms:
            return False
        with suppress(MetadataCorrupt, UnicodeDecodeError):
            return not _version_of(self._disk.read_file(_backup_path(file)) or b"{}").timestamp_ms
        return True

    def vouch(self) -> None:
        """Writes down of which versions the tables are that were written, durably; after them."""
        known = self._known_versions()
        if self._versions == known:
            return
        versions = dict(self._versions)
        text = write_java_json({file.value: version.to_fields() for file, version in versions.items()})
        self._disk.write_file(VERSIONS_FILE, text.encode())
        self._vouched = versions

    def load_newest(self, file: MetadataFile, table: MetadataTable) -> LoadedFrom:
        """As `load`, and takes the `.bak` where the main file is older."""
        data = self._disk.read_file(_path(file))
        backup = None if data is None else self._newer_backup(file, data)
        if data is None or backup is None:
            return self.load(file, table)
        table.load_json(backup.decode())
        self._damaged[file] = data
        return LoadedFrom.BACKUP

    def _newer_backup(self, file: MetadataFile, data: bytes) -> bytes | None:
        """The `.bak`, if it is of a later version than `data`."""
        backup = self._disk.read_file(_backup_path(file))
        with suppress(MetadataCorrupt, UnicodeDecodeError):
            if backup and _version_of(backup).is_newer_than(_version_of(data)):
                return backup
        return None

    def persist(
        self, file: MetadataFile, text: str, *, version: DataVersion | None = None, goes_back: bool = False
    ) -> bool:
        """Makes `text`, a table's `to_json()`, durable; the content before goes to `.bak` first. False: no change.
        `goes_back`: to an earlier version than that; then it goes to `.before-removal`. With its `version` given,
        `vouch` is to be called once it is written.

        Takes the text and not the table, so that it may run in a thread while the table goes on changing.
        """
        data = text.encode()
        before = self._readable.get(file)
        if version is not None:
            written = self._known_versions().get(file)
            self._versions[file] = version
            if written is not None and written.is_newer_than(version):
                self.vouch()
        if before == data:
            return False
        if (damaged := self._damaged.get(file)) is not None:
            self._disk.write_file(f"{_path(file)}.damaged", damaged)
            del self._damaged[file]
        newer = (before if goes_back else None) if before is not None else self._newer_backup(file, data)
        if newer is not None:
            self._disk.write_file(f"{_path(file)}.before-removal", newer)
            self._disk.write_file(_backup_path(file), data)
        elif before is not None:
            self._disk.write_file(_backup_path(file), before)
        self._disk.write_file(_path(file), data)
        self._readable[file] = data
        return True

    def read(self, file: MetadataFile) -> bytes | None:
        """What the file holds now; None: there is none."""
        return self._disk.read_file(_path(file))

    def forget(self, file: MetadataFile) -> None:
        """Somebody else may have written the file: the next `persist` writes it, whatever it held before."""
        self._readable.pop(file, None)

    def keep_aside(self, file: MetadataFile) -> str:
        """Copies the file as it is now beside itself, before a change that removes much; gives the copy's path."""
        path = f"{_path(file)}.before-removal"
        if (before := self._readable.get(file)) is not None:
            self._disk.write_file(path, before)
        return path


def _version_of(data: bytes) -> DataVersion:
    return DataVersion.from_object(read_java_json(data.decode()).object("dataVersion"))


def _path(file: MetadataFile) -> str:
    return f"{FOLDER}/{file.value}"


def _backup_path(file: MetadataFile) -> str:
    return f"{FOLDER}/{file.value}.bak"


# How a slave sees that its copy of a metadata table is no longer its master's.


@dataclass(frozen=True, slots=True)
class DataVersion:
    """RocketMQ's DataVersion.

    A slave compares for equality only: another version is looked at, even an older one. A starting master asks which
    of two copies is newer.
    """

    state_version: int = 0
    """Epoch of the master that wrote it; 0 outside controller mode, and absent in files of RocketMQ 4."""
    timestamp_ms: int = 0
    """Wall clock of the last change."""
    counter: int = 0
    """Changes since the table was made."""

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change at wall time `now_ms`; newer than this one, whatever the clock does."""
        return DataVersion(self.state_version, max(now_ms, self.timestamp_ms), self.counter + 1)

    def renewed(self, now_ms: int) -> DataVersion:
        """The version under which a new master shows its table: no other copy has it. A table that nobody ever changed
        stays as old as it is."""
        return self.next(now_ms) if self.timestamp_ms else self

    def is_newer_than(self, other: DataVersion) -> bool:
        """Within the history of one table: which of two copies was made later."""
        return (self.state_version, self.timestamp_ms, self.counter) > (
            other.state_version,
            other.timestamp_ms,
            other.counter,
        )

    def after(self, other: DataVersion) -> DataVersion:
        """A version that is newer than either: what came of two copies."""
        return DataVersion(
            max(self.state_version, other.state_version),
            max(self.timestamp_ms, other.timestamp_ms),
            max(self.counter, other.counter) + 1,
        )

    def to_fields(self) -> dict[str, JavaValue]:
        """RocketMQ's JSON object, fields in its order."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    @classmethod
    def from_object(cls, fields: JavaObject) -> DataVersion:
        """Reads the `dataVersion` object; MetadataCorrupt when a field is no integer."""
        return cls(fields.integer("stateVersion", 0), fields.integer("timestamp", 0), fields.integer("counter", 0))


# JSON as RocketMQ's brokers write it (fastjson 1.2, pretty print). Maps with integer keys have bare keys
# (`{0:12,1:7}`), lines are indented with tabs, and no space follows a colon. Keys keep their order in both directions,
# so a file read from a Java broker is written back byte for byte.

JavaValue: TypeAlias = (
    "JavaText | str | int | float | bool | Mapping[str, JavaValue] | Mapping[int, JavaValue] | Sequence[JavaValue] "
    "| None"
)

_STRING_OR_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)
"""Strings are matched first, so that what looks like a bare key inside one is left alone."""


_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_LONG_END: Final = 1 << 63


class JavaText:
    """A value that is text already. What changes seldom is not printed again with its table."""

    __slots__ = ("text",)

    def __init__(self, value: JavaValue, *, depth: int) -> None:
        """`depth` counts the objects around it."""
        self.text: Final = "".join(_pieces(value, "\n" + "\t" * depth))


class JavaObject:
    """A JSON object whose fields are checked as they are read: a wrong type is MetadataCorrupt and names the field."""

    __slots__ = ("_fields", "_path")

    def __init__(self, fields: object, path: str = "") -> None:
        if not isinstance(fields, dict):
            raise MetadataCorrupt(f"{path or 'the text'} is no JSON object")
        self._fields: dict[str, object] = fields
        self._path = path

    def require(self, *names: str) -> None:
        """MetadataCorrupt unless each of these fields is there."""
        for name in names:
            if self._fields.get(name) is None:
                raise MetadataCorrupt(f"{self._name(name)} is missing")

    def integer(self, name: str, default: int) -> int:
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not -_LONG_END <= value < _LONG_END:
            raise MetadataCorrupt(f"{self._name(name)} is no integer of 64 bits")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._fields.get(name, default)
        if not isinstance(value, bool):
            raise MetadataCorrupt(f"{self._name(name)} is no boolean")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._fields.get(name, default)
        if not isinstance(value, str):
            raise MetadataCorrupt(f"{self._name(name)} is no string")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """The map from string to string called `name`; empty when it is missing."""
        inner = self.object(name)
        return {key: inner.text(key, "") for key in inner}

    def object(self, name: str) -> JavaObject:
        """The object called `name`; empty when it is missing or null."""
        value = self._fields.get(name)
        return JavaObject({} if value is None else value, self._name(name))

    def raw(self, name: str) -> dict[str, JavaValue]:
        """The object called `name` as it is, to be written back unchanged; empty when it is missing."""
        return dict(self.object(name)._fields)  # type: ignore[arg-type]  # what json.loads gives is a JavaValue

    def offsets(self, name: str) -> dict[int, int]:
        """The map from integer to integer called `name`; empty when it is missing."""
        inner = self.object(name)
        offsets: dict[int, int] = {}
        for key in inner:
            offsets[self._number(name, key)] = inner.integer(key, 0)
        return offsets

    def _number(self, name: str, key: str) -> int:
        try:
            return int(key)
        except ValueError:
            raise MetadataCorrupt(f"{self._name(name)} has the key {key!r}, which is no integer") from None

    def pairs(self, name: str) -> dict[int, tuple[int, int]]:
        """The map from integer to two integers called `name`; empty when it is missing."""
        inner = self.object(name)
        pairs: dict[int, tuple[int, int]] = {}
        for key in inner:
            match inner._fields[key]:
                case [int(first), int(second)]:
                    both = JavaObject({"0": first, "1": second}, f"{self._name(name)}.{key}")
                    pairs[self._number(name, key)] = both.integer("0", 0), both.integer("1", 0)
                case _:
                    raise MetadataCorrupt(f"{self._name(name)}.{key} is no list of two integers")
        return pairs

    def canonical(self) -> str:
        """One text for what is equal, whatever its order and spaces."""
        return json.dumps(self._fields, sort_keys=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def _name(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def read_java_json(text: str) -> JavaObject:
    """Parses an object; integer keys may be bare or quoted and come out as strings. MetadataCorrupt if it is none, or
    holds half a character, which nobody could write again."""
    try:
        fields = json.loads(_STRING_OR_BARE_KEY.sub(_quote_bare_key, text))
        if _SURROGATE.search(text):
            json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MetadataCorrupt(f"no JSON: {error}") from error
    return JavaObject(fields)


def _quote_bare_key(match: re.Match[str]) -> str:
    before, key, after = match.groups()
    return match[0] if key is None else f'{before}"{key}"{after}'


def write_java_json(value: JavaValue) -> str:
    """Pretty-prints as fastjson does. Integer keys stay bare, which a Java broker needs to read them as integers."""
    return "".join(_pieces(value, "\n"))


def _pieces(value: JavaValue, line: str) -> Iterator[str]:
    """The text of `value`; `line` is a line break with the indentation of the line that `value` starts on."""
    if isinstance(value, JavaText):
        yield value.text
    elif isinstance(value, Mapping) and value:
        inner_line = line + "\t"
        before = "{"
        for key, item in value.items():
            name = str(key) if isinstance(key, int) else encode_basestring(key)
            yield f"{before}{inner_line}{name}:"
            yield from _pieces(item, inner_line)
            before = ","
        yield line + "}"
    elif isinstance(value, Mapping):
        yield "{}"
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        inner_line = line + "\t"
        before = "["
        for item in value:
            yield before + inner_line
            yield from _pieces(item, inner_line)
            before = ","
        yield line + "]"
    else:
        yield encode_basestring(value) if isinstance(value, str) else json.dumps(value)
