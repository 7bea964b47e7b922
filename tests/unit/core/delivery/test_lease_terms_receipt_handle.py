"""Receipt handles as text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.core.delivery.lease_terms import (
    ReceiptHandle,
    broker_of_handle,
    encode_broker_name,
    make_handles,
    read_handle,
)

I64 = st.integers(0, 2**63 - 1)


@given(st.integers(0, 2**32 - 1), I64, st.integers(0, 2**64 - 1), I64, st.text(min_size=1, max_size=20))
def test_a_handle_says_what_it_was_made_of(queue_id: int, offset: int, nonce: int, deadline: int, broker: str) -> None:
    broker = broker.encode("utf-8", "replace").decode()
    (text,) = make_handles(
        [offset], queue_id=queue_id, nonce=nonce, deadline_ms=deadline, encoded_broker_name=encode_broker_name(broker)
    )
    assert re.fullmatch(r"[A-Za-z0-9._-]+", text)
    assert read_handle(text) == ReceiptHandle(1, queue_id, offset, nonce, deadline)
    assert broker_of_handle(text) == broker


def test_the_text_is_fixed() -> None:
    handles = make_handles(
        [5, 6],
        queue_id=3,
        nonce=0xABC,
        deadline_ms=1_700_000_030_000,
        encoded_broker_name=encode_broker_name("broker-a"),
    )
    assert handles == [
        "010000000300000000000000050000000000000abc0000018bcfe5dd30.YnJva2VyLWE",
        "010000000300000000000000060000000000000abc0000018bcfe5dd30.YnJva2VyLWE",
    ]


@pytest.mark.parametrize("text", ["", ".", "01", "x" * 58, "02" + "0" * 56 + ".YQ", "0" * 57, "ü" * 58, "1.2.3"])
def test_a_malformed_handle_is_none(text: str) -> None:
    assert read_handle(text) is None
    assert broker_of_handle(text) is None


@pytest.mark.parametrize("tail", ["", "YQ", ".", ".!", ".__8"])
def test_a_handle_without_a_readable_broker_name_belongs_to_nobody(tail: str) -> None:
    assert broker_of_handle("01" + "0" * 56 + tail) is None


@given(st.text(max_size=100))
def test_no_text_makes_reading_fail(text: str) -> None:
    read_handle(text)
    broker_of_handle(text)
    broker_of_handle("01" + "0" * 56 + "." + text)
