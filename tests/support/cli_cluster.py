"""The command line on a cluster in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from typer.testing import CliRunner, Result

from support.cluster_states import healthy_cluster
from support.fake_operations import FakeOperations
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.operations.operations import Operations
from tandemmq.admin.rpc import Channels
from tandemmq.cli.app import app
from tandemmq.cli.cluster_address import ClusterAddress, ClusterTarget
from tandemmq.cli.connection import ClusterChoice, ClusterConnection
from tandemmq.cli.ending import CommandError


class FakeCluster:
    """What commands talk to; `operations` and `state` are the test's to change."""

    def __init__(self, operations: FakeOperations | None = None, state: ClusterState | None = None) -> None:
        self.operations = operations or FakeOperations()
        self.state = state or two_groups()
        self.targets: list[ClusterTarget] = []

    def run(self, *words: str, stdin: bytes | str | None = None) -> str:
        """Standard output of a command that succeeds."""
        result = self.invoke(*words, stdin=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    def invoke(self, *words: str, stdin: bytes | str | None = None) -> Result:
        """A command, whatever comes of it."""
        return CliRunner().invoke(app, words, input=stdin, obj=ClusterChoice(connect=self.connect))

    def failure(self, *words: str) -> CommandError:
        """How a command fails."""
        error = self.invoke(*words).exception
        assert isinstance(error, CommandError), repr(error)
        return error

    @contextlib.asynccontextmanager
    async def connect(self, target: ClusterTarget) -> AsyncIterator[ClusterConnection]:
        """What commands do instead of dialling."""
        self.targets.append(target)
        channels = Channels()
        try:
            yield _Connection(self, channels)
        finally:
            await channels.close()


class _Connection:
    def __init__(self, cluster: FakeCluster, channels: Channels) -> None:
        self._cluster = cluster
        self._channels = channels

    @property
    def address(self) -> ClusterAddress:
        return ClusterAddress(("127.0.0.1:9876",))

    @property
    def channels(self) -> Channels:
        return self._channels

    @property
    def dial(self) -> Callable[[str], str] | None:
        return None

    async def read_state(self) -> ClusterState:
        return self._cluster.state

    async def operations(self) -> Operations:
        return self._cluster.operations


def two_groups() -> ClusterState:
    """Two NameServers and two healthy broker groups, whose names are those of FakeOperations."""
    state = healthy_cluster()
    keys = ("broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1")
    others = tuple(
        replace(
            broker,
            broker_name="broker-b",
            client_endpoint=f"127.0.0.1:{8083 + broker.broker_id}",
            metadata_endpoint=f"127.0.0.1:{10951 + broker.broker_id * 20}",
        )
        for broker in state.brokers
    )
    servers = tuple(replace(server, brokers=keys) for server in state.name_servers)
    return ClusterState(name_servers=servers, brokers=(*state.brokers, *others))
