"""Where the other members of this broker's group are, as the NameServers last told it."""

from __future__ import annotations

from collections.abc import Callable

from broker.slave.follower import MasterAddress
from mqcore.routing.values import MASTER_ID, BrokerIdentity, RegisteredBroker
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
        registered = self._by_id().get(MASTER_ID)
        metadata = registered.endpoints.metadata or None if registered is not None else None
        ha = self._stated_master or (registered.endpoints.ha if registered is not None else "")
        disk_id = registered.disk_id if registered is not None else ""
        return MasterAddress(ha=ha, metadata=metadata, disk_id=disk_id) if ha else None

    def master_metadata(self) -> str | None:
        """The master's metadata plane."""
        address = self.master_address()
        return address.metadata if address is not None else None

    def member_metadata(self, broker_id: int) -> str | None:
        """A member's metadata plane; None if it is not registered."""
        member = self._by_id().get(broker_id)
        return member.endpoints.metadata or None if member is not None else None

    def other_endpoints(self) -> list[str]:
        """The metadata planes of all members but ourselves."""
        return [
            member.endpoints.metadata
            for broker_id, member in self._by_id().items()
            if broker_id != self._identity.broker_id and member.endpoints.metadata
        ]

    def registered(self) -> list[RegisteredBroker]:
        """The group's members that are registered now."""
        group = (self._identity.cluster, self._identity.broker_name)
        return [
            broker for broker in self._view().brokers if (broker.identity.cluster, broker.identity.broker_name) == group
        ]

    def _by_id(self) -> dict[int, RegisteredBroker]:
        return {broker.identity.broker_id: broker for broker in self.registered()}
