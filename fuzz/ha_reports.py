"""Bytes of strangers on the replication port, in any pieces, while the log grows and is trimmed: what is believed of
them lies within what was sent, and nothing a put waits for is released by bytes that nobody proved.

    make fuzz ONLY=ha_reports      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.ha_reports      # a few thousand cases of one seed, without atheris

An input is a program: the log's ends, then what the stranger sends, what the master sends him, and how time passes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fuzz.source import Source, any_bytes, run_all
from tandemmq.core.replication.frames import MasterOptions, RemoteProtocolError
from tandemmq.core.replication.sessions import MasterSession

INPUT_BYTES_MAX: Final = 300
_STEPS_MAX: Final = 200
_SEGMENT_BYTES: Final = 1 << 10


@dataclass
class _Log:
    min_offset: int
    end_offset: int
    segment_bytes: int = _SEGMENT_BYTES


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    source = Source(data)
    is_from_last_file = bool(source.byte() & 2)
    low = source.below(4_096)
    log = _Log(low, low + source.below(4_096))
    options = MasterOptions(transfer_batch_bytes=1 + source.below(700), sync_from_last_file=is_from_last_file)
    session = MasterSession(1, "stranger", log, options, now_ms=0)
    now_ms = 0
    try:
        for _ in range(_STEPS_MAX):
            if source.is_empty:
                return
            step = source.below(6)
            if step <= 1:
                _hear(session, _said(source, log, session), now_ms)
            elif step == 2:
                sent_before = session.sent_offset
                for transfer in session.take_transfers(budget_bytes=1 + source.below(2_000), now_ms=now_ms):
                    assert transfer.start_offset == sent_before, "a gap in what is sent"
                    assert log.min_offset <= transfer.start_offset, "what is sent is not held"
                    sent_before += transfer.length
            elif step == 3:
                log.end_offset += source.below(1_500)
            elif step == 4:
                log.min_offset = min(log.end_offset, log.min_offset + source.below(1_500))
            else:
                now_ms += source.below(30_000)
                session.deadline_reached(now_ms=now_ms)
            _check(session, log)
    except RemoteProtocolError:
        return


def _hear(session: MasterSession, data: bytes, now_ms: int) -> None:
    """As a master takes them."""
    reported_offset = session.receive_data(data, now_ms=now_ms)
    if reported_offset is None:
        return
    if session.started:
        before = session.acked_offset
        session.acknowledge(reported_offset)
        assert session.acked_offset in (before, reported_offset), "an acknowledgement nobody gave"
    else:
        session.start(reported_offset, broker_id=None)


def _said(source: Source, log: _Log, session: MasterSession) -> bytes:
    """A report that may be a good one, cut anywhere, or anything."""
    kind = source.below(5)
    if kind == 0:
        return source.some(1 + source.below(40))
    offset = (0, log.end_offset, session.sent_offset, session.acked_offset + source.below(2_000))[kind - 1]
    report = struct.pack(">q", offset)
    return report[: 8 - source.below(3)] if source.byte() & 1 else report


def _check(session: MasterSession, log: _Log) -> None:
    if not session.started:
        assert session.sent_offset == 0, "something was sent before the first report"
        return
    assert session.start_offset <= session.acked_offset <= session.sent_offset <= log.end_offset
    # Nobody proved his bytes below where transfer began.
    assert session.proven_from_offset >= session.start_offset
    assert not session.verified


def seeds(count: int, *, seed: int = 6) -> Iterator[bytes]:
    """Inputs to begin with."""
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


if __name__ == "__main__":
    run_all(run_one, seeds(20_000))
