"""Receives and acknowledges messages with the official RocketMQ client until every line has come.

Runs in the client's own environment. Record, a line per delivery, separated by tabs: line number, message id, delivery
attempt. Standard output: the number of different lines so far, now and then.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

# Some of them wait at queues that have nothing, while others receive.
THREADS = 8
BATCH = 32
# Short, so that what a dying master had handed out comes again soon.
LEASE_S = 15
# The least a broker waits; the client adds its own request timeout to make the deadline of the call.
AWAIT_S = 5
# After the last line: time for a repeated delivery that is already on its way.
SETTLE_S = 3
PROGRESS_EVERY = 100


class LineReceiver:
    """Collects deliveries from several threads of one consumer."""

    def __init__(self, consumer: SimpleConsumer, record: Path, expected: int) -> None:
        self._consumer = consumer
        self._record = record.open("w", encoding="ascii")
        self._expected = expected
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._errors = 0
        self._stop = threading.Event()

    def run(self, limit_s: float) -> None:
        """Returns when every line came, or after the limit; what is missing shows in the record."""
        threads = [threading.Thread(target=self._receive, name=f"receive-{number}") for number in range(THREADS)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + limit_s
        while len(self._seen) < self._expected and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(SETTLE_S)
        self._stop.set()
        for thread in threads:
            thread.join()
        self._record.close()

    def _receive(self) -> None:
        while not self._stop.is_set():
            try:
                messages = self._consumer.receive(BATCH, LEASE_S) or []
            except Exception as error:  # the official client raises whatever gRPC gave it; brokers may be away
                self._note(error)
                time.sleep(0.2)
                continue
            for message in messages:
                self._take(message)

    def _take(self, message) -> None:
        number = int(message.body[:6])
        with self._lock:
            self._record.write(f"{number}\t{message.message_id}\t{message.delivery_attempt}\n")
            self._seen.add(number)
            if len(self._seen) % PROGRESS_EVERY == 0:
                report(str(len(self._seen)))
        try:
            self._consumer.ack(message)
        except Exception as error:  # it will be delivered again, which the record shows
            self._note(error)

    def _note(self, error: Exception) -> None:
        with self._lock:
            self._errors += 1
            if self._errors <= 20:
                sys.stderr.write(f"{error!r:.300}\n")


def report(text: str) -> None:
    """One line for whoever started us, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Reads the arguments and receives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--expect", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    arguments = parser.parse_args()
    configuration = ClientConfiguration(arguments.endpoints, Credentials())
    consumer = SimpleConsumer(configuration, arguments.group, {arguments.topic: FilterExpression()}, AWAIT_S)
    consumer.startup()
    try:
        LineReceiver(consumer, arguments.record, arguments.expect).run(arguments.limit_s)
    finally:
        consumer.shutdown()


if __name__ == "__main__":
    main()
