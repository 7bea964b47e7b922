"""Lets the broker's real shell run on simulated sockets and calls.

`HaListener`, `HaConnection`, `Follower`, `MetadataPull` and `GroupRecovery` open sockets and channels themselves.
Within `in_simulation` the names they do that with mean their simulated twins; nothing else of them is changed but what
counts as a large read, so that a wrong order of steps in the shell is found here too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

import structlog

from simulation.network import PeerUnavailable
from simulation.sim_peer_client import SimPeerClient
from simulation.sim_socket import SimSocketModule
from simulation.virtual_time import bury_all
from tandemmq.broker.failover import controller
from tandemmq.broker.master import group_recovery, ha_listener, progress_copies
from tandemmq.broker.slave import follower, ha_connection, metadata_pull

# Of reads that are this small some are written by the slave's thread, and some are not.
WRITTEN_APART_BYTES_MIN: Final = 1024


@contextmanager
def in_simulation() -> Iterator[None]:
    """Exchanges sockets, channels and logs for the time of a run."""
    with ExitStack() as stack:
        for module in (ha_listener, ha_connection):
            stack.enter_context(mock.patch.object(module, "socket", SimSocketModule()))
        stack.enter_context(mock.patch.object(ha_connection, "WRITTEN_APART_BYTES_MIN", WRITTEN_APART_BYTES_MIN))
        for module in (follower, group_recovery, metadata_pull, progress_copies):
            stack.enter_context(mock.patch.object(module, "PeerClient", SimPeerClient))
            stack.enter_context(mock.patch.object(module, "PeerUnavailable", PeerUnavailable))
        stack.enter_context(mock.patch.object(controller, "PeerUnavailable", PeerUnavailable))
        configured = structlog.get_config()
        structlog.configure(
            # Virtual hours of the shell's log would hide the one sentence that matters.
            wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
            logger_factory=structlog.ReturnLoggerFactory(),
            processors=[_drop],
        )
        stack.callback(structlog.configure, **configured)
        stack.callback(bury_all)
        yield


def _drop(logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
