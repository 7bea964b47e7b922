"""A broker group of real processes with traffic, and what must still be true of it after a fault.

One round: `begin` sends, reads a part, and waits until slaves hold the groups' progress; a fault does what it does with
processes and disks and starts again what is to run; `judge` waits until the group is settled, and then looks for every
acknowledged message in each CommitLog and at the consumer, for topics, groups and committed offsets, and for a byte in
which replicas differ.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demo.evidence import compare_logs, logged_message_ids
from support.acknowledged_sends import METADATA, AcknowledgedSender, body_of
from support.cluster_processes import ANY_DISK, ProcessCluster, ServiceProcess, lasting_port, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.core.metadata.metadata_store import MetadataFile, MetadataStore
from tandemmq.core.metadata.offset_tables import ConsumerOffsetTable
from tandemmq.core.metadata.subscription_group_table import SubscriptionGroupTable
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

NAME: Final = "broker-a"
TOPIC, OTHER_TOPIC = "orders", "payments"
# One reads what it is asked to and has a backlog at every fault; the other has read its topic to the end.
READERS, SETTLED_READERS = "order-readers", "payment-readers"
# Logs of several files, groups' progress on the slave soon, and more than one turn of every file within some rounds.
SETTINGS: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "maxMessageSize": str(64 << 10),
    "flushConsumerOffsetInterval": "300",
    **ANY_DISK,
}
# However busy the machine is.
START_LIMIT_S: Final = 120.0
SETTLE_LIMIT_S: Final = 120.0
CALL_LIMIT_S: Final = 10.0
# A broker holds an empty receive for 5 s; two of them in turn: nothing is coming.
EMPTY_RECEIVES: Final = 2
LEASE_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Tables:
    """What a broker says of its topics, its groups and their progress."""

    topics: Mapping[str, tuple[int, int, str]]
    groups: frozenset[str]
    offsets: Mapping[tuple[str, str, int], int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong after a round; everything counts from the group's first message on."""

    acknowledged: int
    # Acknowledged, and not in the master's log, or never given to the consumer.
    lost: int
    undelivered: int
    missing_on_slaves: int
    broken_bodies: int
    differing_bytes: int
    lost_names: tuple[str, ...] = ()
    """Topics and groups that are gone, offsets that moved back."""
    problems: tuple[str, ...] = ()
    """What did not come to pass at all."""

    @property
    def holds(self) -> bool:
        """Nothing at all is wrong."""
        wrong = self.lost + self.undelivered + self.missing_on_slaves + self.broken_bodies + self.differing_bytes
        return wrong == 0 and not self.lost_names and not self.problems


@dataclass
class _Ledger:
    """What producers and consumers were told."""

    numbers: int = 1
    acknowledged: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)


class BrokerGroup:
    """NameServers, one master, its slaves. Members are by broker id: 0 is the master, whichever process that is."""

    def __init__(
        self,
        folder: Path,
        *,
        sync: bool = True,
        slaves: int = 1,
        name_servers: int = 1,
        name_servers_have_disks: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.cluster = ProcessCluster(folder)
        self.problems: list[str] = []
        self.members: dict[int, ServiceProcess] = {}
        self._settings = {
            **SETTINGS,
            **(settings or {}),
        }
        self._sync = sync
        self._slaves = slaves
        self._name_servers = name_servers
        self._name_servers_have_disks = name_servers_have_disks
        self._ledger = _Ledger()
        self._before = Tables({}, frozenset(), {})
        self._senders: list[AcknowledgedSender] = []
        self._copies = itertools.count()

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        try:
            self._start()
        except BaseException:
            self.cluster.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_senders()
        self.cluster.__exit__(kind, error, trace)

    def _start(self) -> None:
        for _ in range(self._name_servers):
            self.cluster.add_name_server(with_disk=self._name_servers_have_disks)
        for broker_id in range(self._slaves + 1):
            self.members[broker_id] = self.cluster.add_broker(
                NAME, broker_id=broker_id, settings=self.settings_of(broker_id), wait=False
            )
        for member in self.members.values():
            member.start_limit_s = START_LIMIT_S
            member.wait_serving()
        self.create(TOPIC, READERS, queues=4)
        self.create(OTHER_TOPIC, SETTLED_READERS, queues=2)
        self.wait_settled()

    def settings_of(self, broker_id: int) -> dict[str, str]:
        """Settings of a member beside those that every test cluster has."""
        role = {} if broker_id else {"brokerRole": "SYNC_MASTER" if self._sync else "ASYNC_MASTER"}
        return {**self._settings, **role}

    @property
    def master(self) -> ServiceProcess:
        return self.members[0]

    @property
    def slaves(self) -> list[ServiceProcess]:
        return [member for broker_id, member in self.members.items() if broker_id]

    @property
    def is_sync(self) -> bool:
        """False for an ASYNC_MASTER."""
        return self._sync

    @property
    def acknowledged(self) -> set[str]:
        """Ids of all messages that somebody was told are stored, so far."""
        return self._ledger.acknowledged.union(*(sender.acknowledged for sender in self._senders))

    @staticmethod
    def store(member: ServiceProcess) -> Path:
        """A member's disk."""
        return Path(member.settings["storePathRootDir"])

    def logged(self, member: ServiceProcess) -> set[str]:
        """Ids of the messages on a member's disk, whether it runs or not."""
        store = self.store(member)
        return logged_message_ids(store) if (store / "commitlog").exists() else set()

    # Traffic

    def begin(self, *, messages: int) -> None:
        """Sends so many to the one topic and some to the other, reads a third of the former and all of the latter."""
        self.problems.clear()
        self.send(40, topic=OTHER_TOPIC)
        self.read(SETTLED_READERS, OTHER_TOPIC, self._ledger.acknowledged - self._ledger.delivered)
        before = len(self._ledger.delivered)
        self.start_sending()
        self.wait_acknowledged(messages)
        self.read(READERS, TOPIC, self.acknowledged - self._ledger.delivered, count=messages // 3)
        assert len(self._ledger.delivered) > before, "the consumer got nothing before the fault"
        self.wait_progress_copied()

    def start_sending(self, member: ServiceProcess | None = None, *, topic: str = TOPIC) -> AcknowledgedSender:
        """Begins to send to a member and goes on, whatever becomes of it, until `stop_sending`."""
        sender = AcknowledgedSender(
            member or self.master, topic, inflight=4, first_number=self._ledger.numbers, pause_s=0.01
        )
        self._ledger.numbers += 1_000_000
        sender.__enter__()
        self._senders.append(sender)
        return sender

    def stop_sending(self) -> None:
        """Ends all sends; what slaves lack of them is on its way."""
        self._end_senders()

    def _end_senders(self) -> None:
        for sender in self._senders:
            sender.__exit__(None, None, None)
            self._ledger.acknowledged.update(sender.acknowledged)
        self._senders.clear()

    def send(self, count: int, *, topic: str = TOPIC) -> None:
        """Sends until so many are acknowledged."""
        sender = self.start_sending(topic=topic)
        try:
            wait_until(
                lambda: len(sender.acknowledged) >= count, limit_s=PATIENCE_S, what=f"{count} acknowledged sends"
            )
        finally:
            sender.__exit__(None, None, None)
            self._senders.remove(sender)
            self._ledger.acknowledged.update(sender.acknowledged)

    def wait_acknowledged(self, count: int) -> None:
        """Waits until the senders got so many acknowledgements from now on."""
        target = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= target, limit_s=PATIENCE_S, what=f"{count} acknowledged sends")

    def rest(self) -> None:
        """Ends the sends of an ASYNC_MASTER, whose slaves are then to hold everything: what is lost after it was not
        merely under way. A SYNC_MASTER's go on: whatever it acknowledges is on two disks.
        """
        if not self._sync:
            self.stop_sending()
            self.wait_settled()

    def read(self, group: str, topic: str, wanted: Iterable[str], *, count: int | None = None) -> None:
        """Reads and acknowledges for a consumer group until all that is wanted (or `count` of any) came, or no more."""
        missing = set(wanted)
        got = empty = 0
        with grpc.insecure_channel(f"127.0.0.1:{self.master.ports['grpcServerPort']}") as channel:
            stub = service_pb2_grpc.MessagingServiceStub(channel)
            while missing and empty < EMPTY_RECEIVES and (count is None or got < count):
                messages = list(_receive(stub, group, topic))
                empty = 0 if messages else empty + 1
                for message in messages:
                    message_id = message.system_properties.message_id
                    self._ledger.delivered.add(message_id)
                    missing.discard(message_id)
                    if message.body != body_of(message_id):
                        self._ledger.broken.add(message_id)
                if messages:
                    _acknowledge(stub, group, topic, messages)
                got += len(messages)

    def create(self, topic: str, group: str, *, queues: int) -> None:
        """A topic and a consumer group that begins where the topic begins: at its first message."""
        asyncio.run(create_topic(self.master, topic, queues=queues))
        _admin(self.master).UpdateSubscriptionGroup(
            pb.UpdateSubscriptionGroupRequest(group=group, retry_max_times=7), timeout=CALL_LIMIT_S
        )
        with grpc.insecure_channel(f"127.0.0.1:{self.master.ports['grpcServerPort']}") as channel:
            # A group takes its place at its first receive, and its first message may come after the fault.
            call = _receive_call(service_pb2_grpc.MessagingServiceStub(channel), group, topic)
            wait_until(
                lambda: any(key[0] == group for key in self.tables_of(self.master).offsets),
                limit_s=CALL_LIMIT_S,
                what=f"{group} has its place",
            )
            call.cancel()  # type: ignore[no-untyped-call]  # the stubs have no types for it

    # Faults

    def kill(self, *members: ServiceProcess) -> None:
        for member in members:
            member.kill()

    def wipe(self, member: ServiceProcess) -> None:
        """A new disk in the place of the old one."""
        shutil.rmtree(self.store(member))

    def copy_of(self, member: ServiceProcess) -> Path:
        """What `cp -a` makes of a member's disk now, running or not."""
        target = self.folder / f"copy-{next(self._copies)}"
        # Files come and go while a live store is copied: what vanished is not in the copy, as with cp.
        subprocess.run(
            ["cp", "-a", "--sparse=always", str(self.store(member)), str(target)],
            check=False,
            stderr=subprocess.DEVNULL,
        )
        return target

    def put_back(self, copy: Path, member: ServiceProcess) -> None:
        """The copy in the place of the disk."""
        self.wipe(member)
        copy.rename(self.store(member))

    def second_master(self, copy: Path | None = None) -> ServiceProcess:
        """One more process with brokerId 0, on a disk of its own, not started."""
        folder = self.folder / f"second-{next(self._copies)}"
        if copy is not None:
            copy.rename(folder)
        settings = self.master.settings | {"storePathRootDir": str(folder)}
        second = ServiceProcess(
            name=folder.name,
            module="tandemmq.broker",
            settings=settings,
            log_path=self.folder / "logs" / f"{folder.name}.log",
            port_keys=self.master.port_keys,
            ports={key: lasting_port() for key in self.master.port_keys},
            start_limit_s=START_LIMIT_S,
        )
        self.cluster.brokers[folder.name] = second
        return second

    # What is the case

    def tables_of(self, member: ServiceProcess) -> Tables:
        admin = _admin(member)
        topics = admin.ListTopics(pb.ListTopicsRequest(without_queues=True), timeout=CALL_LIMIT_S).topics
        groups = admin.ListSubscriptionGroups(pb.ListSubscriptionGroupsRequest(), timeout=CALL_LIMIT_S).groups
        return Tables(
            topics={
                topic.topic: (topic.read_queue_count, topic.write_queue_count, topic.message_type) for topic in topics
            },
            groups=frozenset(group.group for group in groups),
            offsets={
                (group.group, progress.topic, progress.queue_id): progress.committed_offset
                for group in groups
                for progress in group.progress
            },
        )

    def wait_progress_copied(self) -> None:
        """Waits until every running slave has on its disk what the master knows; that must not be lost.

        On its disk: a slave answers with what it took over before it has written it. One that is killed in between
        begins with the progress before, as does the master that asks it then: what was consumed since comes again.
        """
        self._before = self.tables_of(self.master)
        for slave in self.slaves:
            if _runs(slave):
                wait_until(
                    partial(self._has_tables, slave), limit_s=PATIENCE_S, what=f"{slave.name} has its master's tables"
                )

    def _has_tables(self, member: ServiceProcess) -> bool:
        return not _lost(self._before, self.tables_of(member)) and not _lost(self._before, self._tables_on_disk(member))

    def _tables_on_disk(self, member: ServiceProcess) -> Tables:
        """What a member would begin with."""
        files = MetadataStore(PosixDisk(self.store(member)))
        topics, groups, offsets = TopicTable(), SubscriptionGroupTable(), ConsumerOffsetTable()
        files.load(MetadataFile.TOPICS, topics)
        files.load(MetadataFile.SUBSCRIPTION_GROUPS, groups)
        files.load(MetadataFile.CONSUMER_OFFSETS, offsets)
        return Tables(
            topics={
                topic.name: (topic.read_queue_count, topic.write_queue_count, topic.message_type) for topic in topics
            },
            groups=frozenset(group.name for group in groups),
            offsets={(one.group, one.topic, one.queue_id): one.offset for one in offsets},
        )

    def is_ready(self, member: ServiceProcess) -> bool:
        """Its readiness probe, as kubelet asks it."""
        with grpc.insecure_channel(f"127.0.0.1:{member.ports['listenPort']}") as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service="tandemmq.probe.ready"), timeout=2
                )
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def is_settled(self) -> bool:
        """Everybody is ready, in sync and of one length."""
        try:
            status = _status(self.master)
            ends = {_status(slave).end_offset for slave in self.slaves}
        except grpc.RpcError:
            return False
        in_sync = {slave.broker_id for slave in status.slaves if slave.in_sync}
        return (
            ends == {status.end_offset}
            and len(in_sync) == len(self.slaves)
            and not status.write_refusal
            and all(map(self.is_ready, self.members.values()))
        )

    def wait_settled(self) -> None:
        """AssertionError with the end of each log when it does not come to that."""
        try:
            wait_until(self.is_settled, limit_s=SETTLE_LIMIT_S, what="the group is settled")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_ends()}") from None

    def log_ends(self, lines: int = 6) -> str:
        """What each member wrote last."""
        return "\n".join(
            f"--- {member.name}: " + "\n".join(member.log_text().splitlines()[-lines:])
            for member in self.members.values()
        )

    # Verdict

    def judge(self) -> Verdict:
        """After the fault: waits until all is settled, sends some more, reads everything, compares everything."""
        try:
            for member in self.members.values():
                if not _runs(member):
                    self.problems.append(f"{member.name} does not run")
            wait_until(lambda: self.is_ready(self.master), limit_s=SETTLE_LIMIT_S, what="the master is ready")
            self.stop_sending()
            self.send(30)
            self.wait_settled()
        except (AssertionError, grpc.RpcError) as error:
            self.stop_sending()
            self.problems.append(f"{error}")
        acknowledged = self._ledger.acknowledged
        with suppress(grpc.RpcError):
            self.read(READERS, TOPIC, acknowledged - self._ledger.delivered)
        with suppress(grpc.RpcError):
            self.read(SETTLED_READERS, OTHER_TOPIC, acknowledged - self._ledger.delivered)
        undelivered = acknowledged - self._ledger.delivered
        held = [self.logged(member) for member in (self.master, *self.slaves)]
        missing = acknowledged - held[0]
        return Verdict(
            acknowledged=len(acknowledged),
            lost=len(missing | undelivered),
            undelivered=len(undelivered),
            missing_on_slaves=sum(len(acknowledged - ids) for ids in held[1:]),
            broken_bodies=len(self._ledger.broken),
            differing_bytes=self._differing_bytes(),
            lost_names=self._lost_names(),
            problems=tuple(self.problems),
        )

    def _differing_bytes(self) -> int:
        try:
            end_offset = _status(self.master).end_offset
        except grpc.RpcError:
            return -1
        ours = self.store(self.master)
        return sum(
            compare_logs(ours, self.store(slave), end_offset=end_offset).differing_bytes for slave in self.slaves
        )

    def _lost_names(self) -> tuple[str, ...]:
        lost: list[str] = []
        for member in self.members.values():
            deadline = time.monotonic() + 5
            while True:
                try:
                    found = _lost(self._before, self.tables_of(member))
                except grpc.RpcError as error:
                    found = [f"no answer: {error.code()}"]
                # A slave takes its master's tables over within a second.
                if not found or time.monotonic() > deadline:
                    break
                time.sleep(0.2)
            lost += [f"{member.name}: {name}" for name in found]
        return tuple(lost)


def _lost(before: Tables, after: Tables) -> list[str]:
    """What was there and is not, or is less."""
    return [
        *(f"topic {name}" for name, queues in before.topics.items() if after.topics.get(name) != queues),
        *(f"group {name}" for name in sorted(before.groups - after.groups)),
        *(
            f"offset {key}: {after.offsets.get(key, 0)} < {offset}"
            for key, offset in before.offsets.items()
            if after.offsets.get(key, 0) < offset
        ),
    ]


def _runs(member: ServiceProcess) -> bool:
    return member.process is not None and member.process.poll() is None


def _status(member: ServiceProcess) -> pb.GetBrokerStatusResponse:
    status: pb.GetBrokerStatusResponse = _admin(member).GetBrokerStatus(
        pb.GetBrokerStatusRequest(), timeout=CALL_LIMIT_S
    )
    return status


def _admin(member: ServiceProcess) -> broker_admin_service_pb2_grpc.BrokerAdminServiceStub:
    return broker_admin_service_pb2_grpc.BrokerAdminServiceStub(_channel(member.ports["listenPort"]))


_channels: dict[int, grpc.Channel] = {}


def _channel(port: int) -> grpc.Channel:
    if port not in _channels:
        _channels[port] = grpc.insecure_channel(
            f"127.0.0.1:{port}",
            options=[("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)],
        )
    return _channels[port]


def _receive_call(
    stub: service_pb2_grpc.MessagingServiceStub, group: str, topic: str
) -> grpc.CallIterator[service.ReceiveMessageResponse]:
    request = service.ReceiveMessageRequest(
        group=definition.Resource(name=group),
        message_queue=definition.MessageQueue(
            topic=definition.Resource(name=topic), broker=definition.Broker(name=NAME)
        ),
        filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
        batch_size=32,
    )
    request.invisible_duration.FromMilliseconds(LEASE_MS)
    request.long_polling_timeout.FromMilliseconds(5_000)
    call: grpc.CallIterator[service.ReceiveMessageResponse] = stub.ReceiveMessage(
        request, metadata=METADATA, timeout=15
    )
    return call


def _receive(stub: service_pb2_grpc.MessagingServiceStub, group: str, topic: str) -> Iterable[definition.Message]:
    """One receive; nothing when the broker is away, or has no such topic."""
    try:
        for element in _receive_call(stub, group, topic):
            if element.HasField("message"):
                yield element.message
    except grpc.RpcError:
        time.sleep(0.2)


def _acknowledge(
    stub: service_pb2_grpc.MessagingServiceStub, group: str, topic: str, messages: list[definition.Message]
) -> None:
    request = service.AckMessageRequest(
        group=definition.Resource(name=group),
        topic=definition.Resource(name=topic),
        entries=[
            service.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ],
    )
    stub.AckMessage(request, metadata=METADATA, timeout=CALL_LIMIT_S)
