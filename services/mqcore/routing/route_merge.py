"""One view out of what several NameServers know. They never talk to each other, so each may miss a broker.

A broker is alive if any of them says so: a NameServer that has just started, or that a broker cannot reach, must not
take the broker from everybody's routes. The price is that a dead broker stays for as long as the slowest of them takes
to notice, which is the broken connection's milliseconds or at worst the liveness timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mqcore.routing.values import (
    BrokerData,
    BrokerEndpoints,
    BrokerIdentity,
    QueueData,
    RegisteredBroker,
    RouteSnapshot,
    TopicRoute,
)

__all__ = ["merge_snapshots"]


def merge_snapshots(snapshots: Sequence[RouteSnapshot], *, revision: int) -> RouteSnapshot:
    """The union of `snapshots`, ordered from stalest to freshest by the caller.

    Of two processes with one identity the later one counts; a group's queues are those of the freshest snapshot in
    which the group serves, as a whole, so that a deleted topic does not linger.
    """
    if len(snapshots) == 1:
        return replace(snapshots[0], revision=revision)
    brokers = _merged_brokers(snapshots)
    groups = _groups(brokers)
    source = {
        broker.identity.broker_name: index
        for index, snapshot in enumerate(snapshots)
        for broker in snapshot.brokers
        if not broker.recovering and broker.identity.broker_name in groups
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
            if known is None or not known.is_later_than(broker):
                brokers[broker.identity] = broker
    return brokers


def _groups(brokers: Mapping[BrokerIdentity, RegisteredBroker]) -> dict[str, BrokerData]:
    members: dict[str, dict[int, BrokerEndpoints]] = {}
    clusters: dict[str, str] = {}
    for identity in sorted(brokers):
        if brokers[identity].recovering:
            continue
        members.setdefault(identity.broker_name, {})[identity.broker_id] = brokers[identity].endpoints
        clusters[identity.broker_name] = identity.cluster
    return {name: BrokerData(clusters[name], name, members[name]) for name in members}


def _route(
    topic: str, queues: Mapping[str, QueueData], groups: Mapping[str, BrokerData], order_topic_conf: str
) -> TopicRoute:
    names = sorted(queues)
    return TopicRoute(
        topic, tuple(queues[name] for name in names), tuple(groups[name] for name in names), order_topic_conf
    )
