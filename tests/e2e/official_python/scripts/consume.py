"""Receives until a receive comes back empty, acknowledging each message, and prints them, one JSON object."""

from __future__ import annotations

import argparse
import json
import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="group")
    parser.add_argument("--lease-s", type=int, default=30)
    arguments = parser.parse_args()
    configuration = ClientConfiguration(arguments.endpoint, Credentials())
    consumer = SimpleConsumer(configuration, arguments.group, {arguments.topic: FilterExpression()}, 5)
    consumer.startup()
    received = []
    while messages := consumer.receive(32, arguments.lease_s):
        for message in messages:
            consumer.ack(message)
            received.append(
                {
                    "id": message.message_id,
                    "body": message.body.decode(),
                    "tag": message.tag,
                    "keys": sorted(message.keys),
                    "properties": dict(message.properties),
                    "attempt": message.delivery_attempt,
                    "corrupted": message.corrupted,
                }
            )
    consumer.shutdown()
    json.dump({"messages": received}, sys.stdout)


if __name__ == "__main__":
    main()
