"""What a reading command prints: tables for people, JSON or YAML for programs.

The documents are the values of `tandemmq.admin.operations` and `tandemmq.admin.cluster_state` field by field, so their
shape is theirs. Bytes become base64, and beside `body` stands `body_text` when it is printable UTF-8.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import Enum, StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from tandemmq.cli.ending import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

    from tandemmq.admin.cluster_state import (
        BrokerState,
        BrokerStatus,
        ClusterState,
        Finding,
    )
    from tandemmq.admin.operations.values import Unseen

Shown: TypeAlias = "RenderableType | Sequence[Shown]"
"""What a command shows to people: a text as it is, a table, or several of these below each other."""

# Shows the state of a cluster: tables for people, one document for programs.

_BROKER_COLUMNS = ("broker", "role", "CommitLog from", "end", "flushed", "dispatched", "copies")
# Wide enough for every table: output that goes to a file or a pipe is not cut at a terminal's width.
_PIPE_COLUMNS = 300


def status_tables(state: ClusterState, findings: Sequence[Finding]) -> Shown:
    """NameServers, brokers, replication, and what to do about what is wrong."""
    return [
        _name_servers(state),
        "",
        _brokers(state),
        "",
        *_failovers(state),
        *_replication(state),
        _endpoints(state),
        "",
        findings_text(findings),
    ]


def status_document(state: ClusterState, findings: Sequence[Finding]) -> dict[str, object]:
    """The same for programs: `healthy`, `findings`, `name_servers`, `brokers`, fields as in
    `tandemmq.admin.cluster_state`."""
    from tandemmq.admin.cluster_state import is_healthy

    return {
        "healthy": is_healthy(findings),
        "findings": [asdict(finding) for finding in findings],
        **asdict(state),
    }


def text_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Prints texts as they are: of itself rich takes a path's [/x] and :100: for its own markup."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def show(shown: Shown) -> None:
    """Prints it to standard output. A terminal that is too narrow for its longest words wraps the lines itself: an id
    that is copied from there is whole."""
    console, wide, drawn = text_console(), text_console(width=_PIPE_COLUMNS), drawing(shown)
    if not console.is_terminal or wide.measure(drawn).minimum > console.width:
        console = wide
    console.print(drawn)


def drawing(shown: Shown) -> RenderableType:
    """The same for a console of rich's, which would take what stands in a text's brackets for its own markup."""
    from rich.console import Group

    if isinstance(shown, str):
        return styled(shown)
    return Group(*map(drawing, shown)) if isinstance(shown, Sequence) else shown


def styled(text: str, style: str = "") -> Text:
    """A text as it is, in one of rich's styles."""
    from rich.text import Text

    return Text(text, style=style)


def bad(text: str, is_bad: object = True) -> Text:
    """What wants somebody to look at it."""
    return styled(text, "bold red" if is_bad else "")


def findings_text(findings: Sequence[Finding]) -> Text:
    """One line per finding and its remedy below it; a single good line without any."""
    from tandemmq.admin.cluster_state import Severity, is_healthy

    if not findings:
        return styled("healthy", "bold green")
    text = styled("")
    if is_healthy(findings):
        text.append("healthy\n", style="bold green")
    for finding in findings:
        is_problem = finding.severity is Severity.PROBLEM
        text.append("degraded: " if is_problem else "note: ", style="bold red" if is_problem else "bold")
        text.append(f"{finding.subject} {finding.problem}\n")
        text.append(f"  remedy: {finding.remedy}\n", style="dim")
    text.rstrip()
    return text


def new_table(*columns: str) -> Table:
    """A table in the house style: no frame, so that a line can be cut into words."""
    table = _word_table()(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


@cache
def _word_table() -> type[Table]:
    from rich.table import Table

    class WordTable(Table):
        """What is one word in every row, such as an id, is never broken; texts give way."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for column in self.columns:
                column.no_wrap = not any(" " in str(cell) for cell in column.cells)
            return super().__rich_console__(console, options)

    return WordTable


def plain_row(table: Table, *cells: str | Text) -> None:
    """A row of texts as they are: a terminal would take what begins with an escape for an order."""
    table.add_row(*(styled(one_line(cell)) if isinstance(cell, str) else cell for cell in cells))


def or_text(table: Table, text: str) -> RenderableType:
    """The table, or what to say instead when it has no rows."""
    return table if table.row_count else styled(text, "dim")


def _name_servers(state: ClusterState) -> Table:
    table = new_table("NameServer", "answers", "revision", "brokers")
    for server in state.name_servers:
        if server.error is None:
            table.add_row(server.address, "yes", str(server.revision), " ".join(server.brokers) or "-")
        else:
            table.add_row(server.address, bad("no"), "-", "-")
    return table


def _brokers(state: ClusterState) -> Table:
    table = new_table(*_BROKER_COLUMNS)
    for broker in state.brokers:
        status = broker.status
        if status is None:
            table.add_row(broker.key, bad("does not answer"), "-", "-", "-", "-", "-")
            continue
        offsets = (status.min_offset, status.end_offset, status.flushed_offset, status.dispatched_offset)
        table.add_row(broker.key, _role(status), *(f"{offset:,}" for offset in offsets), _copies(status))
    return table


def _failovers(state: ClusterState) -> list[RenderableType]:
    from tandemmq.admin.cluster_state import failovers_of

    table = new_table("fails over", "master", "epoch", "in-sync set")
    for name, group in failovers_of(state):
        master = bad(group.master or "nobody", not group.acts)
        table.add_row(name, master, str(group.epoch), " ".join(group.in_sync) or "-")
    return [table, ""] if table.row_count else []


def _role(status: BrokerStatus) -> Text:
    words = status.role_in_words
    return bad(words, words != status.role)


def _endpoints(state: ClusterState) -> Table:
    table = new_table("broker", "client API", "metadata, admin", "replication")
    for broker in state.brokers:
        table.add_row(broker.key, broker.client_endpoint, broker.metadata_endpoint, broker.ha_endpoint or "-")
    return table


def _copies(status: BrokerStatus) -> str:
    if status.master_link is not None:
        return "follows" if status.master_link.state == "transfer" else status.master_link.state
    in_sync = sum(slave.in_sync for slave in status.slaves)
    return f"{in_sync} of {len(status.slaves)} in sync" if status.slaves else "no slave"


def _replication(state: ClusterState) -> list[RenderableType]:
    """A table and an empty line; nothing where nobody has a slave."""
    table = new_table("replication", "acknowledged", "lag bytes", "in sync", "verified", "state")
    for broker in state.brokers:
        for row in _replication_rows(broker):
            table.add_row(*row)
    return [table, ""] if table.row_count else []


def _silence(silent_ms: int | None) -> str:
    """How long nothing came from there; an answer comes once in 2 s at least."""
    from tandemmq.admin.cluster_state import SILENT_MS_MAX

    return "" if silent_ms is None or silent_ms <= SILENT_MS_MAX else f", silent for {silent_ms / 1_000:.0f} s"


def _replication_rows(broker: BrokerState) -> list[tuple[str, ...]]:
    if broker.status is None:
        return []
    rows: list[tuple[str, ...]] = [
        (
            f"{broker.key} -> {f'{broker.broker_name}:{slave.broker_id}' if slave.broker_id >= 0 else slave.peer}",
            f"{slave.acked_offset:,}",
            f"{slave.lag_bytes:,}",
            "yes" if slave.in_sync else "no",
            "yes" if slave.verified else "no",
            f"connected from {slave.peer}{_silence(slave.silent_ms)}",
        )
        for slave in broker.status.slaves
    ]
    if (link := broker.status.master_link) is not None:
        rows.append(
            (
                f"{broker.key} <- {link.address or '?'}",
                f"{broker.status.end_offset:,}",
                f"{link.lag_bytes:,}",
                "",
                "",
                f"{link.state}{_silence(link.silent_ms)}",
            )
        )
    return rows


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def emit(output: OutputFormat, value: object, shown: Shown, console: Console | None = None) -> None:
    """Prints one value: `shown` for people, else the document of `value`."""
    import yaml

    if output is OutputFormat.TABLE:
        if console is None:
            show(shown)
        else:
            console.print(drawing(shown))
    elif output is OutputFormat.JSON:
        typer.echo(_json(value, indent=2))
    else:
        typer.echo(yaml.safe_dump(document(value), sort_keys=False, allow_unicode=True).rstrip("\n"))


def emit_line(output: OutputFormat, value: object, text: str) -> None:
    """Prints one of a stream of values: a line of text, a line of JSON, or a document of YAML."""
    import yaml

    if output is OutputFormat.TABLE:
        typer.echo(text)
    elif output is OutputFormat.JSON:
        typer.echo(_json(value))
    else:
        typer.echo("---\n" + yaml.safe_dump(document(value), sort_keys=False, allow_unicode=True).rstrip("\n"))


_CONTROLS: Final = re.compile("[\x7f-\x9f]")


def _json(value: object, *, indent: int | None = None) -> str:
    """Characters as they are, but for those that a terminal may take for an order."""
    text = json.dumps(document(value), indent=indent, ensure_ascii=False)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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
    from tandemmq.admin.operations.bodies import BodyForm, body_view

    view = body_view(body, wanted=BodyForm.TEXT)
    return view.text if view.form is BodyForm.TEXT else None


def tell_unseen(unseen: Sequence[Unseen]) -> None:
    """On standard error: whom the answer lacks."""
    for each in unseen:
        typer.echo(f"not seen: {each.subject}: {each.reason}", err=True)
