"""What the mixed load counts, and that each of its rows can fail."""

from __future__ import annotations

import pytest
from tools.mixed_load import Delivery, Place, Sent


def delivery(
    message_id: str, number: int = 0, *, lane: int = 0, offset: int = 0, at_ms: int = 0, settled: bool = False
) -> Delivery:
    return Delivery(message_id, lane, number, Place(0, offset), at_ms, settled)


def failed(sent: Sent) -> list[str]:
    return [row["name"].partition(": ")[2] for row in sent.rows() if not row["holds"]]


def test_all_is_well_when_each_message_came_once() -> None:
    for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE"):
        sent = Sent(kind)
        sent.acknowledged = {"a": 0, "b": 0}
        sent.deliveries = [delivery("a", 0), delivery("b", 1, offset=1)]
        assert failed(sent) == []


def test_message_that_never_came_is_lost() -> None:
    sent = Sent("NORMAL")
    sent.acknowledged = {"a": 0}
    assert failed(sent) == ["lost"]


@pytest.mark.parametrize("kind", ["FIFO", "LITE"])
def test_first_delivery_behind_a_later_one_is_out_of_order(kind: str) -> None:
    sent = Sent(kind)
    sent.deliveries = [delivery("b", 1, offset=1), delivery("a", 0), delivery("b", 1, offset=1)]
    assert failed(sent) == ["out of order"]
    sent.deliveries = [delivery("b", 1, offset=1), delivery("a", 0, lane=1)]
    assert failed(sent) == []


def test_delivery_before_its_time_is_early() -> None:
    sent = Sent("DELAY")
    sent.acknowledged = {"a": 100}
    sent.deliveries = [delivery("a", at_ms=99)]
    assert failed(sent) == ["early"]


def test_half_messages_and_doubled_commits_are_seen() -> None:
    sent = Sent("TRANSACTION")
    sent.forbidden = {"a"}
    sent.acknowledged = {"b": 0}
    sent.repeated_sends = {"b"}
    sent.deliveries = [delivery("a"), delivery("b", offset=1), delivery("b", offset=2)]
    assert failed(sent) == ["half messages seen", "commits doubled"]


def test_repeated_delivery_needs_a_reason() -> None:
    sent = Sent("NORMAL")
    sent.deliveries = [delivery("a"), delivery("a")]
    assert failed(sent) == []  # The first was not acknowledged.
    sent.deliveries = [delivery("a"), delivery("a", settled=True)]
    assert failed(sent) == ["delivered again without a reason"]
    sent.deliveries = [delivery("a"), delivery("a", offset=1)]
    assert failed(sent) == ["delivered again without a reason"]
    sent.repeated_sends = {"a"}
    assert failed(sent) == []  # Its sender sent it twice.
