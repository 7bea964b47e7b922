"""Sends one message after the other until its standard input ends; prints one JSON object a line for each send."""

from __future__ import annotations

import argparse
import json
import select
import sys
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    arguments = parser.parse_args()
    producer = Producer(ClientConfiguration(arguments.endpoint, Credentials()), (arguments.topic,))
    producer.startup()
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        message = Message()
        message.topic = arguments.topic
        message.body = b"body"
        began_s = time.monotonic()
        line: dict[str, object] = {"id": "", "problem": ""}
        try:
            line["id"] = producer.send(message).message_id
        except Exception as error:  # of a class that the client does not name
            line["problem"] = f"{type(error).__name__}: {error}"
        line["seconds"] = time.monotonic() - began_s
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    producer.shutdown()


if __name__ == "__main__":
    main()
