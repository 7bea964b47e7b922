"""JSON as RocketMQ's brokers write it (fastjson 1.2, pretty print) and read it.

Differences from plain JSON: maps with integer keys have bare keys (`{0:12,1:7}`), lines are indented with tabs and
there is no space after a colon. The order of keys is kept in both directions, so that a file read from a Java broker
is written back byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from mqcore.metadata.errors import MetadataCorrupt

__all__ = ["JavaObject", "JavaText", "JavaValue", "read_java_json", "write_java_json"]

JavaValue: TypeAlias = (
    "JavaText | str | int | float | bool | Mapping[str, JavaValue] | Mapping[int, JavaValue] | Sequence[JavaValue] "
    "| None"
)

_STRING_OR_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)
"""Strings are matched first, so that what looks like a bare key inside one is left alone."""


class JavaText:
    """A value that is text already: what changes seldom is not printed anew with the table it is in."""

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

    def integer(self, name: str, default: int) -> int:
        """The integer called `name`."""
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise MetadataCorrupt(f"{self._name(name)} is no integer")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """The boolean called `name`."""
        value = self._fields.get(name, default)
        if not isinstance(value, bool):
            raise MetadataCorrupt(f"{self._name(name)} is no boolean")
        return value

    def text(self, name: str, default: str) -> str:
        """The string called `name`."""
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
            try:
                number = int(key)
            except ValueError:
                raise MetadataCorrupt(f"{self._name(name)} has the key {key!r}, which is no integer") from None
            offsets[number] = inner.integer(key, 0)
        return offsets

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def _name(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def read_java_json(text: str) -> JavaObject:
    """Parses an object; integer keys may be bare or quoted and come out as strings. MetadataCorrupt if it is none."""
    try:
        return JavaObject(json.loads(_STRING_OR_BARE_KEY.sub(_quote_bare_key, text)))
    except (json.JSONDecodeError, RecursionError) as error:
        raise MetadataCorrupt(f"no JSON: {error}") from error


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
            name = str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)
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
        yield json.dumps(value, ensure_ascii=False)
