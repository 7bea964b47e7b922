"""Receives and acknowledges messages with the official RocketMQ client, in a pod, until all that is awaited has come.

Awaited is every message id of the sender's record; it is complete when the file given with --until is there.

Record, a line per delivery, separated by tabs: number, message id, delivery attempt, 1 if the body is whole, seconds
since the epoch.
Output: one JSON object at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import zlib
from pathlib import Path

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

BATCH = 32
# Short, so that what a dying master had handed out comes again soon.
LEASE_S = 15
# The least a broker waits; the client adds its own request timeout to make the deadline of the call.
AWAIT_S = 5
# After the last one: time for a repeated delivery that is already on its way.
SETTLE_S = 2
RETRY_PAUSE_S = 0.3
SHOWN_FAILURES = 30


class NumberReceiver:
    """Collects deliveries from several threads of one consumer."""

    def __init__(self, consumer: SimpleConsumer, arguments: argparse.Namespace) -> None:
        self._consumer = consumer
        self._arguments = arguments
        self._record = arguments.record.open("w", encoding="ascii", buffering=1)
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._stop = threading.Event()
        self.deliveries = 0
        self.broken = 0
        self.failures = 0

    def run(self) -> int:
        """Returns how many awaited messages did not come within the limit."""
        threads = [threading.Thread(target=self._receive) for _ in range(self._arguments.threads)]
        for thread in threads:
            thread.start()
        while not self._arguments.until.exists():
            time.sleep(0.5)
        awaited = {
            line.split("\t")[1] for path in self._arguments.awaited for line in path.read_text().splitlines() if line
        }
        deadline = time.monotonic() + self._arguments.limit_s
        while time.monotonic() < deadline:
            with self._lock:
                missing = awaited - self._ids
            if not missing:
                break
            time.sleep(0.5)
        time.sleep(SETTLE_S)
        self._stop.set()
        for thread in threads:
            thread.join()
        return len(awaited - self._ids)

    def _receive(self) -> None:
        while not self._stop.is_set():
            try:
                messages = self._consumer.receive(BATCH, LEASE_S) or []
            except Exception as error:  # the official client raises whatever gRPC gave it; brokers may be away
                self._note(error)
                time.sleep(RETRY_PAUSE_S)
                continue
            for message in messages:
                self._take(message)

    def _take(self, message) -> None:
        start, _, checksum = message.body.rpartition(b" ")
        whole = f"{zlib.crc32(start):08x}".encode() == checksum
        with self._lock:
            attempt = message.delivery_attempt
            number, now_s = message.body[:10].decode(), time.time()
            self._record.write(f"{number}\t{message.message_id}\t{attempt}\t{int(whole)}\t{now_s:.3f}\n")
            self._ids.add(message.message_id)
            self.deliveries += 1
            self.broken += not whole
        try:
            self._consumer.ack(message)
        except Exception as error:  # it will be delivered again, which the record shows
            self._note(error)

    def _note(self, error: Exception) -> None:
        with self._lock:
            self.failures += 1
            if self.failures <= SHOWN_FAILURES:
                sys.stderr.write(f"{time.time():.3f} {error!r:.300}\n")
                sys.stderr.flush()


def started_consumer(arguments: argparse.Namespace) -> SimpleConsumer:
    """A consumer that has its route; tried again until it has one."""
    deadline = time.monotonic() + arguments.limit_s
    while True:
        configuration = ClientConfiguration(arguments.endpoints, Credentials())
        consumer = SimpleConsumer(configuration, arguments.group, {arguments.topic: FilterExpression()}, AWAIT_S)
        try:
            consumer.startup()
        except Exception as error:
            if time.monotonic() > deadline:
                raise
            sys.stderr.write(f"{time.time():.3f} no route yet: {error!r:.200}\n")
            sys.stderr.flush()
            time.sleep(RETRY_PAUSE_S)
            continue
        return consumer


def main() -> int:
    """Reads the arguments, receives, prints what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--awaited", type=Path, action="append", required=True, help="records of senders")
    parser.add_argument("--until", type=Path, required=True, help="those records are complete when this exists")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=180.0, help="from the moment --until exists")
    arguments = parser.parse_args()
    consumer = started_consumer(arguments)
    receiver = NumberReceiver(consumer, arguments)
    missing = receiver.run()
    result = {
        "missing": missing,
        "deliveries": receiver.deliveries,
        "broken": receiver.broken,
        "failures": receiver.failures,
    }
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    consumer.shutdown()
    return 0 if missing == 0 and receiver.broken == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
