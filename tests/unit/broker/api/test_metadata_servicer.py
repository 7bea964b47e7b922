"""What a slave gets when it asks its master for a table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tandemmq.broker.v1 import metadata_service_pb2 as pb

from broker.api.metadata_servicer import ChangeSignal, MetadataServicer
from mqcore.metadata import MetadataFile, TopicConfig, TopicTable

CONTEXT: Any = None
"""Asked only when a call is refused."""


@pytest.fixture
def topics() -> TopicTable:
    table = TopicTable()
    table.put(TopicConfig("orders", 8, 8), now_ms=1_700_000_000_000)
    return table


def ask(topics: TopicTable, known: pb.TableVersion | None) -> pb.GetMetadataTableResponse:
    servicer = MetadataServicer(tables={MetadataFile.TOPICS: topics}, changes=ChangeSignal(), is_master=True)
    request = pb.GetMetadataTableRequest(table=pb.METADATA_TABLE_TOPICS, known_version=known)
    return asyncio.run(servicer.GetMetadataTable(request, CONTEXT))


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


@pytest.mark.parametrize("field", ["state_version", "timestamp_ms", "counter"])
def test_who_knows_another_version_gets_the_table(topics: TopicTable, field: str) -> None:
    known = ask(topics, None).version
    setattr(known, field, getattr(known, field) + 1)
    assert ask(topics, known).json == topics.to_json()
