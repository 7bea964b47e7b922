"""Sends messages and prints their ids, one JSON object: so many numbered ones, or those with the given bodies.

Ends at the first send that fails; `problem` says why.
"""

from __future__ import annotations

import argparse
import json
import sys

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--bodies", nargs="*", default=[])
    parser.add_argument("--body-bytes", type=int, nargs="*", default=[], help="bodies of such lengths")
    parser.add_argument("--groups", type=int, default=0, help="message groups that take turns; 0: none")
    parser.add_argument("--traceparent", help="property of each message")
    parser.add_argument("--access-key", default="")
    parser.add_argument("--secret-key", default="")
    arguments = parser.parse_args()
    bodies = [body.encode() for body in arguments.bodies] + [b"x" * count for count in arguments.body_bytes]
    bodies = bodies or [f"body {number} grün".encode() for number in range(arguments.count)]
    credentials = Credentials(arguments.access_key, arguments.secret_key)
    producer = Producer(ClientConfiguration(arguments.endpoint, credentials), (arguments.topic,))
    message_ids = []
    problem = ""
    try:
        producer.startup()
    except Exception as error:  # of a class that the client does not name
        json.dump({"message_ids": [], "problem": f"{type(error).__name__}: {error}"}, sys.stdout)
        return
    for number, body in enumerate(bodies):
        message = Message()
        message.topic = arguments.topic
        message.body = body
        message.tag = f"tag-{number % 3}"
        message.keys = f"key-{number}"
        message.add_property("number", str(number))
        if arguments.groups:
            message.message_group = f"group-{number % arguments.groups}"
        if arguments.traceparent:
            message.add_property("traceparent", arguments.traceparent)
        try:
            message_ids.append(producer.send(message).message_id)
        except Exception as error:  # of a class that the client does not name
            problem = f"{type(error).__name__}: {error}"
            break
    producer.shutdown()
    json.dump({"message_ids": message_ids, "problem": problem}, sys.stdout)


if __name__ == "__main__":
    main()
