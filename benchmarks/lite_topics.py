"""What a million lite topics on one broker cost: memory, a send, and a start that reads them.

    python benchmarks/lite_topics.py [--lite-topics 1000000] [--messages 1] [--body-bytes 100]

A store on disk and the index of its lite topics, in one process without sockets and slaves; times are of its processor.
`make compiled` and PYTHONPATH=build/compiled for what images run.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from types import MappingProxyType

import psutil

from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.broker.queue_reader import StoreQueueReader
from tandemmq.core.delivery.lite_topics import LiteTopics, lite_message
from tandemmq.core.message.properties import encode_properties
from tandemmq.core.message.record import Host, OutgoingMessage
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.core.storage.message_store import MessageStore
from tandemmq.core.storage.options import StoreOptions
from tandemmq.service.event_loop import SystemClock

HOST = Host.parse("127.0.0.1", 10_911)
PARENT = "sessions"
QUEUES = 8
TURN = 256


def resident_bytes() -> int:
    """Of this process, without the pages of files that it has mapped."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def new_index(store: MessageStore) -> LiteTopics:
    """Of the parent's queues; knows nothing yet."""
    topics = TopicTable()
    attributes = MappingProxyType({"message.type": "LITE"})
    topics.put(TopicConfig(PARENT, QUEUES, QUEUES, attributes=attributes), now_ms=1)
    return LiteTopics(StoreQueueReader(store), topics, log_cuts=lambda: store.log_cuts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lite-topics", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=1, help="in each")
    parser.add_argument("--body-bytes", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lite-topics-") as folder:
        store = MessageStore(
            PosixDisk(Path(folder)),
            SystemClock(),
            StoreOptions(index_enabled=False, commit_log_file_bytes=1 << 28),
            store_host=HOST,
        )
        store.load()
        index = new_index(store)
        body = bytes(args.body_bytes)
        gc.collect()
        before, begun = resident_bytes(), time.process_time()
        for number in range(args.lite_topics * args.messages):
            lite_topic = f"session-{number % args.lite_topics:08d}"
            properties = encode_properties([("UNIQ_KEY", f"01{number:032X}")])
            message = OutgoingMessage(PARENT, number % QUEUES, body, properties, 0, (), None, 0, HOST)
            store.put(lite_message(message, lite_topic, index.next_offset(PARENT, lite_topic)))
            index.follow(PARENT)
            if number % TURN == 0:
                store.write_appended()
        store.write_appended()
        sent = time.process_time() - begun
        gc.collect()
        count = args.lite_topics * args.messages
        held = resident_bytes() - before
        print(f"{index.count:,} lite topics, {count:,} messages")
        print(f"memory: {held / 2**20:.0f} MiB, {held / args.lite_topics:.0f} bytes for each lite topic")
        print(f"a put with its index: {sent / count * 1e6:.1f} us")
        del index
        gc.collect()
        anew = new_index(store)
        begun = time.process_time()
        assert anew.follow(PARENT)
        took = time.process_time() - begun
        print(f"a start reads them in {took:.1f} s, {took / count * 1e6:.1f} us a message")
        assert anew.count == args.lite_topics
        store.close()


if __name__ == "__main__":
    main()
