"""Attacks a real broker over and over while an orderly client sends, and watches the broker's memory.

    make attacks                      # build/attacks.json
    python tools/attacks.py --rounds 3

The broker has its default limits; every attack of `tests/support/http2_attacks.py` runs once in a round, several at a
time. What only time ends (slow readers, half a frame) is cut off by the attacker when the round is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import grpc
import psutil

from contract.client_api.raw_client import RawClient
from support.api_requests import message, send_request
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.http2_attacks import ATTACKS, Attack, run_attack
from support.http2_peer import unary_request
from support.topic_admin import broker_status, create_topic
from tandemmq.proto.rocketmq.v2 import service_pb2 as pb

TOPIC: Final = "attacked"
AT_ONCE: Final = 6
# Attackers give up waiting after this long; the limits that only time reaches are longer.
PATIENCE_S: Final = 3.0
CHUNKS_MAX: Final = 20_000
RSS_GROWTH_MIB_MAX: Final = 64
SETTLE_S: Final = 20.0


def health_request(stream_id: int, body: bytes = b"") -> bytes:
    """A request that every port answers."""
    return unary_request(stream_id, body, (":path", "/grpc.health.v1.Health/Check"))


class OrderlyClient:
    """Sends one message after the other until told to stop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.sent = 0
        self.errors: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.is_done = False

    async def run(self) -> None:
        async with RawClient(self._address) as client:
            while not self.is_done:
                started = time.monotonic()
                request = send_request(message(TOPIC, b"x" * 1_024))
                try:
                    await client.unary("SendMessage", request, pb.SendMessageResponse)
                    self.sent += 1
                except grpc.aio.AioRpcError as error:
                    self.errors[f"{error.code().name} {error.details()}"] += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                await asyncio.sleep(0.002)


async def attack_round(port: int, closed: Counter[str]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(attack: Attack) -> None:
        async with room:
            with suppress(OSError):
                was_closed = await run_attack(
                    attack, port, request=health_request, chunks_max=CHUNKS_MAX, close_limit_s=PATIENCE_S
                )
                closed[attack.name] += was_closed

    await asyncio.gather(*(one(attack) for attack in ATTACKS))


async def attack(broker: ServiceProcess, rounds: int) -> list[dict[str, Any]]:
    """Warm-up rounds, the rounds, and the rows."""
    await create_topic(broker, TOPIC)
    port = broker.ports["grpcServerPort"]
    process = psutil.Process(broker.pid)
    client = OrderlyClient(f"127.0.0.1:{port}")
    sending = asyncio.ensure_future(client.run())
    closed: Counter[str] = Counter()
    # What the first attacks make the process allocate for good is no growth.
    for _ in range(2):
        await attack_round(port, Counter())
    before = process.memory_info().rss
    for number in range(rounds):
        await attack_round(port, closed)
        resident = process.memory_info().rss
        print(f"round {number + 1}: {resident >> 20} MiB, {client.sent} sent, {sum(client.errors.values())} errors")
    await asyncio.sleep(0.5)
    growth_mib = (process.memory_info().rss - before) / (1 << 20)
    client.is_done = True
    await sending
    counts = (await broker_status(broker)).client_plane_counts
    raised = [attack.counter for attack in ATTACKS if counts.get(attack.counter, 0)]
    for name, count in sorted(counts.items()):
        print(f"  {name:32}{count}")
    for error, count in client.errors.items():
        print(f"  error of the orderly client, {count} times: {error}")
    survived = [attack.name for attack in ATTACKS if attack.ends_connection and not closed[attack.name]]
    print(f"not ended within {PATIENCE_S:g} s: {', '.join(survived) or 'none'}")
    errors = sum(client.errors.values())
    return [
        _row("attack_rounds", rounds, "rounds", None, holds=True),
        _row("attack_kinds", len(ATTACKS), "attacks", None, holds=True),
        _row("attack_counters_raised", len(set(raised)), "counters", ">= 15", holds=len(set(raised)) >= 15),
        _row(
            "attack_memory_growth",
            round(growth_mib, 1),
            "MiB",
            f"<= {RSS_GROWTH_MIB_MAX}",
            holds=growth_mib <= RSS_GROWTH_MIB_MAX,
        ),
        _row("attack_orderly_sends", client.sent, "messages", ">= 100", holds=client.sent >= 100),
        _row("attack_orderly_errors", errors, "messages", "0", holds=errors == 0),
        _row("attack_orderly_slowest", round(client.slowest_s * 1e3, 1), "ms", None, holds=True),
    ]


def _row(name: str, value: float, unit: str, target: str | None, *, holds: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "holds": holds}


def main() -> int:
    """Exit code 1 when a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    folder = ROOT / "build" / "attacks"
    shutil.rmtree(folder, ignore_errors=True)
    with ProcessCluster(folder) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER"})
        rows = asyncio.run(attack(broker, rounds))
        is_alive = broker.process is not None and broker.process.poll() is None
        rows.append(_row("attack_broker_alive", int(is_alive), "", "1", holds=is_alive))
        wait_until(
            lambda: len(psutil.Process(broker.pid).net_connections()) < 100, limit_s=SETTLE_S, what="attackers are gone"
        )
    (ROOT / "build" / "attacks.json").write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(f"{row['name']:28}{row['value']:>10} {row['unit']}{'' if row['holds'] else '  FAILS'}")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
