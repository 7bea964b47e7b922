"""Scenario 36: changes the lease of one message, then acknowledges with the old and with the new handle."""

from __future__ import annotations

import argparse
import copy
import json
import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer


def outcome(consumer: SimpleConsumer, message: object) -> str:
    try:
        consumer.ack(message)
    except Exception as error:  # the client's exceptions name the code in their text
        return str(error)
    return "OK"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    arguments = parser.parse_args()
    configuration = ClientConfiguration(arguments.endpoint, Credentials())
    consumer = SimpleConsumer(configuration, "group", {arguments.topic: FilterExpression()}, 5)
    consumer.startup()
    [message] = consumer.receive(1, 10)
    before = copy.copy(message)
    consumer.change_invisible_duration(message, 30)
    results = {
        "handle_changed": before.receipt_handle != message.receipt_handle,
        "old": outcome(consumer, before),
        "new": outcome(consumer, message),
    }
    consumer.shutdown()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
