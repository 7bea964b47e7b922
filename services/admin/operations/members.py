"""Who can be asked and who must be, out of the newest reading of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from admin.cluster_state import BrokerState, ClusterState, NameServerState
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.values import Unseen

__all__ = ["Members", "Readers"]


@dataclass(frozen=True, slots=True)
class Readers:
    """One broker of each group that can be read from."""

    brokers: Sequence[BrokerState]
    # Groups that cannot, and those where a slave stands in for its master.
    unseen: Sequence[Unseen]


class Members:
    """A cluster's brokers and NameServers. Each call looks at the newest reading; a reading is some seconds old."""

    def __init__(self, newest: Callable[[], ClusterState | None]) -> None:
        self._newest = newest

    @property
    def name_servers(self) -> tuple[NameServerState, ...]:
        """All that are configured."""
        return self._state().name_servers

    @property
    def clusters(self) -> frozenset[str]:
        """Names of the clusters brokers belong to: one, if nobody mixed them up."""
        return frozenset(broker.cluster for broker in self._state().brokers)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the broker groups, ordered."""
        return tuple(dict.fromkeys(broker.broker_name for broker in self._state().brokers))

    def all(self) -> tuple[BrokerState, ...]:
        """Every broker that is known, ordered by name and id. UNAVAILABLE when none answered."""
        brokers = self._state().brokers
        if any(broker.status is not None for broker in brokers):
            return brokers
        raise _nobody(self._state())

    def answering(self) -> tuple[list[BrokerState], list[Unseen]]:
        """Those that answered lately, and the others."""
        brokers = self.all()
        silent = [_silent(broker) for broker in brokers if broker.status is None]
        return [broker for broker in brokers if broker.status is not None], silent

    def of_group(self, broker_name: str) -> list[BrokerState]:
        """Members of one broker group, its master first. NOT_FOUND: there is none of that name."""
        members = [broker for broker in self._state().brokers if broker.broker_name == broker_name]
        if not members:
            raise _no_group(broker_name, self.group_names)
        return members

    def broker(self, key: str) -> BrokerState:
        """One broker by `name:id`. NOT_FOUND: there is none; UNAVAILABLE: it does not answer."""
        found = next((broker for broker in self._state().brokers if broker.key == key), None)
        if found is None:
            keys = ", ".join(broker.key for broker in self._state().brokers)
            raise OperationFailed(
                FailureKind.NOT_FOUND, f"there is no broker {key}", remedy=f"choose one of {keys or '(none is known)'}"
            )
        if found.status is None:
            raise OperationFailed(
                FailureKind.UNAVAILABLE,
                f"{key} does not answer",
                cause=found.error or "",
                remedy="see whether its process runs and what the end of its log says",
            )
        return found

    def readers(self, broker_name: str = "") -> Readers:
        """Of each group, or of one, whoever can be read from: the master, or else a slave.

        A slave holds what its master held, but for what it had not copied. UNAVAILABLE when nobody answers.
        """
        groups = [self.of_group(broker_name)] if broker_name else [list(group) for group in self._groups()]
        brokers: list[BrokerState] = []
        unseen: list[Unseen] = []
        for members in groups:
            reader = next((broker for broker in members if broker.status is not None), None)
            if reader is None:
                unseen += [_silent(broker) for broker in members]
                continue
            brokers.append(reader)
            if not reader.is_master:
                first = members[0]
                reason = _silent(first).reason if first.is_master else "is not known to any NameServer"
                subject = f"{reader.broker_name}:0"
                unseen.append(Unseen(subject, f"{reason}; its slave {reader.key} was asked instead"))
        if not brokers:
            raise _nobody(self._state())
        return Readers(brokers, unseen)

    def masters(self) -> Readers:
        """Masters that answered, and what is known of the others. UNAVAILABLE when there is none."""
        readers = self.readers()
        masters = [broker for broker in readers.brokers if broker.is_master]
        stood_in = [broker for broker in readers.brokers if not broker.is_master]
        if not masters:
            raise OperationFailed(
                FailureKind.UNAVAILABLE,
                "no master answers",
                cause="\n".join(f"{each.subject}: {each.reason}" for each in readers.unseen),
                remedy="restart a master; `tandemmq status` shows what is there",
            )
        keys = {f"{broker.broker_name}:0" for broker in stood_in}
        unseen = [
            Unseen(each.subject, each.reason.partition("; its slave")[0]) if each.subject in keys else each
            for each in readers.unseen
        ]
        return Readers(masters, unseen)

    def masters_to_change(self, broker_names: Sequence[str] = ()) -> list[BrokerState]:
        """Every master, or those of the groups named, ordered by name.

        A change that reaches only some masters would leave a topic on part of the cluster, so it is not begun: REFUSED
        when one that is known does not answer, or a group has none.
        """
        wanted = set(broker_names) or set(self.group_names)
        for name in sorted(wanted.difference(self.group_names)):
            raise _no_group(name, self.group_names)
        groups = [list(group) for group in self._groups()]
        members = [group for group in groups if group[0].broker_name in wanted]
        if not members:
            raise _nobody(self._state())
        away = [group[0] for group in members if not group[0].is_master or group[0].status is None]
        if away:
            raise OperationFailed(
                FailureKind.REFUSED,
                f"{', '.join(f'{broker.broker_name}:0' for broker in away)} does not answer; nothing was changed",
                cause="\n".join(
                    f"{broker.key} at {broker.metadata_endpoint}: {broker.error}"
                    if broker.is_master
                    else f"{broker.broker_name}:0: is not known to any NameServer"
                    for broker in away
                ),
                remedy="wait until it is back; `tandemmq status` shows when",
            )
        return [group[0] for group in members]

    def _groups(self) -> Iterator[Iterator[BrokerState]]:
        return (group for _, group in groupby(self._state().brokers, key=lambda broker: broker.broker_name))

    def _state(self) -> ClusterState:
        state = self._newest()
        if state is None:
            raise OperationFailed(
                FailureKind.UNAVAILABLE, "the cluster has not been read yet", remedy="ask again in a second"
            )
        return state


def _silent(broker: BrokerState) -> Unseen:
    return Unseen(broker.key, f"does not answer at {broker.metadata_endpoint} ({broker.error})")


def _no_group(name: str, known: Sequence[str]) -> OperationFailed:
    return OperationFailed(
        FailureKind.NOT_FOUND,
        f"there is no broker group {name}",
        remedy=f"choose one of {', '.join(known) or '(none is known)'}",
    )


def _nobody(state: ClusterState) -> OperationFailed:
    servers = [f"{server.address}: {server.error}" for server in state.name_servers if server.error is not None]
    brokers = [f"{broker.key}: {broker.error}" for broker in state.brokers]
    if len(servers) == len(state.name_servers):
        return OperationFailed(
            FailureKind.UNAVAILABLE,
            "no NameServer answers",
            cause="\n".join([*servers, *brokers]),
            remedy="start the cluster, or name another one's NameServers",
        )
    return OperationFailed(
        FailureKind.UNAVAILABLE,
        "no broker answers" if brokers else "no broker is registered",
        cause="\n".join([*brokers, *servers]),
        remedy="start the brokers, and check their namesrvAddr",
    )
