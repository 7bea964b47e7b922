"""`tandemmq restore-kept-tail`: what was cut off a log, what of it is missing, and bringing that back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.ending import EXIT_FAILED, CommandError, Refused
from tandemmq.cli.listing import ask
from tandemmq.cli.options import DryRunOption, OutputOption, YesOption
from tandemmq.cli.output import OutputFormat, Shown, bad, emit, new_table, or_text, plain_row, tell_unseen
from tandemmq.core.storage.kept_tail import KEPT_TAILS_FOLDER, TailWalk, kept_tail_of, reason_path
from tandemmq.service.texts import wall_text

if TYPE_CHECKING:
    from rich.table import Table

    from tandemmq.admin.operations.operations import Operations
    from tandemmq.admin.operations.values import KeptTail, TailMessage, UnreadableRange, Unseen
    from tandemmq.cli.connection import ClusterConnection

_RECORDS_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 4 << 20
_LINES_MAX: Final = 200
"""Of a table; programs get all."""
_NO_TAIL: Final = "no tail was cut off and kept"


@dataclass(frozen=True, slots=True)
class _TailList:
    """Kept tails, and who could not be asked for them."""

    tails: Sequence[KeptTail]
    unseen: Sequence[Unseen]


@dataclass(slots=True)
class _TailReport:
    """What came of a whole tail."""

    tail: KeptTail
    dry_run: bool
    # Messages that some broker group held before.
    held_count: int = 0
    # Stored again; with `dry_run`, that would be.
    stored_count: int = 0
    # All that were not held, in the order of the log.
    messages: list[TailMessage] = field(default_factory=list)
    # What no message can be read from.
    unreadable: list[UnreadableRange] = field(default_factory=list)

    def add(self, messages: Sequence[TailMessage]) -> None:
        from tandemmq.admin.operations.values import HoldingState

        for message in messages:
            if message.state is HoldingState.HELD:
                self.held_count += 1
                continue
            self.messages.append(message)
            self.stored_count += not message.problem

    @property
    def is_complete(self) -> bool:
        """True when every message of it is there now, or would be."""
        return not self.unreadable and self.stored_count == len(self.messages)


@with_cluster
def restore_kept_tail(
    cluster: ClusterChoice,
    name: Annotated[str, typer.Argument(metavar="[TAIL]", help="A tail's name; none: list them, or see --all.")] = "",
    broker: Annotated[
        str, typer.Option("--broker", "-b", metavar="NAME:ID", help="Only tails that this broker keeps.")
    ] = "",
    store: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Tails in a folder of this machine: a store, its kept-tails, or one file."),
    ] = None,
    to: Annotated[
        str, typer.Option("--to", metavar="NAME", help="With --store: the broker group the tails are of.")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="All tails that are listed.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Bring back what was cut off a log. Without a tail's name, list what brokers keep.

    Each message of a tail is looked for in all broker groups, by its id, its topic and its body. What none holds is
    stored again on the master of its group, under the id it had, and consumers get it. Repeating this stores nothing
    twice. The tail itself stays.

    Exit code 0: nothing of it is missing any more. 1: some could not be stored or read; each is named.

    Examples:

      tandemmq restore-kept-tail

      tandemmq restore-kept-tail --all --dry-run

      tandemmq restore-kept-tail --store /data/store --to broker-a --all
    """
    if store is not None and broker:
        raise Refused("--store and --broker exclude each other", remedy="give one")
    found = (
        _TailList(_tails_in(store), ())
        if store is not None
        else _TailList(*cluster.ask(lambda operations: operations.kept_tails()))
    )
    if broker and not any(tail.broker == broker for tail in found.tails):
        broker = cluster.run(lambda connection: _key_of(connection, broker))
    tails = [tail for tail in found.tails if (not broker or tail.broker == broker) and (not name or tail.name == name)]
    if not name and not every:
        emit(output, _TailList(tails, found.unseen), or_text(_tails_table(tails), _NO_TAIL))
        tell_unseen(found.unseen)
        return
    if not tails and name:
        raise CommandError(
            f"there is no kept tail {name}",
            cause="\n".join(f"{each.subject}: {each.reason}" for each in found.unseen),
            remedy="without a name this command lists them",
        )
    group = (to or _group_of(store)) if store is not None else ""
    if dry_run or not yes:
        planned = [_restored(cluster, tail, store, group, dry_run=True) for tail in tails]
        emit(output if dry_run else OutputFormat.TABLE, planned, _report(planned))
        tell_unseen(found.unseen)
        missing = sum(report.stored_count for report in planned)
        if dry_run or not missing:
            _end(planned)
            return
        ask(f"Store {missing:,} messages again? ({cluster.target().title})")
    reports = [_restored(cluster, tail, store, group, dry_run=False) for tail in tails]
    emit(output, reports, _report(reports))
    tell_unseen(found.unseen)
    _end(reports)


async def _key_of(connection: ClusterConnection, broker: str) -> str:
    """CommandError when there is no such broker."""
    from tandemmq.cli.commands.brokers import find_broker

    return find_broker(await connection.read_state(), broker).key


def _end(reports: Sequence[_TailReport]) -> None:
    if not all(report.is_complete for report in reports):
        raise typer.Exit(EXIT_FAILED)


def _restored(cluster: ClusterChoice, tail: KeptTail, store: Path | None, group: str, *, dry_run: bool) -> _TailReport:
    report = _TailReport(tail, dry_run)
    if store is not None:
        cluster.ask(lambda operations: _restore_file(operations, _files_in(store)[tail.name], group, report))
    else:
        cluster.ask(lambda operations: _restore_of_broker(operations, report))
    return report


async def _restore_of_broker(operations: Operations, report: _TailReport) -> None:
    token = ""
    while True:
        tail = report.tail
        part = await operations.restore_kept_tail(tail.broker, tail.name, page_token=token, dry_run=report.dry_run)
        report.add(part.messages)
        report.unreadable += part.unreadable
        token = part.next_page_token
        if not token:
            return


async def _restore_file(operations: Operations, path: Path, group: str, report: _TailReport) -> None:
    for records, unreadable in _parts(path, report.tail):
        report.unreadable += unreadable
        if records:
            report.add(await operations.restore_records(group, records, dry_run=report.dry_run))
        await asyncio.sleep(0)


def _parts(path: Path, tail: KeptTail) -> Iterator[tuple[list[tuple[int, bytes]], list[UnreadableRange]]]:
    """Records of a file, as many at a time as are stored in one go, and what is none."""
    from tandemmq.admin.operations.values import UnreadableRange

    walk = TailWalk(tail.start_offset, tail.end_offset)
    records: list[tuple[int, bytes]] = []
    try:
        with path.open("rb") as file:
            while (wanted := walk.wanted) is not None:
                file.seek(wanted[0] - tail.start_offset)
                data = file.read(wanted[1])
                if len(data) != wanted[1]:
                    raise CommandError(f"{path} became shorter while it was read", remedy="try again")
                part = walk.take(data)
                yield [], [UnreadableRange(one.start_offset, one.end_offset, one.reason) for one in part.unreadable]
                for record in part.records:
                    records.append(record)
                    if len(records) >= _RECORDS_AT_ONCE or sum(len(data) for _, data in records) >= _BYTES_AT_ONCE:
                        yield records, []
                        records = []
    except OSError as error:
        raise _unreadable(path, error) from error
    yield records, []


def _unreadable(path: Path, error: OSError) -> CommandError:
    return CommandError(
        f"{path} cannot be read",
        cause=error.strerror or str(error),
        remedy="run it as the user that the broker runs as, on a copy of the file if its disk fails",
    )


def _files_in(store: Path) -> dict[str, Path]:
    """Files of tails by name. CommandError: there is no such folder or file."""
    if store.is_file():
        return {store.name: store}
    folder = store / KEPT_TAILS_FOLDER if (store / KEPT_TAILS_FOLDER).is_dir() else store
    try:
        return {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    except OSError as error:
        raise CommandError(
            f"there is no folder of kept tails at {store}",
            cause=str(error),
            remedy="name the storePathRootDir of a broker, its kept-tails folder, or one file of it",
        ) from error


def _tails_in(store: Path) -> list[KeptTail]:
    from tandemmq.admin.operations.values import KeptTail

    found = []
    for path in _files_in(store).values():
        beside = Path(reason_path(str(path)))
        try:
            reason = beside.read_bytes() if beside != path and beside.is_file() else None
            tail = kept_tail_of(str(path), path.stat().st_size, reason)
        except OSError as error:
            raise _unreadable(path, error) from error
        if tail is not None:
            found.append(KeptTail("", tail.name, tail.start_offset, tail.end_offset, tail.kept_wall_ms, tail.reason))
    if store.is_file() and not found:
        raise CommandError(
            f"{store.name} is no name of a kept tail",
            remedy="it has to keep its name, 20 digits of its first offset, a dash, the time, and .log",
        )
    return found


def _group_of(store: Path) -> str:
    """The broker group that a store is of, as it says itself."""
    for folder in (store, store.parent, store.parent.parent):
        try:
            return str(json.loads((folder / "replica.json").read_text())["brokerName"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    raise Refused("which broker group are these tails of?", remedy="name it with --to, as in --to broker-a")


def _tails_table(tails: Sequence[KeptTail]) -> Table:
    table = new_table("broker", "tail", "from", "to", "bytes", "cut off", "why")
    for tail in tails:
        plain_row(
            table,
            tail.broker or "-",
            tail.name,
            f"{tail.start_offset:,}",
            f"{tail.end_offset:,}",
            f"{tail.end_offset - tail.start_offset:,}",
            wall_text(tail.kept_ms),
            tail.reason or "not written down",
        )
    return table


def _report(reports: Sequence[_TailReport]) -> Shown:
    """The sums, then what was or is missing, then what cannot be read."""
    is_planned = any(report.dry_run for report in reports)
    sums = new_table(
        "broker",
        "tail",
        "messages",
        "held",
        "to be stored" if is_planned else "stored",
        "not stored",
        "unreadable bytes",
    )
    messages = new_table("offset", "message id", "topic", "stored", "new place", "problem")
    unreadable = new_table("unreadable from", "to", "why")
    left = 0
    for report in reports:
        others = len(report.messages) - report.stored_count
        lost_bytes = sum(one.end_offset - one.start_offset for one in report.unreadable)
        plain_row(
            sums,
            report.tail.broker or "-",
            report.tail.name,
            f"{report.held_count + len(report.messages):,}",
            f"{report.held_count:,}",
            f"{report.stored_count:,}",
            bad(f"{others:,}", others),
            bad(f"{lost_bytes:,}", lost_bytes),
        )
        # What went wrong must not be beyond the last line.
        for message in sorted(report.messages, key=lambda one: not one.problem):
            if messages.row_count >= _LINES_MAX:
                left += 1
                continue
            place = (
                f"queue {message.queue_id}, offset {message.new_queue_offset}" if message.new_queue_offset >= 0 else "-"
            )
            plain_row(
                messages,
                f"{message.offset:,}",
                message.message_id,
                message.topic,
                wall_text(message.store_ms),
                place,
                bad(message.problem),
            )
        for one in report.unreadable[:_LINES_MAX]:
            plain_row(unreadable, f"{one.start_offset:,}", f"{one.end_offset:,}", one.reason)
    parts: list[Shown] = [or_text(sums, _NO_TAIL)]
    if messages.row_count:
        parts += ["", messages]
    if left:
        parts.append(f"and {left:,} more: see -o json")
    if unreadable.row_count:
        parts += ["", unreadable]
    return parts
