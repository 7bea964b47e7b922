"""`tandemmq repair`: has the brokers carry out a repair plan, step by step, each step proven before and after."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandemmq.cli import ending
from tandemmq.cli.cluster_address import KubernetesPlace, find_place
from tandemmq.cli.connection import ClusterChoice, ClusterConnection, refuse_blindness, with_cluster
from tandemmq.cli.ending import CommandError, Refused
from tandemmq.cli.kube.release import KubeContextOption, NamespaceOption, config_map_data, connect, place_of
from tandemmq.cli.options import DryRunOption, YesOption, at_terminal, standard_input
from tandemmq.cli.output import new_table, plain_row, show

if TYPE_CHECKING:
    from rich.table import Table

    from tandemmq.admin.replica_repair import Repair, ReplicaKey, StepResult
    from tandemmq.core.audit.repair_plan import RepairPlan, RepairStep

_PLAN_SUFFIX: Final = ".plan"
_ANYWHERE: Final = KubernetesPlace()


@with_cluster
def repair(
    cluster: ClusterChoice,
    plan: Annotated[
        str,
        typer.Option(
            metavar="PLAN",
            help="repair-plan.json of a run, beside its report; - for standard input; or configmap:NAME or "
            "configmap:NAME/RUN where the job leaves its results in a ConfigMap, which holds its last two plans.",
        ),
    ],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    step: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Only this step of the plan; repeatable. Default: all.")
    ] = None,
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Put back the bytes of the log, entries and tables that these steps overwrote."),
    ] = False,
    namespace: NamespaceOption = None,
    kube_context: KubeContextOption = None,
) -> None:
    """Make replicas equal again by the repair plan of a run of the consistency job, while the cluster serves.

    Every broker is first asked to check without writing; then you are asked; then the steps are done in their order,
    and the first refusal ends it. A plan states what it expects to find, so one from before a change is refused, not
    carried out. Steps that need a person are listed and left alone. What is overwritten is kept beside the log
    (kept-repairs), and --undo puts it back.

    Exit code 0: done, or nothing was to be done. 1: a broker refused, with its reason; what was done before stays. 2:
    wrong arguments, or no plan.

    Examples:

      tandemmq repair --plan consistency/runs/20261121T220000Z-1f3a/repair-plan.json --dry-run

      tandemmq repair --plan repair-plan.json --step 2 --yes

      kubectl exec -it deploy/mq-admin -- tandemmq repair --plan configmap:mq-consistency
    """
    from tandemmq.admin.consistency_runs import CONFIG_MAP_PREFIX
    from tandemmq.core.audit.repair_plan import RepairAction

    place = _ANYWHERE
    if plan.startswith(CONFIG_MAP_PREFIX):
        place = place_of(find_place(cluster.context), release=None, namespace=namespace, kube_context=kube_context)
    found = read_plan(plan, place)
    found = found.undone() if undo else found
    steps = _chosen(found, step or [])
    show(plan_table(found, steps))
    automatic = [each for each in steps if each.action is not RepairAction.MANUAL]
    by_hand = len(steps) - len(automatic)
    if by_hand:
        typer.echo(f"{by_hand} of these steps need a person; see their reason and docs/operations/consistency.md")
    if not automatic:
        typer.echo("nothing is to be done by the brokers")
        return
    cluster.run(lambda connection: _repair(connection, automatic, dry_run=dry_run, asks=not yes))


def read_plan(source: str, place: KubernetesPlace = _ANYWHERE) -> RepairPlan:
    """CommandError when there is none, or it is not whole. `place` is where a ConfigMap is looked for."""
    from tandemmq.core.audit.repair_plan import RepairPlan

    try:
        plan = RepairPlan.from_json(json.loads(_plan_text(source, place)))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = "it is no text in UTF-8"
        raise Refused(
            f"{source} is no repair plan",
            cause=reason or str(error),
            remedy="name the repair-plan.json of a run; `tandemmq verify` makes a new one",
        ) from error
    for step in plan.steps:
        missing = _missing(step)
        if missing:
            raise Refused(
                f"step {step.number} of {source} lacks {', '.join(missing)}",
                remedy="have a new plan made by `tandemmq verify`",
            )
    return plan


def _plan_text(source: str, place: KubernetesPlace) -> str:
    from tandemmq.admin.consistency_runs import CONFIG_MAP_PREFIX

    if source == "-":
        return standard_input().read()
    if not source.startswith(CONFIG_MAP_PREFIX):
        return Path(source).read_text(encoding="utf-8")
    name, _, run_id = source.removeprefix(CONFIG_MAP_PREFIX).partition("/")
    plans = ending.run(_plans_in(name, place))
    wanted = [key for key in sorted(plans) if not run_id or key == run_id + _PLAN_SUFFIX]
    if not wanted:
        raise Refused(
            f"ConfigMap {name} holds no plan" + (f" of run {run_id}" if run_id else ""),
            cause="no run has found anything, or its plan was too large: it is in the job's results then",
            remedy=f"there are plans of {', '.join(plans)}" if plans else "name the repair-plan.json of a run",
        )
    return plans[wanted[-1]]


async def _plans_in(name: str, place: KubernetesPlace) -> dict[str, str]:
    data = await config_map_data(await connect(place), name, remedy="check its name and --namespace")
    return {key: text for key, text in data.items() if key.endswith(_PLAN_SUFFIX)}


def _missing(step: RepairStep) -> list[str]:
    from tandemmq.core.audit.repair_plan import RepairAction

    needed = {
        RepairAction.COPY_RANGE: ("source_broker_id", "start_offset", "end_offset", "target_digest", "source_digest"),
        RepairAction.REWRITE_QUEUE_ENTRIES: ("topic", "queue_id", "first_queue_offset", "end_queue_offset"),
        RepairAction.RESTORE_QUEUE_ENTRIES: ("topic", "queue_id", "first_queue_offset", "end_queue_offset"),
        RepairAction.REWRITE_TABLE: ("table",),
        RepairAction.RESTORE_TABLE: ("table",),
        RepairAction.MANUAL: (),
    }
    return [name for name in needed[step.action] if getattr(step, name) is None]


def _chosen(plan: RepairPlan, numbers: Sequence[int]) -> list[RepairStep]:
    unknown = sorted(set(numbers) - {step.number for step in plan.steps})
    if unknown:
        raise Refused(
            f"the plan has no step {unknown[0]}",
            remedy=f"choose from 1 to {len(plan.steps)}" if plan.steps else "the plan is empty",
        )
    return [step for step in plan.steps if not numbers or step.number in numbers]


def plan_table(plan: RepairPlan, steps: Sequence[RepairStep]) -> Table:
    """The steps, as an operator reads them before he agrees."""
    from tandemmq.admin.replica_repair import ReplicaKey

    table = new_table("step", "broker", "what", "why")
    table.title = f"repair plan of run {plan.run_id}, cluster {plan.cluster}"
    table.title_justify = "left"
    for step in steps:
        target = str(ReplicaKey(step.group, step.target_broker_id))
        plain_row(table, str(step.number), target, _what(step), step.reason)
    return table


def _what(step: RepairStep) -> str:
    from tandemmq.core.audit.repair_plan import RepairAction

    if step.action is RepairAction.COPY_RANGE:
        start, end = step.start_offset or 0, step.end_offset or 0
        return f"copy bytes {start:,} to {end:,} ({end - start:,}) from {step.group}:{step.source_broker_id}"
    if step.action is RepairAction.REWRITE_QUEUE_ENTRIES:
        last = (step.end_queue_offset or 1) - 1
        return f"write ConsumeQueue {step.topic} queue {step.queue_id}, {step.first_queue_offset:,} to {last:,}, again"
    if step.action is RepairAction.RESTORE_QUEUE_ENTRIES:
        return f"put back entries of ConsumeQueue {step.topic} queue {step.queue_id}"
    if step.action is RepairAction.RESTORE_TABLE:
        return f"put back {step.table}"
    if step.action is RepairAction.REWRITE_TABLE:
        return f"write {step.table} again" + (", from its master" if step.source_broker_id is not None else "")
    return "by hand"


async def _repair(connection: ClusterConnection, steps: Sequence[RepairStep], *, dry_run: bool, asks: bool) -> None:
    from tandemmq.admin.replica_repair import Repair, StepOutcome, blocks_the_rest
    from tandemmq.admin.rpc import ReplicaRepairCalls

    addresses = await _addresses(connection)
    _refuse_unknown(steps, addresses)
    work = Repair(lambda key: ReplicaRepairCalls(connection.channels, addresses[key]))
    typer.echo("asking the brokers, nothing is written:")
    answers = await work.attempt_all(steps, dry_run=True, told=_tell)
    blocking = [each for number, each in enumerate(answers) if blocks_the_rest(each, answers[:number])]
    if blocking:
        raise _refused(blocking[0], "nothing was changed")
    if all(each.outcome is StepOutcome.SOUND for each in answers):
        typer.echo("done already: nothing is left to be changed")
        return
    if dry_run:
        return
    if asks:
        _confirm(answers)
    await _carry_out(work, steps)


async def _carry_out(work: Repair, steps: Sequence[RepairStep]) -> None:
    from tandemmq.admin.replica_repair import StepOutcome

    typer.echo("repairing:")
    results = await work.attempt_all(steps, dry_run=False, told=_tell)
    if results[-1].outcome is StepOutcome.REFUSED:
        done = ", ".join(str(each.step.number) for each in results[:-1]) or "none"
        raise _refused(results[-1], f"steps done before: {done}")
    typer.echo("looking again:")
    for result in await work.attempt_all(steps, dry_run=True, told=_tell):
        if result.outcome is not StepOutcome.SOUND:
            raise _refused(result, "the repair did not hold")
    typer.echo("done; prove it with `tandemmq verify`")


async def _addresses(connection: ClusterConnection) -> dict[ReplicaKey, str]:
    from tandemmq.admin.replica_repair import ReplicaKey

    state = await connection.read_state()
    refuse_blindness(state)
    return {ReplicaKey(broker.broker_name, broker.broker_id): broker.metadata_endpoint for broker in state.brokers}


def _refuse_unknown(steps: Sequence[RepairStep], addresses: dict[ReplicaKey, str]) -> None:
    from tandemmq.admin.replica_repair import ReplicaKey

    for step in steps:
        needed = [ReplicaKey(step.group, step.target_broker_id)]
        needed += [ReplicaKey(step.group, step.source_broker_id)] if step.source_broker_id is not None else []
        for key in needed:
            if key not in addresses:
                raise CommandError(
                    f"no NameServer knows {key}, which step {step.number} needs",
                    remedy="start that broker, or leave the step out with --step",
                )


def _tell(result: StepResult) -> None:
    from tandemmq.admin.replica_repair import ReplicaKey

    step = result.step
    target = ReplicaKey(step.group, step.target_broker_id)
    typer.echo(f"  step {step.number} {target}: {result.text}")


def _confirm(answers: Sequence[StepResult]) -> None:
    from tandemmq.admin.replica_repair import StepOutcome

    changes = sum(each.outcome is not StepOutcome.SOUND for each in answers)
    if not at_terminal():
        raise Refused(
            "nobody can be asked here; nothing was changed", remedy="read the answers above, then run it with --yes"
        )
    if not typer.confirm(f"Have the brokers do {changes} {'step' if changes == 1 else 'steps'}?"):
        raise CommandError("you said no; nothing was changed")


def _refused(result: StepResult, consequence: str) -> CommandError:
    from tandemmq.admin.replica_repair import ReplicaKey

    step = result.step
    return CommandError(
        f"step {step.number} on {ReplicaKey(step.group, step.target_broker_id)} failed; {consequence}",
        cause=result.text,
        remedy="have a new plan made by `tandemmq verify`; what a broker says itself comes first",
    )
