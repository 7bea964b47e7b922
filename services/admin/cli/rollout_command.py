"""`tandemmq rollout`: the hook of `helm upgrade`, and the same by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import grpc.aio
import typer
from tandemmq.admin.v1 import broker_admin_service_pb2 as admin_pb

from admin.cli.cluster_address import find_place
from admin.cli.contexts import KubernetesPlace
from admin.cli.duration_option import parse_duration_s
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.options import ContextOption
from admin.cli.pod_address import METADATA_PORT_NAME, PodAddresses
from admin.cli.release_option import (
    KubeContextOption,
    NamespaceOption,
    ReleaseOption,
    connect,
    find_release,
    place_of,
)
from admin.cli.rollout import Rollout
from admin.cli.rollout_group import CopyState, MasterCopies
from admin.kubernetes_cluster import KubernetesUnavailable, PodState
from admin.rpc import BrokerAdminCalls, Channels, error_text
from mqservice.command_line import stop_requested
from mqservice.loop_meter import SystemClock

__all__ = ["rollout"]


def rollout(
    release: ReleaseOption = None,
    namespace: NamespaceOption = None,
    timeout: Annotated[
        float, typer.Option(parser=parse_duration_s, metavar="DURATION", help="Limit of the whole: 90s, 30m, 1h.")
    ] = "30m",  # type: ignore[assignment]
    settle: Annotated[
        float,
        typer.Option(
            parser=parse_duration_s,
            metavar="DURATION",
            help="Pause before the next broker group. Clients ask for routes every 30 s; until then one that was "
            "away is not used again, and the next group going down would leave them none.",
        ),
    ] = "30s",  # type: ignore[assignment]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be renewed and change nothing.")] = False,
    kube_context: KubeContextOption = None,
    context: ContextOption = None,
) -> None:
    """Renew brokers after `helm upgrade`, group by group, so that nothing acknowledged is ever on one broker only.

    Slaves first, one at a time, each in sync before the next; then the master, drained first. The chart runs this as a
    hook after an upgrade or a rollback; run again, it goes on where it stopped.

    Exit code 0: every broker runs the newest revision. 1: the limit passed, with what was missing and the remedy;
    nothing was forced. 2: Kubernetes cannot be asked, or there is no such release.

    Examples:

      tandemmq rollout --release mq --namespace mq --dry-run

      tandemmq rollout --release mq --timeout 1h
    """
    place = place_of(find_place(context), release=release, namespace=namespace, kube_context=kube_context)
    asyncio.run(_rollout(place, limit_s=timeout, settle_s=settle, dry_run=dry_run))


async def _rollout(place: KubernetesPlace, *, limit_s: float, settle_s: float, dry_run: bool) -> None:
    cluster = await connect(place)
    name = await find_release(cluster, place.release or None)
    async with PodAddresses(cluster) as addresses:
        running = Rollout(
            cluster,
            name,
            _BrokerInPod(addresses),
            clock=SystemClock(),
            sleep=asyncio.sleep,
            say=_say,
            limit_ms=round(limit_s * 1_000),
            settle_ms=round(settle_s * 1_000),
        )
        if dry_run:
            await _print_plan(running)
        else:
            await _run_until_stopped(running)


async def _print_plan(running: Rollout) -> None:
    try:
        steps = await running.plan()
    except KubernetesUnavailable as error:
        raise CommandError("Kubernetes does not tell", cause=str(error), exit_code=EXIT_REFUSED) from error
    for step in steps:
        typer.echo(step)
    if not steps:
        typer.echo("every broker runs the newest revision")


async def _run_until_stopped(running: Rollout) -> None:
    """A hook's pod may be deleted on the way: as process 1 it would not even notice without a handler."""
    with stop_requested() as stop:
        work = asyncio.ensure_future(running.run())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))
            raise CommandError(
                "stopped on request before every group was renewed",
                remedy="run `tandemmq rollout` again; it goes on where it stopped",
            )
        renewed = work.result()
    _say(f"done: {', '.join(renewed) if renewed else 'nothing'} renewed")


class _BrokerInPod:
    """Satisfies `AskMaster` with GetBrokerStatus. A channel for each answer: pods and their addresses come and go."""

    def __init__(self, addresses: PodAddresses) -> None:
        self._addresses = addresses

    async def __call__(self, pod: PodState) -> MasterCopies:
        """The answer of the broker in the pod, or why there is none."""
        channels = Channels()
        try:
            address = await self._addresses.find(pod, METADATA_PORT_NAME)
            return _copies(await BrokerAdminCalls(channels, address).status())
        except grpc.aio.AioRpcError as error:
            return MasterCopies(error=error_text(error))
        finally:
            await channels.close()


def _copies(reply: admin_pb.GetBrokerStatusResponse) -> MasterCopies:
    return MasterCopies(
        error="",
        write_refusal=reply.write_refusal,
        end_offset=reply.end_offset,
        slaves=tuple(
            CopyState(
                broker_id=slave.broker_id,
                acked_offset=slave.acked_offset,
                lag_bytes=slave.lag_bytes,
                in_sync=slave.in_sync,
            )
            for slave in reply.slaves
        ),
    )


def _say(line: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")
