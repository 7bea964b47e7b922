"""A short, repeatable run of the HTTP/2 front's fuzz targets."""

from __future__ import annotations

import pytest

from fuzz import header_blocks, http2_connection


@pytest.mark.parametrize("seed", range(4))
def test_http2_connection_holds_for_a_fixed_set_of_inputs(seed: int) -> None:
    for data in http2_connection.seeds(500, seed=seed):
        http2_connection.run_one(data)


@pytest.mark.parametrize("seed", range(4))
def test_header_blocks_hold_for_a_fixed_set_of_inputs(seed: int) -> None:
    for data in header_blocks.seeds(300, seed=seed):
        header_blocks.run_one(data)
