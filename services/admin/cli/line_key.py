"""The message key of a line: one of its columns, or one member of the JSON object it holds."""

from __future__ import annotations

import json

__all__ = ["line_key"]


def line_key(line: bytes, field: str) -> str | None:
    """`field` is a column counted from 1, separated by white space, or a JSON member's name. None: the line has none.

    RocketMQ separates keys by spaces in the stored property, so a value with a space would become several keys; it
    gets underscores instead.
    """
    text = line.decode(errors="replace")
    if field.isdigit():
        columns = text.split()
        column = int(field)
        return columns[column - 1] if 1 <= column <= len(columns) else None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    found = value.get(field) if isinstance(value, dict) else None
    return None if found is None or found == "" else "_".join(str(found).split())
