"""Whether the members of a broker group hold the same bytes of one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandemmq.admin.v1 import message_query_service_pb2 as pb

from admin.cluster_state import BrokerState
from admin.operations.questions import Answer, CallFailure, Questions
from admin.operations.values import ReplicaCopy

__all__ = ["copies_of", "judged_copies"]

_DIGEST_BYTES_MAX: Final = 8 << 20
"""As brokers allow. Of a larger record the beginning is compared."""


async def copies_of(
    questions: Questions, members: Sequence[BrokerState], physical_offset: int, record_bytes: int
) -> list[ReplicaCopy]:
    """Each member's copy of a record, in the order of `members`; those that do not answer are among them."""
    size = min(record_bytes, _DIGEST_BYTES_MAX)
    asked = [member for member in members if member.status is not None]
    found = await questions.brokers(asked, lambda broker: broker.messages.digest(physical_offset, size))
    answers = {answer.subject: answer for answer in found}
    digests = [answers.get(member.key) or _silent(member) for member in members]
    return judged_copies(digests, physical_offset, size, whole=size == record_bytes)


def judged_copies(
    answers: Sequence[Answer[pb.DigestRecordResponse]], physical_offset: int, size: int, *, whole: bool = True
) -> list[ReplicaCopy]:
    """Compares with the master's, `name:0`. `whole` False: only the beginning of the record was asked for."""
    master = next((answer.value for answer in answers if answer.subject.endswith(":0")), None)
    reference = master.sha256 if master is not None and master.held else None
    what = "the record" if whole else f"the first {size:,} bytes of the record"
    return [_judged(answer, reference, physical_offset, size, what) for answer in answers]


def _judged(
    answer: Answer[pb.DigestRecordResponse], reference: bytes | None, physical_offset: int, size: int, what: str
) -> ReplicaCopy:
    digest = answer.value
    if digest is None:
        reason = answer.failure.text if answer.failure is not None else "no answer"
        return ReplicaCopy(answer.subject, False, "", None, False, f"cannot be asked: {reason}")
    if not digest.held:
        return ReplicaCopy(answer.subject, False, "", None, False, _why_not_held(digest, physical_offset, size))
    flushed = digest.flushed_offset >= physical_offset + size
    disk = "on disk" if flushed else "not yet on disk"
    sha256 = digest.sha256.hex()
    if answer.subject.endswith(":0"):
        return ReplicaCopy(answer.subject, True, sha256, True, flushed, f"the master holds {what}, {disk}")
    if reference is None:
        verdict = f"holds {what}, {disk}; there is no copy of the master's to compare it with"
        return ReplicaCopy(answer.subject, True, sha256, None, flushed, verdict)
    if digest.sha256 == reference:
        return ReplicaCopy(answer.subject, True, sha256, True, flushed, f"holds the same bytes of {what}, {disk}")
    verdict = f"holds other bytes than the master where {what} lies; run `tandemmq verify` for this broker group"
    return ReplicaCopy(answer.subject, True, sha256, False, flushed, verdict)


def _why_not_held(digest: pb.DigestRecordResponse, physical_offset: int, size: int) -> str:
    if physical_offset < digest.min_offset:
        return f"holds it no more: its log begins at {digest.min_offset:,}"
    behind = physical_offset + size - digest.end_offset
    if behind > 0:
        return f"does not hold it yet: {behind:,} bytes behind"
    return "could not read it: its log changed meanwhile, or its disk fails"


def _silent(member: BrokerState) -> Answer[pb.DigestRecordResponse]:
    # It did not answer a moment ago; one that hangs would cost the time limit again.
    return Answer(member.key, member.broker_name, None, CallFailure.silent(member.error or "no answer"))
