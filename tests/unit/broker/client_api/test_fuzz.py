"""A short, repeatable run of the fuzz targets of the requests that the broker decodes itself."""

from __future__ import annotations

import pytest

from fuzz import ack_request, client_calls, send_request


@pytest.mark.parametrize("seed", range(4))
def test_send_requests_hold_for_a_fixed_set_of_inputs(seed: int) -> None:
    for data in send_request.seeds(1_000, seed=seed):
        send_request.run_one(data)


@pytest.mark.parametrize("seed", range(4))
def test_ack_requests_hold_for_a_fixed_set_of_inputs(seed: int) -> None:
    for data in ack_request.seeds(1_000, seed=seed):
        ack_request.run_one(data)


@pytest.mark.parametrize("seed", range(2))
def test_calls_of_all_methods_hold_for_a_fixed_set_of_inputs(seed: int) -> None:
    for data in client_calls.seeds(60, seed=seed):
        client_calls.run_one(data)
