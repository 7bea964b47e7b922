"""Sends numbered lines with the official RocketMQ client and writes down which ones were acknowledged.

Runs in the client's own environment. A send that fails after the client's own retries is tried again until it is
acknowledged, as an application that cannot afford to lose a message does.

Record, a line per acknowledgement, separated by tabs: line number, message id, port of the broker, monotonic seconds.
Standard output: the number acknowledged so far, now and then.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from rocketmq import ClientConfiguration, Credentials, Message, Producer

IN_FLIGHT = 64
PROGRESS_EVERY = 100
RETRY_PAUSE_S = 0.1
# The official client's request timeout is 3 s and it tries three times.
ANSWER_LIMIT_S = 60


class LineSender:
    """Keeps some sends in flight until every line is acknowledged."""

    def __init__(self, producer: Producer, topic: str, lines: list[str], record: Path) -> None:
        self._producer = producer
        self._topic = topic
        self._lines = lines
        self._pending = deque(range(len(lines)))
        self._slots = threading.Semaphore(IN_FLIGHT)
        self._lock = threading.Lock()
        # A line at a time: whoever kills a broker reads the record at that moment.
        self._record = record.open("w", encoding="ascii", buffering=1)
        self.acknowledged = 0
        self.failures = 0

    def run(self) -> None:
        """Returns when all lines are acknowledged."""
        while self.acknowledged < len(self._lines):
            if not self._slots.acquire(timeout=ANSWER_LIMIT_S):
                raise TimeoutError(f"no answer to any send within {ANSWER_LIMIT_S} s")
            try:
                number = self._pending.popleft()
            except IndexError:
                # Everything is under way; a failure may still come back.
                self._slots.release()
                time.sleep(RETRY_PAUSE_S)
                continue
            self._send(number)
        self._record.close()

    def _send(self, number: int) -> None:
        message = Message()
        message.topic = self._topic
        message.body = f"{number:06d} {self._lines[number]}".encode()
        message.keys = f"line-{number}"
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
        port = receipt.message_queue.endpoints.endpoints.addresses[0].port
        with self._lock:
            self._record.write(f"{number}\t{receipt.message_id}\t{port}\t{time.monotonic():.6f}\n")
            self.acknowledged += 1
            if self.acknowledged % PROGRESS_EVERY == 0:
                report(str(self.acknowledged))
        self._slots.release()

    def _failed(self, number: int, error: BaseException) -> None:
        with self._lock:
            self.failures += 1
            if self.failures <= 20:
                sys.stderr.write(f"line {number}: {error!r:.300}\n")
        time.sleep(RETRY_PAUSE_S)
        self._pending.append(number)
        self._slots.release()


def report(text: str) -> None:
    """One line for whoever started us, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Reads the arguments, sends, prints the number of sends that had to be repeated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    arguments = parser.parse_args()
    producer = Producer(ClientConfiguration(arguments.endpoints, Credentials()), (arguments.topic,))
    producer.startup()
    sender = LineSender(
        producer, arguments.topic, arguments.lines.read_text(encoding="utf-8").split("\n"), arguments.record
    )
    try:
        sender.run()
    finally:
        producer.shutdown()
    report(f"repeated {sender.failures}")


if __name__ == "__main__":
    main()
