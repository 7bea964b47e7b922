"""Scenario 25 with the official Rust client, which ends transactions at its access point: two broker groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.official_clients import build

from e2e.on_clusters import LIMIT_S, Program, create_everywhere
from support.two_failover_groups import client_endpoint, two_failover_groups


@pytest.mark.timeout(1_200)  # the first test builds the program
def test_25_transactions_end_at_a_broker_of_another_group(tmp_path: Path) -> None:
    name = "transaction_elsewhere"
    program = Program("rust", build("rust"), tmp_path)
    with two_failover_groups(tmp_path / "cluster") as groups:
        create_everywhere(groups, name, message_type="TRANSACTION")
        access_point = groups.wait_master("broker-a", in_sync=2)
        with program.at(client_endpoint(access_point)) as driver:
            driver.start(name)
            driver.passed(name, limit_s=LIMIT_S)
