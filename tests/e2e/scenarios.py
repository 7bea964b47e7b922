"""What each official client's program is asked to show, and the topics and groups that it needs.

A scenario's topic is called as the scenario; so is its group, apart from suffixes. The numbers are those of the client
API's conformance list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario; the programs of all languages know it by its name."""

    name: str
    # Of the conformance list; none for what the list has no row for.
    numbers: tuple[int, ...]
    # Of the topic.
    message_type: str = "NORMAL"
    # Of the topic. Each queue of an ordered group has a poll of its own, and a client that stops waits for all of them.
    queues: int = 8
    # The group is ordered.
    ordered: bool = False
    # Retries of the group; None for the default of the broker.
    retries: int | None = None


# They share a cluster and run at the same time, each with a topic and a group of its own: most of them only wait.
SIDE_BY_SIDE: Final = (
    Scenario("round_trip", (10,)),
    Scenario("large_body", (12,)),
    Scenario("refused_messages", (14,)),
    Scenario("unknown_topic", (2,)),
    Scenario("concurrent_sends", ()),
    Scenario("acknowledged_once", (32,)),
    Scenario("lease_end_redelivers", (33,)),
    Scenario("changed_lease", (36,)),
    Scenario("given_back_at_once", (37,)),
    Scenario("empty_receive", (42,)),
    Scenario("receive_wakes", (41,)),
    Scenario("tag_filter", (45,)),
    Scenario("shared_group", (46,)),
    Scenario("client_restart", ()),
    Scenario("push_all", (47,)),
    Scenario("push_retry", (49,)),
    Scenario("push_dead_letter", (49,), retries=1),
    Scenario("transaction_ends", (22,), message_type="TRANSACTION"),
    Scenario("transaction_asked_after", (23, 24), message_type="TRANSACTION"),
    Scenario("delayed", (19,), message_type="DELAY", queues=2),
    Scenario("recalled", (20,), message_type="MIXED", queues=2),
    Scenario("fifo_order", (27,), message_type="FIFO", queues=2, ordered=True),
    Scenario("fifo_retry_blocks", (29,), message_type="FIFO", queues=1, ordered=True),
    Scenario("fifo_dead_letter", (30,), message_type="FIFO", queues=1, ordered=True, retries=1),
)

# These need the cluster for themselves: one counts its clients, one kills its master, one is told what to do (Java).
ALONE: Final = (
    Scenario("start_stop", (9,)),
    Scenario("master_restart", (55,)),
    Scenario("told_by_the_operator", (59,), queues=1),
)

# What a client has no means for, in its newest release. Rust's: no push consumer, no recall, no change of a lease; it
# checks messages by itself, and takes bodies of 4 MiB as a whole request.
LACKING: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "rust": frozenset(
            {
                "large_body",
                "refused_messages",
                "changed_lease",
                "given_back_at_once",
                "push_all",
                "push_retry",
                "push_dead_letter",
                "recalled",
                "fifo_retry_blocks",
                "fifo_dead_letter",
            }
        )
    }
)
