"""One process of a local cluster, as its configuration file describes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from admin.cluster_state import ExpectedBroker

__all__ = ["METRICS_PORT_KEY", "PORT_KEYS", "Member", "MemberKind", "member_environment", "member_problems"]


class MemberKind(StrEnum):
    """Which program a member is: the name of its package."""

    NAME_SERVER = "nameserver"
    BROKER = "broker"
    ADMIN = "admin"


# Every port a member always listens on; none is derived from another.
PORT_KEYS: Final = {
    MemberKind.NAME_SERVER: ("listenPort",),
    MemberKind.BROKER: ("grpcServerPort", "listenPort", "haListenPort"),
    MemberKind.ADMIN: ("httpPort",),
}
METRICS_PORT_KEY: Final = "metricsPromExporterPort"
_HEALTH_PORT_KEYS: Final = {
    MemberKind.NAME_SERVER: "listenPort",
    MemberKind.BROKER: "listenPort",
    MemberKind.ADMIN: "httpPort",
}
_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a local cluster. Its working folder is the data folder."""

    name: str
    # Its file with the overrides of this run.
    settings: Mapping[str, str]
    # `key=value` of this run, as given to the process.
    overrides: tuple[str, ...] = ()

    @property
    def kind(self) -> MemberKind:
        """By the name of the file: `namesrv-…` is a NameServer, `admin` the admin service, anything else a broker."""
        if self.name == MemberKind.ADMIN:
            return MemberKind.ADMIN
        return MemberKind.NAME_SERVER if self.name.startswith("namesrv-") else MemberKind.BROKER

    @property
    def role(self) -> str:
        """NAMESERVER, ADMIN, SYNC_MASTER, ASYNC_MASTER or SLAVE."""
        if self.kind is not MemberKind.BROKER:
            return "NAMESERVER" if self.kind is MemberKind.NAME_SERVER else "ADMIN"
        return self.settings.get("brokerRole", "ASYNC_MASTER")

    @property
    def config_path(self) -> str:
        """Below the data folder."""
        return f"conf/{self.name}.properties"

    @property
    def port_keys(self) -> tuple[str, ...]:
        """Every port it listens on as it is configured."""
        return (*PORT_KEYS[self.kind], METRICS_PORT_KEY) if self.tells_metrics else PORT_KEYS[self.kind]

    @property
    def ports(self) -> dict[str, int]:
        """Stated ports by key; what is no port number is left out."""
        stated = {key: self.settings.get(key, "") for key in self.port_keys}
        return {key: int(text) for key, text in stated.items() if text.isascii() and text.isdigit()}

    @property
    def tells_metrics(self) -> bool:
        """True when it serves Prometheus on a port of its own."""
        return "PROM" in self.settings.get("metricsExporterType", "").split(";")

    @property
    def host(self) -> str:
        """Where this machine reaches the member."""
        bound = self.settings.get("bindAddress", "")
        return "127.0.0.1" if bound in _ANY_ADDRESS else bound

    def address(self, port_key: str) -> str:
        """`host:port` of one plane, for this machine."""
        return f"{self.host}:{self.ports[port_key]}"

    @property
    def health_address(self) -> str:
        """Where grpc.health.v1 is served."""
        return self.address(_HEALTH_PORT_KEYS[self.kind])

    def command(self, *extra: str) -> list[str]:
        """The process's command line. -P keeps the working folder, which is the user's, off the module path."""
        overrides = [part for override in self.overrides for part in ("--set", override)]
        return [sys.executable, "-P", "-m", str(self.kind), "--config", self.config_path, *overrides, *extra]

    def expected_broker(self) -> ExpectedBroker:
        """What a NameServer should know of this broker."""
        broker_id = self.settings.get("brokerId", "0")
        return ExpectedBroker(
            cluster=self.settings.get("brokerClusterName", "DefaultCluster"),
            broker_name=self.settings.get("brokerName", "broker-a"),
            broker_id=int(broker_id) if broker_id.isdigit() else 0,
            client_endpoint=self.address("grpcServerPort"),
            metadata_endpoint=self.address("listenPort"),
            ha_endpoint=self.address("haListenPort"),
        )


def member_environment() -> dict[str, str]:
    """The environment of every member: ours, without the settings in it.

    One environment cannot configure six processes: TANDEMMQ_LISTEN_PORT would give all of them the same port.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith("TANDEMMQ_")}


def member_problems(members: Sequence[Member]) -> list[str]:
    """What is wrong between members, a line each: no member can see it in its own file alone."""
    return [*_port_problems(members), *_name_server_problems(members), *_identity_problems(members)]


def _port_problems(members: Sequence[Member]) -> Iterator[str]:
    taken: dict[int, str] = {}
    for member in members:
        for key in member.port_keys:
            if key not in member.settings:
                yield f"{member.name}: {key}: not stated; write {key}=<port> into {member.config_path}"
        for key, port in member.ports.items():
            owner = taken.setdefault(port, f"{member.name} ({key})")
            if owner != f"{member.name} ({key})":
                yield f"{member.name}: {key}: port {port} is taken by {owner}; give each plane a port of its own"


def _name_server_problems(members: Sequence[Member]) -> Iterator[str]:
    ports = {
        member.ports["listenPort"]
        for member in members
        if member.kind is MemberKind.NAME_SERVER and "listenPort" in member.ports
    }
    for member in members:
        if member.kind is not MemberKind.BROKER:
            continue
        named = [part.strip() for part in member.settings.get("namesrvAddr", "").split(";") if part.strip()]
        wrong = [address for address in named if address.rpartition(":")[2] not in map(str, ports)]
        if wrong or len(named) < len(ports):
            correct = ";".join(f"127.0.0.1:{port}" for port in sorted(ports))
            yield f"{member.name}: namesrvAddr: names not this cluster's NameServers; set namesrvAddr={correct}"


def _identity_problems(members: Sequence[Member]) -> Iterator[str]:
    owners: dict[tuple[str, str], str] = {}
    for member in members:
        is_broker = member.kind is MemberKind.BROKER
        own = {"storePathRootDir": member.settings.get("storePathRootDir", "store" if is_broker else "")}
        if is_broker:
            broker_name, broker_id = member.settings.get("brokerName", "broker-a"), member.settings.get("brokerId", "0")
            own["brokerName and brokerId"] = f"{broker_name}:{broker_id}"
        for key, value in own.items():
            # A NameServer without a folder stores nothing.
            owner = owners.setdefault((key, value), member.name) if value else member.name
            if owner != member.name:
                yield f"{member.name}: {key}: {value} is {owner}'s already; give each member its own"
