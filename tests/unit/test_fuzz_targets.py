"""A short, repeatable run of the fuzz targets that no other test runs."""

from __future__ import annotations

import importlib

import pytest

CASES = {"client_texts": 2_000, "ha_reports": 1_000, "master_frames": 2_000, "registrations": 150, "admin_requests": 12}


@pytest.mark.parametrize("target", CASES)
def test_target_holds_for_a_fixed_set_of_inputs(target: str) -> None:
    module = importlib.import_module(f"fuzz.{target}")
    for data in module.seeds(CASES[target]):
        module.run_one(data)
