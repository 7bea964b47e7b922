"""A push consumer whose handler does what bodies say: `fail N` fails N times, `always fails` each time, `hold` is done
when the program is told to go on, all else at once. Prints one JSON object a line for each call of the handler, as it
begins. Ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    PushConsumer,
)


def tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Listener(MessageListener):
    """See the module."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.lock = threading.Lock()
        self.go_on = threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        with self.lock:
            call = self.calls[message.message_id] = self.calls.get(message.message_id, 0) + 1
            tell(
                {
                    "id": message.message_id,
                    "body": body,
                    "group": message.message_group or "",
                    "attempt": message.delivery_attempt,
                    "at_s": time.monotonic(),
                }
            )
        if body == "hold":
            self.go_on.wait()
        if body == "always fails" or (body.startswith("fail ") and call <= int(body.split()[1])):
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="group")
    arguments = parser.parse_args()
    listener = Listener()
    configuration = ClientConfiguration(arguments.endpoint, Credentials())
    consumer = PushConsumer(configuration, arguments.group, listener, {arguments.topic: FilterExpression()})
    consumer.startup()
    tell({"started": consumer.client_id})
    for line in sys.stdin:
        if line.strip() == "go on":
            listener.go_on.set()
    # Its polls last for 20 s, and each test would wait for them.
    os._exit(0)


if __name__ == "__main__":
    main()
