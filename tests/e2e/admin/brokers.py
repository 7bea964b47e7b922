"""What brokers and NameServers themselves say, asked by their own RPCs: the judge of what console and commands did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from e2e.live_cluster import LiveCluster
from tandemmq.admin.rpc import (
    BrokerAdminCalls,
    BrokerOperationsCalls,
    Channels,
    MessageQueryCalls,
    NameServerCalls,
    TraceCalls,
)
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as operations_pb
from tandemmq.proto.admin.v1 import message_query_service_pb2 as query_pb

ResultT = TypeVar("ResultT")
# Asks one address.
Question = Callable[[Channels, str], Awaitable[ResultT]]

# Members by the presets' names.
MASTERS: Final = ("broker-a", "broker-b")


class Brokers:
    """Questions to single members of a cluster, by the names of cluster.json. Every question may raise AioRpcError."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        # The browser's loop runs in the test's thread.
        self._thread = ThreadPoolExecutor(1)

    def status(self, member: str) -> admin_pb.GetBrokerStatusResponse:
        return self.ask(member, lambda channels, at: BrokerAdminCalls(channels, at).status())

    def topic(self, name: str) -> Mapping[str, admin_pb.TopicStatus]:
        found = self._ask_masters(lambda channels, at: BrokerAdminCalls(channels, at).topics(include_system=True))
        return {master: topic for master, topics in found.items() for topic in topics if topic.topic == name}

    def group(self, name: str) -> Mapping[str, admin_pb.SubscriptionGroupStatus]:
        found = self._ask_masters(lambda channels, at: BrokerAdminCalls(channels, at).groups())
        return {master: group for master, groups in found.items() for group in groups if group.group == name}

    def committed(self, group: str, topic: str) -> int:
        """Messages of a topic that a group acknowledged, on all masters together."""
        return sum(
            progress.committed_offset
            for status in self.group(group).values()
            for progress in status.progress
            if progress.topic == topic
        )

    def messages(self, topic: str, key: str) -> list[query_pb.MessageView]:
        return [message for messages in self._by_master(topic, key).values() for message in messages]

    def newest(self, topic: str, key: str) -> query_pb.MessageView:
        """The newest with this key: a topic that is made again under its old name still has its messages."""
        return max(self.messages(topic, key), key=lambda message: message.store_time.ToNanoseconds())

    def holder(self, topic: str, key: str) -> str:
        """Broker group of that message."""
        newest = self.newest(topic, key)
        return next(master for master, messages in self._by_master(topic, key).items() if newest in messages)

    def digests(self, broker_name: str, physical_offset: int, size: int) -> set[bytes]:
        """SHA-256 of a range of the log, as master and slave of a broker group have it."""

        def digest(channels: Channels, at: str) -> Awaitable[query_pb.DigestRecordResponse]:
            return MessageQueryCalls(channels, at).digest(physical_offset=physical_offset, size=size)

        return {self.ask(member, digest).sha256 for member in (broker_name, f"{broker_name}-s")}

    def traces(self, message_id: str) -> int:
        """Traces that masters remember of a message."""
        found = self._ask_masters(lambda channels, at: TraceCalls(channels, at).find(message_id=message_id))
        return sum(len(reply.traces) for reply in found.values())

    def setting(self, member: str, key: str) -> operations_pb.SettingView:
        """A setting of a broker as it works now."""
        reply = self.ask(member, lambda channels, at: BrokerOperationsCalls(channels, at).config())
        return next(setting for setting in reply.settings if setting.key == key)

    def clients(self, group: str) -> list[operations_pb.ClientView]:
        """Connected consumers of a group, of all masters."""
        request = operations_pb.ListClientsRequest(group=group)
        found = self._ask_masters(lambda channels, at: BrokerOperationsCalls(channels, at).clients(request))
        return [client for reply in found.values() for client in reply.clients]

    def writable(self, broker_name: str, topic: str) -> set[bool]:
        """Whether producers are sent to a broker group, by each NameServer."""
        found = set()
        for server in self._cluster.record()["name_servers"]:
            route = self._run(lambda channels, at: NameServerCalls(channels, at).topic_route(topic), server)
            assert route is not None, f"{server} knows no route of {topic}"
            found |= {bool(queue.permission & 2) for queue in route.queues if queue.broker_name == broker_name}
        return found

    def ask(self, member: str, question: Question[ResultT]) -> ResultT:
        return self._run(question, self._cluster.member(member)["broker"]["metadata_endpoint"])

    def _by_master(self, topic: str, key: str) -> dict[str, list[query_pb.MessageView]]:
        wanted = query_pb.KeyQuery(key=key)
        request = query_pb.QueryMessagesRequest(topic=topic, key=wanted, limit=32, body_bytes=65_536)
        found = self._ask_masters(lambda channels, at: MessageQueryCalls(channels, at).query(request))
        return {master: list(reply.messages) for master, reply in found.items()}

    def _ask_masters(self, question: Question[ResultT]) -> dict[str, ResultT]:
        return {master: self.ask(master, question) for master in MASTERS}

    def _run(self, question: Question[ResultT], address: str) -> ResultT:
        async def asked() -> ResultT:
            channels = Channels()
            try:
                return await question(channels, address)
            finally:
                await channels.close()

        return self._thread.submit(asyncio.run, asked()).result()
