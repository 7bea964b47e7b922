"""Who stops by cancellation stops, though the gRPC call it waits in takes the cancellation for a failure of its own.

grpc.aio does so when both come in the same moment, in one run of fifty; here every call does it, always.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import NoReturn

import grpc
import grpc.aio
import pytest

from tandemmq.admin.rpc import BrokerAdminCalls, Channels, NameServerCalls, serving
from tandemmq.broker.leases import LeasePosition
from tandemmq.broker.peer_client import PeerClient, ReplicaClaim, SourceLog
from tandemmq.broker.slave.metadata_pull import MetadataPull
from tandemmq.client.client_session import ClientSession
from tandemmq.client.connection import ClientOptions, Connection
from tandemmq.client.messages import EndpointUnreachable
from tandemmq.core.metadata.metadata_store import DataVersion, MetadataFile
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.replication.log_history import LogRange
from tandemmq.core.routing.values import BrokerEndpoints, BrokerIdentity, Registration
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as client_pb
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.logging import get_logger
from tandemmq.service.name_server_link import NameServerLinks
from tandemmq.service.rpc import cancellation_wins

LIMIT_S = 1.0
ADDRESS = "127.0.0.1:1"
RANGE = LogRange(0, 10)
MASTER = BrokerIdentity("DefaultCluster", "broker-a", 0)
CLAIM = ReplicaClaim(MASTER, "disk-1", 1, 1, ADDRESS)


class HangingCall:
    """A call of any kind: nothing comes, and a cancellation makes it fail."""

    def __init__(self, waiting: asyncio.Event) -> None:
        self._waiting = waiting

    async def fail_when_cancelled(self) -> NoReturn:
        self._waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        headers = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, headers, headers, "it fell", None)

    def __await__(self) -> Generator[object, None, NoReturn]:
        return self.fail_when_cancelled().__await__()

    def __aiter__(self) -> AsyncIterator[NoReturn]:
        return self

    async def __anext__(self) -> NoReturn:
        await self.fail_when_cancelled()

    async def read(self) -> NoReturn:
        await self.fail_when_cancelled()

    async def write(self, _request: object) -> None:
        pass

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def add_done_callback(self, _callback: object) -> None:
        pass


class HangingChannel:
    """Every call over it hangs."""

    def __init__(self, waiting: asyncio.Event) -> None:
        self._waiting = waiting

    def __call__(self, *_arguments: object, **_options: object) -> HangingCall:
        return HangingCall(self._waiting)

    def _method(self, *_arguments: object, **_options: object) -> HangingChannel:
        return self

    unary_unary = unary_stream = stream_stream = _method

    async def close(self, grace: float | None = None) -> None:
        pass

    async def __aenter__(self) -> HangingChannel:
        return self

    async def __aexit__(self, *_failure: object) -> None:
        pass


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once something waits in a call."""
    event = asyncio.Event()
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda *_, **__: HangingChannel(event))
    return event


class Registrant:
    identity = MASTER
    incarnation = 1
    data_version = DataVersion()
    epoch = end_offset = 0
    unproven = False
    record_version = (0, 0)

    def registration(self) -> Registration:
        return Registration(MASTER, BrokerEndpoints("host:8081"), 1, 1_000, DataVersion(), ())


def links() -> NameServerLinks:
    made = NameServerLinks(
        [ADDRESS], clock=SystemClock(), log=get_logger(), chance=random.Random(1), registrant=Registrant()
    )
    made.announce()
    return made


def peer() -> PeerClient:
    return PeerClient(ADDRESS)


def connection() -> Connection:
    return Connection(ADDRESS, lambda: (), 1_000)


async def exhaust(items: AsyncIterator[object]) -> None:
    async for _ in items:
        pass


async def follow_metadata() -> None:
    pull = MetadataPull(tables={MetadataFile.TOPICS: TopicTable()}, master=lambda: ADDRESS, applied=lambda *_: None)
    await pull.run()


async def keep_settings() -> None:
    options = ClientOptions((ADDRESS,))
    session = ClientSession(options, SystemClock(), settings=definition.Settings, group=None)
    await session._keep_settings(ADDRESS)


PLACES: dict[str, Callable[[], Awaitable[object]]] = {
    "NameServerLinks.run": lambda: links().run(),
    "NameServerLinks.group_memory": lambda: links().group_memory(),
    "NameServerLinks.forget_replica": lambda: links().forget_replica("disk-1"),
    "NameServerLinks.unregister": lambda: links().unregister(),
    "PeerClient.log": lambda: peer().log(),
    "PeerClient.digests": lambda: peer().digests([RANGE]),
    "PeerClient.verify": lambda: peer().verify(CLAIM, tail=RANGE, digest=b"", connection=""),
    "PeerClient.read_log": lambda: exhaust(peer().read_log(RANGE)),
    "PeerClient.traced_puts": lambda: peer().traced_puts(incarnation=1, after_sequence=0),
    "PeerClient.metadata_table": lambda: peer().metadata_table(MetadataFile.TOPICS, None),
    "PeerClient.leases": lambda: peer().leases(LeasePosition(0, 0, 0)),
    "PeerClient.metadata_changes": lambda: exhaust(peer().metadata_changes()),
    "MetadataPull.run": follow_metadata,
    "SourceLog.read": lambda: exhaust(SourceLog(MASTER, endpoint=lambda _: ADDRESS).read(1, RANGE)),
    "NameServerCalls.snapshot": lambda: NameServerCalls(Channels(), ADDRESS).snapshot(),
    "NameServerCalls.topic_route": lambda: NameServerCalls(Channels(), ADDRESS).topic_route("orders"),
    "BrokerAdminCalls.status": lambda: BrokerAdminCalls(Channels(), ADDRESS).status(),
    "serving": lambda: serving(Channels(), ADDRESS),
    "Connection.query_route": lambda: connection().query_route(client_pb.QueryRouteRequest()),
    "Connection.receive": lambda: exhaust(connection().receive(client_pb.ReceiveMessageRequest(), timeout_ms=1_000)),
    "ClientSession": keep_settings,
}


@pytest.mark.parametrize("place", PLACES)
async def test_cancelled_in_a_call_that_fails_it_ends(place: str, waiting: asyncio.Event) -> None:
    async def run() -> None:
        await PLACES[place]()

    task = asyncio.create_task(run())
    async with asyncio.timeout(LIMIT_S):
        await waiting.wait()
    task.cancel()
    ended, _ = await asyncio.wait((task,), timeout=LIMIT_S)
    while not task.done():
        # Else it would outlive the test as it outlived its cancellation: a pause after the call cannot.
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await asyncio.sleep(0)
    assert ended, "it went on"
    assert task.cancelled(), "it took the cancellation for a failure"


async def test_failure_is_told_to_who_cleans_up_after_a_cancellation(waiting: asyncio.Event) -> None:
    failures: list[Exception] = []

    async def clean_up_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                with cancellation_wins():
                    raise EndpointUnreachable(ADDRESS, "NotifyClientTermination", "UNAVAILABLE")
            except EndpointUnreachable as failure:
                failures.append(failure)

    task = asyncio.create_task(clean_up_when_cancelled())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert len(failures) == 1
