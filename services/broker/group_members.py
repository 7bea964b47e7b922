"""Where the other members of this broker's group are, as the NameServers last told it."""

from __future__ import annotations

from collections.abc import Callable

from broker.slave.follower import MasterAddress
from mqcore.routing import MASTER_ID, BrokerEndpoints, BrokerIdentity
from mqservice.name_server_link import ClusterView

__all__ = ["GroupMembers"]


class GroupMembers:
    """Looks the group of `identity` up in the newest `view`. A `stated_master` (haMasterAddress) goes before what
    the NameServers say of the master's HA plane; empty: none is stated."""

    def __init__(self, identity: BrokerIdentity, *, view: Callable[[], ClusterView], stated_master: str) -> None:
        self._identity = identity
        self._view = view
        self._stated_master = stated_master

    def master_address(self) -> MasterAddress | None:
        """Where the master is followed; None while nobody says."""
        registered = self._registered().get(MASTER_ID)
        metadata = registered.metadata or None if registered is not None else None
        ha = self._stated_master or (registered.ha if registered is not None else "")
        return MasterAddress(ha=ha, metadata=metadata) if ha else None

    def master_metadata(self) -> str | None:
        """The master's metadata plane."""
        address = self.master_address()
        return address.metadata if address is not None else None

    def member_metadata(self, broker_id: int) -> str | None:
        """A member's metadata plane; None if it is not registered."""
        member = self._registered().get(broker_id)
        return member.metadata or None if member is not None else None

    def slave_endpoints(self) -> dict[int, str]:
        """The slaves' metadata planes by broker id."""
        return {
            broker_id: member.metadata
            for broker_id, member in self._registered().items()
            if broker_id != MASTER_ID and member.metadata
        }

    def other_endpoints(self) -> list[str]:
        """The metadata planes of all members but ourselves."""
        return [
            member.metadata
            for broker_id, member in self._registered().items()
            if broker_id != self._identity.broker_id and member.metadata
        ]

    def _registered(self) -> dict[int, BrokerEndpoints]:
        group = (self._identity.cluster, self._identity.broker_name)
        return {
            broker.identity.broker_id: broker.endpoints
            for broker in self._view().brokers
            if (broker.identity.cluster, broker.identity.broker_name) == group
        }
