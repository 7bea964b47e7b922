"""All decisions of one NameServer: who is alive, which broker group serves which queue, and what a client is told.

Theory of operation. Mirrors RocketMQ's RouteInfoManager, but a dead process never wins over a live one:

- A member is one process: identity, disk and run of the disk. A later run replaces an earlier one of its disk at any
  address; an earlier one cannot push out a live later one, so two masters with one id do not take turns. A process on
  another disk is another replica and waits until the live one has gone. Wall clocks decide nothing, except between
  brokers of an older version, which know no disk: there the later incarnation counts.
- Who is master a member says when it registers; its id says nothing. A group has one: of two that serve, the one that
  registered in the greater epoch. The other stays listed, as no master, until it registers as a slave. An epoch has
  one master, so a second id that registers in it is refused.
- A master is superseded when its epoch is lower than one in which another disk of its group was master. It is refused,
  and its heartbeats say so, because it may not have noticed (`GroupMemory` outlives the members). So an older master
  never takes the route back. The epoch of a slave supersedes nobody: it comes from a master, who speaks for himself.
- A member that recovers is listed and is in no route: its topic table is not the group's, and it has no HA address.
- A member lives until it leaves, its heartbeat stream breaks, or it is silent for its liveness timeout. Only the stream
  that carried its last heartbeat counts, so the end of a stream that it has replaced is no loss.
- The topic table is the master's. The smallest slave's stands in only while a group has had no master at all. When the
  master goes the table stays; clients get rows to read alone, once a slave says that it serves them, and else none. The
  last member's departure removes it.
- A new topic table is taken when its data version changed or the process is new, not at every registration. So what an
  operator changed here (`wipe_write_permission`) outlives the renewals, but not the next change by the broker.

There is no I/O and no clock: every deadline is in ms of the caller's monotonic clock. Everything but the memory is soft
state.

Clients get one row for each queue of each group that can serve it now, as in RocketMQ 5's RouteActivity, with two
differences that their own mistakes call for. Only one member's rows are listed, the master's while there is one: Go and
Rust choose among all rows without looking at the broker id, and would send to a slave. And only what the topic really
permits is listed, because the same clients do not look at the permission. Where a slave serves reads alone they send to
it, and are refused at once; Go goes on with the next row then. Others send to broker id 0 only, so clients are told
that id, whichever the master has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from typing import Final

from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.group_memory import GroupMemory
from tandemmq.core.routing.values import (
    MASTER_ID,
    PERMISSION_READ,
    PERMISSION_WRITE,
    Address,
    AddressScheme,
    BrokerData,
    BrokerIdentity,
    Heartbeat,
    QueueData,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    RouteSnapshot,
    TopicQueues,
    TopicRoute,
    parse_address,
)

_queue_id: Final = attrgetter("queue_id")
_MIXED: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
# Types of a topic that takes nothing else.
_SINGLE: Final = frozenset((*_MIXED, "LITE", "PRIORITY"))


class QueuePermission(Enum):
    """What a client may do with a queue; never none, a row without permission is not listed."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "read and write"

    @property
    def is_readable(self) -> bool:
        """True where consumers may poll."""
        return self is not QueuePermission.WRITE

    @property
    def is_writable(self) -> bool:
        """True where producers may send."""
        return self is not QueuePermission.READ


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue, and the client plane of the member that serves it."""

    topic: str
    queue_id: int
    permission: QueuePermission
    broker_name: str
    # As clients are told it: always `MASTER_ID`.
    broker_id: int
    address: Address
    # Message types that may be sent to it, for example ("NORMAL",).
    accept_types: tuple[str, ...]
    # Members that pass calls on to the master, to be tried when its own address does not answer.
    stand_ins: tuple[Address, ...] = ()


def queue_rows(route: TopicRoute) -> list[QueueRow]:
    """Rows of all groups whose master is live, by queue id and broker name: the same order at every call. Of a group
    without a master those to read, if one of its slaves serves reads.

    A simple consumer of the official clients polls row after row, each poll at a whole group: neighbours are of
    different groups, or it would wait at one of them as often as that has queues before it asks the next.

    Empty when no group has either, or none permits anything. Go compares routes by position, and a queue id 0
    exists for each broker because Node reads no other.
    """
    groups = {group.broker_name: group for group in route.brokers}
    rows = []
    for queues in route.queues:
        group = groups.get(queues.broker_name)
        address = _served_at(group) if group is not None else None
        if group is None or address is None:
            continue
        stand_ins = _stand_ins(group, address)
        accept_types = accepted_message_types(queues.message_type)
        rows += [
            QueueRow(route.topic, queue_id, permission, queues.broker_name, MASTER_ID, address, accept_types, stand_ins)
            for queue_id, permission in enumerate(_permissions(queues, is_writable=group.master is not None))
        ]
    rows.sort(key=_queue_id)  # Groups keep their order.
    return rows


def _served_at(group: BrokerData) -> Address | None:
    """An address that stays leads to the master alone; a slave that serves reads names its own."""
    if group.master is not None:
        return parse_address(group.master.client_group or group.master.client)
    return parse_address(group.reader.client) if group.reader is not None else None


def _stand_ins(group: BrokerData, master: Address) -> tuple[Address, ...]:
    """By broker id. A name stands alone: official clients take one, or several addresses of one kind. So does an
    address that leads to the next master by itself."""
    if master.scheme is AddressScheme.DOMAIN_NAME or (group.master is not None and group.master.client_group):
        return ()
    others = (parse_address(endpoints.client) for endpoints in group.endpoints.values() if endpoints.forwards)
    return tuple(
        address for address in others if address is not None and address != master and address.scheme is master.scheme
    )


def external_route(route: TopicRoute) -> TopicRoute:
    """The route for clients outside the cluster's network: external client endpoints; members without one left out."""
    return replace(route, brokers=tuple(_external_group(group) for group in route.brokers))


def _external_group(group: BrokerData) -> BrokerData:
    external = {
        broker_id: replace(endpoints, client=endpoints.client_external, client_group="")
        for broker_id, endpoints in group.endpoints.items()
        if endpoints.client_external
    }
    return replace(group, endpoints=external, master_id=group.master_id if group.master_id in external else None)


def accepted_message_types(message_type: str) -> tuple[str, ...]:
    """What a topic of this type takes: MIXED all four ordinary types, any other only itself.

    No type, or one that is not RocketMQ's, counts as NORMAL: a list that is empty or unknown to a client stops it.
    """
    if message_type == "MIXED":
        return _MIXED
    return (message_type,) if message_type in _SINGLE else ("NORMAL",)


def _permissions(queues: QueueData, *, is_writable: bool) -> Iterator[QueuePermission]:
    """One per queue, ids counted through: surplus read queues, surplus write queues, then those that are both."""
    readable = queues.read_queue_count if queues.permission & PERMISSION_READ else 0
    writable = queues.write_queue_count if is_writable and queues.permission & PERMISSION_WRITE else 0
    both = min(readable, writable)
    for _ in range(readable - both):
        yield QueuePermission.READ
    for _ in range(writable - both):
        yield QueuePermission.WRITE
    for _ in range(both):
        yield QueuePermission.READ_WRITE


# The table.

# Key-value namespace that maps a topic to its order configuration, "broker-a:4;broker-b:4".
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


@dataclass(frozen=True, slots=True)
class Registered:
    """The registration counts."""

    # False for a mere renewal.
    is_new: bool
    # True if routes changed.
    is_change: bool
    # The group's live master, which may be the registrant.
    master: RegisteredBroker | None
    order_topics: Mapping[str, str]
    # Entries that it pushed out: its own former process, or itself under the id of its former role.
    replaced: tuple[RegisteredBroker, ...]


@dataclass(frozen=True, slots=True)
class RegistrationRefused:
    """The registration contradicts a live broker or a later master; nothing changed."""

    reason: str
    # A master with a greater epoch is known: the registrant must take no more messages.
    is_superseded: bool = False


class HeartbeatStatus(Enum):
    """What a sign of life meets."""

    ACCEPTED = "accepted"
    # Alive, but its topic table is not the one we know.
    TABLE_UNKNOWN = "table unknown"
    # Not registered, or another process of that identity is. It does not count as alive.
    BROKER_UNKNOWN = "broker unknown"


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    status: HeartbeatStatus
    master: RegisteredBroker | None
    # True if the member is another broker to others than before: its epoch rose.
    is_change: bool = False
    # Why this master must take no more messages; empty when it may.
    superseded: str = ""


@dataclass(slots=True)
class _Member:
    broker: RegisteredBroker
    liveness_timeout_ms: int
    last_seen_ms: int
    # What it said itself; `broker` is a master only while no other one is.
    says_master: bool
    # Stream of its last heartbeat; None before the first.
    connection: int | None = None

    @property
    def deadline_ms(self) -> int:
        """The first moment at which it no longer counts as alive."""
        return self.last_seen_ms + self.liveness_timeout_ms


@dataclass(frozen=True, slots=True)
class _TableOrigin:
    """Which process's topic table, and which version of it."""

    broker_id: int
    incarnation: int
    data_version: DataVersion
    # False for a slave that stands in.
    is_master: bool


@dataclass(slots=True)
class _Group:
    """One broker group; it exists while it has a member."""

    cluster: str
    members: dict[int, _Member] = field(default_factory=dict)
    # By topic, as rows of routes from the start: snapshots share them instead of making new ones.
    topics: dict[str, QueueData] = field(default_factory=dict)
    origin: _TableOrigin | None = None

    @property
    def master(self) -> RegisteredBroker | None:
        """The master; while none serves, one that recovers."""
        return _master_of(member.broker for member in self.members.values())

    @property
    def serving_master(self) -> RegisteredBroker | None:
        master = self.master
        return master if master is not None and not master.recovering else None

    @property
    def serving_ids(self) -> list[int]:
        """Members that routes name, in ascending order."""
        return sorted(broker_id for broker_id, member in self.members.items() if not member.broker.recovering)

    def takes_table_of(self, broker_id: int) -> bool:
        """Whether this member's topic table is the group's."""
        serving_ids = self.serving_ids
        if broker_id not in serving_ids:
            return False
        master = self.serving_master
        if master is not None:
            return master.identity.broker_id == broker_id
        is_stand_in = broker_id == serving_ids[0]
        return is_stand_in and (
            self.origin is None or (self.origin.broker_id == broker_id and not self.origin.is_master)
        )

    def settle_roles(self) -> None:
        """A master gives way to a newer one: one that serves until it registers again, one that recovers meanwhile."""
        master = self.serving_master
        for member in self.members.values():
            broker = member.broker
            is_claim = member.says_master if broker.recovering else broker.is_master
            is_master = is_claim and (master is None or broker is master or broker.role_epoch > master.role_epoch)
            if is_master is not broker.is_master:
                member.broker = replace(broker, is_master=is_master)


class RouteTable:
    """The state of one NameServer. Every method is a few dictionary steps, except `snapshot` after a change.

    `memory` is of an earlier process, or new. `wall_ms` arguments are for people to read, and for it.
    """

    def __init__(self, memory: GroupMemory | None = None) -> None:
        self.memory: Final = memory or GroupMemory()
        self._groups: dict[str, _Group] = {}
        # Groups without write permission, and the topic table for which that was said. Kept when the group goes: a
        # connection that breaks in the middle of a drain must not undo the drain.
        self._wiped: dict[str, _TableOrigin] = {}
        self._kv: dict[str, dict[str, str]] = {}
        self.revision = 0
        """Grows with every change that `snapshot` would show."""
        self._snapshot = RouteSnapshot(0, {}, ())

    # Members come and go

    def register(
        self, registration: Registration, *, now_ms: int, wall_ms: int = 0
    ) -> Registered | RegistrationRefused:
        """Takes a member in or renews it."""
        identity = registration.identity
        group = self._groups.get(identity.broker_name) or _Group(identity.cluster)
        current = group.members.get(identity.broker_id)
        broker = _broker_of(registration)
        refused = (self._superseded(broker) if broker.is_master else None) or _contradiction(broker, group, current)
        if refused is not None:
            is_stale = current is not None and broker.is_master and current.broker.epoch > broker.epoch
            # Also on the same disk, which is then a copy: whoever serves in an earlier epoch has to stop.
            return replace(refused, is_superseded=refused.is_superseded or (is_stale and not broker.recovering))
        is_new = current is None or not _is_same_process(current.broker, broker)
        replaced = _drop_former_role(group, broker)
        if current is not None and is_new:
            replaced.append(current.broker)
        connection = current.connection if current is not None and not is_new else None
        member = _Member(broker, registration.liveness_timeout_ms, now_ms, registration.is_master, connection)
        group.members[identity.broker_id] = member
        self._groups[identity.broker_name] = group
        group.settle_roles()
        is_table_changed = self._take_topics(group, registration)
        is_change = bool(replaced) or is_table_changed or current is None or current.broker != member.broker
        if is_change:
            self.revision += 1
        self._remember_registration(registration, replaced, wall_ms=wall_ms)
        order_topics = dict(self._kv.get(ORDER_TOPIC_NAMESPACE, {}))
        return Registered(is_new, is_change, group.master, order_topics, tuple(replaced))

    def heartbeat(self, beat: Heartbeat, *, connection: int, now_ms: int, wall_ms: int = 0) -> HeartbeatAnswer:
        """Renews a member's life. `connection` is any number that names the stream it came on."""
        group = self._groups.get(beat.identity.broker_name)
        member = _member(group, beat.identity, beat.incarnation)
        if group is None or member is None:
            return HeartbeatAnswer(HeartbeatStatus.BROKER_UNKNOWN, group.master if group is not None else None)
        member.last_seen_ms = now_ms
        member.connection = connection
        # An epoch is durable before anybody is told of it, so a lower one is late news.
        is_change = beat.epoch > member.broker.epoch
        member.broker = replace(
            member.broker,
            epoch=max(beat.epoch, member.broker.epoch),
            end_offset=member.broker.end_offset if beat.end_offset is None else beat.end_offset,
        )
        if is_change:
            self.revision += 1
        self._remember(member.broker, unproven=beat.unproven, record_version=beat.record_version, wall_ms=wall_ms)
        is_table_known = member.broker.data_version == beat.data_version
        status = HeartbeatStatus.ACCEPTED if is_table_known else HeartbeatStatus.TABLE_UNKNOWN
        refused = self._superseded(member.broker) if member.says_master else None
        return HeartbeatAnswer(status, group.master, is_change, refused.reason if refused is not None else "")

    def unregister(
        self,
        identity: BrokerIdentity,
        *,
        incarnation: int,
        disk_id: str = "",
        run: int = 0,
        end_offset: int | None = None,
    ) -> RegisteredBroker | None:
        """Takes a member out and returns it; None if it was not there. Incarnation 0 matches any process.

        With an `end_offset` the log of that disk and run ends there for good; that may be told after the member left.
        Only of a process that is proven: see `Registration.unproven`.
        """
        member = _member(self._groups.get(identity.broker_name), identity, incarnation)
        if member is not None:
            self._remove(member.broker)
        if disk_id and end_offset is not None:
            self.memory.left(identity, disk_id, run=run, end_offset=end_offset)
        return member.broker if member is not None else None

    def connection_lost(self, connection: int) -> list[RegisteredBroker]:
        """Takes out who last gave a sign of life on this stream, and on no newer one."""
        return self._remove_all(m.broker for _, m in self._members() if m.connection == connection)

    def expire(self, *, now_ms: int) -> list[RegisteredBroker]:
        """Removes members that were silent for their liveness timeout."""
        return self._remove_all(m.broker for _, m in self._members() if m.deadline_ms <= now_ms)

    # What is known

    def route(self, topic: str) -> TopicRoute | None:
        """A topic's route; None when no live member's group serves it."""
        names = sorted(name for name, group in self._groups.items() if topic in group.topics and group.serving_ids)
        if not names:
            return None
        return self._route(topic, {name: self._broker_data(name) for name in names})

    @property
    def topic_count(self) -> int:
        return len(set().union(*(group.topics for group in self._groups.values() if group.serving_ids)))

    def brokers(self) -> list[RegisteredBroker]:
        """All live members, ordered by identity."""
        return sorted((member.broker for _, member in self._members()), key=lambda broker: broker.identity)

    def last_seen_ms(self, identity: BrokerIdentity) -> int | None:
        """A live member's last registration or heartbeat."""
        member = _member(self._groups.get(identity.broker_name), identity, 0)
        return member.last_seen_ms if member is not None else None

    def snapshot(self) -> RouteSnapshot:
        """All routes and members; built once per revision, so many watchers cost no more than one."""
        if self._snapshot.revision != self.revision:
            groups = {name: self._broker_data(name) for name in sorted(self._groups)}
            serving: dict[str, dict[str, BrokerData]] = {}
            for name, data in groups.items():
                for topic in self._groups[name].topics if data.endpoints else ():
                    serving.setdefault(topic, {})[name] = data
            routes = {topic: self._route(topic, serving[topic]) for topic in sorted(serving)}
            self._snapshot = RouteSnapshot(self.revision, routes, tuple(self.brokers()))
        return self._snapshot

    # Write permission

    def wipe_write_permission(self, broker_name: str) -> int:
        """Takes write permission from all queues of a group, for a drain; returns the number of topics it changed.

        It ends with `add_write_permission`, a changed data version, or a new process of the broker.
        """
        group = self._groups.get(broker_name)
        if group is None or group.origin is None or broker_name in self._wiped:
            return 0
        self._wiped[broker_name] = group.origin
        return self._count_writable(group)

    def add_write_permission(self, broker_name: str) -> int:
        """Gives back what was registered; returns the number of topics it changed."""
        group = self._groups.get(broker_name)
        if self._wiped.pop(broker_name, None) is None or group is None:
            return 0
        return self._count_writable(group)

    # Key-value configuration

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        entries = self._kv.setdefault(namespace, {})
        if entries.get(key) != value:
            entries[key] = value
            self._kv_changed(namespace)

    def get_kv(self, namespace: str, key: str) -> str | None:
        return self._kv.get(namespace, {}).get(key)

    def delete_kv(self, namespace: str, key: str) -> None:
        """Removes one key, if it is set."""
        entries = self._kv.get(namespace, {})
        if entries.pop(key, None) is not None:
            self._kv_changed(namespace)
        if not entries:
            self._kv.pop(namespace, None)

    def list_kv(self, namespace: str) -> dict[str, str]:
        """All keys of a namespace, ordered."""
        return dict(sorted(self._kv.get(namespace, {}).items()))

    # Inside

    def _members(self) -> Iterator[tuple[str, _Member]]:
        for name, group in self._groups.items():
            for member in group.members.values():
                yield name, member

    def _remember_registration(
        self, registration: Registration, replaced: list[RegisteredBroker], *, wall_ms: int
    ) -> None:
        identity = registration.identity
        for broker in replaced:
            self.memory.gone(broker.identity, broker.disk_id)
        for replica in registration.known_replicas:
            if (replica.broker_id, replica.disk_id) != (identity.broker_id, registration.disk_id):
                self.memory.told_of_another((identity.cluster, identity.broker_name), replica)
        self._remember(
            _broker_of(registration),
            unproven=registration.unproven,
            record_version=registration.record_version,
            wall_ms=wall_ms,
        )

    def _remember(
        self, broker: RegisteredBroker, *, unproven: bool, record_version: tuple[int, int], wall_ms: int
    ) -> None:
        identity = broker.identity
        if not broker.disk_id:
            return
        told = ReplicaMemory(
            broker_id=identity.broker_id,
            disk_id=broker.disk_id,
            run=broker.run,
            epoch=broker.epoch,
            end_offset=broker.end_offset,
            metadata_endpoint=broker.endpoints.metadata,
            last_seen_wall_ms=wall_ms,
            master_epoch=broker.epoch if broker.is_master else 0,
            # An older version says only that it recovers.
            unproven=unproven or bool(broker.recovering),
            record_version=record_version,
        )
        self.memory.told_of_itself((identity.cluster, identity.broker_name), told)

    def _superseded(self, broker: RegisteredBroker) -> RegistrationRefused | None:
        """A master that another one has followed, on another disk; one that recovers is about to learn it anyway."""
        identity = broker.identity
        if broker.recovering:
            return None
        later = self.memory.later_master(identity, broker.disk_id, broker.epoch)
        if later is None:
            return None
        if not broker.disk_id and (not later.live or later.broker_id == identity.broker_id):
            # Of an older version, which counts no epochs: it gives way only to a master that is there.
            return None
        return RegistrationRefused(
            f"{identity.broker_name} had a master of epoch {later.master_epoch} on disk {later.disk_id} of id "
            f"{later.broker_id}, last at {later.metadata_endpoint or 'an unknown address'}; disk "
            f"{broker.disk_id or 'without an id'} of id {identity.broker_id} knows epoch {broker.epoch} only. If that "
            f"disk is gone for good, give it up with `tandemmq broker accept-loss`",
            is_superseded=True,
        )

    def _take_topics(self, group: _Group, registration: Registration) -> bool:
        """Makes the registrant's topic table the group's, if it is its turn; True if that changed anything."""
        identity = registration.identity
        origin = _TableOrigin(
            identity.broker_id,
            registration.incarnation,
            registration.data_version,
            is_master=group.serving_master is not None,
        )
        if not group.takes_table_of(identity.broker_id) or group.origin == origin:
            return False
        topics = {queues.topic: _queue_data(identity.broker_name, queues) for queues in registration.topics}
        is_changed = topics != group.topics
        group.topics, group.origin = topics, origin
        if self._wiped.get(identity.broker_name, origin) != origin:
            del self._wiped[identity.broker_name]
            is_changed = True
        return is_changed

    def _remove_all(self, brokers: Iterator[RegisteredBroker]) -> list[RegisteredBroker]:
        removed = list(brokers)
        for broker in removed:
            self._remove(broker)
        return removed

    def _remove(self, broker: RegisteredBroker) -> None:
        self.memory.gone(broker.identity, broker.disk_id)
        group = self._groups[broker.identity.broker_name]
        del group.members[broker.identity.broker_id]
        group.settle_roles()
        if not group.members:
            del self._groups[broker.identity.broker_name]
        self.revision += 1

    def _broker_data(self, broker_name: str) -> BrokerData:
        group = self._groups[broker_name]
        members = [group.members[broker_id].broker for broker_id in group.serving_ids]
        return _group_data(group.cluster, broker_name, members)

    def _route(self, topic: str, groups: Mapping[str, BrokerData]) -> TopicRoute:
        """`groups` are those that serve the topic, in order of their names."""
        queues = tuple(self._row(name, topic) for name in groups)
        order_topic_conf = self.get_kv(ORDER_TOPIC_NAMESPACE, topic) or ""
        return TopicRoute(topic, queues, tuple(groups.values()), order_topic_conf)

    def _row(self, broker_name: str, topic: str) -> QueueData:
        row = self._groups[broker_name].topics[topic]
        return replace(row, permission=row.permission & ~PERMISSION_WRITE) if broker_name in self._wiped else row

    def _count_writable(self, group: _Group) -> int:
        self.revision += 1
        return sum(1 for row in group.topics.values() if row.permission & PERMISSION_WRITE)

    def _kv_changed(self, namespace: str) -> None:
        if namespace == ORDER_TOPIC_NAMESPACE:
            self.revision += 1


def _queue_data(broker_name: str, queues: TopicQueues) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_count=queues.read_queue_count,
        write_queue_count=queues.write_queue_count,
        permission=queues.permission,
        topic_system_flag=queues.topic_system_flag,
        message_type=queues.message_type,
    )


def _member(group: _Group | None, identity: BrokerIdentity, incarnation: int) -> _Member | None:
    """The live member with exactly this identity, if it is this process; incarnation 0 matches any."""
    member = group.members.get(identity.broker_id) if group is not None else None
    if member is None or member.broker.identity != identity:
        return None
    return member if incarnation in (0, member.broker.incarnation) else None


def _broker_of(registration: Registration) -> RegisteredBroker:
    endpoints = registration.endpoints
    return RegisteredBroker(
        registration.identity,
        # Nobody may follow a master that does not know yet what its log will be.
        replace(endpoints, ha="") if registration.recovering else endpoints,
        registration.incarnation,
        registration.data_version,
        registration.disk_id,
        registration.run,
        registration.epoch,
        registration.end_offset,
        registration.recovering,
        registration.is_master,
        role_epoch=registration.epoch,
    )


def _group_data(cluster: str, broker_name: str, members: Sequence[RegisteredBroker]) -> BrokerData:
    """`members` are those that serve, by their ids."""
    master = _master_of(members)
    endpoints = {member.identity.broker_id: member.endpoints for member in members}
    if master is None:
        return BrokerData(cluster, broker_name, endpoints, None)
    return BrokerData(cluster, broker_name, endpoints, master.identity.broker_id, master.role_epoch)


def _master_of(members: Iterable[RegisteredBroker]) -> RegisteredBroker | None:
    """Of those that registered as master one that serves, and there the one of the greatest epoch.

    Two in one epoch have met different NameServers. Then the smaller id counts, so that everybody sees the same one.
    """
    claims = [member for member in members if member.is_master]
    return max(claims, key=lambda each: (not each.recovering, each.role_epoch, -each.identity.broker_id), default=None)


def _is_same_process(one: RegisteredBroker, other: RegisteredBroker) -> bool:
    return (one.incarnation, one.disk_id, one.run) == (other.incarnation, other.disk_id, other.run)


def _is_same_address(one: RegisteredBroker, other: RegisteredBroker) -> bool:
    """An address can have only one process. A broker that recovers has no client plane yet."""
    return bool(one.endpoints.client) and one.endpoints.client == other.endpoints.client


def _on_different_disks(one: RegisteredBroker, other: RegisteredBroker) -> bool:
    return bool(one.disk_id and other.disk_id) and one.disk_id != other.disk_id


def _contradiction(broker: RegisteredBroker, group: _Group, current: _Member | None) -> RegistrationRefused | None:
    identity = broker.identity
    if group.cluster != identity.cluster:
        return RegistrationRefused(
            f"{identity.broker_name} is alive in cluster {group.cluster}; a broker name belongs to one cluster"
        )
    if (same_epoch := _other_of_its_epoch(broker, group)) is not None:
        return same_epoch
    if current is None or _is_same_process(current.broker, broker):
        return None
    live = current.broker
    if live.recovering and not broker.recovering:
        # A member that only waits keeps out nobody who serves. By the refusal it learns that somebody does.
        return None
    alive = f"{identity.broker_name} id {identity.broker_id} is alive at {live.endpoints.client or 'no address yet'}"
    if _on_different_disks(live, broker):
        return RegistrationRefused(
            f"{alive} on disk {live.disk_id}; the process at {broker.endpoints.client or 'no address yet'} has disk "
            f"{broker.disk_id}. Stop one of them, or give this one a brokerId or brokerName of its own"
        )
    if _is_same_address(live, broker):
        return None
    if live.disk_id and live.disk_id == broker.disk_id:
        # One that only recovers takes nothing from one that serves elsewhere: it may have been started on a copy.
        is_elsewhere = broker.endpoints.metadata != live.endpoints.metadata
        if broker.is_later_than(live) and not (broker.recovering and not live.recovering and is_elsewhere):
            return None
        other = broker.endpoints.client or broker.endpoints.metadata
        return RegistrationRefused(
            f"{alive} on disk {live.disk_id} in run {live.run}; the process at {other} has the same "
            f"disk in run {broker.run}, so one of the two disks is a copy. Stop one of them"
        )
    if live.is_later_than(broker):
        return RegistrationRefused(f"{alive} and was started later; two processes cannot share an id")
    return None


def _other_of_its_epoch(broker: RegisteredBroker, group: _Group) -> RegistrationRefused | None:
    master, identity = group.serving_master, broker.identity
    if master is None or not broker.is_master or broker.recovering or master.role_epoch != broker.epoch:
        return None
    if master.identity == identity or (_is_same_address(master, broker) and not _on_different_disks(master, broker)):
        return None
    return RegistrationRefused(
        f"{identity.broker_name} has a master of epoch {broker.epoch}: id {master.identity.broker_id} at "
        f"{master.endpoints.client}; an epoch has one master, and the process at {broker.endpoints.client} with id "
        f"{identity.broker_id} has to begin a later one or to be its slave"
    )


def _drop_former_role(group: _Group, broker: RegisteredBroker) -> list[RegisteredBroker]:
    """Takes out the registrant's entry under another id: a master that became a slave, or the reverse."""
    former = [
        member.broker
        for broker_id, member in group.members.items()
        if broker_id != broker.identity.broker_id
        and _is_same_address(member.broker, broker)
        and not _on_different_disks(member.broker, broker)
    ]
    for each in former:
        del group.members[each.identity.broker_id]
    return former


# One view from several NameServers. They never talk to each other, so each may miss a broker. A broker is alive if any
# of them says so, or one that has just started would take brokers from everybody's routes. The price: a dead broker
# stays as long as the slowest of them takes to notice, from the broken connection's milliseconds up to the liveness
# timeout.


def merge_snapshots(snapshots: Sequence[RouteSnapshot], *, revision: int) -> RouteSnapshot:
    """The union of `snapshots`, ordered from stalest to freshest by the caller.

    Of two processes with one identity the later one counts, and of two registrations of one process that of the greater
    epoch. A group's queues are those of the freshest snapshot in which the group serves, and under no older master, as
    a whole, so that a deleted topic does not linger.
    """
    if len(snapshots) == 1:
        return replace(snapshots[0], revision=revision)
    brokers = _merged_brokers(snapshots)
    groups = _groups(brokers)
    source = {
        name: index
        for index, snapshot in enumerate(snapshots)
        for name, group in _groups({broker.identity: broker for broker in snapshot.brokers}).items()
        if name in groups and not (group.master_id is not None and group.epoch < groups[name].epoch)
    }
    queues: dict[str, dict[str, QueueData]] = {}
    order_topic_confs: dict[str, str] = {}
    for index, snapshot in enumerate(snapshots):
        for topic, route in snapshot.routes.items():
            order_topic_confs[topic] = route.order_topic_conf or order_topic_confs.get(topic, "")
            for row in route.queues:
                if source.get(row.broker_name) == index:
                    queues.setdefault(topic, {})[row.broker_name] = row
    routes = {topic: _route(topic, queues[topic], groups, order_topic_confs[topic]) for topic in sorted(queues)}
    return RouteSnapshot(revision, routes, tuple(sorted(brokers.values(), key=lambda broker: broker.identity)))


def _merged_brokers(snapshots: Sequence[RouteSnapshot]) -> dict[BrokerIdentity, RegisteredBroker]:
    brokers: dict[BrokerIdentity, RegisteredBroker] = {}
    for snapshot in snapshots:
        for broker in snapshot.brokers:
            known = brokers.get(broker.identity)
            if known is None or not _outdates(known, broker):
                brokers[broker.identity] = broker
    groups = _groups(brokers)
    for identity, broker in brokers.items():
        group = groups.get(identity.broker_name)
        if group is None or group.master_id in (None, identity.broker_id):
            continue
        if broker.is_master and broker.role_epoch <= group.epoch:
            brokers[identity] = replace(broker, is_master=False)
    return brokers


def _outdates(known: RegisteredBroker, fresher: RegisteredBroker) -> bool:
    """Whether what a staler snapshot says of a broker counts all the same."""
    if not _is_same_process(known, fresher):
        return bool(known.is_later_than(fresher))
    # Nobody becomes a master without a later epoch, so in one epoch the slave is the later one.
    return (known.role_epoch, not known.is_master) > (fresher.role_epoch, not fresher.is_master)


def _groups(brokers: Mapping[BrokerIdentity, RegisteredBroker]) -> dict[str, BrokerData]:
    """The groups in which somebody serves."""
    members: dict[str, list[RegisteredBroker]] = {}
    for identity in sorted(brokers):
        if not brokers[identity].recovering:
            members.setdefault(identity.broker_name, []).append(brokers[identity])
    return {name: _group_data(each[-1].identity.cluster, name, each) for name, each in members.items()}


def _route(
    topic: str, queues: Mapping[str, QueueData], groups: Mapping[str, BrokerData], order_topic_conf: str
) -> TopicRoute:
    names = sorted(queues)
    return TopicRoute(
        topic, tuple(queues[name] for name in names), tuple(groups[name] for name in names), order_topic_conf
    )
