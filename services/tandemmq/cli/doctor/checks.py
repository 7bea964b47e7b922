"""What `tandemmq doctor` has seen, and what it says of it. Values only."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tandemmq.admin.cluster_state import BrokerState, ClusterState, DiskState, Severity, diagnose, disk_finding
from tandemmq.core.routing.values import parse_address


class Verdict(StrEnum):
    """How much a check matters, mildest first."""

    OK = "ok"
    # Worth knowing, or not to be seen from here.
    NOTE = "note"
    # Works, but will not for long or not always.
    WARNING = "warning"
    # Does not work.
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    # dns, ports, peers, clock, disk, settings, kubernetes, …: what kind of thing.
    area: str
    # Who: broker-a:1, NameServer mq-nameserver-0:9876, pod mq-broker-a-slave-1.
    subject: str
    verdict: Verdict
    fact: str
    # What to do; empty only for OK.
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Dial:
    """One address as dialled from where the doctor runs."""

    # nameserver, client, metadata or ha.
    plane: str
    # host:port as advertised.
    address: str
    # All addresses the name stands for, ordered; empty if it does not resolve.
    resolved_ips: tuple[str, ...]
    # Empty if a connection was established.
    error: str
    # True when somebody answered with a refusal: the host is there and nobody listens.
    refused: bool = False


@dataclass(frozen=True, slots=True)
class PeerLook:
    """One address as dialled by a broker."""

    # broker-a:1, or a NameServer's address.
    peer: str
    # nameserver, metadata, ha or client.
    plane: str
    address: str
    resolved_ip: str
    connect_ms: int
    # Empty if it was reached.
    error: str


@dataclass(frozen=True, slots=True)
class BrokerLook:
    """One broker: what is known of it, and what it sees itself."""

    broker: BrokerState
    # Empty when dialling from here means nothing.
    dials: tuple[Dial, ...]
    # None when it did not tell; then `probe_error` says why.
    peers: tuple[PeerLook, ...] | None
    probe_error: str = ""
    # Its wall clock less ours, in ms; None if unknown.
    clock_offset_ms: int | None = None
    disk: DiskState | None = None
    # In its own words.
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """What a NameServer remembers of a disk."""

    name_server: str
    broker_name: str
    broker_id: int
    disk_id: str
    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ClusterLook:
    state: ClusterState
    name_server_dials: tuple[Dial, ...]
    brokers: tuple[BrokerLook, ...]
    # Older than `state`, so that a log that grows is not ahead of itself.
    memories: tuple[Memory, ...] = ()


def is_bad(check: Check) -> bool:
    """True for what makes `tandemmq doctor` fail."""
    return check.verdict is Verdict.PROBLEM


def worst(checks: list[Check]) -> Verdict:
    """The worst verdict; OK without any."""
    order = list(Verdict)
    return max((check.verdict for check in checks), key=order.index, default=Verdict.OK)


# Judges what was seen of a cluster: names, ports, peers, clocks, disks, settings that must agree.

# Store timestamps order messages by time and leases end by it; NTP keeps machines within milliseconds.
_SKEW_WARNING_MS: Final = 2_000
_SKEW_PROBLEM_MS: Final = 10_000
_LOCAL_NAMES: Final = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


def check_cluster(look: ClusterLook) -> list[Check]:
    """Everything looked at, in the order of the areas: what `tandemmq status` finds comes first."""
    return [
        *_health(look),
        *_memories(look),
        *_name_servers(look),
        *_advertised(look),
        *_reachable_from_here(look),
        *_peers(look),
        *_names_agree(look),
        *_clocks(look),
        *_disks(look),
        *_versions(look),
        *_settings(look),
        *_own_words(look),
    ]


def _health(look: ClusterLook) -> Iterator[Check]:
    # Of disks that brokers told when they were asked for their peers there is a check of its own.
    told = {each.broker.key for each in look.brokers if each.disk is not None}
    brokers = tuple(
        replace(broker, status=replace(broker.status, disk=None))
        if broker.key in told and broker.status is not None
        else broker
        for broker in look.state.brokers
    )
    findings = diagnose(replace(look.state, brokers=brokers))
    for finding in findings:
        verdict = Verdict.PROBLEM if finding.severity is Severity.PROBLEM else Verdict.NOTE
        yield Check("health", finding.subject, verdict, finding.problem, finding.remedy)
    if not any(finding.severity is Severity.PROBLEM for finding in findings):
        masters = sum(broker.is_master for broker in look.state.brokers)
        yield Check(
            "health",
            "cluster",
            Verdict.OK,
            f"{masters} master(s) serve, {len(look.state.brokers) - masters} slave(s) follow in sync",
        )


def _memories(look: ClusterLook) -> Iterator[Check]:
    """Logs that end before where a NameServer remembers that they, or a disk that is not here, ended."""
    told: dict[tuple[str, str], Memory] = {}
    for memory in look.memories:
        known = told.get((memory.broker_name, memory.disk_id))
        if known is None or memory.end_offset > known.end_offset:
            told[memory.broker_name, memory.disk_id] = memory
    for name in sorted({memory.broker_name for memory in look.memories}):
        members = [each for each in look.state.brokers if each.broker_name == name and each.status is not None]
        statuses = {each.key: each.status for each in members if each.status is not None}
        if not statuses or any(status.start_wait for status in statuses.values()):
            continue  # What it waits for says the same.
        best = max((status.epoch, status.end_offset) for status in statuses.values())
        is_fine = True
        for memory in (memory for (group, _), memory in sorted(told.items()) if group == name):
            key = f"{name}:{memory.broker_id}"
            here = next((key for key, status in statuses.items() if status.disk_id == memory.disk_id), None)
            own_end = statuses[here].end_offset if here is not None else None
            if own_end is not None and memory.end_offset > own_end:
                is_fine = False
                yield _fallen(here or key, memory, own_end, is_held=memory.end_offset <= best[1])
            elif here is None and memory.epoch >= best[0] and memory.end_offset > best[1]:
                is_fine = False
                yield Check(
                    "log",
                    key,
                    Verdict.PROBLEM,
                    f"its disk {memory.disk_id} held {memory.end_offset:,} bytes by {memory.name_server}; no member in "
                    f"reach holds more than {best[1]:,}",
                    "start that member with that disk: what only it holds comes back as a kept tail, which "
                    "`tandemmq restore-kept-tail` sends again",
                )
        if is_fine:
            yield Check("log", f"broker group {name}", Verdict.OK, f"holds all that NameServers remember: {best[1]:,}")


def _fallen(key: str, memory: Memory, end_offset: int, *, is_held: bool) -> Check:
    return Check(
        "log",
        key,
        Verdict.NOTE if is_held else Verdict.PROBLEM,
        f"its log ends at {end_offset:,}; NameServer {memory.name_server} remembers that it ended at "
        f"{memory.end_offset:,}" + (", which another member holds" if is_held else ""),
        "`tandemmq events` says why; `tandemmq restore-kept-tail` lists what was cut off",
    )


def _name_servers(look: ClusterLook) -> Iterator[Check]:
    for dialled in look.name_server_dials:
        yield _dial_check(f"NameServer {dialled.address}", [dialled])
    answering = [server for server in look.state.name_servers if server.error is None]
    # Those that differ are findings of the health model.
    if len(answering) > 1 and len({frozenset(server.brokers) for server in answering}) == 1:
        yield Check("agreement", "NameServers", Verdict.OK, f"{len(answering)} know the same brokers")


def _advertised(look: ClusterLook) -> Iterator[Check]:
    """A loopback address is right for a cluster on one machine, and only there."""
    known = [server.address for server in look.state.name_servers]
    known += [address for broker in look.state.brokers for _, address in _endpoints(broker)]
    if all(_is_local(address) for address in known):
        return
    for broker in look.state.brokers:
        local = [f"{plane} {address}" for plane, address in _endpoints(broker) if _is_local(address)]
        if local:
            yield Check(
                "advertised",
                broker.key,
                Verdict.PROBLEM,
                f"advertises loopback: {', '.join(local)}; whoever dials that reaches himself",
                "set brokerIP1 (and brokerIP2) to a name or address that others can reach",
            )
        else:
            hosts = sorted({_host(address) for _, address in _endpoints(broker)})
            yield Check("advertised", broker.key, Verdict.OK, ", ".join(hosts))


def _reachable_from_here(look: ClusterLook) -> Iterator[Check]:
    for each in look.brokers:
        if each.dials:
            yield _dial_check(each.broker.key, each.dials)


def _dial_check(subject: str, dials: Sequence[Dial]) -> Check:
    unresolved = [dialled for dialled in dials if dialled.error and not dialled.resolved_ips]
    failed = [dialled for dialled in dials if dialled.error]
    if unresolved:
        return Check(
            "dns",
            subject,
            Verdict.PROBLEM,
            "; ".join(f"{dialled.address}: {dialled.error}" for dialled in unresolved),
            "check the name and the resolver; in Kubernetes: the headless Service, and whether cluster DNS runs. "
            "From outside the cluster its names never resolve: run the doctor in the admin pod, or with --kube",
        )
    if failed:
        refused = any(dialled.refused for dialled in failed)
        return Check(
            "ports",
            subject,
            # Who is refused met the machine. Silence may also be a policy that is meant.
            Verdict.PROBLEM if refused or len(failed) == len(dials) else Verdict.WARNING,
            "; ".join(
                f"{dialled.plane} {dialled.address} ({', '.join(dialled.resolved_ips)}): {dialled.error}"
                for dialled in failed
            ),
            "nobody listens there: see its log, and whether port and advertised port agree"
            if refused
            else "something on the way drops it: a firewall, a NetworkPolicy that does not admit this place, or a "
            "machine that is down",
        )
    planes = ", ".join(f"{dialled.plane} {dialled.resolved_ips[0]}" for dialled in dials)
    return Check("ports", subject, Verdict.OK, f"reached from here: {planes}")


def _peers(look: ClusterLook) -> Iterator[Check]:
    """What each broker reaches by itself; replication has to work both ways."""
    for each in look.brokers:
        key = each.broker.key
        if each.peers is None:
            # One that does not answer at all is a finding of the health model.
            if each.broker.status is not None:
                yield Check(
                    "peers",
                    key,
                    Verdict.WARNING,
                    f"does not tell what it reaches ({each.probe_error})",
                    "try again; a broker of an older version cannot tell: upgrade it",
                )
            continue
        failed = [peer for peer in each.peers if peer.error]
        for peer in failed:
            yield Check(
                "peers",
                key,
                Verdict.PROBLEM,
                f"does not reach {peer.plane} of {peer.peer} at {peer.address}"
                f"{f' ({peer.resolved_ip})' if peer.resolved_ip else ''}: {peer.error}",
                _peer_remedy(peer),
            )
        yield from _untried(look, each)
        reached = [f"{peer.peer} {peer.plane}" for peer in each.peers if not peer.error]
        if reached and not failed:
            yield Check("peers", key, Verdict.OK, f"reaches {', '.join(reached)}")


def _peer_remedy(peer: PeerLook) -> str:
    if not peer.resolved_ip:
        return "the name must resolve where this broker runs: check DNS there, and the peer's brokerIP1 and brokerIP2"
    if peer.plane == "nameserver":
        return "check namesrvAddr of this broker and what lies between it and the NameServer (port 9876)"
    port = {"ha": "haListenPort, 10912", "metadata": "listenPort, 10911"}.get(peer.plane, "its port")
    return f"see whether the peer runs, and that firewalls and NetworkPolicies let the group's members through ({port})"


def _untried(look: ClusterLook, each: BrokerLook) -> Iterator[Check]:
    """Members of a group that a broker has never heard of: nothing was dialled, so nothing failed."""
    assert each.peers is not None
    tried = {(peer.peer, peer.plane) for peer in each.peers}
    for other in look.state.brokers:
        if other.broker_name != each.broker.broker_name or other.key == each.broker.key or other.status is None:
            continue
        planes = ["metadata"] + (["ha"] if other.is_master else [])
        missing = [plane for plane in planes if (other.key, plane) not in tried]
        if missing:
            yield Check(
                "peers",
                each.broker.key,
                Verdict.WARNING,
                f"does not know {other.key} of its own group ({', '.join(missing)} not tried)",
                "do both name the same NameServers? Compare namesrvAddr of the two; a new member is known in seconds",
            )


def _names_agree(look: ClusterLook) -> Iterator[Check]:
    """A name that stands for different machines in different places."""
    seen: dict[str, dict[str, set[str]]] = {}
    for each in look.brokers:
        for dialled in each.dials:
            for ip in dialled.resolved_ips:
                seen.setdefault(_host(dialled.address), {}).setdefault("here", set()).add(ip)
        for peer in each.peers or ():
            if peer.resolved_ip:
                seen.setdefault(_host(peer.address), {}).setdefault(each.broker.key, set()).add(peer.resolved_ip)
    for host, by_place in sorted(seen.items()):
        # A broker tells one address; a name with several is fine as long as it is one of them.
        common = set.intersection(*by_place.values())
        if len(by_place) > 1 and not common and len(set.union(*by_place.values())) > 1:
            places = ", ".join(f"{'/'.join(sorted(ips))} ({place})" for place, ips in sorted(by_place.items()))
            yield Check(
                "dns",
                host,
                Verdict.WARNING,
                f"stands for different addresses: {places}",
                "fine for seconds after a restart; if it stays, a resolver caches too long or a hosts file is wrong",
            )


def _clocks(look: ClusterLook) -> Iterator[Check]:
    offsets = {each.broker.key: each.clock_offset_ms for each in look.brokers if each.clock_offset_ms is not None}
    if not offsets:
        return
    first, last = min(offsets, key=offsets.__getitem__), max(offsets, key=offsets.__getitem__)
    skew_ms = offsets[last] - offsets[first]
    if skew_ms > _SKEW_WARNING_MS:
        yield Check(
            "clock",
            f"{first}, {last}",
            Verdict.PROBLEM if skew_ms > _SKEW_PROBLEM_MS else Verdict.WARNING,
            f"{last} is {skew_ms / 1_000:.1f} s ahead of {first}",
            "let NTP (chrony, systemd-timesyncd) keep the clocks of these machines; do not set them back by hand while "
            "brokers run",
        )
    else:
        yield Check("clock", "brokers", Verdict.OK, f"within {skew_ms} ms of each other")
    nearest_ms = min(offsets.values(), key=abs)
    if abs(nearest_ms) > _SKEW_WARNING_MS:
        yield Check(
            "clock",
            "this machine",
            Verdict.NOTE,
            f"differs by {abs(nearest_ms) / 1_000:.1f} s from the nearest broker",
            "the cluster does not mind; times shown or entered here are off by that",
        )


def _disks(look: ClusterLook) -> Iterator[Check]:
    for each in look.brokers:
        disk = each.disk
        if disk is None or disk.total_bytes <= 0:
            continue
        finding = disk_finding(each.broker, disk)
        if finding is None:
            yield Check("disk", each.broker.key, Verdict.OK, disk.room)
        else:
            verdict = Verdict.PROBLEM if finding.severity is Severity.PROBLEM else Verdict.WARNING
            yield Check("disk", each.broker.key, verdict, finding.problem, finding.remedy)


def _versions(look: ClusterLook) -> Iterator[Check]:
    versions: dict[str, list[str]] = {}
    for broker in look.state.brokers:
        if broker.status is not None:
            versions.setdefault(broker.status.version, []).append(broker.key)
    if len(versions) == 1:
        yield Check("versions", "brokers", Verdict.OK, f"all run {next(iter(versions))}")
    elif versions:
        yield Check(
            "versions",
            "brokers",
            Verdict.WARNING,
            "; ".join(f"{version}: {', '.join(keys)}" for version, keys in sorted(versions.items())),
            "fine while an upgrade is under way; else finish it with `tandemmq rollout`",
        )


def _settings(look: ClusterLook) -> Iterator[Check]:
    """What members of a group, and the groups of a cluster, must have in common."""
    found = False
    clusters = sorted({broker.cluster for broker in look.state.brokers})
    if len(clusters) > 1:
        found = True
        yield Check(
            "settings",
            "brokers",
            Verdict.PROBLEM,
            f"brokerClusterName differs: {', '.join(clusters)}",
            "give all brokers the same, or each cluster its own NameServers",
        )
    for broker in look.state.brokers:
        if broker.status is not None and (broker.status.role == "SLAVE") is broker.is_master:
            found = True
            yield Check(
                "settings",
                broker.key,
                Verdict.PROBLEM,
                f"is registered as {'master' if broker.is_master else 'slave'} and has role {broker.status.role}",
                "wait some seconds and look again: a change of role is on its way, or another member is master in a "
                "later epoch and this one has not heard of it",
            )
    for name in sorted({broker.broker_name for broker in look.state.brokers}):
        flushes = {
            broker.key: broker.status.flush_disk_type
            for broker in look.state.brokers
            if broker.broker_name == name and broker.status is not None
        }
        if len(set(flushes.values())) > 1:
            found = True
            yield Check(
                "settings",
                f"broker group {name}",
                Verdict.WARNING,
                f"flushDiskType differs: {', '.join(f'{key} {kind}' for key, kind in sorted(flushes.items()))}",
                "give the members of a group the same: one that takes over should promise what the other did",
            )
    needed = {
        broker.key: broker.status.needed_slave_count
        for broker in look.state.brokers
        if broker.is_master and broker.status is not None
    }
    if len(set(needed.values())) > 1:
        found = True
        yield Check(
            "settings",
            "masters",
            Verdict.WARNING,
            "wait for different numbers of slaves: "
            + ", ".join(f"{key} {count}" for key, count in sorted(needed.items())),
            "give all masters the same brokerRole and inSyncReplicas: clients send to each of them in turn",
        )
    if not found and look.state.brokers:
        yield Check("settings", "brokers", Verdict.OK, "agree")


def _own_words(look: ClusterLook) -> Iterator[Check]:
    for each in look.brokers:
        for problem in each.problems:
            yield Check("broker", each.broker.key, Verdict.WARNING, problem, "see its log; it says this of itself")


def _endpoints(broker: BrokerState) -> list[tuple[str, str]]:
    named = (
        ("client", broker.client_endpoint),
        ("metadata", broker.metadata_endpoint),
        ("replication", broker.ha_endpoint),
    )
    return [(plane, address) for plane, address in named if address]


def _host(address: str) -> str:
    parsed = parse_address(address)
    return address if parsed is None else parsed.host


def _is_local(address: str) -> bool:
    host = _host(address).lower().rstrip(".")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host in _LOCAL_NAMES
    return ip.is_loopback or ip.is_unspecified
