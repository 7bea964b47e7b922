"""The record in etcd: which endpoint is asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import pytest

from support.authority_places import EtcdPlace, etcd_place
from support.group_records import RECORD
from tandemmq.broker.failover.authority import open_authority

_PATIENCE_S: Final = 20


@pytest.fixture
async def place() -> AsyncIterator[EtcdPlace]:
    async with etcd_place() as place:
        yield place


@pytest.mark.parametrize("is_listening", [False, True])
async def test_next_endpoint_is_asked_where_one_is_away_or_mute(place: EtcdPlace, is_listening: bool) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        if is_listening:
            mute.listen()
        setting = place.setting.replace("etcd:", f"etcd:127.0.0.1:{mute.getsockname()[1]},")
        authority = open_authority(setting, cluster="DefaultCluster", broker_name="broker-a")
        async with asyncio.timeout(_PATIENCE_S):
            created = await authority.swap(None, RECORD)
            assert await authority.read() == created
            await authority.swap(created, replace(RECORD, renewals=1))
        assert place.writes() == 2
        await authority.close()


async def test_key_names_prefix_cluster_and_group(place: EtcdPlace) -> None:
    authority = open_authority(place.setting.removesuffix("/test/records"), cluster="c/1", broker_name="b")
    await authority.swap(None, RECORD)
    assert list(place.etcd.values) == [b"/tandemmq/c%2F1/b"]
    await authority.close()
