"""`tandemmq trace`: where the time of one message went, in every process that had to do with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.admin.trace_trees import (
    TraceNode,
    TraceTree,
    advice,
    copy_facts,
    event_text,
    facts,
    findings_document,
    list_document,
    messages_text,
    missing,
    operation,
    operation_name,
    outcome,
    parts_text,
    reason_text,
    shift_text,
    short_name,
    trace_trees,
    unanswered,
)
from tandemmq.cli.connection import ClusterChoice, ClusterConnection, refuse_blindness, with_cluster
from tandemmq.cli.ending import EXIT_FAILED, Refused
from tandemmq.cli.options import JsonOption, OutputOption
from tandemmq.cli.output import OutputFormat, Shown, emit, styled, text_console
from tandemmq.service.texts import nanoseconds_text, wall_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tandemmq.admin.cluster_state import BrokerState
    from tandemmq.admin.trace_reader import TraceFindings, TraceList


# A message's life in the terminal: where it lies, then each traced operation as a tree with times and bars.

_BAR_MIN: Final = 16
_BAR_MAX: Final = 48
_TEXT_MIN: Final = 52
_EVENTS_SHOWN: Final = 16
_LABEL: Final = 9
_LIST_WIDE: Final = 120


@dataclass(frozen=True, slots=True)
class _Row:
    # None: an event.
    node: TraceNode | None
    at_ns: int
    end_ns: int
    branches: str
    text: Text


def trace_view(findings: TraceFindings, console: Console) -> Shown:
    """Everything that is known."""
    parts: list[Shown] = [_heading(findings)]
    trees = trace_trees(findings.spans)
    for tree in trees:
        parts += ["", _tree(tree, console.width)]
    if not trees and findings.copies:
        parts += ["", styled("no trace", "bold")]
    notes = [*missing(findings, trees), *advice(findings)]
    if notes:
        parts += ["", *(styled(f"note: {note}", "yellow") for note in notes)]
    return parts


def _heading(findings: TraceFindings) -> Text:
    text = styled("")
    if findings.message_id:
        text.append("message".ljust(_LABEL)).append_text(_plain(findings.message_id, style="bold"))
    else:
        text.append("trace".ljust(_LABEL)).append(f"{findings.trace_id:032x}", style="bold")
    for number, record in enumerate(copy_facts(findings.copies)):
        text.append("\n" if number else "")
        for label, line in record:
            text.append("\n" + label.ljust(_LABEL), style="dim").append_text(_plain(line))
    return text


def _tree(tree: TraceTree, width: int) -> Shown:
    from rich.table import Table

    rows = list(_rows(tree.root, "", "", is_root=True))
    start_ns, end_ns = tree.start_ns, tree.end_ns
    digits = _digits(end_ns - start_ns)
    bar_width = min(_BAR_MAX, width - _TEXT_MIN - 2 * (digits + 7))
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 1))
    table.add_column("at ms", justify="right", no_wrap=True)
    table.add_column("took ms", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    if bar_width >= _BAR_MIN:
        table.add_column("", no_wrap=True, width=bar_width)
    for row in rows:
        at = styled(_ms(row.at_ns - start_ns, digits), "dim" if row.node is None else "")
        took = styled(_ms(row.end_ns - row.at_ns, digits) if row.node is not None else "", "bold")
        cells = [at, took, styled(row.branches, "dim") + row.text]
        if bar_width >= _BAR_MIN:
            cells.append(_bar(row, start_ns, end_ns, bar_width))
        table.add_row(*cells)
    return [*_tree_heading(tree), table]


def _tree_heading(tree: TraceTree) -> Iterator[Shown]:
    root = tree.root
    result, is_good = outcome(tree)
    heading = _plain(operation(tree), style="bold")
    heading.append(f"  {nanoseconds_text(root.duration_ns)}", style="bold cyan")
    heading.append(f"  {result}", style="green" if is_good else "bold red")
    yield heading
    about = [wall_text(root.start_ns // 1_000_000), root.broker]
    if reason := reason_text(tree):
        about.append(reason)
    about.append(f"trace {root.span.context.trace_id:032x}")
    yield styled(", ".join(about), "dim")
    if root.span.parent_span_id:
        yield styled(f"part of the caller's own trace, below its span {root.span.parent_span_id:016x}", "dim")
    if said := parts_text(tree):
        yield said
    for shift in tree.shifts:
        yield styled(f"note: {shift_text(shift)}", "yellow")


def _rows(node: TraceNode, branch: str, below: str, *, is_root: bool = False) -> Iterator[_Row]:
    yield _Row(node, node.start_ns, node.end_ns, branch, _span_text(node, is_root=is_root))
    events = node.events[:_EVENTS_SHOWN]
    # In the order of time; of an event and a span that begin together the event is first.
    inner: list[tuple[int, int, TraceNode | int]] = [(event.at_ns, 0, n) for n, event in enumerate(events)]
    inner += [(child.start_ns, 1, child) for child in node.children]
    inner.sort(key=lambda entry: entry[:2])
    for number, (at_ns, _, entry) in enumerate(inner, 1):
        is_last = number == len(inner) and len(node.events) <= _EVENTS_SHOWN
        if isinstance(entry, int):
            text = styled(event_text(events[entry]), "dim")
            yield _Row(None, at_ns, at_ns, below + ("└· " if is_last else "├· "), text)
        else:
            mark = "└─ " if is_last else "├─ "
            yield from _rows(entry, below + mark, below + ("   " if is_last else "│  "))
    if len(node.events) > _EVENTS_SHOWN:
        more = styled(f"{len(node.events) - _EVENTS_SHOWN} more events", "dim")
        yield _Row(None, node.end_ns, node.end_ns, below + "└· ", more)


def _span_text(node: TraceNode, *, is_root: bool) -> Text:
    text = styled(short_name(node.span.name), "bold red" if node.span.failure else "bold" if is_root else "")
    if node.is_linked:
        text.append(f" ⇠ {node.broker}", style="magenta")
    if said := facts(node):
        text.append_text(_plain("  " + ", ".join(said), style="red" if node.span.failure else "dim"))
    return text


def _bar(row: _Row, start_ns: int, end_ns: int, width: int) -> Text:
    if row.at_ns > end_ns:
        return styled("›".rjust(width), "dim")
    whole = max(1, end_ns - start_ns)
    first = min(width - 1, (row.at_ns - start_ns) * width // whole)
    if row.node is None:
        return styled(" " * first + "·", "dim")
    last = max(first + 1, -(-(row.end_ns - start_ns) * width // whole))
    style = "red" if row.node.span.failure else "magenta" if row.node.is_linked else "cyan"
    return styled(" " * first + "━" * (min(last, width) - first), style)


def _digits(whole_ns: int) -> int:
    """Of milliseconds: microseconds where they matter."""
    return 3 if whole_ns < 20_000_000 else 2


def _ms(nanoseconds: int, digits: int) -> str:
    return f"{nanoseconds / 1e6:,.{digits}f}"


def list_view(found: TraceList, console: Console) -> Shown:
    """The newest traces, a line each; message ids whole, for copying."""
    from rich.table import Table

    notes: list[Shown] = [styled(f"note: {note}", "yellow") for note in unanswered(found.brokers)]
    if not found.lines:
        answered = [state for state in found.brokers if not state.error]
        why = "no broker remembers a trace" if any(state.tracing for state in answered) else "no broker keeps traces"
        return [f"{why}: see traceEnable and traceSampleRate, or `tandemmq up --tracing`", *notes]
    is_wide = console.width >= _LIST_WIDE
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("message", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    for column in ("what", "topic", "kept", *(("broker", "began") if is_wide else ())):
        table.add_column(column, overflow="fold")
    for line in found.lines:
        table.add_row(
            _plain(messages_text(line) or f"trace {line.trace_id:032x}"),
            nanoseconds_text(int(line.duration_ms * 1e6)),
            _plain(operation_name(line.name)),
            _plain(line.topic),
            _plain(line.failure or line.retained_for, style="red" if line.failure else ""),
            *((_plain(line.broker), wall_text(line.start_ms)) if is_wide else ()),
        )
    return [table, *notes]


def _plain(text: str, *, style: str = "") -> Text:
    """What clients chose: brackets are no markup, and control characters do nothing to the terminal."""
    return styled("".join(one if one.isprintable() else "\ufffd" for one in text), style)


_PIPE_COLUMNS: Final = 140
"""Output that goes to a file or a pipe is as wide as that."""


@with_cluster
def trace(
    cluster: ClusterChoice,
    key: Annotated[
        str,
        typer.Argument(
            metavar="[ID]", help="A message id, a trace id or a whole traceparent; none: the newest traces."
        ),
    ] = "",
    topic: Annotated[
        str, typer.Option(help="Look for the message in this topic only: quicker where there are many.")
    ] = "",
    notable: Annotated[
        bool, typer.Option("--notable", help="Of the newest traces, the slow and failed ones only.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, max=200, help="How many of the newest traces.")] = 20,
    output: OutputOption = OutputFormat.TABLE,
    json: JsonOption = False,
) -> None:
    """Show where the time of one message went: its send in the master, its copy in the slave, its deliveries.

    Brokers remember what they traced lately (traceEnable; slow and failed sends always). Without a trace it says where
    the message lies and which replicas hold it.

    Exit code 0: something is known. 1: nothing is. 2: wrong arguments.

    Examples:

      tandemmq trace 01A2B3C4D5E6F70001061C2F5A00000001

      tandemmq trace

      tandemmq trace --notable --count 5
    """
    output = OutputFormat.JSON if json else output
    console = text_console()
    if not console.is_terminal:
        console = text_console(width=_PIPE_COLUMNS)
    key = key.strip()
    if not key:
        found = cluster.run(lambda connection: _newest(connection, count=count, notable_only=notable))
        emit(output, list_document(found), list_view(found, console), console)
        return
    if any(character.isspace() for character in key):
        raise Refused(f"{key!r} is no id", remedy="give one message id or trace id")
    findings = cluster.run(lambda connection: _find(connection, key, topic=topic))
    emit(output, findings_document(findings), trace_view(findings, console), console)
    if not findings.spans and not findings.copies:
        raise typer.Exit(EXIT_FAILED)


async def _find(connection: ClusterConnection, key: str, *, topic: str) -> TraceFindings:
    from tandemmq.admin.trace_reader import TraceReader

    return await TraceReader(connection.channels).find(await _brokers(connection), key, topic=topic)


async def _newest(connection: ClusterConnection, *, count: int, notable_only: bool) -> TraceList:
    from tandemmq.admin.trace_reader import TraceReader

    brokers = await _brokers(connection)
    return await TraceReader(connection.channels).newest(brokers, count=count, notable_only=notable_only)


async def _brokers(connection: ClusterConnection) -> tuple[BrokerState, ...]:
    state = await connection.read_state()
    refuse_blindness(state)
    return state.brokers
