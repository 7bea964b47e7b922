"""A broker group of real processes that fails over, with senders that know every member, and how it is disturbed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc

from support.acknowledged_sends import AcknowledgedSender
from support.certificates import TestCertificates
from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, wait_until
from support.own_network import Network
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from tandemmq.proto.broker.v1 import failover_service_pb2 as pb
from tandemmq.proto.broker.v1 import failover_service_pb2_grpc
from tandemmq.service.service_channels import aio_channel

TOPIC: Final = "failover"
GROUP: Final = "broker-a"
LEASE_MS: Final = 3_000
"""Half the default, for tests to wait less."""
_TRIES: Final = 3
_LOOK_S: Final = 0.005
_NUMBERS_APART: Final = 1_000_000_000


@dataclass(frozen=True)
class Change:
    """What a disturbance cost."""

    kind: str
    silent_s: float
    """The longest time without an acknowledgement."""
    epoch: int
    """Of the group's record afterwards."""


class _AckWatch:
    """The longest time between two acknowledgements of several senders, on a thread of its own."""

    def __init__(self, senders: list[AcknowledgedSender]) -> None:
        self._senders = senders
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ack-watch")
        self._last_s = time.monotonic()
        self._count = 0
        self.longest_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def reset(self) -> None:
        self.longest_s, self._last_s = 0.0, time.monotonic()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            count = sum(len(sender.acknowledged) for sender in self._senders)
            now_s = time.monotonic()
            if count > self._count:
                self._count, self._last_s = count, now_s
            self.longest_s = max(self.longest_s, now_s - self._last_s)


class FailoverGroup:
    """A NameServer, `replicas` brokers and a sender to each of them: a client tries all addresses of a group. With
    `network` each broker is on a node of it."""

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 2,
        settings: Mapping[str, str] | None = None,
        network: Network | None = None,
        limit_s: float = PATIENCE_S,
        pause_s: float = 0.02,
        certificates: TestCertificates | None = None,
    ) -> None:
        """`pause_s`: each sender's rest between two sends, for who asks what is kept, not how long it takes. With
        `certificates` whoever asks has to `use_service_tls`."""
        self._limit_s = limit_s
        self._pause_s = pause_s
        self._certificates = certificates
        self.network = network
        self._folder = folder
        self._replicas = replicas
        self._settings = settings or {}
        self._stack = ExitStack()
        self.senders: list[AcknowledgedSender] = []
        self.brokers: list[ServiceProcess] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.cluster = stack.enter_context(ProcessCluster(self._folder, certificates=self._certificates))
            network = self.network
            self.cluster.add_name_server(with_disk=True, host="127.0.0.1" if network is None else network.address)
            self.authority = self._folder / "authority"
            self.authority.mkdir()
            for broker_id in range(self._replicas):
                self.way_to_authority(broker_id).symlink_to(self.authority)
            self.brokers = [
                self.cluster.add_broker(
                    GROUP,
                    broker_id=broker_id,
                    settings={
                        "failoverAuthority": f"file:{self.way_to_authority(broker_id)}",
                        "failoverLease": str(LEASE_MS),
                        "totalReplicas": str(self._replicas),
                        # What is sent before a consumer came counts, too.
                        "consumeFromEarliest": "true",
                        **self._settings,
                    },
                    node=None if network is None else network.nodes[broker_id],
                )
                for broker_id in range(self._replicas)
            ]
            self.wait_whole()
            asyncio.run(create_topic(self.brokers[0], TOPIC))
            self.senders = [
                stack.enter_context(
                    AcknowledgedSender(
                        broker,
                        TOPIC,
                        inflight=4,
                        first_number=_NUMBERS_APART * (1 + number),
                        pause_s=self._pause_s,
                    )
                )
                for number, broker in enumerate(self.brokers)
            ]
            self._watch = _AckWatch(self.senders)
            self._watch.start()
            stack.callback(self._watch.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def way_to_authority(self, broker_id: int) -> Path:
        """By which one member reaches the authority's folder."""
        return self._folder / f"authority-of-{broker_id}"

    # Looking

    def state_of(self, broker: ServiceProcess) -> pb.GetFailoverStateResponse | None:
        """What a member knows; None: it does not answer."""

        async def ask() -> pb.GetFailoverStateResponse:
            async with aio_channel(_metadata_plane(broker), ()) as channel:
                stub = failover_service_pb2_grpc.FailoverServiceStub(channel)
                state: pb.GetFailoverStateResponse = await stub.GetFailoverState(
                    pb.GetFailoverStateRequest(), timeout=1.0
                )
                return state

        try:
            return asyncio.run(ask())
        except grpc.aio.AioRpcError:
            return None

    def master(self) -> int | None:
        """The number of the member that acts as master."""
        for number, broker in enumerate(self.brokers):
            state = self.state_of(broker)
            if state is not None and state.acts:
                return number
        return None

    def wait_master(self) -> int:
        """Who acts; on a busy machine it may not answer in time."""
        number: int | None = None

        def is_there() -> bool:
            nonlocal number
            number = self.master()
            return number is not None

        wait_until(is_there, limit_s=self._limit_s, what="somebody is master")
        assert number is not None
        return number

    def wait_whole(self) -> None:
        """Every member is in the in-sync set, and one acts."""
        self.wait_in_sync(self._replicas)

    def wait_in_sync(self, count: int) -> None:
        """The in-sync set has so many members, and one acts."""

        def has_so_many() -> bool:
            number = self.master()
            state = None if number is None else self.state_of(self.brokers[number])
            return state is not None and len(state.in_sync) == count

        wait_until(has_so_many, limit_s=self._limit_s, what=f"{count} members are in the in-sync set")

    def acknowledged(self) -> list[str]:
        """Ids of all messages that were acknowledged."""
        return [message_id for sender in self.senders for message_id in sender.acknowledged]

    # Disturbing

    def hand_over(self, to: int | None = None) -> int:
        """Asks the master, until it can; returns who becomes master."""
        number = self.wait_master()
        until = time.monotonic() + self._limit_s

        async def ask() -> int:
            async with aio_channel(_metadata_plane(self.brokers[number]), ()) as channel:
                stub = failover_service_pb2_grpc.FailoverServiceStub(channel)
                request = pb.HandOverRequest(to_broker_id=to)
                while True:
                    try:
                        return int((await stub.HandOver(request, timeout=PATIENCE_S)).to_broker_id)
                    except grpc.aio.AioRpcError as error:
                        # A member that stood still for a moment is connected again soon.
                        if time.monotonic() > until or error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                            raise
                    await asyncio.sleep(0.1)

        return asyncio.run(ask())

    def pause(self, broker: ServiceProcess) -> None:
        """SIGSTOP, also in the middle of a swap."""
        os.kill(broker.pid, signal.SIGSTOP)
        wait_until(lambda: _is_stopped(broker.pid), limit_s=PATIENCE_S, what=f"{broker.name} stands still")

    def claim_unclean(self, number: int, *, dry_run: bool) -> pb.ClaimUncleanResponse | str:
        """Has a member become master whatever it lacks; why it does not."""

        async def ask() -> pb.ClaimUncleanResponse:
            async with aio_channel(_metadata_plane(self.brokers[number]), ()) as channel:
                stub = failover_service_pb2_grpc.FailoverServiceStub(channel)
                claim: pb.ClaimUncleanResponse = await stub.ClaimUnclean(
                    pb.ClaimUncleanRequest(dry_run=dry_run), timeout=PATIENCE_S
                )
                return claim

        try:
            return asyncio.run(ask())
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name

    def change(self, kind: str) -> Change:
        """Disturbs the whole group once, waits until it acknowledges and is whole again."""
        for _ in range(_TRIES):
            number = self.wait_master()
            self._watch.reset()
            mend = (KINDS | PARTITIONS)[kind](self, self.brokers[number])
            if mend is None or not self._has_lost_its_set(number):
                break
            # On a busy machine a master may have left its slow slaves behind a moment before: nobody else may act.
            mend()
            mend = None
            self.wait_whole()
        self._wait_acknowledging()
        if mend is not None:
            mend()
        self.wait_whole()
        self._wait_acknowledging()
        state = self.state_of(self.brokers[self.wait_master()])
        return Change(kind, self._watch.longest_s, 0 if state is None else state.epoch)

    def _has_lost_its_set(self, number: int) -> bool:
        """Members that answer know that nobody but `number`, which does not, is in the in-sync set."""
        if self.state_of(self.brokers[number]) is not None:
            return False
        states = [state for broker in self.brokers if (state := self.state_of(broker)) is not None]
        return bool(states) and all([each.broker_id for each in state.in_sync] == [number] for state in states)

    def _wait_acknowledging(self) -> None:
        before = len(self.acknowledged())
        try:
            wait_until(
                lambda: len(self.acknowledged()) > before + 20,
                limit_s=self._limit_s,
                what="sends are acknowledged again",
            )
        except AssertionError as error:
            told = "".join(
                f"\n{broker.name}: {self.state_of(broker)}\n{broker.log_text()[-6_000:]}" for broker in self.brokers
            )
            raise AssertionError(f"{error}{told}") from None

    # Judging, when the senders have stopped and the brokers still run

    def stop_senders(self) -> None:
        """Nothing is sent any more."""
        for sender in self.senders:
            sender.__exit__(None, None, None)

    def lost(self) -> list[str]:
        """Acknowledged messages that some member's log does not have; every member has to have caught up."""
        logs = self._logs()
        held = [set(re.findall(rb"01[0-9A-F]{32}", log)) for log in logs]
        return [message_id for message_id in self.acknowledged() if any(message_id.encode() not in ids for ids in held)]

    def are_equal(self) -> bool:
        """All logs are the same bytes."""
        return len(set(self._logs())) == 1

    def _logs(self) -> list[bytes]:
        return [
            b"".join(commit_log_bytes(self.cluster.store_folder(key)).values()).rstrip(b"\0")
            for key in sorted(self.cluster.brokers)
        ]


def _metadata_plane(broker: ServiceProcess) -> str:
    return f"{broker.host}:{broker.ports['listenPort']}"


Mend = Callable[[], None]


def _hand_over(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    group.hand_over()
    return None


def _stop(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    assert master.stop() == 0, master.log_text()[-6_000:]
    return master.start


def _kill(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    master.kill()
    return master.start


def _kill_and_start(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    master.kill()
    master.start()
    return None


def _pause(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    group.pause(master)
    return lambda: os.kill(master.pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def _slave_killed(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    slave = next(broker for broker in group.brokers if broker is not master)
    slave.kill()
    return slave.start


def _both_killed(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    for broker in group.brokers:
        broker.kill()
    for broker in group.brokers:
        broker.start()
    return None


def _authority_away(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    """Longer than the lease: the members see each other, so nothing stops."""
    away = group.authority.with_name("away")
    group.authority.rename(away)
    time.sleep(2 * LEASE_MS / 1_000)

    def mend() -> None:
        away.rename(group.authority)

    return mend


def _off_the_authority(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    """The master alone; the others go on to see it, and each other."""
    way = group.way_to_authority(group.brokers.index(master))
    way.unlink()
    time.sleep(2 * LEASE_MS / 1_000)
    return lambda: way.symlink_to(group.authority)


def _deaf(group: FailoverGroup, master: ServiceProcess, *, masters: bool, slaves: bool) -> Mend:
    """Of the replicas' links; clients and the NameServer reach everybody."""
    assert group.network is not None
    nodes = group.network.nodes
    own = nodes[group.brokers.index(master)]
    for other in nodes:
        if other is not own and masters:
            own.hear_no_more(other)
        if other is not own and slaves:
            other.hear_no_more(own)

    def mend() -> None:
        for node in nodes:
            node.mend()

    return mend


def _link_cut(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    return _deaf(group, master, masters=True, slaves=True)


def _master_deaf(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    return _deaf(group, master, masters=True, slaves=False)


def _slave_deaf(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    return _deaf(group, master, masters=False, slaves=True)


def _cut_off(group: FailoverGroup, master: ServiceProcess) -> Mend | None:
    """From the other members and the authority; clients still reach it, and it must acknowledge nothing."""
    way = group.way_to_authority(group.brokers.index(master))
    way.unlink()
    heal = _deaf(group, master, masters=True, slaves=True)

    def mend() -> None:
        way.symlink_to(group.authority)
        heal()

    return mend


KINDS: Final[dict[str, Callable[[FailoverGroup, ServiceProcess], Mend | None]]] = {
    "hand over": _hand_over,
    "stop": _stop,
    "kill, left dead": _kill,
    "kill, started again": _kill_and_start,
    "pause longer than the lease": _pause,
    "slave killed": _slave_killed,
    "both killed": _both_killed,
    "authority away": _authority_away,
    "master off the authority": _off_the_authority,
}
"""What is done to the group, by its name: returns what mends it once it acknowledges again, if something has to."""

PARTITIONS: Final[dict[str, Callable[[FailoverGroup, ServiceProcess], Mend | None]]] = {
    "link cut": _link_cut,
    "link cut, master deaf": _master_deaf,
    "link cut, slave deaf": _slave_deaf,
    "master cut off": _cut_off,
}
"""The same, of a group with a network of its own."""
