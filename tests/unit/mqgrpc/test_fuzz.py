"""A short, repeatable run of the fuzz target."""

from __future__ import annotations

import pytest

from fuzz.http2_connection import run_one, seeds


@pytest.mark.parametrize("seed", range(4))
def test_the_fuzz_target_holds_for_a_fixed_set_of_inputs(seed: int) -> None:
    for data in seeds(500, seed=seed):
        run_one(data)
