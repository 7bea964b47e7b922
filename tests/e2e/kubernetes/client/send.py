"""Sends numbered messages with the official RocketMQ client, in a pod, and writes down which were acknowledged.

A send that fails after the client's own retries is tried again until it is acknowledged, as an application that cannot
afford to lose a message does. The first acknowledgement may be long in coming: the cluster may just be starting.

Record, a line per acknowledgement, separated by tabs: number, message id, host of the broker, seconds since the epoch.
Output: one JSON object at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import zlib
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from rocketmq import ClientConfiguration, Credentials, Message, Producer

IN_FLIGHT = 32
RETRY_PAUSE_S = 0.2
SHOWN_FAILURES = 30


class NumberSender:
    """Keeps some sends in flight until `count` are acknowledged, or until the stop file shows up."""

    def __init__(self, producer: Producer, arguments: argparse.Namespace) -> None:
        self._producer = producer
        self._topic = arguments.topic
        self._count = arguments.count
        self._stop: Path | None = arguments.stop
        self._pause_s = 1 / arguments.rate if arguments.rate else 0.0
        self._body_bytes = arguments.body_bytes
        self._first = self._next = arguments.first
        self._last = arguments.first + arguments.count if arguments.count else None
        # Numbers to repeat, with the moment from which on.
        self._again: deque[tuple[float, int]] = deque()
        self._slots = threading.Semaphore(IN_FLIGHT)
        self._lock = threading.Lock()
        # A line at a time: whoever reads the record while brokers die sees everything that was acknowledged.
        self._record = arguments.record.open("w", encoding="ascii", buffering=1)
        self._limit_s = arguments.limit_s
        self.acknowledged = 0
        self.failures = 0
        self.started_s = time.time()

    def run(self) -> bool:
        """Returns when all is acknowledged: False when the limit passed before."""
        deadline = time.monotonic() + self._limit_s
        due = time.monotonic()
        while not self._finished():
            if time.monotonic() > deadline:
                return False
            if not self._slots.acquire(timeout=1):
                continue
            number = self._take()
            if number is None:
                # Everything is under way; a failure may still come back.
                self._slots.release()
                time.sleep(0.05)
                continue
            self._send(number)
            if self._pause_s:
                # Not faster than the rate, and no burst after a standstill.
                due = max(due + self._pause_s, time.monotonic() - self._pause_s)
                time.sleep(max(0.0, due - time.monotonic()))
        return True

    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.exists()

    def _finished(self) -> bool:
        with self._lock:
            if self._last is not None:
                return self.acknowledged >= self._count
            # What was begun is brought to its end: the last sends are the ones a fault has hit.
            return self._stopped() and self.acknowledged == self._next - self._first

    def _take(self) -> int | None:
        with self._lock:
            if self._again and self._again[0][0] <= time.monotonic():
                return self._again.popleft()[1]
            if self._last is not None and self._next >= self._last:
                return None
            if self._last is None and self._stopped():
                return None
            self._next += 1
            return self._next - 1

    def _send(self, number: int) -> None:
        message = Message()
        message.topic = self._topic
        message.body = body_of(number, self._body_bytes)
        message.keys = f"number-{number}"
        try:
            future = self._producer.send_async(message)
        except Exception as error:  # the official client raises bare Exception when it has no route
            self._failed(number, error)
            return
        future.add_done_callback(lambda done: self._answered(number, done))

    def _answered(self, number: int, done: Future) -> None:
        error = done.exception()
        if error is not None:
            self._failed(number, error)
            return
        receipt = done.result()
        host = receipt.message_queue.endpoints.endpoints.addresses[0].host
        with self._lock:
            self._record.write(f"{number}\t{receipt.message_id}\t{host}\t{time.time():.3f}\n")
            self.acknowledged += 1
        self._slots.release()

    def _failed(self, number: int, error: BaseException) -> None:
        with self._lock:
            self.failures += 1
            if self.failures <= SHOWN_FAILURES:
                sys.stderr.write(f"{time.time():.3f} number {number}: {error!r:.300}\n")
                sys.stderr.flush()
            self._again.append((time.monotonic() + RETRY_PAUSE_S, number))
        self._slots.release()


def body_of(number: int, size: int) -> bytes:
    """The body of a number: the number, filler, and a checksum, so that a receiver can tell that it is whole."""
    start = f"{number:010d} ".encode() + b"x" * max(0, size - 20)
    return start + f" {zlib.crc32(start):08x}".encode()


def started_producer(arguments: argparse.Namespace) -> Producer:
    """A producer that has its route. The official client gives up at once; a cluster that comes up needs a while."""
    deadline = time.monotonic() + arguments.limit_s
    while True:
        producer = Producer(ClientConfiguration(arguments.endpoints, Credentials()), (arguments.topic,))
        try:
            producer.startup()
        except Exception as error:
            if time.monotonic() > deadline:
                raise
            sys.stderr.write(f"{time.time():.3f} no route yet: {error!r:.200}\n")
            sys.stderr.flush()
            time.sleep(RETRY_PAUSE_S)
            continue
        return producer


def main() -> int:
    """Reads the arguments, sends, prints what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--count", type=int, default=0, help="0: until the stop file is there")
    parser.add_argument("--first", type=int, default=0, help="number of the first message")
    parser.add_argument("--stop", type=Path)
    parser.add_argument("--rate", type=float, default=0.0, help="sends per second; 0: as fast as it goes")
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--limit-s", type=float, default=600.0)
    arguments = parser.parse_args()
    producer = started_producer(arguments)
    sender = NumberSender(producer, arguments)
    whole = sender.run()
    result = {"whole": whole, "acknowledged": sender.acknowledged, "failures": sender.failures}
    sys.stdout.write(json.dumps(result | {"seconds": round(time.time() - sender.started_s, 1)}) + "\n")
    sys.stdout.flush()
    producer.shutdown()
    return 0 if whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
