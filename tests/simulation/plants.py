"""Bugs planted on purpose, by exchanging one function of the product: proof that the checkers bite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any
from unittest import mock

from mqcore.replication import CatchUpStep, MasterReplica
from mqcore.storage import PutStatus
from mqcore.storage.flush_jobs import LogFlushJob

__all__ = ["Plant", "planted"]


class Plant(Enum):
    """A planted bug; the value is its name on the command line."""

    ACK_BEFORE_REPORT = "ack-before-report"
    """A master that answers PUT_OK before any slave has reported the message."""
    SKIP_SYNC = "skip-sync"
    """A store that calls the log flushed without having synced it."""
    SERVE_AT_ONCE = "serve-at-once"
    """A master that serves after a power loss without having asked its slaves, as RocketMQ's does."""
    FOLLOW_UNPROVEN = "follow-unproven"
    """A slave that connects without having compared its log with the master's, as RocketMQ's does."""


@contextmanager
def planted(plant: Plant | None) -> Iterator[None]:
    """The product with one bug more, or as it is."""
    if plant is None:
        yield
        return
    target, name, replacement = _CHANGES[plant]
    with mock.patch(f"{target}.{name}", replacement):
        yield


def _submit_at_once(self: MasterReplica, put: object, *, now_ms: int) -> PutStatus:
    return PutStatus.PUT_OK


def _no_sync(self: LogFlushJob) -> None:
    pass


def _never_wait(**circumstances: object) -> int:
    return 0


def _always_connect(**extents: object) -> CatchUpStep:
    return CatchUpStep.CONNECT


_CHANGES: dict[Plant, tuple[str, str, Any]] = {
    Plant.ACK_BEFORE_REPORT: ("mqcore.replication.master_replica.MasterReplica", "submit", _submit_at_once),
    Plant.SKIP_SYNC: ("mqcore.storage.flush_jobs.LogFlushJob", "_sync", _no_sync),
    Plant.SERVE_AT_ONCE: ("simulation.sim_master", "recovery_wait_ms", _never_wait),
    Plant.FOLLOW_UNPROVEN: ("broker.slave.follower", "catch_up_step", _always_connect),
}
