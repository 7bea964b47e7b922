"""What comes and goes on a broker group: topics, consumer groups, users, policies, and clients that end in every way.

`Churn` works on a thread while a `with` block runs. Its ledger has what masters answered: in the end every member
holds what was made, and nothing of what was removed. A change whose answer did not come is asked for again, at each
member in turn, until one comes, as an operator would.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Final

import grpc

from support.cluster_processes import ServiceProcess
from tandemmq.admin.rpc import BrokerAccessCalls, BrokerAdminCalls, BrokerOperationsCalls, Channels
from tandemmq.proto.admin.v1 import broker_access_service_pb2 as access_pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as admin_pb
from tandemmq.proto.admin.v1 import broker_operations_service_pb2 as operations_pb
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

Name = tuple[str, str]
"""A kind and a name."""
KINDS: Final = ("topic", "group", "user", "policy")
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY")
_PREFIX: Final = "churn-"
# Whose policies come and go.
_OWNER: Final = "churn-owner"
_SUBJECT: Final = f"User:{_OWNER}"
_CALL_S: Final = 5.0
_JOIN_S: Final = 120.0
_SENDS: Final = 6
_RECEIVES: Final = 3


class _Member:
    """One broker's calls."""

    def __init__(self, channels: Channels, broker: ServiceProcess) -> None:
        address = f"{broker.host}:{broker.ports['listenPort']}"
        self._admin = BrokerAdminCalls(channels, address)
        self._operations = BrokerOperationsCalls(channels, address)
        self._access = BrokerAccessCalls(channels, address)

    async def make(self, kind: str, name: str, value: int) -> None:
        """Makes it, or gives it another value, from 1 to 8; of a user 0 or 1. Raises AioRpcError."""
        if kind == "topic":
            await self._admin.update_topic(
                admin_pb.UpdateTopicRequest(topic=name, read_queue_count=value, write_queue_count=value)
            )
        elif kind == "group":
            await self._admin.update_group(admin_pb.UpdateSubscriptionGroupRequest(group=name, retry_max_times=value))
        elif kind == "user":
            user_type = "Super" if value % 2 else "Normal"
            await self._access.put_user(
                access_pb.PutUserRequest(username=name, password=f"secret-of-{name}", user_type=user_type)
            )
        else:
            entry = access_pb.AclEntry(
                resource=f"Topic:{name}", actions=["Pub"], source_ips=[f"10.0.0.{value}"], decision="Allow"
            )
            await self._access.put_acl(access_pb.PutAclRequest(subject=_SUBJECT, entries=[entry]))

    async def remove(self, kind: str, name: str) -> None:
        """Removes it, if it is there. Raises AioRpcError."""
        if kind == "topic":
            await self._admin.delete_topic(topic=name)
        elif kind == "group":
            await self._operations.delete_group(operations_pb.DeleteSubscriptionGroupRequest(group=name))
        elif kind == "user":
            await self._access.delete_user(access_pb.DeleteUserRequest(username=name))
        else:
            await self._access.delete_acl(access_pb.DeleteAclRequest(subject=_SUBJECT, resources=[f"Topic:{name}"]))

    async def held(self) -> dict[Name, int]:
        """What the member has of the churn's. Raises AioRpcError."""
        topics = await self._admin.topics(include_system=False, without_queues=True)
        groups = await self._admin.groups(without_progress=True)
        users = await self._access.users(search=_PREFIX)
        acls = await self._access.acls(subject=_SUBJECT)
        found = {("topic", one.topic): one.read_queue_count for one in topics}
        found |= {("group", one.group): one.retry_max_times for one in groups}
        found |= {("user", one.username): int(one.user_type == "Super") for one in users}
        found |= {
            ("policy", one.resource.removeprefix("Topic:")): int(one.source_ips[0].rpartition(".")[2])
            for acl in acls
            for one in acl.entries
        }
        return {name: value for name, value in found.items() if name[1].startswith(_PREFIX)}


class Churn:
    """`workers` at once, each of which does one thing after another, as `seed` draws it."""

    def __init__(self, brokers: Sequence[ServiceProcess], *, workers: int, seed: int) -> None:
        self._brokers = brokers
        self._workers = workers
        self._seed = seed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._play, name="churn")
        self._error: BaseException | None = None
        self.ledger: Final[dict[Name, int | None]] = {}
        """What was answered last: the value, or None, if it was removed. Without what nobody answered."""
        self.clients: Final[Counter[str]] = Counter()
        """Calls of clients by their method, and what failed by method and code: no promise hangs on them."""

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Returns when nothing is changed any more. Raises what ended the churn before."""
        self._stopping.set()
        self._thread.join(_JOIN_S)
        assert not self._thread.is_alive(), "the churn goes on"
        if self._error is not None:
            raise self._error

    def wrong(self, broker: ServiceProcess) -> list[str]:
        """Where a member's tables contradict the ledger."""

        async def ask() -> dict[Name, int]:
            channels = Channels()
            try:
                return await _Member(channels, broker).held()
            finally:
                await channels.close()

        held = asyncio.run(ask())
        return [
            f"{broker.name} has {held.get(name)} for {' '.join(name)}, and the last answer was for {value}"
            for name, value in self.ledger.items()
            if held.get(name) != value
        ]

    def _play(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            # An account that ended early contradicts nothing.
            self._error = error

    async def _run(self) -> None:
        channels = Channels()
        try:
            members = [_Member(channels, broker) for broker in self._brokers]
            await self._change(members, ("user", _OWNER), 0)
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._workers):
                    tasks.create_task(self._work(members, number))
        finally:
            await channels.close()

    async def _work(self, members: Sequence[_Member], number: int) -> None:
        chance = random.Random(f"{self._seed}-{number}")
        turn = 0
        while not self._stopping.is_set():
            turn += 1
            if chance.random() < 0.5:
                await self._come_and_go(members, chance, f"{_PREFIX}{number}-{turn}")
            else:
                broker = chance.choice(self._brokers)
                client = Client(broker, chance, f"{_PREFIX}client-{number}-{turn}", chance.choice(MESSAGE_TYPES))
                self.clients.update(await client.live())

    async def _come_and_go(self, members: Sequence[_Member], chance: random.Random, name: str) -> None:
        """Makes something, changes it perhaps, and removes it perhaps."""
        kind = chance.choice(KINDS)
        values: list[int | None] = [chance.randrange(1, 9)]
        if chance.random() < 0.3:
            values.append(chance.randrange(1, 9))
        if chance.random() < 0.5:
            values.append(None)
        for value in values:
            if kind == "user" and value is not None:
                value %= 2
            await self._change(members, (kind, name), value)

    async def _change(self, members: Sequence[_Member], name: Name, value: int | None) -> None:
        self.ledger.pop(name, None)
        for member in cycle(members):
            if self._stopping.is_set():
                return
            try:
                await (member.remove(*name) if value is None else member.make(*name, value))
                break
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    raise
                # Asked again, a removal whose answer was lost finds nothing.
                if value is None and error.code() is grpc.StatusCode.NOT_FOUND:
                    break
            await asyncio.sleep(0.2)
        self.ledger[name] = value


class Client:
    """One that comes, uses most of the client API with messages of one type, and ends in some way.

    Topic and consumer group are those of its type; whoever plays makes them. What it sends counts for nobody.
    """

    def __init__(self, broker: ServiceProcess, chance: random.Random, name: str, message_type: str) -> None:
        self._target = f"{broker.host}:{broker.ports['grpcServerPort']}"
        self._chance = chance
        self._name = name
        self._type = message_type
        self._topic = definition.Resource(name=topic_of(message_type))
        self._group = definition.Resource(name=group_of(message_type))
        self._metadata = (("x-mq-client-id", name), ("x-mq-language", chance.choice(("CPP", "JAVA", "GO", "PYTHON"))))
        self._calls: Counter[str] = Counter()

    async def live(self) -> Counter[str]:
        """Its calls by method, and those that failed by method and code."""
        async with grpc.aio.insecure_channel(self._target) as channel:
            stub = service_pb2_grpc.MessagingServiceStub(channel)
            stream = stub.Telemetry(metadata=self._metadata)
            with suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
                async with asyncio.timeout(_CALL_S):
                    await stream.write(pb.TelemetryCommand(settings=self._settings()))
                    await stream.read()
            routes = pb.QueryRouteRequest(topic=self._topic, endpoints=definition.Endpoints(scheme=definition.IPv4))
            await self._ask(stub.QueryRoute, routes)
            routes.topic.name = f"absent-{self._name}"
            await self._ask(stub.QueryRoute, routes)
            beat = pb.HeartbeatRequest(group=self._group, client_type=definition.PUSH_CONSUMER)
            await self._ask(stub.Heartbeat, beat)
            for number in range(_SENDS):
                await self._send(stub, number)
            for _ in range(_RECEIVES):
                await self._receive(stub)
            if self._chance.random() < 0.5:
                await self._ask(stub.NotifyClientTermination, pb.NotifyClientTerminationRequest(group=self._group))
            if self._chance.random() < 0.7:
                # At once behind it comes the cancellation.
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await stream.done_writing()
            stream.cancel()
        return self._calls

    async def _ask(self, call: Callable[..., Awaitable[object]], request: object) -> object | None:
        """The answer; None: there was none."""
        method = type(request).__name__.removesuffix("Request")
        try:
            answer = await call(request, metadata=self._metadata, timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            self._calls[f"{method} {error.code().name}"] += 1
            return None
        self._calls[method] += 1
        return answer

    def _settings(self) -> definition.Settings:
        if self._chance.random() < 0.5:
            settings = definition.Settings(client_type=definition.PRODUCER)
            settings.publishing.topics.add(name=self._topic.name)
            return settings
        settings = definition.Settings(client_type=definition.PUSH_CONSUMER)
        settings.subscription.group.name = self._group.name
        subscription = settings.subscription.subscriptions.add(topic=self._topic)
        subscription.expression.type = definition.TAG
        subscription.expression.expression = self._chance.choice(("*", "a||b", self._name))
        return settings

    async def _send(self, stub: service_pb2_grpc.MessagingServiceStub, number: int) -> None:
        system = definition.SystemProperties(
            message_id=f"{self._name}-{number}-{self._chance.getrandbits(32):08x}",
            message_type=self._type,
            body_encoding=definition.IDENTITY,
            born_host="churn",
            tag=self._chance.choice(("a", "b", self._name)),
            keys=[f"{self._name}-{number}"],
        )
        system.born_timestamp.GetCurrentTime()
        if self._type == "FIFO":
            system.message_group = f"{self._name}-{number % 3}"
        elif self._type == "DELAY":
            due_ms = time.time_ns() // 1_000_000 + self._chance.choice((500, 1_500, 5_000, 30_000))
            system.delivery_timestamp.FromMilliseconds(due_ms)
        elif self._type == "PRIORITY":
            system.priority = number % 4
        elif self._type == "LITE":
            system.lite_topic = f"{self._name}-{number % 3}"
        message = definition.Message(
            topic=self._topic,
            body=os.urandom(self._chance.choice((10, 200, 3_000))),
            system_properties=system,
            user_properties={"part": self._name[-2:]},
        )
        answer = await self._ask(stub.SendMessage, pb.SendMessageRequest(messages=[message]))
        if not isinstance(answer, pb.SendMessageResponse) or not answer.entries:
            return
        entry, fate = answer.entries[0], self._chance.random()
        if self._type == "TRANSACTION" and fate < 0.8:
            end = pb.EndTransactionRequest(
                topic=self._topic,
                message_id=system.message_id,
                transaction_id=entry.transaction_id,
                resolution=definition.COMMIT if fate < 0.5 else definition.ROLLBACK,
            )
            await self._ask(stub.EndTransaction, end)
        elif self._type == "DELAY" and fate < 0.3 and entry.recall_handle:
            recall = pb.RecallMessageRequest(topic=self._topic, recall_handle=entry.recall_handle)
            await self._ask(stub.RecallMessage, recall)

    async def _receive(self, stub: service_pb2_grpc.MessagingServiceStub) -> None:
        """One receive, perhaps cancelled; what comes is finished, put off, given up or left."""
        if self._type == "LITE":
            subscription = pb.SyncLiteSubscriptionRequest(
                topic=self._topic,
                group=self._group,
                lite_topic_set=[f"{self._name}-{number}" for number in range(3)],
                action=definition.COMPLETE_ADD,
                version=time.time_ns(),
            )
            await self._ask(stub.SyncLiteSubscription, subscription)
        is_sql = self._chance.random() < 0.5
        request = pb.ReceiveMessageRequest(
            group=self._group,
            message_queue=definition.MessageQueue(topic=self._topic),
            filter_expression=definition.FilterExpression(
                type=definition.SQL if is_sql else definition.TAG,
                expression=f"part = '{self._name[-2:]}' OR part IS NULL" if is_sql else "*",
            ),
            batch_size=4,
        )
        request.invisible_duration.FromMilliseconds(self._chance.choice((3_000, 15_000)))
        request.long_polling_timeout.FromMilliseconds(400)
        call = stub.ReceiveMessage(request, metadata=self._metadata, timeout=_CALL_S)
        if self._chance.random() < 0.15:
            await asyncio.sleep(self._chance.random() * 0.05)
            call.cancel()
            self._calls["ReceiveMessage, cancelled"] += 1
            return
        try:
            messages = [element.message async for element in call if element.HasField("message")]
        except grpc.aio.AioRpcError as error:
            self._calls[f"ReceiveMessage {error.code().name}"] += 1
            return
        self._calls["ReceiveMessage"] += 1
        for message in messages:
            await self._settle(stub, message.system_properties)

    async def _settle(self, stub: service_pb2_grpc.MessagingServiceStub, system: definition.SystemProperties) -> None:
        fate = self._chance.random()
        if fate < 0.6:
            ack = pb.AckMessageRequest(group=self._group, topic=self._topic)
            ack.entries.add(
                message_id=system.message_id, receipt_handle=system.receipt_handle, lite_topic=system.lite_topic
            )
            await self._ask(stub.AckMessage, ack)
        elif fate < 0.75:
            change = pb.ChangeInvisibleDurationRequest(
                group=self._group,
                topic=self._topic,
                message_id=system.message_id,
                receipt_handle=system.receipt_handle,
            )
            change.invisible_duration.FromSeconds(30)
            await self._ask(stub.ChangeInvisibleDuration, change)
        elif fate < 0.85:
            forward = pb.ForwardMessageToDeadLetterQueueRequest(
                group=self._group,
                topic=self._topic,
                message_id=system.message_id,
                receipt_handle=system.receipt_handle,
                delivery_attempt=1,
                max_delivery_attempts=1,
            )
            await self._ask(stub.ForwardMessageToDeadLetterQueue, forward)


def topic_of(message_type: str) -> str:
    return f"churned-{message_type.lower()}"


def group_of(message_type: str) -> str:
    return f"churned-{message_type.lower()}-readers"
