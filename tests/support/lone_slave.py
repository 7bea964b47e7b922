"""A broker group of real processes whose slave is left alone, and nobody may take the master's place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc

from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, wait_until
from support.failover_group import LEASE_MS, FailoverGroup
from support.running_time import PATIENCE_S
from support.topic_admin import broker_status, create_topic
from tandemmq.broker.leases import LeasePosition
from tandemmq.broker.peer_client import PeerClient, PeerUnavailable
from tandemmq.client import ClientError, ClientOptions, Producer, ReceivedMessage, SimpleConsumer, parse_access_points
from tandemmq.core.delivery.journal import LeaseReplay
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.service.event_loop import SystemClock

BROKER_GROUP: Final = "broker-a"
TOPIC: Final = "orders"
GROUP: Final = "readers"
KINDS: Final = ("fixed roles", "failover")


class LoneSlave:
    """A NameServer, a master and its slave. `kind` is one of KINDS: roles by settings, or a group that fails over whose
    in-sync set is the master alone."""

    def __init__(self, folder: Path, kind: str, *, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are both brokers', beside those of its kind."""
        self._folder = folder
        self._kind = kind
        self._settings = settings or {}
        self.cluster = ProcessCluster(folder)

    def __enter__(self) -> Self:
        self.cluster.add_name_server(with_disk=True)
        self.authority = self._folder / "authority"
        self.authority.mkdir()
        settings = {"consumeFromEarliest": "true", **self._settings}
        if self._kind == "failover":
            settings |= {"failoverAuthority": f"file:{self.authority}", "failoverLease": str(LEASE_MS)}
        roles = [{}, {}] if self._kind == "failover" else [{"brokerRole": "ASYNC_MASTER"}, {}]
        self.master, self.slave = (
            self.cluster.add_broker(
                BROKER_GROUP, broker_id=broker_id, settings={**settings, "totalReplicas": "2", **roles[broker_id]}
            )
            for broker_id in range(2)
        )
        self._wait_for_master()
        asyncio.run(create_topic(self.master, TOPIC, queues=4))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)

    @property
    def access_points(self) -> str:
        return f"127.0.0.1:{self.cluster.name_servers[0].ports['listenPort']}"

    @staticmethod
    def client_of(broker: ServiceProcess) -> str:
        """Where a broker serves clients."""
        return f"127.0.0.1:{broker.ports['grpcServerPort']}"

    def send(self, numbers: range) -> None:
        """Messages whose bodies are these numbers, in six digits."""

        async def send() -> None:
            options = ClientOptions(parse_access_points(self.access_points), request_timeout_ms=30_000)
            async with Producer(options, SystemClock()) as producer:
                for number in numbers:
                    await producer.send(TOPIC, b"%06d" % number)

        asyncio.run(send())

    def put_slave_out_of_the_set(self) -> None:
        """In a group that fails over: the set has the master alone, and stays so, since the authority is away."""
        if self._kind != "failover":
            return
        self.slave.kill()
        state = FailoverGroup(self._folder / "unused").state_of

        def is_alone() -> bool:
            known = state(self.master)
            return known is not None and len(known.in_sync) == 1

        wait_until(is_alone, limit_s=PATIENCE_S, what="the set has the master alone")
        self.authority.rename(self.authority.with_name("away"))
        self.slave.start()

    def bring_authority_back(self) -> None:
        """The other half of it."""
        if self._kind == "failover":
            self.authority.with_name("away").rename(self.authority)

    def wait_equal(self) -> None:
        """Both logs are the same bytes."""

        def are_equal() -> bool:
            logs = [
                b"".join(commit_log_bytes(self.cluster.store_folder(key)).values()).rstrip(b"\0")
                for key in sorted(self.cluster.brokers)
            ]
            return logs[0] == logs[1]

        wait_until(are_equal, limit_s=PATIENCE_S, what="both logs are equal")

    def wait_progress_copied(self, count: int) -> None:
        """The slave knows GROUP, and its leases have so many messages of it finished."""
        wait_until(
            lambda: self.finished_at_slave() >= count, limit_s=PATIENCE_S, what="the slave has copied the progress"
        )

    def finished_at_slave(self) -> int:
        """How many messages of GROUP are finished as the slave's leases say; 0: it does not say, or knows no GROUP."""

        async def finished() -> int:
            async with PeerClient(f"127.0.0.1:{self.slave.ports['listenPort']}") as peer:
                _, groups = await peer.metadata_table(MetadataFile.SUBSCRIPTION_GROUPS, None, accept_copy=True)
                if f'"{GROUP}"' not in (groups or ""):
                    return 0
                change = await peer.leases(LeasePosition(0, 0, 0), accept_copy=True)
            replay = LeaseReplay.of_files(change.snapshot or b"", change.journal)
            return sum(
                queue.next_offset - len(queue.pending)
                for subscription in replay.subscriptions.values()
                if subscription.group == GROUP
                for queue in subscription.queues.values()
            )

        try:
            return asyncio.run(finished())
        except PeerUnavailable:
            return 0

    def wait_event(self, broker: ServiceProcess, event: str) -> None:
        """The broker has told of it since its start."""
        wait_until(
            lambda: any(line.get("event") == event for line in broker.events()),
            limit_s=PATIENCE_S,
            what=f"{broker.name} tells {event}",
        )

    def wait_master_back(self) -> None:
        """It was started again: it has taken the slave's progress, and serves."""
        self.wait_event(self.master, "slave_progress_merged")
        wait_until(
            lambda: not asyncio.run(broker_status(self.master)).write_refusal,
            limit_s=PATIENCE_S,
            what="the master serves",
        )

    def serves_reads(self) -> bool:
        """What the slave's status says."""
        return any("serves reads" in problem.problem for problem in asyncio.run(broker_status(self.slave)).problems)

    def send_to(self, broker: ServiceProcess) -> definition.Status:
        """The answer to a send that goes to this broker, whatever routes say."""
        message = definition.Message(
            topic=definition.Resource(name=TOPIC),
            body=b"refused",
            system_properties=definition.SystemProperties(
                message_id="01" + 32 * "0", message_type=definition.NORMAL, body_encoding=definition.IDENTITY
            ),
        )

        async def send() -> definition.Status:
            async with grpc.aio.insecure_channel(self.client_of(broker)) as channel:
                call = channel.unary_unary(
                    "/apache.rocketmq.v2.MessagingService/SendMessage",
                    request_serializer=service.SendMessageRequest.SerializeToString,
                    response_deserializer=service.SendMessageResponse.FromString,
                )
                metadata = (("x-mq-client-id", "lone-slave@1@0@0"),)
                answer = await call(
                    service.SendMessageRequest(messages=[message]), metadata=metadata, timeout=PATIENCE_S
                )
                status: definition.Status = answer.status
                return status

        return asyncio.run(send())

    def _wait_for_master(self) -> None:
        def has_master() -> bool:
            return asyncio.run(broker_status(self.slave)).master_link.state == "transfer"

        wait_until(has_master, limit_s=PATIENCE_S, what="the slave follows")


class Reader:
    """A group of consumers that knows what it has acknowledged. AssertionError: something of it came again."""

    def __init__(self, group: LoneSlave, *, name: str = GROUP) -> None:
        self._group = group
        self._name = name
        self.acknowledged: set[int] = set()
        self.in_hand: dict[int, ReceivedMessage] = {}

    def receive(self, count: int, *, lease_ms: int) -> None:
        """At least so many messages that were not in hand."""
        self._run(lambda consumer: self._receive(consumer, count, lease_ms))

    def acknowledge(self, count: int, *, at: ServiceProcess | None = None) -> None:
        """So many of those in hand; at the broker that gave them, or at the one that is there now."""
        self._run(lambda consumer: self._acknowledge(consumer, count, at))

    def receive_all(self, total: int) -> None:
        """Receives and acknowledges until `total` messages are."""

        async def work(consumer: SimpleConsumer) -> None:
            while len(self.acknowledged) < total:
                await self._receive(consumer, 1, 10_000)
                await self._acknowledge(consumer, len(self.in_hand), None)

        self._run(work)

    def look(self, *, lease_ms: int) -> None:
        """One receive, which may find nothing."""

        async def work(consumer: SimpleConsumer) -> None:
            for message in await consumer.receive(32, invisible_ms=lease_ms):
                self.in_hand[int(message.body)] = message

        self._run(work)

    def refusal(self) -> str:
        """Why a receive is refused."""

        refusals = []

        async def work(consumer: SimpleConsumer) -> None:
            try:
                await consumer.receive(1, await_ms=5_000)
            except ClientError as error:
                refusals.append(str(error))

        self._run(work)
        return "".join(refusals)

    def _run(self, work: Callable[[SimpleConsumer], Awaitable[None]]) -> None:
        async def run() -> None:
            options = ClientOptions(parse_access_points(self._group.access_points), request_timeout_ms=30_000)
            async with (
                asyncio.timeout(PATIENCE_S),
                SimpleConsumer(
                    options, SystemClock(), group=self._name, subscriptions={TOPIC: "*"}, await_ms=5_000
                ) as consumer,
            ):
                await work(consumer)

        asyncio.run(run())

    async def _receive(self, consumer: SimpleConsumer, count: int, lease_ms: int) -> None:
        came = 0
        while came < count:
            for message in await consumer.receive(min(32, count - came), invisible_ms=lease_ms):
                number = int(message.body)
                assert number not in self.acknowledged, f"{number} was acknowledged, and came again"
                came += number not in self.in_hand
                self.in_hand[number] = message

    async def _acknowledge(self, consumer: SimpleConsumer, count: int, at: ServiceProcess | None) -> None:
        for number in list(self.in_hand)[:count]:
            message = self.in_hand.pop(number)
            if at is not None:
                message = replace(message, endpoint=f"ipv4:{LoneSlave.client_of(at)}")
            await consumer.ack(message)
            self.acknowledged.add(number)
