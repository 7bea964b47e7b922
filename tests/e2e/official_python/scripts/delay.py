"""Sends two delayed messages, recalls the first, and prints what came when, one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

DELAY_S = 6


def problem_of(producer: Producer, topic: str, handle: str) -> str:
    try:
        producer.recall_message(topic, handle)
    except Exception as problem:  # of a class that the client does not name
        return str(problem)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    arguments = parser.parse_args()
    topic = arguments.topic
    configuration = ClientConfiguration(arguments.endpoint, Credentials())
    producer = Producer(configuration, (topic,))
    producer.startup()
    consumer = SimpleConsumer(configuration, "group", {topic: FilterExpression()}, 5)
    consumer.startup()
    due_s = int(time.time()) + DELAY_S
    receipts = []
    for body in ("recalled", "kept"):
        message = Message()
        message.topic = topic
        message.body = body.encode()
        message.delivery_timestamp = due_s
        receipts.append(producer.send(message))
    recalled = producer.recall_message(topic, receipts[0].recall_handle)
    again = problem_of(producer, topic, receipts[0].recall_handle)
    bodies = []
    late_s = -1.0
    while time.time() < due_s + 7:
        for message in consumer.receive(32, 30):
            late_s = time.time() - due_s
            bodies.append(message.body.decode())
            consumer.ack(message)
    late_recall = problem_of(producer, topic, receipts[1].recall_handle)
    consumer.shutdown()
    producer.shutdown()
    result = {
        "bodies": bodies,
        "late_s": late_s,
        "recalled": getattr(recalled, "message_id", recalled),
        "recalled_id": receipts[0].message_id,
        "again": again,
        "late_recall": late_recall,
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
