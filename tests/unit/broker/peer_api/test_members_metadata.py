"""What a slave gets when it asks its master for a table."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any, cast

import grpc
import pytest

from support.simulated_disk import SimulatedDisk
from tandemmq.broker.leases import LeaseCopy
from tandemmq.broker.metadata_tables import ChangeSignal
from tandemmq.broker.peer_api.members import MetadataServicer
from tandemmq.core.metadata.metadata_store import MetadataFile
from tandemmq.core.metadata.topic_table import TopicConfig, TopicTable
from tandemmq.proto.broker.v1 import metadata_service_pb2 as pb

CONTEXT: Any = None
"""Asked only when a call is refused."""


@pytest.fixture
def topics() -> TopicTable:
    table = TopicTable()
    table.put(TopicConfig("orders", 8, 8), now_ms=1_700_000_000_000)
    return table


@dataclass
class Role:
    """As far as tables go."""

    holds_copies: bool
    is_serving: bool = True

    @property
    def leases(self) -> LeaseCopy:
        return LeaseCopy(SimulatedDisk(random.Random(1), wall_ms=lambda: 0))


def ask(
    topics: TopicTable,
    known: pb.TableVersion | None,
    *,
    is_master: bool = True,
    is_serving: bool = True,
    accept_copy: bool = False,
    is_damaged: bool = False,
    context: Any = CONTEXT,
) -> pb.GetMetadataTableResponse:
    servicer = MetadataServicer(
        tables={MetadataFile.TOPICS: topics},
        changes=ChangeSignal(),
        role=lambda: cast("Any", Role(holds_copies=not is_master, is_serving=is_serving)),
        damaged=[MetadataFile.TOPICS] if is_damaged else [],
    )
    request = pb.GetMetadataTableRequest(table=pb.METADATA_TABLE_TOPICS, known_version=known, accept_copy=accept_copy)
    return asyncio.run(servicer.GetMetadataTable(request, context))


def test_who_knows_nothing_gets_the_table(topics: TopicTable) -> None:
    answer = ask(topics, None)
    assert answer.json == topics.to_json()
    assert answer.version.table == pb.METADATA_TABLE_TOPICS


@pytest.mark.parametrize("names_table", [True, False])
def test_who_knows_the_version_gets_no_table(topics: TopicTable, names_table: bool) -> None:
    known = ask(topics, None).version
    if not names_table:
        known.ClearField("table")
    answer = ask(topics, known)
    assert answer.json == ""
    assert answer.version.counter == known.counter


def test_a_slave_gives_its_copy_to_who_asks_for_one(topics: TopicTable) -> None:
    answer = ask(topics, None, is_master=False, accept_copy=True)
    assert answer.is_copy
    assert answer.json == topics.to_json()
    assert not ask(topics, None, accept_copy=True).is_copy


@pytest.mark.parametrize(("is_master", "why"), [(False, "this broker is a slave"), (True, "does not serve yet")])
def test_only_a_master_that_serves_is_one_to_pull_from(topics: TopicTable, is_master: bool, why: str) -> None:
    class Refusal:
        async def abort(self, code: grpc.StatusCode, detail: str) -> None:
            raise PermissionError(code, detail)

    with pytest.raises(PermissionError, match=why):
        ask(topics, None, is_master=is_master, is_serving=False, context=Refusal())
    assert ask(topics, None, is_master=is_master, is_serving=False, accept_copy=True).json == topics.to_json()


def test_a_damaged_table_is_not_given_as_an_empty_one(topics: TopicTable) -> None:
    answer = ask(topics, None, is_master=False, accept_copy=True, is_damaged=True)
    assert answer.is_damaged
    assert answer.json == ""


@pytest.mark.parametrize("field", ["state_version", "timestamp_ms", "counter"])
def test_who_knows_another_version_gets_the_table(topics: TopicTable, field: str) -> None:
    known = ask(topics, None).version
    setattr(known, field, getattr(known, field) + 1)
    assert ask(topics, known).json == topics.to_json()
