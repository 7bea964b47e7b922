"""Scenarios 52 to 54 with the official Go client: two broker groups that fail over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.official_clients import build

from e2e.on_clusters import Program
from support.two_failover_groups import TwoFailoverGroups, two_failover_groups

pytestmark = pytest.mark.timeout(600)  # the first test builds the program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program("go", build("go"), tmp_path)


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[TwoFailoverGroups]:
    with two_failover_groups(tmp_path / "cluster") as running:
        yield running


def test_52_54_nothing_acknowledged_is_lost_and_push_goes_on_when_a_master_is_killed(
    program: Program, groups: TwoFailoverGroups
) -> None:
    program.lives_through_a_killed_master(groups)


def test_53_clients_start_while_a_broker_group_is_dead(program: Program, groups: TwoFailoverGroups) -> None:
    program.starts_beside_a_dead_group(groups)
