"""Sends messages in transactions and ends them as it is told; prints what the checker was asked, one JSON object.

Bodies say how a transaction ends: `commit`, `rollback` at once, or `ask N`: not at all, and the checker says that it
does not know N times before it commits.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading

from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker, TransactionResolution


class Checker(TransactionChecker):
    """Knows after a while."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.decided = threading.Semaphore(0)

    def check(self, message: Message) -> TransactionResolution:
        body = message.body.decode()
        times = self.asked[body] = self.asked.get(body, 0) + 1
        if times <= int(body.removeprefix("ask ")):
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        self.decided.release()
        return TransactionResolution.COMMIT


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("bodies", nargs="+")
    arguments = parser.parse_args()
    checker = Checker()
    producer = Producer(ClientConfiguration(arguments.endpoint, Credentials()), (arguments.topic,), checker=checker)
    producer.startup()
    message_ids = []
    for body in arguments.bodies:
        message = Message()
        message.topic = arguments.topic
        message.body = body.encode()
        transaction = producer.begin_transaction()
        message_ids.append(producer.send(message, transaction).message_id)
        if body == "commit":
            transaction.commit()
        elif body == "rollback":
            transaction.rollback()
    for body in arguments.bodies:
        if body.startswith("ask") and not checker.decided.acquire(timeout=60):
            raise TimeoutError(f"the checker was not asked often enough: {checker.asked}")
    # The end of a checked transaction goes out behind the checker's back.
    threading.Event().wait(1)
    producer.shutdown()
    json.dump({"message_ids": message_ids, "asked": checker.asked}, sys.stdout)


if __name__ == "__main__":
    main()
