"""A message's body for reading: text, JSON in lines, or hex. Whatever it holds, it is only ever shown as text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# How much of messages one answer holds, and how large a test message may be. Brokers have the same limits.

BODY_BYTES_MAX: Final = 4 << 20
"""Of a message that is asked for alone, and of one that is sent."""
PAGE_MESSAGES_MAX: Final = 500
PAGE_BODY_BYTES_MAX: Final = 1 << 20
"""Of each message of a page; brokers end a page early when its bodies together are too many."""


# Forms of a body.

HEX_BYTES_MAX: Final = 16_384
"""Shown in hex: four thousand lines are more than anybody reads; the rest is for a download."""
PREVIEW_CHARACTERS: Final = 100

_BYTES_A_LINE: Final = 16
# Controls but tab and line ends: text that holds them is not meant for reading.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+')
# Indents of a deeply nested body would otherwise be a thousand times its size.
_JSON_GROWTH_MAX: Final = 8
_JSON_GROWTH_FREE: Final = 4_096


class BodyForm(StrEnum):
    """How it is shown."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class BodyView:
    form: BodyForm
    # Those it has, hex always.
    forms: tuple[BodyForm, ...]
    text: str
    # Bytes shown.
    shown_bytes: int


def body_view(body: bytes, *, wanted: BodyForm | None = None) -> BodyView:
    """`body`, perhaps only the beginning of one, as `wanted`, or in the best form it has."""
    text = _printable(body)
    pretty = _indented_json(text) if text is not None else None
    forms = (
        *((BodyForm.JSON,) if pretty is not None else ()),
        *((BodyForm.TEXT,) if text is not None else ()),
        BodyForm.HEX,
    )
    form = wanted if wanted in forms else forms[0]
    if form is BodyForm.JSON and pretty is not None:
        return BodyView(form, forms, pretty, len(body))
    if form is BodyForm.TEXT and text is not None:
        return BodyView(form, forms, text, len(body))
    shown = body[:HEX_BYTES_MAX]
    return BodyView(BodyForm.HEX, forms, _hex_lines(shown), len(shown))


PREVIEW_BYTES: Final = 256
"""As much of each body lists ask for."""


def body_preview(body: bytes) -> str:
    """The beginning in one line: text, or its first bytes in hex; empty for an empty body."""
    text = _printable(body)
    if text is None:
        return " ".join(f"{byte:02x}" for byte in body[:24])
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW_CHARACTERS else f"{line[:PREVIEW_CHARACTERS]}…"


def _printable(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        # The beginning of a longer body may end within a character.
        if error.reason != "unexpected end of data":
            return None
        text = body[: error.start].decode()
    return None if _UNPRINTABLE.search(text) else text


def _indented_json(text: str) -> str | None:
    # The text is laid out anew rather than written from what was read: numbers and doubled keys stay as they are.
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    size, size_max = 0, len(text) * _JSON_GROWTH_MAX + _JSON_GROWTH_FREE
    depth, before = 0, ""
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token in "}]":
            depth -= 1
            lead = "" if before in ("{", "[") else "\n" + "  " * depth
        elif before in ("{", "[", ","):
            lead = "\n" + "  " * depth
        else:
            lead = " " if before == ":" else ""
        if token in "{[":
            depth += 1
        parts += (lead, token)
        size += len(lead) + len(token)
        if size > size_max:
            return None
        before = token
    return "".join(parts)


def _hex_lines(body: bytes) -> str:
    return "\n".join(
        _hex_line(offset, body[offset : offset + _BYTES_A_LINE]) for offset in range(0, len(body), _BYTES_A_LINE)
    )


def _hex_line(offset: int, piece: bytes) -> str:
    half = _BYTES_A_LINE // 2
    digits = f"{piece[:half].hex(' ')}  {piece[half:].hex(' ')}"
    letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
    return f"{offset:08x}  {digits:<{_BYTES_A_LINE * 3}}  {letters}"
