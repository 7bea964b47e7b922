"""Looks at a cluster for `tandemmq doctor`: asks, resolves, dials. All at once, each with a limit; raises nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from tandemmq.admin.cluster_state import BrokerState, ClusterState, DiskState, Severity
from tandemmq.cli import ending
from tandemmq.cli.cluster_address import NAMESRV_VARIABLES, ClusterAddress, ClusterTarget, KubernetesPlace
from tandemmq.cli.connection import ClusterChoice, certificates_of, with_cluster
from tandemmq.cli.doctor.checks import (
    BrokerLook,
    Check,
    ClusterLook,
    Dial,
    Memory,
    PeerLook,
    Verdict,
    check_cluster,
    is_bad,
)
from tandemmq.cli.doctor.kubernetes import check_release, look_at_release
from tandemmq.cli.ending import EXIT_FAILED, CommandError, Refused
from tandemmq.cli.kube.release import (
    KubeContextOption,
    NamespaceOption,
    ReleaseOption,
    certificate_of,
    connect,
    find_release,
    place_of,
    way_to_pods,
)
from tandemmq.cli.options import JsonOption, OutputOption
from tandemmq.cli.output import OutputFormat, Shown, emit, new_table, plain_row, styled
from tandemmq.core.clock import Clock
from tandemmq.core.routing.values import parse_address
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.kubernetes_api import KubernetesUnavailable

if TYPE_CHECKING:
    from rich.text import Text

    from tandemmq.admin.rpc import Channels
    from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb

_DIAL_LIMIT_S: Final = 2.0
# Connections under way at once. A cluster has tens of addresses.
_DIALS_MAX: Final = 64

ResultT = TypeVar("ResultT")


async def look_at_cluster(
    channels: Channels, cluster: ClusterAddress, clock: Clock, *, dial_from_here: bool
) -> ClusterLook:
    """Takes about 15 s at most. Without `dial_from_here` only the brokers themselves dial their peers."""
    from tandemmq.admin.cluster_reader import ClusterReader

    reader = ClusterReader(channels, cluster.name_servers, cluster.expected)
    memories = await _memories(channels, await reader.read())
    state = await reader.read()
    at_once = asyncio.Semaphore(_DIALS_MAX)
    name_servers = [("nameserver", server.address) for server in state.name_servers] if dial_from_here else []
    server_dials, brokers = await asyncio.gather(
        _dial_all(name_servers, at_once),
        _all(_look_at_broker(channels, broker, clock, at_once, dial_from_here) for broker in state.brokers),
    )
    return ClusterLook(state, server_dials, tuple(brokers), memories)


async def _memories(channels: Channels, state: ClusterState) -> tuple[Memory, ...]:
    """What each NameServer that answers remembers of each group; one of an older version remembers nothing."""
    import grpc.aio

    from tandemmq.admin.rpc import NameServerCalls
    from tandemmq.service.protobuf import as_value

    groups = sorted({(broker.cluster, broker.broker_name) for broker in state.brokers})
    servers = [server.address for server in state.name_servers if server.error is None]
    slots = asyncio.Semaphore(_DIALS_MAX)

    async def ask(address: str, cluster: str, broker_name: str) -> list[Memory]:
        try:
            async with slots:
                reply = await NameServerCalls(channels, address).group_memory(cluster=cluster, broker_name=broker_name)
        except grpc.aio.AioRpcError:
            return []
        return [as_value(Memory, one, name_server=address, broker_name=broker_name) for one in reply.replicas]

    found = await _all(ask(address, *group) for address in servers for group in groups)
    return tuple(memory for memories in found for memory in memories)


async def dial(plane: str, address: str) -> Dial:
    """Resolves the name and connects to what it stands for first; the connection is closed at once."""
    ips: tuple[str, ...] = ()
    parsed = parse_address(address)
    if parsed is None:
        return Dial(plane, address, (), "this is no host:port")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_DIAL_LIMIT_S):
            infos = await loop.getaddrinfo(parsed.host, parsed.port, type=socket.SOCK_STREAM)
            ips = tuple(sorted({str(info[4][0]) for info in infos}))
            family, kind, protocol, _, where = infos[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, where)
    except TimeoutError:
        return Dial(plane, address, ips, f"no answer within {_DIAL_LIMIT_S:g} s")
    except socket.gaierror as error:
        return Dial(plane, address, (), f"the name does not resolve: {error.strerror}")
    except OSError as error:
        return Dial(plane, address, ips, error.strerror or str(error), isinstance(error, ConnectionRefusedError))
    return Dial(plane, address, ips, "")


async def _look_at_broker(
    channels: Channels, broker: BrokerState, clock: Clock, at_once: asyncio.Semaphore, dial_from_here: bool
) -> BrokerLook:
    from tandemmq.service.protobuf import as_value

    planes = [("client", broker.client_endpoint), ("metadata", broker.metadata_endpoint), ("ha", broker.ha_endpoint)]
    dials, (reply, failure, answered_ms) = await asyncio.gather(
        _dial_all(planes if dial_from_here else [], at_once), _probe(channels, broker, clock)
    )
    if reply is None:
        return BrokerLook(broker, dials, None, failure)
    return BrokerLook(
        broker,
        dials,
        peers=tuple(
            as_value(PeerLook, probe, error="" if probe.reachable else probe.error or "not reachable")
            for probe in reply.probes
        ),
        # The broker reads its clock when it answers, so this is too small by the way of the answer: milliseconds.
        clock_offset_ms=reply.wall_clock_ms - answered_ms,
        disk=as_value(DiskState, reply.disk) if reply.HasField("disk") else None,
        problems=tuple(reply.problems),
    )


async def _probe(
    channels: Channels, broker: BrokerState, clock: Clock
) -> tuple[admin_pb.ProbePeersResponse | None, str, int]:
    """The answer, or why there is none; and our wall clock at that moment."""
    import grpc.aio

    from tandemmq.admin.rpc import BrokerAdminCalls, error_text

    if broker.status is None:
        return None, broker.error or "does not answer", 0
    try:
        reply = await BrokerAdminCalls(channels, broker.metadata_endpoint).probe_peers()
    except grpc.aio.AioRpcError as error:
        return None, error_text(error), 0
    return reply, "", clock.wall_ms()


async def _dial_all(targets: Iterable[tuple[str, str]], at_once: asyncio.Semaphore) -> tuple[Dial, ...]:
    async def one(plane: str, address: str) -> Dial:
        async with at_once:
            return await dial(plane, address)

    return tuple(await _all(one(plane, address) for plane, address in targets if address))


async def _all(calls: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(call) for call in calls]
    return [task.result() for task in started]


# Shows what the doctor found: a table for people, the remedies below it; one document for programs.

_STYLES: Final = {
    Verdict.OK: "green",
    Verdict.NOTE: "bold",
    Verdict.WARNING: "bold yellow",
    Verdict.PROBLEM: "bold red",
}


def doctor_table(checks: Sequence[Check]) -> Shown:
    """All checks in their order, then those that want something done, the worst first, and a last line with the sum."""
    table = new_table("area", "subject", "", "what was found")
    for check in checks:
        plain_row(table, check.area, check.subject, styled(check.verdict, _STYLES[check.verdict]), check.fact)
    return [table, "", _to_do(checks)]


def doctor_document(checks: Sequence[Check]) -> dict[str, object]:
    """`healthy` and `checks`, fields as in `tandemmq.cli.doctor.checks.Check`."""
    return {
        "healthy": not any(is_bad(check) for check in checks),
        "checks": [asdict(check) for check in checks],
    }


def _to_do(checks: Sequence[Check]) -> Text:
    text = styled("")
    for verdict in (Verdict.PROBLEM, Verdict.WARNING, Verdict.NOTE):
        for check in checks:
            if check.verdict is verdict:
                text.append(f"{verdict}: ", style=_STYLES[verdict])
                text.append(f"{check.subject} {check.fact}\n")
                text.append(f"  remedy: {check.remedy}\n", style="dim")
    counts = Counter(check.verdict for check in checks)
    healthy = not counts[Verdict.PROBLEM]
    text.append("fine" if healthy else "not fine", style="bold green" if healthy else "bold red")
    text.append(
        f": {len(checks)} checks, {counts[Verdict.PROBLEM]} problem(s), {counts[Verdict.WARNING]} warning(s), "
        f"{counts[Verdict.NOTE]} note(s)"
    )
    return text


# `tandemmq doctor`.


@with_cluster
def doctor(
    cluster: ClusterChoice,
    kube: Annotated[bool, typer.Option("--kube", help="Look at the Kubernetes objects of the release, too.")] = False,
    release: ReleaseOption = None,
    namespace: NamespaceOption = None,
    kube_context: KubeContextOption = None,
    output: OutputOption = OutputFormat.TABLE,
    json: JsonOption = False,
) -> None:
    """Check names, ports, replication both ways, clocks, disks and settings, and say how to mend what is wrong.

    Looks from here and through the eyes of every broker. With --kube from outside the cluster, the brokers are asked
    through the Kubernetes API, and nothing is dialled from here. A context in Kubernetes implies --kube.

    Exit code 0: no problem, perhaps warnings. 1: problems, each with a remedy. 2: could not look.

    Examples:

      tandemmq doctor

      tandemmq doctor --kube --namespace mq --release mq

      kubectl exec deploy/mq-admin -- tandemmq doctor --json
    """
    target = cluster.target()
    where = target.where
    if kube or isinstance(where, KubernetesPlace):
        place = where if isinstance(where, KubernetesPlace) else KubernetesPlace()
        place = place_of(place, release=release, namespace=namespace, kube_context=kube_context)
        checks = ending.run(_with_kubernetes(cluster, place))
    else:
        checks = ending.run(_without_kubernetes(where, target))
    emit(OutputFormat.JSON if json else output, doctor_document(checks), doctor_table(checks))
    if any(is_bad(check) for check in checks):
        raise typer.Exit(EXIT_FAILED)


async def _without_kubernetes(cluster: ClusterAddress, target: ClusterTarget) -> list[Check]:
    from tandemmq.admin.rpc import Channels

    with certificates_of(target):
        look = await _look(Channels(), cluster, dial_from_here=True)
    _refuse_blindness(look)
    return [*check_cluster(look), *await audit_checks(target)]


async def _with_kubernetes(cluster: ClusterChoice, place: KubernetesPlace) -> list[Check]:
    from tandemmq.admin.rpc import Channels

    kubernetes = await connect(place)
    try:
        name = await find_release(kubernetes, place.release or None)
        seen = await look_at_release(kubernetes, name)
    except KubernetesUnavailable as error:
        raise Refused("Kubernetes cannot be asked", cause=str(error), remedy="see `kubectl get pods`") from error
    if _is_named(cluster):
        look = await _look(Channels(), cluster.address(), dial_from_here=True)
    else:
        # From outside, names advertised inside the cluster would not resolve: the brokers' own eyes must do.
        async with certificate_of(kubernetes, seen.pods), way_to_pods(kubernetes, seen.pods) as way:
            look = await _look(Channels(way.dial), way.address, dial_from_here=kubernetes.is_inside)
    answers = any(server.error is None for server in look.state.name_servers)
    checks = check_release(seen, look.state if answers else None)
    # Pods that do not run explain best why nobody answers.
    checks += check_cluster(look) if look.state.name_servers else [_NO_NAME_SERVER]
    return [*checks, *await audit_checks(ClusterTarget(place, "--kube"))]


async def audit_checks(target: ClusterTarget) -> list[Check]:
    """What the consistency job found last. Nothing where nobody says where it leaves that, or where it has never run
    in a data folder: it need not."""
    from tandemmq.admin.consistency_runs import ConsistencyReading, diagnose_consistency, standings
    from tandemmq.cli.commands.checks import consistency_runs

    try:
        runs = await consistency_runs(target)
    except CommandError as error:
        why = error.cause or error.problem
        return [Check("audit", "consistency job", Verdict.NOTE, f"not looked at: {why}", error.remedy)]
    if runs is None or (not runs and target.data is not None):
        return []
    # That it is overdue is for `check consistency` and the alert, which know its schedule.
    reading = ConsistencyReading(tuple(runs), standings(runs), error="", watched_ms=0, overdue_after_ms=0)
    found = [
        Check(
            "audit",
            each.subject,
            Verdict.PROBLEM if each.severity is Severity.PROBLEM else Verdict.NOTE,
            each.problem,
            each.remedy,
        )
        for each in diagnose_consistency(reading, now_wall_ms=SystemClock().wall_ms())
    ]
    if found:
        return found
    if not runs:
        first = "start it now as the release's notes say (helm get notes), or wait for its schedule"
        return [Check("audit", "consistency job", Verdict.NOTE, "has not ended a run yet", first)]
    return [Check("audit", "replicas", Verdict.OK, f"equal in run {runs[0].run_id}")]


def _is_named(cluster: ClusterChoice) -> bool:
    """True when NameServers are said besides the release: they are dialled."""
    return bool(cluster.namesrv or cluster.data) or (
        not cluster.context and any(os.environ.get(variable) for variable in NAMESRV_VARIABLES)
    )


async def _look(channels: Channels, cluster: ClusterAddress, *, dial_from_here: bool) -> ClusterLook:
    try:
        return await look_at_cluster(channels, cluster, SystemClock(), dial_from_here=dial_from_here)
    finally:
        await channels.close()


def _refuse_blindness(look: ClusterLook) -> None:
    """Nothing answers and nothing is known: there is no patient."""
    if look.state.brokers or any(server.error is None for server in look.state.name_servers):
        return
    raise Refused(
        "no NameServer answers: nothing to look at",
        cause="\n".join(f"{server.address}: {server.error}" for server in look.state.name_servers),
        remedy="name one with --namesrv host:port; for a cluster in Kubernetes add --kube, or run it in the admin pod: "
        "kubectl exec deploy/<release>-admin -- tandemmq doctor",
    )


_NO_NAME_SERVER = Check(
    "health",
    "cluster",
    Verdict.PROBLEM,
    "no NameServer pod could be asked",
    "see the pods above; brokers and clients find each other again when one is back",
)
