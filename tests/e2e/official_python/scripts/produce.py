"""Sends numbered messages and prints their ids, one JSON object."""

from __future__ import annotations

import argparse
import json
import sys

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--traceparent", help="property of each message")
    arguments = parser.parse_args()
    producer = Producer(ClientConfiguration(arguments.endpoint, Credentials()), (arguments.topic,))
    producer.startup()
    message_ids = []
    for number in range(arguments.count):
        message = Message()
        message.topic = arguments.topic
        message.body = f"body {number} grün".encode()
        message.tag = f"tag-{number % 3}"
        message.keys = f"key-{number}"
        message.add_property("number", str(number))
        if arguments.traceparent:
            message.add_property("traceparent", arguments.traceparent)
        message_ids.append(producer.send(message).message_id)
    producer.shutdown()
    json.dump({"message_ids": message_ids}, sys.stdout)


if __name__ == "__main__":
    main()
