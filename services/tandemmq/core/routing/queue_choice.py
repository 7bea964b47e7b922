"""Which queue of a topic a message goes to, as RocketMQ's proxy chooses it (SendMessageActivity, 5.5), and which broker
group a message group lives in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from tandemmq.core.message.properties import java_hash

_LCG_MULTIPLIER: Final = 2862933555777941757
_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF


class QueueRotation:
    """Deals messages out to a topic's queues in turn; each topic has a turn of its own."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def next_queue(self, topic: str, queue_count: int) -> int:
        """The next queue id, 0 to `queue_count` - 1."""
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + 1
        return turn % queue_count


def queue_of_message_group(message_group: str, queue_count: int) -> int:
    """The queue of an ordered message group: the same for every client language, and for RocketMQ's proxy.

    Guava's `Hashing.consistentHash(group.hashCode(), queueCount)` (jump hash): when queues are added, only the groups
    that move to the new ones move at all.
    """
    assert queue_count > 0, "a writable topic has at least one queue"
    state = java_hash(message_group) & _MASK_64
    candidate = 0
    while True:
        state = (_LCG_MULTIPLIER * state + 1) & _MASK_64
        fraction = ((state >> 33) + 1) / float(1 << 31)
        following = int((candidate + 1) / fraction)
        if following >= queue_count:
            return candidate
        candidate = following


def queue_of_priority(priority: int, queue_count: int) -> int:
    """The queue of a message in a PRIORITY topic: the larger its id, the more urgent (RocketMQ 5.4). A priority that
    was not sent is the lowest; one above the queues goes to the last."""
    return min(priority, queue_count - 1) if priority < 1 << 31 else 0


def home_of_message_group(message_group: str, broker_names: Sequence[str]) -> str:
    """The broker group of an ordered message group, whatever the order of `broker_names`, which has one at least.

    Rendezvous hashing: a broker group that is added takes its share from all others, and nothing else moves. RocketMQ's
    proxy hashes once over the queues of all; there a queue that one broker group adds moves groups of the others.
    """
    key = (java_hash(message_group) & 0xFFFF_FFFF) << 32
    home, most = "", -1
    for name in broker_names:
        weight = _mixed(key | crc32(name.encode()))
        if weight > most or (weight == most and name > home):
            home, most = name, weight
    return home


def _mixed(number: int) -> int:
    """SplitMix64: 64 bits that look random."""
    number = (number + 0x9E37_79B9_7F4A_7C15) & _MASK_64
    number = ((number ^ (number >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK_64
    number = ((number ^ (number >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK_64
    return number ^ (number >> 31)
