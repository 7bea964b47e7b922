"""A broker group of real processes that is started again and again, each time on other disks than it left behind.

`DrawnDisks` lets a group live once: three runs, between them a copy of every disk (members, NameServer, authority).
A case puts the last copies back, changes some of them (files or whole disks that are gone, empty, older, another
member's), and starts the group, in some order. What everybody was told during the group's life is known, so each case
says whether something of it is missing, and if so whether anybody is told.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demo.evidence import logged_message_ids
from support.acknowledged_sends import METADATA
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S, run_program
from support.topic_admin import create_group, create_topic
from tandemmq.core.replication.mastership import UNREADABLE
from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc
from tandemmq.proto.broker.v1 import failover_service_pb2 as failover_pb
from tandemmq.proto.broker.v1 import failover_service_pb2_grpc
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

NAME: Final = "broker-a"
MOMENTS: Final = ("early", "later", "last", "before")
MEMBERS: Final = (0, 1)
LEASE_MS: Final = 3_000
_LEASE_OF_MESSAGES_MS: Final = 10_000
_CALL_S: Final = 5.0
_SETTLE_S: Final = 25.0
_LIVE_FILES: Final = ("lock", "abort", "boot")
_TRIES: Final = 40


@dataclass
class Told:
    """What clients and operators were told during the group's life."""

    sent: dict[str, set[str]] = field(default_factory=dict)
    """Acknowledged ids by topic."""
    finished: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    halves: list[tuple[str, str, str]] = field(default_factory=list)
    """Topic, message id and transaction id of halves that have not ended."""
    recalls: list[tuple[str, str]] = field(default_factory=list)
    """Topic and recall handle of messages that are due in an hour."""


@dataclass
class Outcome:
    """What became of a case."""

    state: str = ""
    """`serves`, or why it does not."""
    wrong: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """Problems of members, errors in logs, refusals to start."""


@dataclass
class Case:
    """What is changed before the start, and how the members are started."""

    changes: list[tuple[str, str, str]] = field(default_factory=list)
    """Whose disk (`0`, `1`, `names`, `authority`), what of it, and what is done."""
    order: tuple[int, ...] = MEMBERS
    pause_s: float = 0.0

    @property
    def members(self) -> set[str]:
        return {whose for whose, _, _ in self.changes if whose in "01"}


@dataclass
class Phase:
    """One run of a group in its life: with these settings, members, and changes of disks before."""

    up: tuple[int, ...]
    fails_over: bool
    in_sync: str = ""
    total: str = "2"
    kills: bool = True
    hands_over: bool = False
    changes: list[tuple[str, str, str]] = field(default_factory=list)


class DrawnDisks:
    """See the module's docstring."""

    def __init__(self, folder: Path, *, fails_over: bool) -> None:
        self._folder = folder
        self.fails_over = self._fails_over_at_home = fails_over
        self.told = Told()
        self.cluster = ProcessCluster(folder / "live")
        self.brokers: list[ServiceProcess] = []
        self._numbers = iter(range(1, 1 << 40))

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        self.cluster.add_name_server(with_disk=True)
        self.authority.mkdir(parents=True)
        failover = {"failoverAuthority": f"file:{self.authority}", "failoverLease": str(LEASE_MS)}
        for broker_id in MEMBERS:
            self.brokers.append(
                self.cluster.add_broker(
                    NAME,
                    broker_id=broker_id,
                    settings={
                        "totalReplicas": "2",
                        "consumeFromEarliest": "true",
                        "flushConsumerOffsetInterval": "300",
                        **(failover if self.fails_over else {}),
                    },
                    wait=False,
                )
            )
        for broker in self.brokers:
            broker.wait_serving()
        self._live()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)

    @property
    def authority(self) -> Path:
        return self._folder / "live" / "authority"

    def disk(self, whose: str) -> Path:
        """Of a member by its id, of the NameServer (`names`), or of the authority."""
        if whose == "authority":
            return self.authority
        return self._folder / "live" / ("namesrv-0" if whose == "names" else f"{NAME}-{whose}")

    def copy(self, moment: str, whose: str) -> Path:
        return self._folder / moment / whose

    # The group's life

    def _live(self) -> None:
        self.wait_whole()
        self._add("orders", "billing")
        self._send("orders", 30)
        self._consume("billing", "orders", 10)
        self._send_odd("orders-tx", "orders-delay")
        self._copied()
        self._end(kills=False)
        self._keep("early")
        self._begin()
        self._add("payments", "audit")
        self._send("orders", 30)
        self._send("payments", 30)
        self._consume("billing", "orders", 15)
        self._consume("audit", "payments", 10)
        self._copied()
        self._end(kills=True)
        self._keep("later")
        self._begin()
        if self.fails_over:
            self._hand_over()
        self._add("refunds", "ledger")
        for topic in ("orders", "payments", "refunds"):
            self._send(topic, 30)
        self._consume("billing", "orders", 20)
        self._consume("audit", "payments", 20)
        self._consume("ledger", "refunds", 10)
        self._send_odd("refunds-tx", "refunds-delay")
        self._copied()
        self._end(kills=True)
        self._keep("last")

    def _begin(self) -> None:
        for server in self.cluster.name_servers:
            server.start()
        for broker in self.brokers:
            broker.start(wait=False)
        self.wait_whole()

    def _end(self, *, kills: bool) -> None:
        for broker in self.brokers:
            if kills:
                os.kill(broker.pid, signal.SIGKILL)
        for broker in reversed(self.brokers):
            broker.kill() if kills else broker.stop()
        for server in self.cluster.name_servers:
            # It has heard that they are gone, and writes that down: it is a witness of where their logs ended.
            time.sleep(2.0)
            server.stop()

    def _keep(self, moment: str) -> None:
        for whose in ("0", "1", "names", "authority"):
            shutil.copytree(self.disk(whose), self.copy(moment, whose), ignore=shutil.ignore_patterns("lock"))

    def _add(self, topic: str, group: str) -> None:
        asyncio.run(create_topic(self.master, topic, queues=2))
        asyncio.run(create_group(self.master, group))
        self.told.topics.add(topic)
        self.told.groups.add(group)
        self._receive(group, topic, 1)

    def _send(self, topic: str, count: int, *, tries: int = _TRIES) -> None:
        for _ in range(count):
            entry = self._sent(topic, definition.NORMAL, tries=tries)
            self.told.sent.setdefault(topic, set()).add(entry.message_id)

    def _send_odd(self, transactions: str, delayed: str) -> None:
        asyncio.run(create_topic(self.master, transactions, queues=1, message_type="TRANSACTION"))
        asyncio.run(create_topic(self.master, delayed, queues=1, message_type="DELAY"))
        self.told.topics |= {transactions, delayed}
        half = self._sent(transactions, definition.TRANSACTION)
        self.told.halves.append((transactions, half.message_id, half.transaction_id))
        self.told.recalls.append((delayed, self._sent(delayed, definition.DELAY).recall_handle))

    def _sent(self, topic: str, kind: definition.MessageType, *, tries: int = _TRIES) -> service.SendResultEntry:
        message_id = f"01{next(self._numbers):032X}"
        message = definition.Message(
            topic=definition.Resource(name=topic),
            body=message_id.encode() * 10,
            system_properties=definition.SystemProperties(
                message_id=message_id, message_type=kind, body_encoding=definition.IDENTITY
            ),
        )
        if kind == definition.DELAY:
            message.system_properties.delivery_timestamp.FromMilliseconds(time.time_ns() // 1_000_000 + 3_600_000)
        for _ in range(tries):
            with suppress(grpc.RpcError):
                answer = self._client().SendMessage(
                    service.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=_CALL_S
                )
                if answer.status.code == definition.OK:
                    entry: service.SendResultEntry = answer.entries[0]
                    return entry
            time.sleep(0.1)
        raise AssertionError(f"{topic} takes no message")

    def _receive(self, group: str, topic: str, count: int, *, wait_ms: int = 500) -> list[definition.Message]:
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=group),
            message_queue=definition.MessageQueue(
                topic=definition.Resource(name=topic), broker=definition.Broker(name=NAME)
            ),
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=min(32, count),
        )
        request.invisible_duration.FromMilliseconds(_LEASE_OF_MESSAGES_MS)
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        answer = self._client().ReceiveMessage(request, metadata=METADATA, timeout=_CALL_S)
        return [element.message for element in answer if element.HasField("message")]

    def _consume(self, group: str, topic: str, count: int) -> None:
        got = 0
        while got < count:
            messages = self._receive(group, topic, count - got)
            assert messages, f"nothing comes of {topic}"
            for message in messages:
                self._acknowledge(group, topic, message)
                self.told.finished.add(message.system_properties.message_id)
            got += len(messages)

    def _acknowledge(self, group: str, topic: str, message: definition.Message) -> None:
        system = message.system_properties
        entry = service.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        answer = self._client().AckMessage(
            service.AckMessageRequest(
                group=definition.Resource(name=group), topic=definition.Resource(name=topic), entries=[entry]
            ),
            metadata=METADATA,
            timeout=_CALL_S,
        )
        assert answer.status.code == definition.OK, answer.status

    def _copied(self) -> None:
        """With fixed roles a slave has leases and offsets within some seconds."""
        time.sleep(0.5 if self.fails_over else 4.0)

    def _hand_over(self) -> None:
        stub = failover_service_pb2_grpc.FailoverServiceStub(channel_to(self.master, "listenPort"))
        stub.HandOver(failover_pb.HandOverRequest(), timeout=PATIENCE_S)
        self.wait_whole()

    # Looking

    def master_id(self) -> int | None:
        """Of the member that serves as master."""
        for broker_id, broker in enumerate(self.brokers):
            status = self.status(broker)
            if status is None or status.HasField("start_wait") or status.write_refusal:
                continue
            if status.role.endswith("MASTER") and self.is_ready(broker):
                return broker_id
        return None

    @property
    def master(self) -> ServiceProcess:
        number = self.master_id()
        assert number is not None, "nobody is master"
        return self.brokers[number]

    def _client(self) -> service_pb2_grpc.MessagingServiceStub:
        return service_pb2_grpc.MessagingServiceStub(channel_to(self.master, "grpcServerPort"))

    def status(self, broker: ServiceProcess) -> pb.GetBrokerStatusResponse | None:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel_to(broker, "listenPort"))
        try:
            status: pb.GetBrokerStatusResponse = stub.GetBrokerStatus(pb.GetBrokerStatusRequest(), timeout=_CALL_S)
        except grpc.RpcError:
            return None
        return status

    def is_whole(self) -> bool:
        number = self.master_id()
        if number is None:
            return False
        status = self.status(self.brokers[number])
        if status is None or not any(slave.in_sync for slave in status.slaves):
            return False
        if self.fails_over and len(status.failover.in_sync) < len(MEMBERS):
            return False
        return all(map(self.is_ready, self.brokers))

    def is_ready(self, broker: ServiceProcess) -> bool:
        """Its readiness probe."""
        try:
            answer = health_pb2_grpc.HealthStub(channel_to(broker, "listenPort")).Check(
                health_pb2.HealthCheckRequest(service="tandemmq.probe.ready"), timeout=2
            )
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def wait_whole(self) -> None:
        wait_until(self.is_whole, limit_s=PATIENCE_S, what="the group is whole")

    # Cases

    def draw(self, chance: random.Random) -> Case:
        """Changes of one member's disk, and now and then of the NameServer's and the authority's."""
        case = Case()
        member = chance.choice("01")
        if chance.random() < 0.9:
            case.changes = [self.draw_change(member, chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
        for whose, share in (("names", 0.3), ("authority", 0.3 if self.fails_over else 0.0)):
            if chance.random() < share:
                case.changes.append((whose, "all", chance.choice(("gone", "early", "later", "spoilt"))))
        case.order = chance.choice(((0, 1), (0, 1), (1, 0)))
        case.pause_s = chance.choice((0.0, 0.0, 4.0, 8.0))
        if case.order[0] == int(member) and any(whose == "names" for whose, _, _ in case.changes):
            # A disk without a group, alone beside NameServers without a memory, is the first one of a new group.
            case.pause_s = 0.0
        return case

    def draw_change(self, whose: str, chance: random.Random) -> tuple[str, str, str]:
        """Of a member's disk. What only other copies can tell is left out: a bit within the log, and an older copy of
        ConsumeQueues, whose ends are written down each ten seconds."""
        if chance.random() < 0.4:
            what = chance.choice(("all", "all", "config", "config", "commitlog", "but commitlog", "but config"))
            return whose, what, chance.choice(("gone", "early", "later", "other"))
        files = sorted({kind_of(path) for path in files_of(self.copy("last", whose))})
        what = chance.choice(files)
        hows = ["gone", "empty", "zeros", "half", "flipped", "early", "later", "other"]
        if what.isdecimal():
            hows.remove("flipped")
        if what.startswith("consumequeue/"):
            hows = ["gone", "empty", "zeros", "half"]
        return whose, what, chance.choice(hows)

    def play(self, case: Case) -> Outcome:
        """Puts the last copies back, changes them, starts the group, and judges."""
        self._put_back_last()
        self._set(Phase(up=MEMBERS, fails_over=self._fails_over_at_home))
        for whose, what, how in case.changes:
            self._change(whose, what, how)
        outcome = Outcome()
        for server in self.cluster.name_servers:
            server.start()
        first, second = case.order
        self.brokers[first].start(wait=False)
        if case.pause_s:
            time.sleep(case.pause_s)
            self._judge_alone(first, outcome)
        self.brokers[second].start(wait=False)
        deadline_s = time.monotonic() + _SETTLE_S
        while not (is_whole := self.is_whole()) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        self._hear(outcome)
        if self.master_id() is None and self._obey(outcome):
            deadline_s = time.monotonic() + _SETTLE_S
            while not (is_whole := self.is_whole()) and time.monotonic() < deadline_s:
                time.sleep(0.1)
        if is_whole or self.master_id() is not None:
            outcome.state = "serves" if is_whole else "serves alone"
            try:
                self._judge(outcome, is_whole=is_whole)
            except (AssertionError, grpc.RpcError) as error:
                outcome.wrong.append(f"judging: {error}"[:300])
        else:
            outcome.state = "waits"
            if not outcome.told:
                outcome.wrong.append("it waits, and tells nobody why")
            if any(map(self.is_ready, self.brokers)):
                outcome.wrong.append("somebody is ready in a group without a master")
        return outcome

    def _stop_all(self) -> None:
        for process in (*self.brokers, *self.cluster.name_servers):
            process.kill()

    def _change(self, whose: str, what: str, how: str) -> None:
        target = self.disk(whose)
        source = self.copy(how, whose) if how in MOMENTS and self.copy(how, whose).exists() else None
        if how == "other":
            source = self.disk("1" if whose == "0" else "0")
        if what == "all":
            if how == "spoilt":
                for path in target.rglob("*"):
                    if path.is_file():
                        path.write_bytes(b"{ spoilt")
                return
            shutil.rmtree(target, ignore_errors=True)
            if source is not None and source.exists():
                shutil.copytree(source, target)
            elif whose == "authority":
                target.mkdir()
            return
        if what in ("config", "commitlog", "consumequeue") or what.startswith("but "):
            chosen = what.removeprefix("but ")
            for root in (target, source):
                if root is None:
                    continue
                for path in list(files_of(root)):
                    if path.name in _LIVE_FILES or (path.relative_to(root).parts[0] == chosen) == what.startswith(
                        "but"
                    ):
                        continue
                    if root is target:
                        path.unlink()
                    else:
                        (target / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy2(path, target / path.relative_to(root))
            return
        for path in [path for path in files_of(target) if kind_of(path) == what]:
            self._change_file(path, target, source, how)

    def _change_file(self, path: Path, root: Path, source: Path | None, how: str) -> None:
        data = path.read_bytes()
        match how:
            case "gone":
                path.unlink()
            case "empty":
                path.write_bytes(b"")
            case "zeros":
                path.write_bytes(bytes(len(data)))
            case "half":
                path.write_bytes(data[: len(data) // 2])
            case "flipped":
                used = len(data.rstrip(b"\0"))
                at = random.Random(path.name).randrange(max(1, used))
                path.write_bytes(data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :] if data else b"x")
            case _:
                assert source is not None
                like = [each for each in files_of(source) if kind_of(each) == kind_of(path)]
                path.unlink()
                for each in like:
                    shutil.copy2(each, root / each.relative_to(source))

    # Lives

    def draw_life(self, chance: random.Random) -> list[Phase]:
        """Some runs of the group with other settings or members each, and changed disks of one member between them.
        In the last one everybody is there."""
        victim = chance.choice("01")
        phases = []
        for _ in range(chance.choice((2, 3, 4))):
            fails_over = chance.random() < 0.6
            phase = Phase(
                up=chance.choice(((0, 1), (0, 1), (1, 0), (0,), (1,))),
                fails_over=fails_over,
                in_sync=chance.choice(("", "", "1", "2")),
                total=chance.choice(("2", "2", "2", "1", "3")),
                kills=chance.random() < 0.6,
                hands_over=chance.random() < 0.3,
            )
            if chance.random() < 0.4:
                phase.changes.append(self.draw_change(victim, chance))
            for whose, share in (("names", 0.15), ("authority", 0.1)):
                if chance.random() < share:
                    phase.changes.append((whose, "all", chance.choice(("gone", "early", "later", "before"))))
            phases.append(phase)
        phases.append(Phase(up=(0, 1), fails_over=chance.random() < 0.6))
        return phases

    def live(self, phases: list[Phase]) -> Outcome:
        """Plays a life. What a member acknowledged alone counts as long as its disk was left as it is since."""
        self._put_back_last()
        told, outcome = self.told, Outcome()
        self.told = Told(
            {topic: set(ids) for topic, ids in told.sent.items()},
            set(told.finished),
            set(told.topics),
            set(told.groups),
            list(told.halves),
            list(told.recalls),
        )
        alone: dict[str, set[str]] = {"0": set(), "1": set()}
        try:
            for phase in phases:
                for whose, what, how in phase.changes:
                    if whose in alone:
                        # Whoever lost it may not have it back: from then on it may be gone.
                        for sent in self.told.sent.values():
                            sent -= alone[whose]
                        alone[whose] = set()
                    self._change(whose, what, how)
                for whose in ("names", "authority"):
                    shutil.rmtree(self.copy("before", whose), ignore_errors=True)
                    self.disk(whose).mkdir(exist_ok=True)
                    shutil.copytree(self.disk(whose), self.copy("before", whose), ignore=shutil.ignore_patterns("lock"))
                self._live_phase(phase, alone, outcome, is_last=phase is phases[-1])
        finally:
            self.told = told
        return outcome

    def _live_phase(self, phase: Phase, alone: dict[str, set[str]], outcome: Outcome, *, is_last: bool) -> None:
        self._stop_all()
        self._set(phase)
        for server in self.cluster.name_servers:
            server.start()
        for broker_id in phase.up:
            self.brokers[broker_id].start(wait=False)

        def is_there() -> bool:
            return self.is_whole() if len(phase.up) > 1 else self.master_id() is not None

        deadline_s = time.monotonic() + (_SETTLE_S if is_last else 9.0)
        while not is_there() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        where = f"{'fails over' if phase.fails_over else 'fixed'}, up {phase.up}"
        if is_last and self.master_id() is None and self._obey(outcome):
            deadline_s = time.monotonic() + _SETTLE_S
            while not is_there() and time.monotonic() < deadline_s:
                time.sleep(0.1)
        if (number := self.master_id()) is None:
            if is_last:
                self._hear(outcome)
                outcome.state = "waits"
            outcome.told.append(f"-- {where}: waits")
            if not is_last:
                return
            if not any("waits" in one or "ended" in one or "problem" in one for one in outcome.told[:-1]):
                outcome.wrong.append("it waits, and tells nobody why")
            return
        outcome.told.append(f"-- {where}: broker {number} serves")
        if phase.hands_over and phase.fails_over and not is_last:
            with suppress(grpc.RpcError, AssertionError):
                self._hand_over()
        if is_last:
            self._hear(outcome)
            outcome.state = "serves" if is_there() else "serves alone"
            try:
                self._judge(outcome, is_whole=is_there())
            except (AssertionError, grpc.RpcError) as error:
                outcome.wrong.append(f"judging: {error}"[:300])
            return
        with suppress(grpc.RpcError, AssertionError):
            before = {message_id for sent in self.told.sent.values() for message_id in sent}
            try:
                for topic in ("orders", "payments"):
                    self._send(topic, 10, tries=3)
            finally:
                new = {message_id for sent in self.told.sent.values() for message_id in sent} - before
                if len(phase.up) == 1 or not self.is_whole():
                    alone[str(phase.up[0])] |= new
                    if len(phase.up) > 1:
                        alone[str(phase.up[1])] |= new
            if self.is_whole():
                self._consume("billing", "orders", 5)
                self._copied()
        if not phase.kills:
            with suppress(AssertionError):
                for broker_id in reversed(phase.up):
                    self.brokers[broker_id].stop()
                for server in self.cluster.name_servers:
                    server.stop()

    def _obey(self, outcome: Outcome) -> bool:
        """An operator does what `tandemmq status` says, if it names a command that gives a group its master."""
        namesrv = ("-n", self.cluster.namesrv_addr)
        status = _tandemmq("status", *namesrv)
        found = re.search(r"tandemmq (failover \S+ --to \d+ --unclean)", status)
        if found is None:
            return False
        if "older state" not in status and UNREADABLE not in status:
            outcome.told.append(f"-- status names an unclean claim although the record is not lost: {found[1]}")
            return False
        if UNREADABLE in status:
            for path in self.authority.glob("*.json"):
                shutil.rmtree(path)
            time.sleep(2 * LEASE_MS / 1_000)
        said = _tandemmq(*found[1].split(), "--yes", *namesrv)
        outcome.told.append(f"-- operator: {found[1]}: {said[-300:]}")
        return True

    def _set(self, phase: Phase) -> None:
        """The settings of the next start."""
        self.fails_over = phase.fails_over
        for broker in self.brokers:
            broker.settings["failoverAuthority"] = f"file:{self.authority}" if phase.fails_over else ""
            broker.settings["inSyncReplicas"] = phase.in_sync
            broker.settings["totalReplicas"] = phase.total
            if not phase.in_sync:
                del broker.settings["inSyncReplicas"]
            if phase.in_sync == "2" and phase.total == "1":
                broker.settings["totalReplicas"] = "2"

    def _put_back_last(self) -> None:
        self._stop_all()
        for whose in ("0", "1", "names", "authority"):
            shutil.rmtree(self.disk(whose), ignore_errors=True)
            shutil.copytree(self.copy("last", whose), self.disk(whose))

    # Judging

    def _hear(self, outcome: Outcome) -> None:
        for broker in self.brokers:
            status = self.status(broker)
            if status is not None:
                outcome.told += [f"{broker.name} problem: {each.problem}" for each in status.problems]
            if broker.process is not None and broker.process.poll() is not None:
                outcome.told.append(f"{broker.name} ended with {broker.process.poll()}")
            outcome.told += [
                f"{broker.name} {event.get('level')}: {event.get('event')} "
                + " ".join(f"{key}={value}" for key, value in event.items() if key not in _NO_NEWS)[:250]
                for event in broker.events()
                if event.get("level") in ("warning", "error", "critical")
            ]

    def _judge_alone(self, broker_id: int, outcome: Outcome) -> None:
        """The only member so far: either it has everything, or it does not serve."""
        if self.master_id() != broker_id:
            return
        held = logged_message_ids(self.disk(str(broker_id)))
        if lost := self._acknowledged() - held:
            outcome.wrong.append(f"broker {broker_id} serves alone without {len(lost)} acknowledged messages")
        self._judge_tables(self.brokers[broker_id], outcome, "alone: ")

    def _acknowledged(self) -> set[str]:
        return {message_id for sent in self.told.sent.values() for message_id in sent}

    def _judge(self, outcome: Outcome, *, is_whole: bool) -> None:
        number = self.master_id()
        assert number is not None
        for broker_id in MEMBERS if is_whole else (number,):
            if lost := self._acknowledged() - logged_message_ids(self.disk(str(broker_id))):
                outcome.wrong.append(f"broker {broker_id} lacks {len(lost)} acknowledged messages")
        self._judge_tables(self.brokers[number], outcome, "")
        if not is_whole and not self.fails_over:
            return  # A SYNC_MASTER without its slave takes nothing.
        for topic, message_id, transaction_id in self.told.halves:
            request = service.EndTransactionRequest(
                topic=definition.Resource(name=topic),
                message_id=message_id,
                transaction_id=transaction_id,
                resolution=definition.COMMIT,
                source=definition.SOURCE_CLIENT,
            )
            status = self._client().EndTransaction(request, metadata=METADATA, timeout=_CALL_S).status
            if status.code != definition.OK:
                outcome.wrong.append(f"a half of {topic} cannot be committed: {status.message}")
        for topic, handle in self.told.recalls:
            recall = service.RecallMessageRequest(topic=definition.Resource(name=topic), recall_handle=handle)
            status = self._client().RecallMessage(recall, metadata=METADATA, timeout=_CALL_S).status
            if status.code != definition.OK:
                outcome.wrong.append(f"a delayed message of {topic} cannot be recalled: {status.message}")
        for topic, group in (("orders", "billing"), ("payments", "audit"), ("refunds", "ledger")):
            self._judge_deliveries(topic, group, outcome)

    def _judge_tables(self, broker: ServiceProcess, outcome: Outcome, where: str) -> None:
        admin = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel_to(broker, "listenPort"))
        topics = admin.ListTopics(pb.ListTopicsRequest(without_queues=True), timeout=_CALL_S).topics
        groups = admin.ListSubscriptionGroups(pb.ListSubscriptionGroupsRequest(), timeout=_CALL_S).groups
        if gone := self.told.topics - {topic.topic for topic in topics}:
            outcome.wrong.append(f"{where}topics are gone: {sorted(gone)}")
        if gone := self.told.groups - {group.group for group in groups}:
            outcome.wrong.append(f"{where}groups are gone: {sorted(gone)}")

    def _judge_deliveries(self, topic: str, group: str, outcome: Outcome) -> None:
        wanted = self.told.sent[topic] - self.told.finished
        came: set[str] = set()
        empty = 0
        # What was in hand comes when its lease is over.
        while not wanted <= came and empty < 8:
            messages = self._receive(group, topic, 32, wait_ms=300)
            empty = 0 if messages else empty + 1
            for message in messages:
                came.add(message.system_properties.message_id)
                self._acknowledge(group, topic, message)
        again = came & self.told.finished
        if again:
            outcome.wrong.append(f"{len(again)} finished messages of {topic} came again")
        if not wanted <= came:
            outcome.wrong.append(f"{len(wanted - came)} of {len(wanted)} messages of {topic} did not come")


def _tandemmq(*arguments: str) -> str:
    """What the command says."""
    command = [sys.executable, "-m", "tandemmq.cli", *arguments]
    environment = {**os.environ, "COLUMNS": "400"}
    done = run_program(command, env=environment)
    return done.stdout + done.stderr


_NO_NEWS: Final = ("level", "event", "timestamp", "cluster", "broker_name", "broker_id", "role", "service", "version")
_NUMBERED: Final = ("leases-", "commitlog", "consumequeue", "index")


def files_of(root: Path) -> Iterator[Path]:
    """All files of a disk but those of a running process."""
    return (path for path in sorted(root.rglob("*")) if path.is_file() and path.name not in _LIVE_FILES)


def kind_of(path: Path) -> str:
    """What a file is, whatever its number."""
    if path.name.startswith("leases-"):
        return f"leases{path.suffix}"
    if path.parent.name == "index":
        return "index"
    if path.parent.parent.parent.name == "consumequeue":
        return f"consumequeue/{path.parent.parent.name}"
    return path.name


_channels: dict[str, grpc.Channel] = {}


def channel_to(broker: ServiceProcess, port: str) -> grpc.Channel:
    target = f"{broker.host}:{broker.ports[port]}"
    if target not in _channels:
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
        _channels[target] = grpc.insecure_channel(target, options=options)
    return _channels[target]
