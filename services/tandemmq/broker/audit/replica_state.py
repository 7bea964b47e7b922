"""What a broker says of its own replica to those who prove replicas equal."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.core.audit.replica_store import ReplicaFacts
from tandemmq.core.routing.values import BrokerIdentity

__all__ = ["ReplicaState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica at one moment. Offsets are bytes in the CommitLog; what they mean is said in the proto."""

    identity: BrokerIdentity
    min_offset: int
    end_offset: int
    flushed_offset: int
    confirm_offset: int
    segment_bytes: int
    queues_offset: int
    index_offset: int
    lag_bytes: int
    serving: bool

    def facts(self) -> ReplicaFacts:
        """The same for the checks. A running broker's files have no holes: it does not start with any."""
        return ReplicaFacts(
            group=self.identity.broker_name,
            broker_id=self.identity.broker_id,
            min_offset=self.min_offset,
            end_offset=self.end_offset,
            segment_bytes=self.segment_bytes,
            is_running=True,
            queues_offset=self.queues_offset,
            index_offset=self.index_offset,
            lag_bytes=self.lag_bytes,
        )
