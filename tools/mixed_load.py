"""All kinds of messages at once on a group whose master is killed again and again; what was promised is counted.

    make mixed-load MINUTES=60           # a kill -9 of the master every 2 minutes: build/mixed-load.json
    make mixed-load MINUTES=3 KILL_S=45 LANGUAGES=raw
    make mixed-load MINUTES=20 KILL_S=45 LANGUAGES=raw CHURN=6 SEED=1 SECURE=1

NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY and LITE messages are sent and consumed with raw stubs, which repeat what is
not answered OK, at whichever member takes it; official clients in Python (NORMAL), Go (FIFO), Java (TRANSACTION) and
Node (DELAY) work beside them. Zero are: acknowledged and lost, out of order, half messages seen, deliveries before
their time, commits that came twice, and repeated deliveries without a reason. A reason is that the delivery before was
not acknowledged with an answer of OK, that this one was made before the one that was acknowledged and only its answer
came later, or that the sender sent twice because the first answer did not come.

With CHURN so many workers let topics, consumer groups, users, policies and clients come and go beside it, and SEED
draws what happens to the group: not kills alone, but everything that `FailoverGroup` can do to it. `tandemmq verify`
looks at the group again and again meanwhile. Zero are then, too: tables that contradict what a master answered, audits
that find a difference, processes that do not end well, tracebacks in logs. With SECURE the members know each other by
certificates, on both planes, which live for a minute and are renewed all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import grpc
from tools.official_clients import build

from demo.official_client import install_official_client
from e2e.official_load import (
    DELAY_GROUP,
    DELAY_TOPIC,
    FIFO_GROUP,
    FIFO_TOPIC,
    PLAIN_GROUP,
    PLAIN_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_TOPIC,
    Felt,
    OfficialLoad,
)
from support.certificates import ADMIN, CONSISTENCY, NAME_SERVER, TestCertificates
from support.certificates import broker as broker_identity
from support.churn import MESSAGE_TYPES, Churn, group_of, topic_of
from support.cluster_processes import ServiceProcess, wait_until
from support.failover_group import KINDS as FAULTS
from support.failover_group import FailoverGroup
from support.guarded_broker import guarded_settings
from support.process_template import share_imports
from support.topic_admin import create_group, create_topic
from tandemmq.core.access.identity import AdminLevel
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc
from tandemmq.service.certificates import CertificateFolder
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.service_channels import ServiceTls, use_service_tls

REPORT: Final = ROOT / "build" / "mixed-load.json"
KINDS: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE")
ORDERED: Final = ("FIFO", "LITE")
LANES: Final = 4
_METADATA: Final = (("x-mq-client-id", "mixed-load@1@0@0"), ("x-mq-language", "CPP"))
_DRAIN_LIMIT_S: Final = 180.0
_CHANGE_LIMIT_S: Final = 600.0
_TAKE_OVER_LIMIT_S: Final = 60.0
_LEASE_MS: Final = 15_000
_DELAYS_MS: Final = (1_500, 4_000, 9_000)
_KILL: Final = "kill, left dead"
# After which another member becomes master.
_TAKE_OVERS: Final = (_KILL, "stop", "pause longer than the lease")
_REST_S: Final = 10.0
# An audit's exit code.
_NOT_ALL_READ: Final = 3
_RENEWAL_S: Final = 20.0
_CERTIFICATE_S: Final = 60.0


class Place(NamedTuple):
    """Where a message lies."""

    queue_id: int
    queue_offset: int


class Delivery(NamedTuple):
    """One of a message. `was_settled`: an acknowledgement of this place had been answered OK before. `attempt`: the
    broker's number of it, from 1 on."""

    message_id: str
    lane: int
    number: int
    place: Place
    at_ms: int
    was_settled: bool
    attempt: int = 1


class Sent:
    """What became of the messages of one kind, as their sender and their consumers saw it."""

    def __init__(self, kind: str) -> None:
        self.kind: Final = kind
        self.acknowledged: dict[str, int] = {}
        """Ids that have to be delivered, and the time before which they must not be."""
        self.forbidden: set[str] = set()
        """Ids of half messages that were rolled back, or never ended."""
        self.repeated_sends: set[str] = set()
        self.deliveries: list[Delivery] = []
        self.settled: set[Place] = set()

    @property
    def lost(self) -> list[str]:
        """Acknowledged, and never delivered."""
        seen = {one.message_id for one in self.deliveries}
        return [message_id for message_id in self.acknowledged if message_id not in seen]

    def rows(self) -> list[dict[str, Any]]:
        """What is to be told of them."""
        rows = [
            _row(f"{self.kind}: acknowledged", len(self.acknowledged)),
            _row(f"{self.kind}: lost", len(self.lost), 0),
        ]
        repeated, unexplained = self._repeated()
        rows += [
            _row(f"{self.kind}: delivered again", repeated),
            _row(f"{self.kind}: delivered again without a reason", unexplained, 0),
        ]
        if self.kind in ORDERED:
            rows.append(_row(f"{self.kind}: out of order", self._out_of_order(), 0))
        if self.kind == "DELAY":
            early = sum(one.at_ms < self.acknowledged.get(one.message_id, 0) for one in self.deliveries)
            rows.append(_row(f"{self.kind}: early", early, 0))
        if self.kind == "TRANSACTION":
            seen = {one.message_id for one in self.deliveries}
            rows.append(_row(f"{self.kind}: half messages seen", len(seen & self.forbidden), 0))
            rows.append(_row(f"{self.kind}: commits doubled", self._doubled(), 0))
        return rows

    def _repeated(self) -> tuple[int, int]:
        # The last attempt seen, of each place of a message.
        places: dict[str, dict[Place, int]] = defaultdict(dict)
        repeated = unexplained = 0
        for one in self.deliveries:
            known = places[one.message_id]
            if known:
                repeated += 1
                is_sent_twice = one.place not in known and one.message_id in self.repeated_sends
                is_late = one.attempt < known.get(one.place, 0)
                if not (is_sent_twice or is_late or (one.place in known and not one.was_settled)):
                    unexplained += 1
                    before = [other for other in self.deliveries if other.message_id == one.message_id]
                    print(f"{self.kind}: without a reason: {before}", flush=True)
            known[one.place] = max(one.attempt, known.get(one.place, 0))
        return repeated, unexplained

    def _out_of_order(self) -> int:
        """First deliveries of a lane behind one of a greater number."""
        newest: dict[int, int] = {}
        seen: set[tuple[int, int]] = set()
        count = 0
        for one in self.deliveries:
            if (one.lane, one.number) not in seen:
                seen.add((one.lane, one.number))
                count += one.number < newest.get(one.lane, -1)
                newest[one.lane] = max(one.number, newest.get(one.lane, -1))
        return count

    def _doubled(self) -> int:
        """Messages that lie at two places: a half has one commit, however often its producer repeats it."""
        places: dict[str, set[Place]] = defaultdict(set)
        for one in self.deliveries:
            places[one.message_id].add(one.place)
        return sum(len(found) > 1 for found in places.values())


class MixedLoad:
    """Raw senders and consumers of all kinds on a thread, from `with` on."""

    def __init__(self, brokers: Sequence[ServiceProcess], *, rate: float) -> None:
        """`rate`: messages a second of each kind."""
        self._brokers = brokers
        self._pause_s = LANES / rate
        self.kinds: Final = {kind: Sent(kind) for kind in KINDS}
        self._is_sending = self._is_consuming = True
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="mixed-load")

    def __enter__(self) -> MixedLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_sending = self._is_consuming = False
        self._thread.join(60)

    def finish(self) -> None:
        """Stops the senders, and returns when all has come, or its limit passed: what is missing is told as such."""
        self._is_sending = False
        deadline_s = time.monotonic() + _DRAIN_LIMIT_S
        time.sleep(max(_DELAYS_MS) / 1_000 + 6)
        while any(sent.lost for sent in self.kinds.values()) and time.monotonic() < deadline_s:
            time.sleep(0.2)

    async def _run(self) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
        channels = [
            grpc.aio.insecure_channel(f"{broker.host}:{broker.ports['grpcServerPort']}", options=options)
            for broker in self._brokers
        ]
        stubs = [service_pb2_grpc.MessagingServiceStub(channel) for channel in channels]
        async with asyncio.TaskGroup() as tasks:
            for kind in KINDS:
                for lane in range(LANES):
                    tasks.create_task(self._send_lane(stubs, kind, lane))
                for stub in stubs:
                    tasks.create_task(self._consume(stub, kind))
        for channel in channels:
            await channel.close(None)

    # Sending

    async def _send_lane(self, stubs: Sequence[service_pb2_grpc.MessagingServiceStub], kind: str, lane: int) -> None:
        number = turn = 0
        while self._is_sending:
            message, due_ms = _message(kind, lane, number)
            message_id = message.system_properties.message_id
            if kind == "TRANSACTION":
                # Until its commit is answered it may be seen or not; every third is rolled back, every sixth left open.
                is_to_commit = number % 3 != 0
                if not is_to_commit:
                    self.kinds[kind].forbidden.add(message_id)
            attempts = 0
            while self._is_sending:
                entry = await _sent(stubs[turn % len(stubs)], message)
                attempts += 1
                if entry is not None:
                    break
                self.kinds[kind].repeated_sends.add(message_id)
                turn += 1
                await asyncio.sleep(0.1)
            else:
                return
            if kind != "TRANSACTION":
                self.kinds[kind].acknowledged[message_id] = due_ms
            elif number % 6 != 0 and await self._ended(stubs, message, entry.transaction_id, commit=number % 3 != 0):
                self.kinds[kind].acknowledged.update({message_id: 0} if number % 3 else {})
            number += 1
            await asyncio.sleep(self._pause_s)

    async def _ended(
        self,
        stubs: Sequence[service_pb2_grpc.MessagingServiceStub],
        message: definition.Message,
        transaction_id: str,
        *,
        commit: bool,
    ) -> bool:
        """Repeats the end until it is answered OK; False: the load ends before."""
        request = pb.EndTransactionRequest(
            topic=message.topic,
            message_id=message.system_properties.message_id,
            transaction_id=transaction_id,
            resolution=definition.COMMIT if commit else definition.ROLLBACK,
        )
        turn = 0
        while self._is_consuming:
            try:
                answer = await stubs[turn % len(stubs)].EndTransaction(request, metadata=_METADATA, timeout=5)
                if answer.status.code == definition.OK:
                    return True
            except grpc.aio.AioRpcError:
                pass
            turn += 1
            await asyncio.sleep(0.1)
        return False

    # Consuming

    async def _consume(self, stub: service_pb2_grpc.MessagingServiceStub, kind: str) -> None:
        request = pb.ReceiveMessageRequest(
            group=definition.Resource(name=_group(kind)),
            message_queue=definition.MessageQueue(topic=definition.Resource(name=_topic(kind))),
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=16,
        )
        request.invisible_duration.FromMilliseconds(_LEASE_MS)
        request.long_polling_timeout.FromMilliseconds(2_000)
        while self._is_consuming:
            try:
                if kind == "LITE":
                    await stub.SyncLiteSubscription(_subscription(request), metadata=_METADATA, timeout=5)
                elements = [one async for one in stub.ReceiveMessage(request, metadata=_METADATA, timeout=10)]
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)
                continue
            messages = [element.message for element in elements if element.HasField("message")]
            if messages:
                await self._note_and_acknowledge(stub, kind, request, messages)
            else:
                await asyncio.sleep(0.05)

    async def _note_and_acknowledge(
        self,
        stub: service_pb2_grpc.MessagingServiceStub,
        kind: str,
        request: pb.ReceiveMessageRequest,
        messages: Sequence[definition.Message],
    ) -> None:
        sent, at_ms = self.kinds[kind], time.time_ns() // 1_000_000
        ack = pb.AckMessageRequest(group=request.group, topic=request.message_queue.topic)
        places = []
        for message in messages:
            system = message.system_properties
            lane, number = map(int, message.body.split(b"-"))
            place = Place(system.queue_id, system.queue_offset)
            places.append(place)
            was_settled = place in sent.settled
            attempt = system.delivery_attempt
            sent.deliveries.append(Delivery(system.message_id, lane, number, place, at_ms, was_settled, attempt))
            entry = ack.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
            if system.lite_topic:
                entry.lite_topic = system.lite_topic
        try:
            answer = await stub.AckMessage(ack, metadata=_METADATA, timeout=5)
        except grpc.aio.AioRpcError:
            return
        sent.settled |= {place for place, entry in zip(places, answer.entries) if entry.status.code == definition.OK}


def _topic(kind: str) -> str:
    return f"mixed-{kind.lower()}"


def _group(kind: str) -> str:
    return f"mixed-{kind.lower()}-readers"


def _message(kind: str, lane: int, number: int) -> tuple[definition.Message, int]:
    """A message, and when it is due; 0: at once."""
    system = definition.SystemProperties(
        message_id=f"{kind}-{lane}-{number}",
        message_type=kind,
        body_encoding=definition.IDENTITY,
        born_host="mixed-load",
    )
    system.born_timestamp.GetCurrentTime()
    due_ms = 0
    if kind == "FIFO":
        system.message_group = f"group-{lane}"
    elif kind == "DELAY":
        due_ms = time.time_ns() // 1_000_000 + _DELAYS_MS[number % len(_DELAYS_MS)]
        system.delivery_timestamp.FromMilliseconds(due_ms)
    elif kind == "PRIORITY":
        system.priority = number % 4
    elif kind == "LITE":
        system.lite_topic = f"lite-{lane}"
    topic = definition.Resource(name=_topic(kind))
    return definition.Message(topic=topic, body=b"%d-%d" % (lane, number), system_properties=system), due_ms


async def _sent(stub: service_pb2_grpc.MessagingServiceStub, message: definition.Message) -> pb.SendResultEntry | None:
    """The answer's entry; None: it was not OK, or did not come."""
    try:
        answer = await stub.SendMessage(pb.SendMessageRequest(messages=[message]), metadata=_METADATA, timeout=5)
    except grpc.aio.AioRpcError:
        return None
    return answer.entries[0] if answer.status.code == definition.OK else None


def _subscription(request: pb.ReceiveMessageRequest) -> pb.SyncLiteSubscriptionRequest:
    return pb.SyncLiteSubscriptionRequest(
        topic=request.message_queue.topic,
        group=request.group,
        lite_topic_set=[f"lite-{lane}" for lane in range(LANES)],
        action=definition.COMPLETE_ADD,
        version=time.time_ns(),
    )


def _row(name: str, value: int, target: int | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "target": target, "holds": target is None or value <= target}


def _felt_rows(felt: Felt) -> list[dict[str, Any]]:
    name = f"official {felt.language}"
    rows = [
        _row(f"{name}: acknowledged", felt.acknowledged),
        _row(f"{name}: lost", len(felt.missing), 0),
        _row(f"{name}: delivered again", felt.repeated),
        _row(f"{name}: programs that failed", len(felt.failed_programs), 0),
    ]
    if felt.language == "go":
        rows.append(_row(f"{name}: out of order", felt.out_of_order, 0))
    if felt.language == "java":
        rows.append(_row(f"{name}: half messages seen", felt.forbidden, 0))
        rows.append(_row(f"{name}: commits doubled", felt.doubled, 0))
    if felt.language == "node":
        rows.append(_row(f"{name}: early", felt.early, 0))
    if felt.language in ("java", "node"):
        rows.append(_row(f"{name}: delivered again after its acknowledgement", felt.settled_again, 0))
    return rows


def _official_load(group: FailoverGroup, folder: Path, rate: int) -> OfficialLoad:
    master = group.brokers[group.master() or 0]
    places = {
        PLAIN_TOPIC: (PLAIN_GROUP, "NORMAL"),
        FIFO_TOPIC: (FIFO_GROUP, "FIFO"),
        TRANSACTION_TOPIC: (TRANSACTION_GROUP, "TRANSACTION"),
        DELAY_TOPIC: (DELAY_GROUP, "DELAY"),
    }
    for topic, (consumers, message_type) in places.items():
        asyncio.run(create_topic(master, topic, queues=4, message_type=message_type))
        asyncio.run(create_group(master, consumers, ordered=message_type == "FIFO"))
    endpoints = [f"{broker.host}:{broker.ports['grpcServerPort']}" for broker in group.brokers]
    python = install_official_client() / "bin" / "python"
    programs = {language: build(language) for language in ("go", "java", "node")}
    return OfficialLoad(
        folder, endpoints=endpoints, python=python, rate=rate, lanes=max(1, LANES * rate // 30), **programs
    )


def play(
    minutes: float,
    fault_s: float,
    folder: Path,
    *,
    rate: float,
    official_rate: int,
    lease_ms: int,
    churners: int = 0,
    seed: int = 0,
    is_secure: bool = False,
) -> list[dict[str, Any]]:
    """Runs it, and tells what came of it."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        settings = {"failoverLease": str(lease_ms)}
        certificates = None
        if is_secure:
            certificates = stack.enter_context(_renewed_certificates(folder / "certificates"))
            settings["haTlsMode"] = "enforcing"
        if churners:
            # Secrets are sealed with its key; nobody has to sign.
            settings["authKeyPath"] = guarded_settings(folder / "auth", {})["authKeyPath"]
        group = stack.enter_context(
            FailoverGroup(
                folder / "group", settings=settings, limit_s=_CHANGE_LIMIT_S, pause_s=0, certificates=certificates
            )
        )
        group.stop_senders()
        for broker in group.brokers:
            broker.start_limit_s = _CHANGE_LIMIT_S
        master = group.brokers[group.master() or 0]
        for kind in KINDS:
            _make_places(master, kind, _topic(kind), _group(kind))
        churn = stack.enter_context(_churn(group, master, churners, seed)) if churners else None
        audits = stack.enter_context(Audits(group, folder / "audits")) if churners else None
        load = stack.enter_context(_official_load(group, folder / "clients", official_rate)) if official_rate else None
        mixed = stack.enter_context(MixedLoad(group.brokers, rate=rate))
        if load is not None:
            load.wait_busy()
        ends_s, faults = time.monotonic() + 60 * minutes, Counter[str]()
        while time.monotonic() + fault_s < ends_s:
            time.sleep(fault_s)
            fault = chance.choice(list(FAULTS)) if churners else _KILL
            print(f"  {sum(faults.values())} faults, now: {fault}", file=sys.stderr, flush=True)
            _disturb(group, fault)
            faults[fault] += 1
        time.sleep(max(0.0, ends_s - time.monotonic()))
        if churn is not None:
            churn.stop()
        felt = [] if load is None else load.finish()
        mixed.finish()
        wait_until(group.are_equal, limit_s=_CHANGE_LIMIT_S, what="the replicas are equal")
        rows = [_row(f"times: {fault}", count) for fault, count in faults.items()]
        for sent in mixed.kinds.values():
            rows += sent.rows()
        for each in felt:
            rows += _felt_rows(each)
        if churn is not None and audits is not None:
            rows += _churn_rows(group, churn, audits)
    return rows


@contextmanager
def _renewed_certificates(folder: Path) -> Iterator[TestCertificates]:
    """What the cluster is told to use; calls from here use the admin's."""
    certificates = TestCertificates(folder)
    stopping = threading.Event()
    admin = ADMIN[AdminLevel.REPAIR]

    def renew() -> None:
        while not stopping.wait(_RENEWAL_S):
            for identity in (NAME_SERVER, broker_identity(0), broker_identity(1), admin, CONSISTENCY):
                certificates.issue(identity, days=_CERTIFICATE_S / 86_400)

    place = certificates.issue(admin)
    thread = threading.Thread(target=renew, name="renewal")
    thread.start()
    os.environ["TANDEMMQ_SERVICE_TLS_PATH"] = str(certificates.issue(CONSISTENCY))
    try:
        with use_service_tls(ServiceTls(CertificateFolder(place, clock=SystemClock()))):
            yield certificates
    finally:
        stopping.set()
        thread.join()


def _make_places(master: ServiceProcess, message_type: str, topic: str, group: str) -> None:
    asyncio.run(create_topic(master, topic, queues=4, message_type=message_type))
    asyncio.run(create_group(master, group, ordered=message_type == "FIFO"))


def _churn(group: FailoverGroup, master: ServiceProcess, workers: int, seed: int) -> Churn:
    for message_type in MESSAGE_TYPES:
        _make_places(master, message_type, topic_of(message_type), group_of(message_type))
    return Churn(group.brokers, workers=workers, seed=seed)


def _disturb(group: FailoverGroup, fault: str) -> None:
    """Does it to the master, and mends it once another has taken over, as a supervisor would. On a machine without a
    CPU to spare the slave may have just left the in-sync set: then nobody takes over, and the master goes on."""
    wait_until(lambda: group.master() is not None, limit_s=_CHANGE_LIMIT_S, what="there is a master")
    group.wait_whole()
    first = group.master()
    if first is None:
        return
    mend = FAULTS[fault](group, group.brokers[first])
    if mend is not None:
        with suppress(AssertionError):
            limit_s = _TAKE_OVER_LIMIT_S if fault in _TAKE_OVERS else _REST_S
            wait_until(lambda: group.master() not in (None, first), limit_s=limit_s, what="another is master")
        mend()
    group.wait_whole()


class Audits:
    """Deep runs of `tandemmq verify` one after the other, from `with` on."""

    def __init__(self, group: FailoverGroup, folder: Path) -> None:
        self._group = group
        self._folder = folder
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audits")
        self.texts: Final[dict[int, list[str]]] = defaultdict(list)
        """What they printed, by their exit codes: 0 equal, 2 different, 3 not all could be read."""

    def __enter__(self) -> Audits:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """The one that runs is the last."""
        self._stopping.set()
        self._thread.join()

    def run_once(self) -> int:
        """One run; its exit code."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tandemmq.cli",
                "verify",
                "--tier",
                "deep",
                "--results",
                str(self._folder),
                "--namesrv",
                self._group.cluster.namesrv_addr,
            ],
            capture_output=True,
            text=True,
            timeout=_CHANGE_LIMIT_S,
            check=False,
        )
        self.texts[done.returncode].append(done.stdout + done.stderr)
        return done.returncode

    def _run(self) -> None:
        while not self._stopping.wait(_REST_S):
            self.run_once()


def _churn_rows(group: FailoverGroup, churn: Churn, audits: Audits) -> list[dict[str, Any]]:
    """What the members hold beside what was answered, what audits found, and what the processes logged."""

    def wrong() -> list[str]:
        return [text for broker in group.brokers for text in churn.wrong(broker)]

    with suppress(AssertionError):
        wait_until(lambda: not wrong(), limit_s=_REST_S, what="the tables are those that were answered")
    contradictions = wrong()
    audits.finish()
    last = audits.run_once()
    ended_badly = [broker.name for broker in group.brokers if broker.stop() != 0]
    tracebacks = [
        f"{process.name}: {line}"
        for process in [*group.cluster.name_servers, *group.brokers]
        for line in process.log_path.read_text(errors="replace").splitlines()
        if "Traceback" in line
    ]
    unequal = [text for code, texts in audits.texts.items() if code not in (0, _NOT_ALL_READ) for text in texts]
    if last == _NOT_ALL_READ:
        # Nothing is in its way any more.
        unequal.append(audits.texts[last][-1])
    for text in [*contradictions, *unequal, *ended_badly, *tracebacks]:
        print(f"  {text[:4_000]}", file=sys.stderr, flush=True)
    for call, count in sorted(churn.clients.items()):
        print(f"  {call}: {count}", file=sys.stderr)
    return [
        _row("churn: names", len(churn.ledger)),
        _row("churn: calls of clients", sum(churn.clients.values())),
        _row("churn: tables that contradict an answer", len(contradictions), 0),
        _row("churn: audits", sum(map(len, audits.texts.values()))),
        _row("churn: audits that could not read all", len(audits.texts[_NOT_ALL_READ])),
        _row("churn: audits that found something", len(unequal), 0),
        _row("churn: processes that did not end well", len(ended_badly), 0),
        _row("churn: tracebacks in logs", len(tracebacks), 0),
    ]


def main() -> int:
    """Prints a line a row; the exit code is 1 if one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kill-s", type=float, default=120, help="seconds between two kills, or other faults")
    parser.add_argument("--rate", type=float, default=20, help="messages a second of each kind, with raw stubs")
    parser.add_argument("--lease-ms", type=int, default=6_000, help="of the master; longer where CPUs are scarce")
    parser.add_argument("--official-rate", type=int, default=30, help="messages a second of the Python client")
    parser.add_argument("--languages", choices=("all", "raw"), default="all", help="raw: no official clients")
    parser.add_argument("--churn", type=int, default=0, help="workers that let names and clients come and go")
    parser.add_argument("--seed", type=int, default=0, help="draws the churn and its faults")
    parser.add_argument("--secure", action="store_true", help="members know each other by certificates, soon renewed")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mixed-load")
    parser.add_argument("--report", type=Path, default=REPORT)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    (arguments.folder / "group").mkdir(parents=True)
    with share_imports():
        rows = play(
            arguments.minutes,
            arguments.kill_s,
            arguments.folder.absolute(),
            rate=arguments.rate,
            official_rate=arguments.official_rate if arguments.languages == "all" else 0,
            lease_ms=arguments.lease_ms,
            churners=arguments.churn,
            seed=arguments.seed,
            is_secure=arguments.secure,
        )
    arguments.report.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(f"{row['name']}: {row['value']}{'' if row['holds'] else '   DOES NOT HOLD'}")
    holds = all(row["holds"] for row in rows)
    if holds:
        shutil.rmtree(arguments.folder)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
