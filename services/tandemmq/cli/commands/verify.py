"""`tandemmq verify`: one run of the consistency job from here, in this machine's own processes."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli.connection import ClusterChoice, with_cluster
from tandemmq.cli.ending import EXIT_FAILED, CommandError, die_by, signals_to_end
from tandemmq.cli.local.folder import ClusterFolder, join_addresses
from tandemmq.cli.output import Shown, new_table, plain_row, show, styled
from tandemmq.core.audit.findings import KINDS, Finding
from tandemmq.core.audit.run_summary import ExitCode, GroupSummary, Outcome, RunSummary, Tier

if TYPE_CHECKING:
    from rich.table import Table


# A run of the consistency job on a terminal: the verdict, a line a group, and what differs.

_FINDINGS_MAX: Final = 30
_GROUPS_MAX: Final = 50
_STYLES: Final = {Outcome.EQUAL: "bold green", Outcome.DIVERGED: "bold red"}
_WORST_FIRST: Final = (Outcome.DIVERGED, Outcome.INCOMPLETE, Outcome.SKIPPED, Outcome.EQUAL)


def run_view(summary: RunSummary) -> Shown:
    parts: list[Shown] = ["", _groups(summary)]
    if summary.findings:
        parts += ["", _findings(summary)]
        rest = summary.findings_total - min(len(summary.findings), _FINDINGS_MAX)
        if rest > 0:
            parts.append(f"{rest:,} more findings; the report has them")
    parts += ["", *summary.notes, styled(summary.sentence, _STYLES.get(summary.outcome, "bold yellow"))]
    return parts


def _groups(summary: RunSummary) -> Table:
    table = new_table("group", "outcome", "replicas", "compared now", "verified up to", "findings", "")
    groups = sorted(summary.groups, key=lambda group: (_WORST_FIRST.index(group.outcome), group.group))
    for group in groups[:_GROUPS_MAX]:
        plain_row(
            table,
            group.group,
            str(group.outcome),
            str(len(group.replicas)),
            f"{group.new_bytes + group.scrubbed_bytes:,}",
            f"{group.watermark:,}",
            f"{group.findings:,}",
            _problem(group),
        )
    if len(groups) > _GROUPS_MAX:
        plain_row(table, f"{len(groups) - _GROUPS_MAX:,} more", "", "", "", "", "", "")
    return table


def _problem(group: GroupSummary) -> str:
    unread = [f"{group.group}:{each.broker_id} {each.problem}" for each in group.replicas if each.problem]
    return "; ".join([group.problem, *unread] if group.problem else unread)


def _findings(summary: RunSummary) -> Table:
    table = new_table("wrong", "what", "message", "evidence", "detail")
    for finding in summary.findings[:_FINDINGS_MAX]:
        plain_row(
            table,
            f"{finding.group}:{finding.broker_id}" if finding.broker_id is not None else f"{finding.group}:?",
            KINDS[finding.kind].title,
            _message(finding),
            str(finding.verdict),
            finding.detail,
        )
    return table


def _message(finding: Finding) -> str:
    parts = [finding.topic] if finding.topic else []
    parts += [f"queue {finding.queue_id}"] if finding.queue_id is not None else []
    parts += [f"offset {finding.queue_offset}"] if finding.queue_offset is not None else []
    parts += [finding.message_id] if finding.message_id else []
    text = " ".join(parts)
    return f"{text} and {finding.messages - 1:,} more" if finding.messages > 1 else text


_NEEDED: Final = ("tandemmq.consistency", "pyarrow", "xxhash", "numpy")
_RESULTS: Final = "consistency"
# What says where to read; the environment of a pod would contradict the options given here.
_SOURCE_VARIABLES: Final = ("TANDEMMQ_NAMESRV_ADDR", "TANDEMMQ_PATH", "TANDEMMQ_SOURCES")


class Engine(StrEnum):
    """What reads and compares."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@with_cluster
def verify(
    cluster: ClusterChoice,
    path: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Read files instead of asking brokers: a data folder of `tandemmq up`, a folder with "
            "GROUP/BROKER_ID below, or repeated the stores of one group, its master first.",
        ),
    ] = None,
    tier: Annotated[
        Tier, typer.Option(help="quick: digests of what is new, and metadata. deep: every record of every replica.")
    ] = Tier.QUICK,
    engine: Annotated[
        Engine,
        typer.Option(
            help="local: processes of this machine. spark: Spark. auto: local, and Spark from 64 GB to read on."
        ),
    ] = Engine.AUTO,
    group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this broker group; repeatable.")] = None,
    results: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Reports, and the memory of what is verified already. Default: consistency in the cluster's data "
            "folder, else ./consistency.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the job; repeatable. `mqconsistency --schema`."),
    ] = None,
) -> None:
    """Prove that all replicas of every broker group hold the same, byte by byte; say which message differs if not.

    Asks the brokers of a running cluster; with --path, or --data of a cluster that is stopped, it reads their files.
    The first run reads everything, later ones what is new and a share of the old. Java and Spark are needed only for
    what is too large for one machine; they come with pip install 'tandemmq[consistency]', as what is needed always.

    Exit code 0: all equal. 2: they differ. 3: not all could be read; nothing wrong in what could. 1: it did not run.

    Examples:

      tandemmq verify

      tandemmq verify --namesrv mq-nameserver-0.mq-nameserver:9876 --tier deep

      tandemmq verify --path /mnt/snapshot-a --path /mnt/snapshot-b
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            "the consistency job is not installed here",
            cause=f"there is no module {', '.join(missing)}",
            remedy="pip install 'tandemmq[consistency]', or start it on Kubernetes: kubectl create job "
            "--from=cronjob/RELEASE-consistency-quick NAME",
            exit_code=EXIT_FAILED,
        )
    source, expected = _source(path or [], cluster)
    place = results or str(_default_results(path, cluster))
    settings = [*source, f"tier={tier}", f"results={place}", "progress=person"]
    settings += [f"engine={engine}"] if engine is not Engine.AUTO else []
    settings += [f"groups={','.join(group)}"] if group else []
    before = _latest(place)
    code = _run(settings + (overrides or []))
    summary = _latest(place)
    if summary is not None and (before is None or summary.run_id != before.run_id):
        if absent := sorted(expected - {each.group for each in summary.groups}) if not group else []:
            typer.echo(f"not compared: {', '.join(absent)}; no NameServer knows a broker of it", err=True)
            code = code or ExitCode.INCOMPLETE
            if summary.outcome is Outcome.EQUAL:
                summary = replace(summary, outcome=Outcome.INCOMPLETE)
        _tell(summary, place)
    if code:
        raise typer.Exit(code if code > 0 else EXIT_FAILED)


def _source(paths: Sequence[Path], choice: ClusterChoice) -> tuple[list[str], set[str]]:
    """Settings of the job that say what to read, and which broker groups should be there, as far as that is known."""
    if paths:
        if choice.namesrv or choice.data or choice.context:
            raise CommandError(
                "--path reads files; --namesrv, --data and --context name a cluster to ask",
                remedy="leave one of them out",
                exit_code=EXIT_FAILED,
            )
        absent = [path for path in paths if not path.is_dir()]
        if absent:
            raise CommandError(f"there is no folder {absent[0]}", remedy="check --path", exit_code=EXIT_FAILED)
        return [f"path={';'.join(str(path.absolute()) for path in paths)}"], set()
    data = None if choice.namesrv else choice.data
    if data is not None and (data / "store").is_dir():
        record = ClusterFolder(data).read_record()
        if record is None or record.is_over:
            # It is stopped: its files say all there is.
            return [f"path={data.absolute()}"], set()
    try:
        cluster = choice.address()
    except CommandError as error:
        # Its code for wrong arguments says here that replicas differ.
        error.exit_code = EXIT_FAILED
        raise
    source = [f"namesrvAddr={join_addresses(cluster.name_servers)}", *_certificate(choice)]
    return source, {broker.broker_name for broker in cluster.expected}


def _certificate(choice: ClusterChoice) -> list[str]:
    """The job's own certificate, if the cluster's data folder has one; else what the environment names counts."""
    data = choice.target().data
    folder = None if data is None else ClusterFolder(data).certs / "consistency"
    if folder is None or not folder.is_dir():
        return []
    return ["serviceTlsMode=enforcing", f"serviceTlsPath={folder}"]


def _default_results(paths: Sequence[Path] | None, choice: ClusterChoice) -> Path:
    if paths:
        return Path(_RESULTS).absolute()
    if choice.data is not None:
        # Also of a cluster that is stopped.
        return choice.data.absolute() / _RESULTS
    data = choice.target().data
    return data.absolute() / _RESULTS if data is not None else Path(_RESULTS).absolute()


def _run(settings: Sequence[str]) -> int:
    """The job's exit code. What asks this process to end is passed on, and waited for: the job tells what it has found
    by then. One that had not begun has nothing to tell, and this process ends by the same signal."""
    command = [sys.executable, "-m", "tandemmq.consistency"]
    for setting in settings:
        command += ["--set", setting]
    environment = {name: value for name, value in os.environ.items() if name not in _SOURCE_VARIABLES}
    if environment.get("TANDEMMQ_SERVICE_TLS_PATH"):
        # As to all commands: whoever names a certificate means it to be shown.
        environment.setdefault("TANDEMMQ_SERVICE_TLS_MODE", "enforcing")
    asked: list[signal.Signals] = []
    job: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        asked.append(signal.Signals(number))
        if job is not None:
            job.terminate()

    # Handlers, not SIG_IGN: the job would inherit that, and to undo it there takes Python between fork and exec, which
    # gRPC's threads do not survive each time.
    before = {number: signal.signal(number, pass_on) for number in signals_to_end()}
    try:
        # A session of its own: a Ctrl-C in the terminal would reach it as well, and the second signal ends it at once.
        job = subprocess.Popen(command, env=environment, start_new_session=True)
        if asked:
            job.terminate()
        code = job.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked and code < 0:
        die_by(asked[0])
    return code


def _latest(place: str) -> RunSummary | None:
    """The newest run in a folder; None if there is none, or if the results are no folder."""
    if "://" in place:
        return None
    try:
        return RunSummary.from_json(json.loads((Path(place) / "latest.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _tell(summary: RunSummary, place: str) -> None:
    folder = Path(place) / "runs" / summary.run_id
    show(run_view(summary))
    typer.echo(f"report: {folder / 'report.html'}")
    plan = folder / "repair-plan.json"
    if summary.findings_total and plan.exists():
        typer.echo(f"repair: tandemmq repair --plan {shlex.quote(str(plan))} --dry-run")
