"""Scenario 9: a producer and a simple consumer start and stop. Prints what went wrong, one JSON object."""

from __future__ import annotations

import argparse
import json
import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Producer, SimpleConsumer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    arguments = parser.parse_args()
    configuration = ClientConfiguration(arguments.endpoint, Credentials())
    client_ids = []
    for client in (
        Producer(configuration, (arguments.topic,)),
        SimpleConsumer(configuration, "group", {arguments.topic: FilterExpression()}, 5),
    ):
        client.startup()
        client_ids.append(client.client_id)
        client.shutdown()
    json.dump({"client_ids": client_ids}, sys.stdout)


if __name__ == "__main__":
    main()
