"""What a broker that fails over confirms. Who becomes master, and when, is the simulator's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.broker.failover.controller import Failover
from tandemmq.broker.metadata_tables import NotSpread
from tandemmq.core.replication.mastership import FailoverOptions


@pytest.mark.parametrize(("is_master", "is_serving"), [(True, False), (False, True), (False, False)])
async def test_a_change_whose_write_outlasts_the_master_s_role_is_not_confirmed(
    is_master: bool, is_serving: bool
) -> None:
    """The next master has copied the tables, perhaps a moment before."""
    unused: Any = None
    host: Any = SimpleNamespace(role=SimpleNamespace(is_master=is_master, is_serving=is_serving))
    failover = Failover(host, authority=unused, options=FailoverOptions(), nonce="")
    with pytest.raises(NotSpread, match="master no more"):
        await failover.spread()
