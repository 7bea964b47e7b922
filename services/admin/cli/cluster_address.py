"""Which cluster a command talks to: --namesrv, else --data, else the environment, else what runs in ./data."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from admin.cli.cluster_folder import DEFAULT_FOLDER, ClusterFolder
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cluster_state import ExpectedBroker

__all__ = ["ClusterAddress", "find_cluster"]

# Ours, then RocketMQ's own.
_NAMESRV_VARIABLES: Final = ("TANDEMMQ_NAMESRV_ADDR", "NAMESRV_ADDR")
_LOCAL_NAMESRV: Final = "127.0.0.1:9876"
_HOST_PORT = re.compile(r"^\[?[^\s;,]+\]?:\d{1,5}$")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where the NameServers are, and what else is known of the cluster before asking them."""

    name_servers: tuple[str, ...]
    expected: tuple[ExpectedBroker, ...] = ()


def find_cluster(namesrv: str | None, data: Path | None) -> ClusterAddress:
    """Raises CommandError when an address is malformed or the named folder has no running cluster."""
    if namesrv:
        return ClusterAddress(_addresses(namesrv, "--namesrv"))
    if data is not None:
        record = ClusterFolder(data).read_record()
        if record is None:
            raise CommandError(
                f"no cluster runs in {data.absolute()}",
                cause="there is no cluster.json",
                remedy=f"start one with `tandemmq up --data {data}`, or name another cluster with --namesrv host:port",
                exit_code=EXIT_REFUSED,
            )
        return ClusterAddress(record.name_servers, record.expected_brokers)
    for variable in _NAMESRV_VARIABLES:
        if value := os.environ.get(variable):
            return ClusterAddress(_addresses(value, variable))
    record = ClusterFolder(DEFAULT_FOLDER).read_record()
    if record is not None:
        return ClusterAddress(record.name_servers, record.expected_brokers)
    return ClusterAddress((_LOCAL_NAMESRV,))


def _addresses(text: str, source: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in text.split(";") if part.strip())
    wrong = [address for address in addresses if not _HOST_PORT.match(address)]
    if wrong or not addresses:
        raise CommandError(
            f"{source} {text!r} names no NameServer",
            cause=f"{wrong[0]!r} is no host:port" if wrong else "it is empty",
            remedy="write host:port, several separated by ';' (in quotes, for the shell)",
            exit_code=EXIT_REFUSED,
        )
    return addresses
