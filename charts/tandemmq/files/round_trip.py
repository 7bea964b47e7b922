"""`helm test`: messages go in by the clients' access point, through every broker group, and come out unchanged.

Runs in the admin's image. Environment: ACCESS_POINT host:port, BROKER_GROUPS their names joined by commas, TLS_MODE.
Exit code 0: all came back. 1: the last line says what did not.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import time
import uuid

from mqclient import ClientOptions, Producer, SimpleConsumer
from mqservice.clock import SystemClock

TOPIC = "tandemmq-helm-test"
GROUP = "tandemmq-helm-test"
MESSAGES_A_GROUP = 20
LIMIT_S = 60


def main() -> int:
    """Sends, receives, compares; removes the topic afterwards."""
    access_point, groups = os.environ["ACCESS_POINT"], set(os.environ["BROKER_GROUPS"].split(","))
    if os.environ["TLS_MODE"] == "enforcing":
        return handshake(access_point)
    run("topic", "create", TOPIC, "--queues", "4")
    try:
        asyncio.run(asyncio.wait_for(round_trip(access_point, groups), LIMIT_S))
    except Exception as error:  # whatever it is, the reader of a test's log wants one line
        print(f"FAILED: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        run("topic", "delete", TOPIC, "--yes")
    return 0


async def round_trip(access_point: str, groups: set[str]) -> None:
    """Raises RuntimeError when a broker group took no message; TimeoutError when not all came back."""
    options, clock = ClientOptions(access_points=(access_point,)), SystemClock()
    bodies = {f"{uuid.uuid4()}".encode() for _ in range(MESSAGES_A_GROUP * len(groups))}
    async with Producer(options, clock) as producer, SimpleConsumer(
        options, clock, group=GROUP, subscriptions={TOPIC: "*"}
    ) as consumer:
        # A new consumer group begins where it first asks, so it asks every broker group before anything is sent.
        async with asyncio.TaskGroup() as asking:
            for _ in groups:
                asking.create_task(consumer.receive(await_ms=5_000))
        started_s = time.monotonic()
        receipts = [await producer.send(TOPIC, body) for body in sorted(bodies)]
        sent_s = time.monotonic() - started_s
        print(f"sent {len(bodies)} messages to {access_point} in {sent_s:.2f} s")
        if missing := groups - {receipt.broker_name for receipt in receipts}:
            raise RuntimeError(f"no message went to {', '.join(sorted(missing))}")
        waiting = set(bodies)
        while waiting:
            for message in await consumer.receive(await_ms=5_000):
                await consumer.ack(message)
                waiting.discard(message.body)
        print(f"received all of them from {', '.join(sorted(groups))}")


def handshake(access_point: str) -> int:
    """The command line speaks no TLS yet: with tls.mode=enforcing only the handshake and the state are looked at."""
    host, _, port = access_point.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout=5) as plain, context.wrap_socket(plain) as secure:
        print(f"TLS handshake with {access_point}: {secure.version()}, {secure.selected_alpn_protocol()}")
    return run("status")


def run(*arguments: str) -> int:
    """Runs the command line; returns its exit code."""
    return subprocess.run(["tandemmq", *arguments], check=False, timeout=LIMIT_S).returncode


if __name__ == "__main__":
    sys.exit(main())
