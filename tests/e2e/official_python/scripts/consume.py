"""Receives until a receive comes back empty, acknowledging each message, and prints them, one JSON object.

`polls` says which receives gave something; `problem`, why one failed.
"""

from __future__ import annotations

import argparse
import json
import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer
from rocketmq.grpc_protocol import FilterType


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="group")
    parser.add_argument("--lease-s", type=int, default=30)
    parser.add_argument("--tags", default="*")
    parser.add_argument("--sql")
    parser.add_argument("--await-s", type=int, default=5)
    parser.add_argument("--empty-polls", type=int, default=1, help="ends at so many in a row")
    parser.add_argument("--access-key", default="")
    parser.add_argument("--secret-key", default="")
    arguments = parser.parse_args()
    configuration = ClientConfiguration(arguments.endpoint, Credentials(arguments.access_key, arguments.secret_key))
    expression = FilterExpression(arguments.sql, FilterType.SQL) if arguments.sql else FilterExpression(arguments.tags)
    consumer = SimpleConsumer(configuration, arguments.group, {arguments.topic: expression}, arguments.await_s)
    try:
        consumer.startup()
    except Exception as error:  # of a class that the client does not name
        json.dump({"messages": [], "polls": [], "problem": f"{type(error).__name__}: {error}"}, sys.stdout)
        return
    received: list[dict[str, object]] = []
    polls: list[int] = []
    problem = ""
    while not polls or any(polls[-arguments.empty_polls :]) or len(polls) < arguments.empty_polls:
        try:
            messages = consumer.receive(32, arguments.lease_s)
        except Exception as error:  # of a class that the client does not name
            problem = str(error)
            break
        polls.append(len(messages))
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
    json.dump({"messages": received, "polls": polls, "problem": problem}, sys.stdout)


if __name__ == "__main__":
    main()
