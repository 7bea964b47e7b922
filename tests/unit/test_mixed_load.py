"""What the mixed load counts, and that each of its rows can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.mixed_load import Delivery, Place, Sent

from e2e.official_load import OfficialLoad, settled_again


def delivery(
    message_id: str,
    number: int = 0,
    *,
    lane: int = 0,
    offset: int = 0,
    at_ms: int = 0,
    settled: bool = False,
    attempt: int = 1,
) -> Delivery:
    return Delivery(message_id, lane, number, Place(0, offset), at_ms, settled, attempt)


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
    sent.deliveries = [delivery("a", attempt=2), delivery("a", settled=True)]
    assert failed(sent) == []  # It was on its way when the second attempt was acknowledged.
    sent.deliveries = [delivery("a"), delivery("a", settled=True, attempt=2)]
    assert failed(sent) == ["delivered again without a reason"]
    sent.deliveries = [delivery("a"), delivery("a", offset=1)]
    assert failed(sent) == ["delivered again without a reason"]
    sent.repeated_sends = {"a"}
    assert failed(sent) == []  # Its sender sent it twice.


# What official clients wrote down


def received(message_id: str, offset: int, acknowledged_s: float, received_s: float) -> list[str]:
    return ["0", "1", message_id, str(offset), f"{acknowledged_s:.3f}", f"{received_s:.3f}"]


def test_delivery_after_its_acknowledgement_is_told_and_others_are_not() -> None:
    first, lost_ack = received("a", 7, 10.5, 10.0), received("b", 8, 0, 10.0)
    assert settled_again([first, lost_ack, received("b", 8, 30.1, 30.0)]) == 0
    # The same message at another place was sent twice.
    assert settled_again([first, received("a", 9, 31, 30)]) == 0
    assert settled_again([first, received("a", 7, 31, 30)]) == 1
    # Lines are written when the acknowledgement is answered, not in the order of deliveries.
    assert settled_again([received("a", 7, 31, 30), first]) == 1
    assert settled_again([received("a", 7, 40, 10.2), first]) == 0


def test_felt_of_each_language_counts_what_it_promises(tmp_path: Path) -> None:
    load = OfficialLoad(tmp_path, endpoints=["a:1"], python=tmp_path, go=["go"], java=["java"], node=["node"])
    (tmp_path / "java-sent.tsv").write_text("0\t0\t0-0-0\tR\t1\n0\t1\t0-1-0\tC\t1\n0\t2\t0-2-0\tC\t1\n")
    lines = [received("0-1-0", 5, 2, 2), received("0-1-0", 9, 3, 3), received("0-0-0", 6, 4, 4)]
    (tmp_path / "java-received.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    (tmp_path / "node-sent.tsv").write_text("0\t0\tx\t5.000\t1\n0\t1\ty\t6.000\t1\n")
    lines = [received("x", 5, 5, 4.999), received("y", 6, 6, 6)]
    (tmp_path / "node-received.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    java, node = load._felt("java"), load._felt("node")
    assert (java.acknowledged, java.missing, java.repeated, java.doubled, java.forbidden) == (2, ("0-2-0",), 1, 1, 1)
    assert (node.acknowledged, node.missing, node.early) == (2, (), 1)
