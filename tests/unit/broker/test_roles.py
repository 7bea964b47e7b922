"""What a role leaves behind when it ends, and what it tells of itself."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from unittest import mock

import pytest

from support.fake_call import FakeCall
from support.manual_time import ManualTime
from support.messages import outgoing_message
from support.simulated_disk import SimulatedDisk
from support.stores import new_store
from tandemmq.broker.master.role import MasterRole
from tandemmq.broker.parts import BrokerParts
from tandemmq.broker.settings import BrokerSettings
from tandemmq.broker.slave.role import SlaveRole
from tandemmq.core.message.record import Host
from tandemmq.core.storage.disk import DiskUsage
from tandemmq.core.storage.options import StoreOptions
from tandemmq.core.storage.put_result import AppendResult, PutStatus
from tandemmq.core.storage.retention import ExpiryWish, expiry_end
from tandemmq.service.event_loop import LoopMeter
from tandemmq.service.name_server_link import ClusterView, NameServerLinks
from tandemmq.service.settings import load_settings

SLAVE = ("brokerRole=SLAVE", "brokerId=1", "namesrvAddr=localhost:9876")


def parts_of(folder: Path, *overrides: str) -> BrokerParts:
    """A broker's parts, recovered; nothing runs."""
    settings = load_settings(
        BrokerSettings,
        environ={},
        overrides=(f"storePathRootDir={folder}", "mappedFileSizeCommitLog=1048576", "maxMessageSize=65536", *overrides),
    )
    time = ManualTime()
    links = mock.create_autospec(NameServerLinks, instance=True)
    links.view = ClusterView(0, ())
    parts = BrokerParts(
        settings, clock=time, store_host=Host.parse("127.0.0.1", 10_911), links=links, loop_meter=LoopMeter()
    )
    parts.take_role(MasterRole(parts) if settings.is_master else SlaveRole(parts))
    parts.member.read()
    parts.store.load()
    return parts


def records() -> bytes:
    """Of a master's log, from its beginning."""
    store = new_store(SimulatedDisk(random.Random(1)))
    store.load()
    for _ in range(10):
        store.put(outgoing_message())
    return bytes(store.read_log(0, store.end_offset))


async def test_a_slave_that_ends_knows_where_its_log_ends(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, *SLAVE)
    log = records()
    # Acknowledged as soon as they are there, and entered into their queues some ms later: not before the end.
    parts.store.append_replicated(0, [memoryview(log)])
    parts.store.check_appended()
    assert parts.store.dispatched_offset == 0
    await parts.role.end(0)
    assert parts.store.dispatched_offset == parts.store.end_offset == len(log)


async def test_a_slave_vouches_for_nothing_behind_a_corrupt_record(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, *SLAVE)
    log = bytearray(records())
    log[-96] ^= 1  # The magic code of the last of ten.
    parts.store.append_replicated(0, [memoryview(log)])
    await parts.role.end(0)
    assert 0 < parts.store.dispatched_offset < len(log)
    assert parts.failure is None


async def test_a_slave_that_has_ended_holds_nobody_up_who_begins_an_epoch(tmp_path: Path) -> None:
    role = parts_of(tmp_path, *SLAVE).role
    assert isinstance(role, SlaveRole)
    following = asyncio.create_task(role.follower.run())
    await asyncio.sleep(0)
    role.follower.state = "transfer"
    following.cancel()
    await asyncio.wait([following])
    await role.leave_master()


@pytest.mark.parametrize("overrides", [(), SLAVE])
async def test_what_has_not_begun_can_end(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    role = parts_of(tmp_path, *overrides).role
    assert not role.is_serving
    assert role.epoch_refusal is None
    await role.answer_sends(0)
    await role.end(0)
    assert not role.is_serving


async def test_a_slave_takes_no_messages(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, *SLAVE)
    answers: list[AppendResult] = []
    parts.put([outgoing_message(), outgoing_message()], answers.extend)
    assert [answer.status for answer in answers] == [PutStatus.SERVICE_NOT_AVAILABLE] * 2
    assert parts.role.client_refusal is not None
    assert parts.role.change_refusal is not None


async def test_sends_reach_a_masters_write_path_without_a_step_in_between(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    assert isinstance(parts.role, MasterRole)
    assert parts.put == parts.role.write_path.put


async def test_only_a_master_that_serves_is_superseded(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    role = parts.role
    assert isinstance(role, MasterRole)
    role.superseded("a later epoch")
    assert parts.failure is None, "one that starts asks for itself"
    role.is_serving = True
    role.superseded("a later epoch")
    assert parts.failure == "another master took our place: a later epoch"
    assert parts.stopping.is_set()


async def test_one_address_that_names_groups_leaves_a_part_to_others(tmp_path: Path) -> None:
    paces = ("newGroupsPerSecond=1000", "newGroupsPerClientPerSecond=1000")
    parts = parts_of(tmp_path, "brokerRole=ASYNC_MASTER", "subscriptionGroupsMax=40", *paces)
    before = len(parts.groups)

    def makes(host: str) -> int:
        calls = [
            FakeCall(metadata={"x-mq-client-id": f"c{number}"}, peer=f"ipv4:{host}:{number}") for number in range(60)
        ]
        return sum(
            parts.create_group(f"{host}-{number}".replace(".", "-"), each) is None for number, each in enumerate(calls)
        )

    greedy = makes("10.0.0.7")
    assert greedy == -(-3 * (40 - before) // 4)
    assert 0 < makes("10.0.0.8") < 40 - before - greedy
    assert makes("10.0.0.7") == 0
    assert makes("10.0.0.9") > 0


async def test_a_master_that_begins_lets_no_file_go(tmp_path: Path) -> None:
    """What is undecided, delayed or in lite topics it does not know yet, and it may wait for its slaves for long."""
    role = parts_of(tmp_path).role
    assert isinstance(role, MasterRole)
    wish = ExpiryWish(DiskUsage(90, 100), 0, 1 << 30, 1 << 30, 1 << 30, 1 << 30, is_short=True)
    assert expiry_end(wish, await role.floor.floor(wish), options=StoreOptions()) == 0
    # It fetches a better log, and what lies before that one its group has let go.
    role.recovery.gone_before = 1 << 29
    assert expiry_end(wish, await role.floor.floor(wish), options=StoreOptions()) == 1 << 29
    role.is_serving = True
    assert expiry_end(wish, await role.floor.floor(wish), options=StoreOptions()) == 1 << 30
