"""Strangers on every port of a closed cluster for some minutes, while a user sends.

    make strangers MINUTES=10          # build/strangers.json; compiled modules, as images have them
    python tools/strangers.py --minutes 1

A NameServer, a SYNC_MASTER, its slave and the admin service, each with certificates, and with users on the client
port. One user sends a message after another: for a while alone, then beside the strangers, who are a process of
their own and do on each port what they can without a certificate or a key: every attack of
`tests/support/http2_attacks.py`, bytes of chance, handshakes that they leave or do with a certificate of their own,
replication reports, unsigned and wrongly signed calls, HTTP requests. At the end nothing of theirs may be there: no
message, no member, no slave; what was acknowledged is in both logs; nobody's memory has grown; and p99 is what it was.

Strangers get what processors are idle: what shows is how servers are held up, not who gets this machine's processors. A
nice of 19 is not enough for that: a server that wakes up waits for milliseconds until such a process has had its slice.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import shutil
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

import grpc
import psutil
from attacks import health_request

from support.certificates import ADMIN, GROUP, TestCertificates
from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, lasting_port, wait_until
from support.guarded_broker import guarded_settings
from support.http2_attacks import ATTACKS, GREETING, TLS_CLIENT_HELLO, run_attack
from support.topic_admin import broker_status, create_topic
from tandemmq.core.access.identity import AdminLevel
from tandemmq.core.access.signature import sign
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb
from tandemmq.service.certificates import CertificateFolder
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.service_channels import ServiceTls, use_service_tls

FOLDER: Final = ROOT / "build" / "strangers"
REPORT: Final = ROOT / "build" / "strangers.json"
TOPIC: Final = "guarded"
USER, KEY = "ann", "a key of ann's"
P99_RATIO_MAX: Final = 1.5
"""Of a send beside strangers, to one alone."""
RSS_GROWTH_MIB_MAX: Final = 64
CLUSTER_LIMIT_S: Final = 120.0
PAUSE_S: Final = 0.01
"""Of the user between two sends, and of each stranger between two attempts."""
ATTACK_PATIENCE_S: Final = 2.0
CHUNKS_MAX: Final = 500
HELD_MAX: Final = 50
"""Connections that a stranger leaves open and silent."""
# Ids of the user's messages begin with the one, those of strangers with the other.
OURS, THEIRS = "01A0", "02B0"
_ID: Final = re.compile(rb"0[12][AB]0[0-9A-F]{30}")


def main() -> int:
    """Exit code 1 when a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--as-strangers", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_strangers:
        asyncio.run(be_strangers(json.loads(options.as_strangers)))
        return 0
    rows = run(options.minutes * 60)
    REPORT.write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(f"{row['name']:34}{row['value']:>12} {row['unit']}{'' if row['holds'] else '  FAILS'}")
    return 0 if all(row["holds"] for row in rows) else 1


# The cluster and its user


@dataclass
class Closed:
    cluster: ProcessCluster
    master: ServiceProcess
    slave: ServiceProcess
    admin: ServiceProcess
    as_admin: ServiceTls

    @property
    def processes(self) -> list[ServiceProcess]:
        return [self.cluster.name_servers[0], self.master, self.slave, self.admin]

    def slaves(self) -> set[int | None]:
        """Those that count."""
        with use_service_tls(self.as_admin):
            status = asyncio.run(broker_status(self.master))
        return {slave.broker_id for slave in status.slaves if slave.verified}

    def resident(self) -> dict[str, int]:
        """Bytes, by process."""
        return {process.name: psutil.Process(process.pid).memory_info().rss for process in self.processes}


def closed_cluster(cluster: ProcessCluster, certificates: TestCertificates) -> Closed:
    """Started, with a topic, and its slave in sync."""
    name_server = cluster.add_name_server()
    users = guarded_settings(FOLDER / "users", {USER: KEY}, super_users=[USER])
    master = cluster.add_broker(GROUP, broker_id=0, settings=users)
    slave = cluster.add_broker(GROUP, broker_id=1, settings=users)
    admin = ServiceProcess(
        name="admin",
        module="tandemmq.admin",
        settings={
            "bindAddress": "127.0.0.1",
            "namesrvAddr": cluster.namesrv_addr,
            "adminToken": "t" * 40,
            **certificates.settings(ADMIN[AdminLevel.REPAIR]),
        },
        log_path=FOLDER / "logs" / "admin.log",
        port_keys=("httpPort",),
        ports={"httpPort": lasting_port()},
    )
    cluster.brokers["admin"] = admin  # It is ended with them.
    admin.start()
    folder = CertificateFolder(certificates.issue(ADMIN[AdminLevel.REPAIR]), clock=SystemClock())
    closed = Closed(cluster, master, slave, admin, ServiceTls(folder))
    with use_service_tls(closed.as_admin):
        asyncio.run(create_topic(master, TOPIC, queues=4))
    wait_until(lambda: closed.slaves() == {1}, limit_s=CLUSTER_LIMIT_S, what="the slave is in sync")
    assert name_server.process is not None
    return closed


def signed(key: str = KEY, *, user: str = USER) -> tuple[tuple[str, str], ...]:
    """What a call of a user brings."""
    date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = sign(key.encode(), date).hex().upper()
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return ("x-mq-client-id", f"{user}@1@0@0"), ("authorization", text), ("x-mq-date-time", date)


def one_message(message_id: str) -> pb.SendMessageRequest:
    message = definition.Message(topic=definition.Resource(name=TOPIC), body=b"x" * 512)
    message.system_properties.message_id = message_id
    message.system_properties.message_type = definition.NORMAL
    return pb.SendMessageRequest(messages=[message])


class OrderlyUser:
    """Sends one message after another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()
        self.acknowledged: list[str] = []
        self.problems: Counter[str] = Counter()

    def send_for(self, seconds: float) -> list[float]:
        """How long each took, in ms."""
        took = []
        ends = time.monotonic() + seconds
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            send = channel.unary_unary(
                "/apache.rocketmq.v2.MessagingService/SendMessage",
                request_serializer=pb.SendMessageRequest.SerializeToString,
                response_deserializer=pb.SendMessageResponse.FromString,
            )
            while time.monotonic() < ends:
                message_id = f"{OURS}{next(self._numbers):030X}"
                began = time.perf_counter()
                try:
                    answer = send(one_message(message_id), metadata=signed(), timeout=30)
                except grpc.RpcError as error:
                    self.problems[f"{error.code().name} {error.details()}"] += 1
                    continue
                took.append((time.perf_counter() - began) * 1_000)
                if answer.status.code == definition.OK:
                    self.acknowledged.append(message_id)
                else:
                    self.problems[f"{answer.status.code} {answer.status.message}"] += 1
                time.sleep(PAUSE_S)
        return took


def run(seconds: float) -> list[dict[str, Any]]:
    """The cluster, the user alone, the user among strangers, and what is left."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    certificates = TestCertificates(FOLDER / "certificates")
    with ProcessCluster(FOLDER, certificates=certificates) as cluster:
        closed = closed_cluster(cluster, certificates)
        user = OrderlyUser(closed.master.ports["grpcServerPort"])
        ports = {
            "client": closed.master.ports["grpcServerPort"],
            "slave_client": closed.slave.ports["grpcServerPort"],
            "metadata": closed.master.ports["listenPort"],
            "replication": closed.master.ports["haListenPort"],
            "nameserver": cluster.name_servers[0].ports["listenPort"],
            "admin": closed.admin.ports["httpPort"],
        }
        user.send_for(min(10.0, seconds / 4))
        with_strangers(ports, min(15.0, seconds / 4), lambda: user.send_for(min(10.0, seconds / 4)))
        rss_before = closed.resident()
        # Before and after, as what else the machine does changes with time.
        alone = user.send_for(min(60.0, seconds / 4))
        attempts, beside, rss_most = with_strangers(
            ports, seconds, lambda: user.send_for(seconds), watch=closed.resident
        )
        alone += user.send_for(min(60.0, seconds / 4))
        wait_until(lambda: closed.slaves() == {1}, limit_s=CLUSTER_LIMIT_S, what="the slave is the only one")
        alive = sum(process.process is not None and process.process.poll() is None for process in closed.processes)
        growth = {name: (rss_most.get(name, 0) - before) / (1 << 20) for name, before in rss_before.items()}
        refused = sum(
            1
            for process in closed.processes
            for event in process.events()
            if event.get("event") in ("access_refused", "slave_link_closed", "slave_report_refused", "call_refused")
        )
        for process in (closed.slave, closed.master):
            process.stop()
        stored = [ids_in(cluster.store_folder(f"{GROUP}-{number}")) for number in (0, 1)]
    for problem, count in user.problems.items():
        print(f"  problem of the user, {count} times: {problem}")
    print(f"  attempts of strangers: {dict(attempts)}")
    print(f"  memory: { ({name: f'{grown:+.1f} MiB' for name, grown in growth.items()}) }")
    lost = sum(1 for message_id in user.acknowledged for ids in stored if message_id.encode() not in ids)
    foreign = sum(1 for ids in stored for message_id in ids if message_id.startswith(THEIRS.encode()))
    p99 = {"alone": percentile(alone, 99), "beside": percentile(beside, 99)}
    ratio = p99["beside"] / p99["alone"]
    return [
        row("strangers_minutes", round(seconds / 60, 1), "min"),
        row("strangers_attempts", sum(attempts.values()), "attempts"),
        row("strangers_ports", len(attempts), "ports", "6", holds=len(attempts) == len(ports)),
        row("strangers_refusals_logged", refused, "lines", ">= 1", holds=refused >= 1),
        row("strangers_messages_of_theirs", foreign, "messages", "0", holds=foreign == 0),
        row("strangers_user_sends", len(user.acknowledged), "messages"),
        row("strangers_user_lost", lost, "messages", "0", holds=lost == 0),
        row("strangers_user_problems", user.problems.total(), "sends", "0", holds=not user.problems),
        row("strangers_processes_alive", alive, "processes", "4", holds=alive == 4),
        row(
            "strangers_memory_growth",
            round(max(growth.values()), 1),
            "MiB",
            f"<= {RSS_GROWTH_MIB_MAX}",
            holds=max(growth.values()) <= RSS_GROWTH_MIB_MAX,
        ),
        row("strangers_p50_alone", round(percentile(alone, 50), 2), "ms"),
        row("strangers_p50_beside", round(percentile(beside, 50), 2), "ms"),
        row("strangers_p99_alone", round(p99["alone"], 2), "ms"),
        row("strangers_p99_beside", round(p99["beside"], 2), "ms"),
        row("strangers_p99_ratio", round(ratio, 2), "x", f"<= {P99_RATIO_MAX}", holds=ratio <= P99_RATIO_MAX),
        row("strangers_load", round(os.getloadavg()[1], 1), "processes"),
    ]


def row(name: str, value: float, unit: str, target: str | None = None, *, holds: bool = True) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def ids_in(store: Path) -> set[bytes]:
    """Ids of all messages in a store's log."""
    return {found for data in commit_log_bytes(store).values() for found in _ID.findall(data)}


def with_strangers(
    ports: dict[str, int],
    seconds: float,
    work: Callable[[], list[float]],
    *,
    watch: Callable[[], dict[str, int]] = dict,
) -> tuple[Counter[str], list[float], dict[str, int]]:
    """Does the work among strangers; their attempts by port, what the work gave, and the most that `watch` told."""
    command = [sys.executable, __file__, "--as-strangers", json.dumps({"seconds": seconds, "ports": ports})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as strangers:
        most: dict[str, int] = {}
        done = work()
        for name, size in watch().items():
            most[name] = max(size, most.get(name, 0))
        output, _ = strangers.communicate(timeout=seconds + 300)
    return Counter(json.loads(output.splitlines()[-1])), done, most


# The strangers


async def be_strangers(task: dict[str, Any]) -> None:
    """Attempts on all ports until the time is over; prints how many on each."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    ends = time.monotonic() + task["seconds"]
    attempts: Counter[str] = Counter()
    chance = random.Random(6)
    ports: dict[str, int] = task["ports"]

    async def keep_on(name: str, attempt: Callable[[], Any]) -> None:
        while time.monotonic() < ends:
            with suppress(OSError, TimeoutError, ssl.SSLError, grpc.RpcError, asyncio.IncompleteReadError):
                async with asyncio.timeout(4 * ATTACK_PATIENCE_S):
                    await attempt()
            attempts[name] += 1
            await asyncio.sleep(PAUSE_S)

    strangers = [keep_on(name, attempt) for name, port in ports.items() for attempt in attempts_on(name, port, chance)]
    await asyncio.gather(*strangers)
    print(json.dumps(attempts))


def attempts_on(name: str, port: int, chance: random.Random) -> list[Callable[[], Any]]:
    """What strangers do on a port, each again and again."""
    held: list[socket.socket] = []
    attacks = itertools.cycle(ATTACKS)

    async def attack() -> None:
        await run_attack(
            next(attacks), port, request=health_request, chunks_max=CHUNKS_MAX, close_limit_s=ATTACK_PATIENCE_S
        )

    async def say(data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(ATTACK_PATIENCE_S / 4):
                while await reader.read(1 << 16):
                    pass
        finally:
            writer.transport.abort()

    async def chance_bytes() -> None:
        opening = chance.choice((b"", GREETING, TLS_CLIENT_HELLO, b"POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\n"))
        await say(opening + chance.randbytes(chance.randrange(1, 4_000)))

    async def hold() -> None:
        """Half-open conversations."""
        sock = socket.create_connection(("127.0.0.1", port), timeout=ATTACK_PATIENCE_S)
        sock.setblocking(False)
        with suppress(OSError):
            sock.send(chance.choice((b"", GREETING[:10], TLS_CLIENT_HELLO[:50])))
        held.append(sock)
        if len(held) > HELD_MAX:
            held.pop(0).close()
        await asyncio.sleep(0.1)

    async def handshake() -> None:
        """TLS without a certificate that anybody knows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(GREETING + health_request(1))
            await writer.drain()
            async with asyncio.timeout(ATTACK_PATIENCE_S / 4):
                await reader.read(1 << 16)
        finally:
            writer.transport.abort()

    async def report() -> None:
        """What a slave would say that has it all."""
        await say(struct.pack(">q", chance.choice((0, 1, 4_096, 1 << 40, -1, -2, chance.getrandbits(63)))))

    numbers = itertools.count()

    async def calls() -> None:
        """Sends, goodbyes and heartbeats of nobody, and of a user with a guessed key."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for metadata in ((("x-mq-client-id", f"{USER}@1@0@0"),), signed("a guessed key"), signed(user="nobody")):
                for method, request in (
                    ("SendMessage", one_message(f"{THEIRS}{next(numbers):030X}")),
                    ("NotifyClientTermination", pb.NotifyClientTerminationRequest()),
                    ("QueryRoute", pb.QueryRouteRequest(topic=definition.Resource(name=TOPIC))),
                ):
                    call = channel.unary_unary(
                        f"/apache.rocketmq.v2.MessagingService/{method}",
                        request_serializer=lambda message: message.SerializeToString(),
                        response_deserializer=bytes,
                    )
                    await call(request, metadata=metadata, timeout=ATTACK_PATIENCE_S)

    async def http() -> None:
        body = chance.choice((b"{}", b"[" * 900, b'{"topic": "x"}', b"token=guess", chance.randbytes(200)))
        path = chance.choice(("/", "/login", "/api/v1/topics", "/api/v1/topics/guarded", "/api/v1/users", "/metrics"))
        method = chance.choice(("GET", "POST", "PUT", "DELETE"))
        token = chance.choice(("", f"Authorization: Bearer {chance.randrange(1 << 64):x}\r\n", "Cookie: session=x\r\n"))
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{token}Content-Type: application/json\r\n"
        await say(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)

    everywhere = [chance_bytes, hold]
    return (
        everywhere
        + {
            "client": [attack, attack, calls],
            "slave_client": [attack, calls],
            "metadata": [handshake, attack],
            "nameserver": [handshake, attack],
            "replication": [report],
            "admin": [http, attack],
        }[name]
    )


if __name__ == "__main__":
    sys.exit(main())
