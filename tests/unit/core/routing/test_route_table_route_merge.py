from __future__ import annotations

from tandemmq.core.metadata.metadata_store import DataVersion
from tandemmq.core.routing.route_table import RouteTable, merge_snapshots
from tandemmq.core.routing.values import BrokerEndpoints, BrokerIdentity, Registration, RouteSnapshot, TopicQueues

MASTER = BrokerIdentity("DefaultCluster", "broker-a", 0)
SLAVE = BrokerIdentity("DefaultCluster", "broker-a", 1)
OTHER_MASTER = BrokerIdentity("DefaultCluster", "broker-b", 0)
EMPTY = RouteSnapshot(0, {}, ())


def known(*members: tuple[BrokerIdentity, tuple[str, ...], int]) -> RouteSnapshot:
    """What a NameServer knows after these registered: identity, topics, incarnation."""
    table = RouteTable()
    for identity, topics, incarnation in members:
        endpoints = BrokerEndpoints(f"{identity.broker_name}-{identity.broker_id}-{incarnation}:8081")
        queues = tuple(TopicQueues(topic, 4, 4, 6) for topic in topics)
        table.register(Registration(identity, endpoints, incarnation, 1_000, DataVersion(), queues), now_ms=0)
    return table.snapshot()


def test_merge_of_equal_views_is_that_view() -> None:
    view = known((MASTER, ("orders",), 1), (SLAVE, (), 1))
    merged = merge_snapshots([view, view], revision=5)
    assert (merged.routes, merged.brokers, merged.revision) == (view.routes, view.brokers, 5)


def test_restarted_name_server_takes_nobody_out() -> None:
    view = known((MASTER, ("orders",), 1))
    merged = merge_snapshots([view, EMPTY], revision=1)
    assert merged.routes == view.routes
    assert merged.brokers == view.brokers


def test_groups_known_to_different_name_servers_are_joined() -> None:
    merged = merge_snapshots(
        [known((MASTER, ("orders",), 1)), known((OTHER_MASTER, ("orders", "bills"), 1))], revision=1
    )
    assert [queues.broker_name for queues in merged.routes["orders"].queues] == ["broker-a", "broker-b"]
    assert [group.broker_name for group in merged.routes["bills"].brokers] == ["broker-b"]


def test_members_of_a_group_known_to_different_name_servers_are_joined() -> None:
    merged = merge_snapshots([known((MASTER, ("orders",), 1)), known((SLAVE, ("orders",), 1))], revision=1)
    assert list(merged.routes["orders"].brokers[0].endpoints) == [0, 1]


def test_later_process_counts_whatever_is_fresher() -> None:
    later, earlier = known((MASTER, ("orders",), 2)), known((MASTER, ("orders",), 1))
    for snapshots in ([later, earlier], [earlier, later]):
        merged = merge_snapshots(snapshots, revision=1)
        assert merged.brokers == later.brokers
        assert merged.routes["orders"].brokers == later.routes["orders"].brokers


def test_topic_deleted_at_the_freshest_does_not_linger() -> None:
    merged = merge_snapshots([known((MASTER, ("orders", "bills"), 1)), known((MASTER, ("orders",), 1))], revision=1)
    assert set(merged.routes) == {"orders"}


def of_disk(disk_id: str, *, run: int = 1, epoch: int = 1, incarnation: int = 1, recovering: str = "") -> RouteSnapshot:
    """What a NameServer knows after a master with this disk registered."""
    table = RouteTable()
    topics = () if recovering else (TopicQueues("orders", 4, 4, 6),)
    registration = Registration(
        MASTER,
        BrokerEndpoints(f"{disk_id}-{run}:8081"),
        incarnation,
        1_000,
        DataVersion(),
        topics,
        disk_id,
        run,
        epoch,
        recovering=recovering,
    )
    table.register(registration, now_ms=0)
    return table.snapshot()


def test_later_run_or_epoch_counts_whatever_the_wall_clock_said() -> None:
    for later, earlier in (
        (of_disk("disk-1", run=2, incarnation=1), of_disk("disk-1", run=1, incarnation=9)),
        (of_disk("disk-2", epoch=2, incarnation=1), of_disk("disk-1", epoch=1, run=7, incarnation=9)),
    ):
        for snapshots in ([later, earlier], [earlier, later]):
            assert merge_snapshots(snapshots, revision=1).brokers == later.brokers


def test_broker_that_recovers_is_in_no_route_though_a_stale_view_has_one() -> None:
    stale, fresh = of_disk("disk-1"), of_disk("disk-1", run=2, recovering="asks its slave")
    for snapshots in ([stale, fresh], [fresh, stale]):
        merged = merge_snapshots(snapshots, revision=1)
        assert merged.routes == {}
        assert [broker.recovering for broker in merged.brokers] == ["asks its slave"]
    with_slave = merge_snapshots([stale, fresh, known((SLAVE, ("orders",), 1))], revision=1)
    assert list(with_slave.routes["orders"].brokers[0].endpoints) == [1]
