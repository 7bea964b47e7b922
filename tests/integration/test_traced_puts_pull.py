"""A slave that asks its master which sends were traced, over a real connection, and tells its own part."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest

from support.manual_time import ManualTime
from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.broker.peer_api.members import ReplicaServicer
from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.broker.replica_identity import ReplicaIdentity
from tandemmq.broker.replica_proof import ReplicaProof
from tandemmq.broker.slave.role import TracedPutsPull
from tandemmq.broker.tracing.send_tracer import BrokerTracing, TracedPuts
from tandemmq.core.routing.values import BrokerIdentity
from tandemmq.core.tracing.send_spans import ReplicaTimelines, ResolvedSend, TracedSend
from tandemmq.core.tracing.span_data import HeadSampler, RetainedFor, SpanData, TraceContext, TraceOptions
from tandemmq.proto.broker.v1 import replica_service_pb2_grpc

WAIT = TraceContext(0xABC, 7, True)


class Slave:
    """The task's parts, with time in the test's hands; keeps the spans it is given."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.timelines = ReplicaTimelines()
        self.spans: list[SpanData] = []
        ids = itertools.count(1)
        self.pull = TracedPutsPull(
            tracing=BrokerTracing(
                identity=BrokerIdentity("DefaultCluster", "broker-a", 1),
                clock=self.time,
                options=TraceOptions(sample_rate=0.0, slow_ms=0),
                sampler=HeadSampler(0.0, chance=lambda: 0.5, bits=lambda _: next(ids)),
                sink=self,
            ),
            timelines=self.timelines,
            master=lambda: None,
            reports_flushed_only=False,
        )

    def add(self, spans: Sequence[SpanData]) -> None:
        """`SpanSink`'s."""
        self.spans += spans

    def add_sends(self, sends: Sequence[ResolvedSend]) -> None:
        """`SpanSink`'s."""
        raise AssertionError("a slave has no sends")

    def came(self, end_offset: int) -> None:
        """A read brought all below it, which was reported."""
        self.time.advance(1)
        for timeline in (self.timelines.received, self.timelines.appended, self.timelines.reported):
            timeline.note(end_offset, self.time.monotonic_ns())

    def told(self) -> list[str]:
        """Messages whose part was told."""
        return [str(span.attributes["messaging.message.id"]) for span in self.spans if span.name == "replica append"]


def traced(message_id: str, start_offset: int, end_offset: int) -> TracedSend:
    return TracedSend(
        context=WAIT,
        parent=None,
        linked=(),
        retained_for=RetainedFor.SLOW,
        topic="orders",
        message_ids=(message_id,),
        message_count=1,
        body_bytes=4,
        client_id="client@1",
        peer="ipv4:10.0.0.7:51234",
        received_ns=1,
        queue_id=3,
        start_offset=start_offset,
        end_offset=end_offset,
    )


class MasterOfNobody:
    """It serves, and nobody comes to prove anything."""

    is_serving = True
    recovery = None
    epoch_refusal = None

    def verified(self, broker_id: int, disk_id: str, end_offset: int, connection: str) -> None:
        pass

    def superseded(self, reason: str) -> None:
        pass

    async def leave_master(self) -> None:
        pass


@asynccontextmanager
async def master_of(puts: TracedPuts | None) -> AsyncIterator[PeerClient]:
    """A master's metadata plane, as far as it is asked."""
    server = grpc.aio.server()
    log = new_store(SimulatedDisk(random.Random(1), wall_ms=lambda: 0))
    identity = BrokerIdentity("DefaultCluster", "broker-a", 0)
    replica = ReplicaIdentity(
        SimulatedDisk(random.Random(1), wall_ms=lambda: 0), identity, new_disk_id=lambda: "M", nonce="N"
    )
    servicer = ReplicaServicer(
        log=log,
        identity=identity,
        replica=replica,
        proof=ReplicaProof(log=log, replica=replica, role=cast("Any", MasterOfNobody)),
        role=cast("Any", MasterOfNobody),
        traced_puts=puts,
    )
    replica_service_pb2_grpc.add_ReplicaServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with PeerClient(f"127.0.0.1:{port}") as peer:
            yield peer
    finally:
        await server.stop(None)


async def test_tells_its_part_of_each_traced_put_once() -> None:
    slave, puts = Slave(), TracedPuts(incarnation=1)
    slave.came(100)
    slave.came(200)
    puts.note(traced("id-1", 100, 200), WAIT)
    async with master_of(puts) as master:
        assert await slave.pull.pull(master)
        assert not await slave.pull.pull(master)
    [root] = [span for span in slave.spans if span.name == "replica append"]
    assert [link.context for link in root.links] == [WAIT]
    assert (root.attributes["tandemmq.slave"], root.attributes["tandemmq.trace.retained_for"]) == ("1", "slow")


async def test_a_put_that_comes_later_is_told_later() -> None:
    slave, puts = Slave(), TracedPuts(incarnation=1)
    slave.came(100)
    puts.note(traced("id-1", 100, 200), WAIT)
    async with master_of(puts) as master:
        await slave.pull.pull(master)
        assert slave.told() == []
        slave.came(200)
        await slave.pull.pull(master)
    assert slave.told() == ["id-1"]


async def test_a_put_that_never_comes_is_forgotten() -> None:
    slave, puts = Slave(), TracedPuts(incarnation=1)
    slave.came(100)
    puts.note(traced("id-1", 100, 200), WAIT)
    async with master_of(puts) as master:
        await slave.pull.pull(master)
        slave.time.advance(301_000)
        await slave.pull.pull(master)
        slave.came(200)
        await slave.pull.pull(master)
    assert slave.told() == []


async def test_a_master_that_restarted_counts_anew() -> None:
    slave = Slave()
    slave.came(100)
    slave.came(400)
    for incarnation, message_ids in ((1, ("id-1", "id-2")), (2, ("id-3",))):
        puts = TracedPuts(incarnation=incarnation)
        for message_id in message_ids:
            puts.note(traced(message_id, 100, 200), WAIT)
        async with master_of(puts) as master:
            await slave.pull.pull(master)
    assert slave.told() == ["id-1", "id-2", "id-3"]


async def test_a_master_that_traces_nothing_has_nothing_to_tell() -> None:
    slave = Slave()
    async with master_of(None) as master:
        assert not await slave.pull.pull(master)


async def test_a_master_that_is_away_is_for_the_caller_to_ask_again() -> None:
    async with master_of(None) as master:
        endpoint = master.endpoint
    async with PeerClient(endpoint) as gone:
        with pytest.raises(PeerUnavailable):
            await Slave().pull.pull(gone)


async def test_a_page_has_an_end() -> None:
    puts = TracedPuts(incarnation=1)
    for number in range(1_200):
        puts.note(traced(f"id-{number}", 100, 200), WAIT)
    first = puts.after(incarnation=1, sequence=0)
    rest = puts.after(incarnation=1, sequence=first.puts[-1].sequence)
    assert (len(first.puts), len(rest.puts)) == (1_000, 200)
    assert rest.puts[0].message_ids == ("id-1000",)
