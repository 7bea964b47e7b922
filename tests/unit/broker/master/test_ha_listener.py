"""The HA plane's port. What it says and hears is in tests/integration."""

from __future__ import annotations

import random
import socket

import pytest

from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.broker.master.ha_listener import HaListener
from tandemmq.core.replication.frames import MasterOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.service.grpc_server import ListenError
from tandemmq.service.loop_meter import SystemClock


async def test_a_port_that_is_taken_is_named() -> None:
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    listener = HaListener(
        replica=MasterReplica(store, MasterOptions()), log_reader=store, clock=SystemClock(), after_input=lambda: None
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listener.start(host="127.0.0.1", port=port)
