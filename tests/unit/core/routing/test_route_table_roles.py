"""Who is a group's master: rules one by one, then members that change roles in any order under two NameServers."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.group_memory import GroupMemory
from tandemmq.core.routing.route_table import (
    HeartbeatAnswer,
    Registered,
    RegistrationRefused,
    RouteTable,
    external_route,
    merge_snapshots,
    queue_rows,
)
from tandemmq.core.routing.values import (
    BrokerData,
    BrokerEndpoints,
    BrokerIdentity,
    Heartbeat,
    RegisteredBroker,
    Registration,
    ReplicaMemory,
    RouteSnapshot,
    TopicQueues,
)

GROUP = ("DefaultCluster", "broker-a")
ORDERS, BILLS = TopicQueues("orders", 2, 2, 6), TopicQueues("bills", 2, 2, 6)


def member(
    broker_id: int,
    epoch: int,
    *topics: TopicQueues,
    is_master: bool | None = None,
    disk_id: str | None = None,
    run: int = 1,
    recovering: str = "",
    version: int = 1,
) -> Registration:
    """`is_master` None: of a version that does not tell."""
    host = f"host-{broker_id}"
    registration = Registration(
        BrokerIdentity(*GROUP, broker_id),
        BrokerEndpoints(f"{host}:8081", f"{host}:10911", f"{host}:10912", f"outside-{broker_id}:8081"),
        run,
        1_000,
        DataVersion(0, 0, version),
        topics or (ORDERS,),
        f"disk-{broker_id}" if disk_id is None else disk_id,
        run,
        epoch,
        recovering=recovering,
    )
    return registration if is_master is None else replace(registration, is_master=is_master)


def master(broker_id: int, epoch: int, *topics: TopicQueues, run: int = 1, version: int = 1) -> Registration:
    return member(broker_id, epoch, *topics, is_master=True, run=run, version=version)


def slave(broker_id: int, epoch: int, *topics: TopicQueues, version: int = 1) -> Registration:
    return member(broker_id, epoch, *topics, is_master=False, version=version)


def table_of(*registrations: Registration) -> RouteTable:
    table = RouteTable()
    for registration in registrations:
        assert isinstance(table.register(registration, now_ms=0), Registered)
    return table


def refused(table: RouteTable, registration: Registration) -> RegistrationRefused:
    answer = table.register(registration, now_ms=0)
    assert isinstance(answer, RegistrationRefused), answer
    return answer


def beat(table: RouteTable, broker_id: int, epoch: int) -> HeartbeatAnswer:
    beat = Heartbeat(BrokerIdentity(*GROUP, broker_id), 1, DataVersion(0, 0, 1), epoch)
    return table.heartbeat(beat, connection=broker_id, now_ms=0)


def group_of(snapshot: RouteSnapshot | RouteTable, topic: str = "orders") -> BrokerData:
    route = snapshot.route(topic) if isinstance(snapshot, RouteTable) else snapshot.routes.get(topic)
    assert route is not None
    return route.brokers[0]


def masters(brokers: list[RegisteredBroker] | tuple[RegisteredBroker, ...]) -> list[int]:
    return [broker.identity.broker_id for broker in brokers if broker.is_master]


# Who is master


def test_master_is_who_registered_as_it_whatever_its_id() -> None:
    table = table_of(slave(0, 3), master(1, 3))
    group = group_of(table)
    assert (group.master_id, group.epoch, list(group.endpoints)) == (1, 3, [0, 1])
    answer = table.register(slave(0, 3), now_ms=0)
    assert isinstance(answer, Registered)
    assert answer.master is not None
    assert answer.master.identity.broker_id == 1


def test_newer_master_takes_the_group_and_the_older_one_stays_listed() -> None:
    table = table_of(master(0, 3, ORDERS), slave(1, 3), master(1, 4, BILLS))
    assert masters(table.brokers()) == [1]
    assert group_of(table, "bills").master_id == 1
    assert list(group_of(table, "bills").endpoints) == [0, 1]
    assert table.route("orders") is None, "the topic table is the master's"


def test_older_master_is_told_and_comes_back_as_slave_only() -> None:
    table = table_of(master(0, 3), master(1, 4))
    assert "epoch 4 on disk disk-1" in beat(table, 0, 3).superseded
    assert refused(table, master(0, 3)).is_superseded
    assert masters(table.brokers()) == [1]
    assert isinstance(table.register(slave(0, 3), now_ms=0), Registered)
    assert beat(table, 0, 4).superseded == ""


def test_older_master_is_no_master_when_the_newer_one_has_gone() -> None:
    table = table_of(master(0, 3), master(1, 4))
    table.unregister(BrokerIdentity(*GROUP, 1), incarnation=0)
    assert (group_of(table).master_id, masters(table.brokers())) == (None, [])
    route = table.route("orders")
    assert route is not None
    assert queue_rows(route) == []
    assert refused(table, master(0, 3)).is_superseded
    assert isinstance(table.register(master(0, 5), now_ms=0), Registered)
    assert group_of(table).master_id == 0


def test_older_master_stays_refused_by_a_name_server_that_restarted() -> None:
    table = table_of(master(1, 4))
    table = RouteTable(GroupMemory.restored(table.memory.image().text()))
    assert refused(table, master(0, 3)).is_superseded


def test_epoch_has_one_master() -> None:
    table = table_of(master(0, 4))
    answer = refused(table, master(1, 4))
    assert not answer.is_superseded
    for word in ("epoch 4", "id 0 at host-0:8081", "host-1:8081 with id 1"):
        assert word in answer.reason


def test_older_master_that_follows_already_keeps_nobody_out() -> None:
    """Its heartbeats are in its successor's epoch before either has registered anew."""
    table = table_of(master(0, 3), slave(1, 3))
    assert beat(table, 0, 4).superseded == ""
    assert isinstance(table.register(master(1, 4), now_ms=0), Registered)
    assert masters(table.brokers()) == [1]


def test_slaves_epoch_supersedes_nobody() -> None:
    table = table_of(slave(1, 9))
    assert isinstance(table.register(master(0, 3), now_ms=0), Registered)
    assert beat(table, 0, 3).superseded == ""
    told = ReplicaMemory(2, "disk-2", 1, 9, 100, master_epoch=0)
    table.register(replace(slave(1, 9), known_replicas=(told,)), now_ms=0)
    assert beat(table, 0, 3).superseded == ""
    # A master that followed a later one since was not master in that one's epoch.
    table = table_of(master(0, 3), slave(0, 9))
    assert isinstance(table.register(master(1, 8), now_ms=0), Registered)


def test_one_that_recovers_is_not_refused_and_no_master_beside_one_that_serves() -> None:
    table = table_of(master(1, 4))
    waiting = member(0, 3, is_master=True, recovering="asks its group")
    answer = table.register(waiting, now_ms=0)
    assert isinstance(answer, Registered)
    assert masters(table.brokers()) == [1]
    again = table.register(waiting, now_ms=0)
    assert isinstance(again, Registered)
    assert not again.is_change
    table.unregister(BrokerIdentity(*GROUP, 1), incarnation=0)
    assert masters(table.brokers()) == [0], "it is who the group waits for"
    assert table.route("orders") is None


def test_table_of_a_former_master_is_not_replaced_by_a_slave_of_its_id() -> None:
    table = table_of(master(0, 3, ORDERS), slave(1, 3))
    assert isinstance(table.register(slave(0, 3, BILLS, version=2), now_ms=0), Registered)
    assert table.route("bills") is None
    assert group_of(table, "orders").master_id is None


# Clients


def test_clients_are_told_id_0_and_the_masters_address() -> None:
    table = table_of(slave(0, 3), master(1, 3), slave(2, 3))
    route = table.route("orders")
    assert route is not None
    assert {(row.broker_id, row.address.host) for row in queue_rows(route)} == {(0, "host-1")}
    assert {(row.broker_id, row.address.host) for row in queue_rows(external_route(route))} == {(0, "outside-1")}


def test_master_without_an_external_address_has_no_rows_outside() -> None:
    inside = replace(master(1, 3), endpoints=BrokerEndpoints("host-1:8081"))
    route = table_of(slave(0, 3), inside).route("orders")
    assert route is not None
    assert queue_rows(external_route(route)) == []
    assert external_route(route).brokers[0].master_id is None


# Versions that tell no role


def test_who_tells_no_role_is_master_by_its_id() -> None:
    table = table_of(member(0, 0, disk_id=""), member(1, 0, disk_id=""))
    assert (masters(table.brokers()), group_of(table).master_id) == ([0], 0)
    assert BrokerData("c", "g", {0: BrokerEndpoints("h:1"), 1: BrokerEndpoints("h:2")}).master_id == 0
    assert BrokerData("c", "g", {1: BrokerEndpoints("h:2")}).master_id is None


def test_who_counts_no_epochs_gives_way_to_a_master_that_is_there() -> None:
    table = table_of(member(0, 0, disk_id=""), master(1, 4))
    assert masters(table.brokers()) == [1]
    assert refused(table, member(0, 0, disk_id="")).is_superseded
    table.unregister(BrokerIdentity(*GROUP, 1), incarnation=0)
    assert isinstance(table.register(member(0, 0, disk_id=""), now_ms=0), Registered)


def test_memory_without_master_epochs_goes_by_the_ids() -> None:
    assert ReplicaMemory(0, "disk", 1, 7, 100).master_epoch == 7
    assert ReplicaMemory(1, "disk", 1, 7, 100).master_epoch == 0
    table = table_of(replace(slave(1, 3), known_replicas=(ReplicaMemory(0, "disk-0", 1, 7, 100),)))
    assert refused(table, master(1, 6)).is_superseded
    assert isinstance(table.register(master(1, 8), now_ms=0), Registered)


# Several NameServers


def test_greater_epoch_tells_who_is_master_whatever_is_fresher() -> None:
    stale = table_of(master(0, 3, ORDERS), slave(1, 3)).snapshot()
    news = table_of(master(1, 4, ORDERS, BILLS)).snapshot()
    for snapshots in ([stale, news], [news, stale]):
        merged = merge_snapshots(snapshots, revision=1)
        assert masters(merged.brokers) == [1]
        assert (group_of(merged, "bills").master_id, group_of(merged, "bills").epoch) == (1, 4)
        assert list(group_of(merged, "bills").endpoints) == [0, 1]


def test_master_that_one_name_server_knows_as_slave_is_none() -> None:
    stale, news = table_of(master(0, 3)), table_of(master(0, 3), slave(1, 3), master(1, 4))
    news.unregister(BrokerIdentity(*GROUP, 1), incarnation=0)
    for snapshots in ([stale.snapshot(), news.snapshot()], [news.snapshot(), stale.snapshot()]):
        merged = merge_snapshots(snapshots, revision=1)
        assert (masters(merged.brokers), group_of(merged).master_id) == ([], None)


def test_two_masters_of_one_epoch_at_two_name_servers_are_one_to_everybody() -> None:
    one, other = table_of(master(1, 4)).snapshot(), table_of(master(2, 4)).snapshot()
    for snapshots in ([one, other], [other, one]):
        merged = merge_snapshots(snapshots, revision=1)
        assert (masters(merged.brokers), group_of(merged).master_id) == ([1], 1)


# Anything in any order


@dataclass(slots=True)
class Broker:
    is_master: bool
    # Of its history.
    epoch: int
    run: int = 1
    recovering: bool = False


class Failovers:
    """Three members take turns as master, in epochs that grow. Two NameServers hear of it late, or never."""

    def __init__(self) -> None:
        self.epoch = 1
        self.brokers = {0: Broker(True, 1), 1: Broker(False, 1), 2: Broker(False, 1)}
        self.tables = [RouteTable(), RouteTable()]
        self.now_ms = 0
        # Of each NameServer: what the live members said when they registered, and the route's greatest epoch so far.
        self.accepted: list[dict[int, Registration]] = [{}, {}]
        self.greatest = [0, 0]

    def become_master(self, broker_id: int) -> None:
        self.epoch += 1
        broker = self.brokers[broker_id]
        broker.is_master, broker.epoch, broker.recovering = True, self.epoch, False

    def become_slave(self, broker_id: int, *, follows: bool) -> None:
        broker = self.brokers[broker_id]
        broker.is_master = broker.recovering = False
        if follows:
            broker.epoch = self.epoch

    def restart_as_master(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        broker.run += 1
        broker.is_master = broker.recovering = True

    def register(self, broker_id: int, server: int) -> None:
        broker = self.brokers[broker_id]
        waits = "asks its group" if broker.recovering else ""
        said = member(broker_id, broker.epoch, is_master=broker.is_master, run=broker.run, recovering=waits)
        answer = self.tables[server].register(said, now_ms=self.now_ms)
        is_older = broker.is_master and not broker.recovering and broker.epoch < self.greatest[server]
        if isinstance(answer, RegistrationRefused):
            assert answer.is_superseded
            assert broker.is_master
            assert not broker.recovering
            return
        assert not is_older, "an older master was taken in"
        self.accepted[server][broker_id] = said

    def beat(self, broker_id: int, server: int) -> None:
        broker = self.brokers[broker_id]
        beat = Heartbeat(BrokerIdentity(*GROUP, broker_id), broker.run, DataVersion(0, 0, 1), broker.epoch)
        answer = self.tables[server].heartbeat(beat, connection=broker_id, now_ms=self.now_ms)
        said = self.accepted[server].get(broker_id)
        if said is not None and said.run == broker.run and said.is_master and not said.recovering:
            assert broker.epoch >= self.greatest[server] or answer.superseded, "it was not told"

    def lose_connection(self, server: int, broker_id: int) -> None:
        for lost in self.tables[server].connection_lost(broker_id):
            del self.accepted[server][lost.identity.broker_id]

    def expire(self, server: int, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for lost in self.tables[server].expire(now_ms=self.now_ms):
            del self.accepted[server][lost.identity.broker_id]

    def restart_name_server(self, server: int) -> None:
        self.tables[server] = RouteTable(GroupMemory.restored(self.tables[server].memory.image().text()))
        self.accepted[server].clear()

    def check_each_name_server(self) -> None:
        """The route has the newest master of those that are live, and no older one comes back."""
        for server, table in enumerate(self.tables):
            claims = {
                each.epoch: broker_id
                for broker_id, each in self.accepted[server].items()
                if each.is_master and not each.recovering
            }
            brokers = [broker for broker in table.brokers() if not broker.recovering]
            assert len(masters(brokers)) <= 1
            route = table.route("orders")
            group = route.brokers[0] if route is not None else None
            assert (group.master_id if group is not None else None) == next(iter(masters(brokers)), None)
            if group is not None and group.master_id is not None:
                assert (group.epoch, group.master_id) == (max(claims), claims[max(claims)])
                assert group.epoch >= self.greatest[server]
                self.greatest[server] = group.epoch
            else:
                # Only those that a newer master, which has gone, made no masters any more.
                assert max(claims, default=0) < self.greatest[server] or not claims

    def check_both_together(self) -> None:
        """Whoever asks both is told one master, and the same in either order."""
        snapshots = [table.snapshot() for table in self.tables]
        views = [merge_snapshots(order, revision=1) for order in (snapshots, snapshots[::-1])]
        found = [[broker for broker in view.brokers if broker.is_master and not broker.recovering] for view in views]
        assert len(found[0]) <= 1
        assert [each.identity for each in found[0]] == [each.identity for each in found[1]]
        greatest = max((each.role_epoch for each in found[0]), default=0)
        for broker in (broker for snapshot in snapshots for broker in snapshot.brokers):
            if broker.is_master and not broker.recovering and broker.role_epoch > greatest:
                later = [each for view in views for each in view.brokers if each.identity == broker.identity]
                assert all(each.run > broker.run or each.role_epoch >= broker.role_epoch for each in later)
                assert not any(each.is_master and not each.recovering for each in later)
        for view in views:
            route = view.routes.get("orders")
            if route is not None:
                assert route.brokers[0].master_id == next((each.identity.broker_id for each in found[0]), None)


@pytest.mark.parametrize("seed", range(60))
def test_members_that_change_roles_in_any_order(seed: int) -> None:
    chance, cluster = random.Random(seed), Failovers()
    for _ in range(150):
        broker_id, server = chance.randrange(3), chance.randrange(2)
        match chance.choices(range(8), weights=(2, 3, 1, 12, 8, 1, 1, 1))[0]:
            case 0:
                cluster.become_master(broker_id)
            case 1:
                cluster.become_slave(broker_id, follows=chance.random() < 0.7)
            case 2:
                cluster.restart_as_master(broker_id)
            case 3:
                cluster.register(broker_id, server)
            case 4:
                cluster.beat(broker_id, server)
            case 5:
                cluster.lose_connection(server, broker_id)
            case 6:
                cluster.expire(server, chance.randrange(1, 800))
            case _:
                cluster.restart_name_server(server)
        cluster.check_each_name_server()
        cluster.check_both_together()
