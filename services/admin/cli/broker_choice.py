"""Which broker a text names: its key, its group's name, or one of its addresses."""

from __future__ import annotations

from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cluster_state import BrokerState, ClusterState

__all__ = ["check_cluster_name", "find_broker"]


def find_broker(state: ClusterState, text: str) -> BrokerState:
    """`name:id`, `name` for the group's master, or an endpoint as host:port. CommandError when there is none."""
    for broker in state.brokers:
        if text in (broker.key, broker.metadata_endpoint, broker.client_endpoint):
            return broker
    for broker in state.brokers:
        if broker.is_master and broker.broker_name == text:
            return broker
    raise CommandError(
        f"there is no broker {text}",
        cause=f"there are {', '.join(broker.key for broker in state.brokers)}"
        if state.brokers
        else "no broker is registered",
        remedy="name one as name:id or host:port; `tandemmq broker list` shows both",
        exit_code=EXIT_REFUSED,
    )


def check_cluster_name(state: ClusterState, name: str | None) -> None:
    """CommandError when a cluster is named and no broker is of it."""
    clusters = sorted({broker.cluster for broker in state.brokers})
    if name and name not in clusters:
        raise CommandError(
            f"there is no cluster {name} here",
            cause=f"there is {', '.join(clusters)}" if clusters else "no broker is registered",
            remedy="leave the name out, or ask the NameServers of that cluster",
            exit_code=EXIT_REFUSED,
        )
