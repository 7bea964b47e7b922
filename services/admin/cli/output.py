"""What a reading command prints: tables for people, JSON or YAML for programs.

The documents are the values of `admin.operations` and `admin.cluster_state` field by field, so their shape is theirs.
Bytes become base64, and beside `body` stands `body_text` when it is printable UTF-8.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any

import typer
import yaml
from rich.console import Console, RenderableType

from admin.body_views import BodyForm, body_view
from admin.cli.status_view import table_console
from admin.operations.values import Unseen

__all__ = ["OutputFormat", "document", "emit", "emit_line", "printable_text", "tell_unseen"]


class OutputFormat(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def emit(output: OutputFormat, value: object, table: RenderableType, console: Console | None = None) -> None:
    """Prints one value: `table` for people, else the document of `value`."""
    if output is OutputFormat.TABLE:
        (console or table_console()).print(table, highlight=False)
    elif output is OutputFormat.JSON:
        typer.echo(json.dumps(document(value), indent=2, ensure_ascii=False))
    else:
        typer.echo(yaml.safe_dump(document(value), sort_keys=False, allow_unicode=True).rstrip("\n"))


def emit_line(output: OutputFormat, value: object, text: str) -> None:
    """Prints one of a stream of values: a line of text, a line of JSON, or a document of YAML."""
    if output is OutputFormat.TABLE:
        typer.echo(text)
    elif output is OutputFormat.JSON:
        typer.echo(json.dumps(document(value), ensure_ascii=False))
    else:
        typer.echo("---\n" + yaml.safe_dump(document(value), sort_keys=False, allow_unicode=True).rstrip("\n"))


def document(value: object) -> Any:
    """Plain lists, mappings, text and numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for each in fields(value):
            member = getattr(value, each.name)
            found[each.name] = document(member)
            if isinstance(member, bytes) and (text := printable_text(member)) is not None:
                found[f"{each.name}_text"] = text
        return found
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): document(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [document(member) for member in value]
    return value


def printable_text(body: bytes) -> str | None:
    """The text, if it is UTF-8 without control characters; line ends and tabs are none."""
    view = body_view(body, wanted=BodyForm.TEXT)
    return view.text if view.form is BodyForm.TEXT else None


def tell_unseen(unseen: Sequence[Unseen]) -> None:
    """On standard error: whom the answer lacks."""
    for each in unseen:
        typer.echo(f"not seen: {each.subject}: {each.reason}", err=True)
