"""What is said of the copies of one message."""

from __future__ import annotations

import hashlib

from tandemmq.admin.operations.messages import judged_copies
from tandemmq.admin.operations.questions import Answer, CallFailure
from tandemmq.proto.admin.v1 import message_query_service_pb2 as pb

OFFSET, SIZE = 1_000, 200
MASTER = "broker-a:0"


def _held(broker: str, content: bytes = b"record", *, flushed: int = 2_000) -> Answer[pb.DigestRecordResponse]:
    digest = pb.DigestRecordResponse(
        held=True, sha256=hashlib.sha256(content).digest(), end_offset=2_000, flushed_offset=flushed
    )
    return Answer(broker, "broker-a", digest)


def _not_held(broker: str, *, min_offset: int = 0, end_offset: int = 2_000) -> Answer[pb.DigestRecordResponse]:
    return Answer(broker, "broker-a", pb.DigestRecordResponse(min_offset=min_offset, end_offset=end_offset))


def _verdicts(*answers: Answer[pb.DigestRecordResponse]) -> list[tuple[str, bool | None, str]]:
    return [(copy.broker, copy.equal, copy.verdict) for copy in judged_copies(answers, OFFSET, SIZE, master_key=MASTER)]


def test_copies_are_compared_with_the_masters() -> None:
    assert _verdicts(_held("broker-a:0"), _held("broker-a:1", flushed=1_199), _held("broker-a:2", b"rotten")) == [
        ("broker-a:0", True, "the master holds the record, on disk"),
        ("broker-a:1", True, "holds the same bytes of the record, not yet on disk"),
        (
            "broker-a:2",
            False,
            "holds other bytes than the master where the record lies; run `tandemmq verify` for this broker group",
        ),
    ]


def test_a_replica_without_it_says_why() -> None:
    found = _verdicts(
        _held("broker-a:0"),
        _not_held("broker-a:1", end_offset=1_100),
        _not_held("broker-a:2", min_offset=1_500),
        _not_held("broker-a:3"),
        Answer("broker-a:4", "broker-a", None, CallFailure.silent("UNAVAILABLE: refused")),
    )
    assert [verdict for _, equal, verdict in found[1:] if equal is None] == [
        "does not hold it yet: 100 bytes behind",
        "holds it no more: its log begins at 1,500",
        "could not read it: its log changed meanwhile, or its disk fails",
        "cannot be asked: UNAVAILABLE: refused",
    ]


def test_without_the_masters_copy_nothing_is_called_equal() -> None:
    away: Answer[pb.DigestRecordResponse] = Answer("broker-a:0", "broker-a", None, CallFailure.silent("refused"))
    [_, copy] = judged_copies([away, _held("broker-a:1")], OFFSET, SIZE, master_key=MASTER)
    assert (copy.held, copy.equal) == (True, None)
    assert "no copy of the master's" in copy.verdict
    [_, copy] = judged_copies([_not_held("broker-a:0"), _held("broker-a:1")], OFFSET, SIZE, master_key=MASTER)
    assert copy.equal is None


def test_of_a_large_record_the_beginning_is_compared() -> None:
    [first, _] = judged_copies([_held("broker-a:0"), _held("broker-a:1")], OFFSET, SIZE, master_key=MASTER, whole=False)
    assert "the first 200 bytes of the record" in first.verdict


def test_the_master_is_compared_with_whatever_its_id() -> None:
    first, second = judged_copies(
        [_held("broker-a:0", b"rotten"), _held("broker-a:1")], OFFSET, SIZE, master_key="broker-a:1"
    )
    assert (first.equal, first.master) == (False, False)
    assert (second.equal, second.master, second.verdict) == (True, True, "the master holds the record, on disk")
