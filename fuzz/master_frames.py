"""Bytes of whoever a slave takes for its master, in any pieces: what it would append goes on where its log ends, with
no gap, and is the same however the bytes are cut.

    make fuzz ONLY=master_frames      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.master_frames      # a few thousand cases of one seed, without atheris

An input is a program: the ends of the slave's log, then the frames of the master, good ones and others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fuzz.source import Source, any_bytes, run_all
from tandemmq.core.replication.frames import (
    BODY_BYTES_MAX,
    TRANSFER_HEADER,
    AppendBytes,
    MasterHeartbeat,
    RemoteProtocolError,
    SlaveOptions,
)
from tandemmq.core.replication.sessions import SlaveSession

INPUT_BYTES_MAX: Final = 300
_STEPS_MAX: Final = 60


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    source = Source(data)
    min_offset = source.below(2_000)
    end_offset = min_offset + (source.below(2_000) if source.byte() & 1 else 0)
    wire = _frames(source, end_offset)
    whole = _received(wire, [len(wire)], min_offset, end_offset)
    cuts = []
    left = len(wire)
    while left > 0:
        cuts.append(min(left, 1 + source.below(40)) if not source.is_empty else left)
        left -= cuts[-1]
    found = _received(wire, cuts, min_offset, end_offset)
    if whole[2]:
        # An error takes the frames of its read along; pieces have come before it.
        assert found[2] == whole[2], (whole, found)
        assert found[1].startswith(whole[1]), (whole, found)
    else:
        assert found == whole, (whole, found)


def _frames(source: Source, end_offset: int) -> bytes:
    parts = []
    offset = end_offset
    for _ in range(_STEPS_MAX):
        if source.is_empty:
            break
        kind = source.below(8)
        if kind == 7:
            parts.append(source.some(source.below(30)))
            continue
        length = source.below(300) if kind else 0
        start = offset if kind < 6 else (0, -1, offset + 1, 1 << 62)[source.below(4)]
        said = length if kind != 5 else (BODY_BYTES_MAX, BODY_BYTES_MAX + 1, -1, (1 << 31) - 1)[source.below(4)]
        parts.append(TRANSFER_HEADER.pack(start, said) + bytes(length))
        offset += length
    return b"".join(parts)


def _received(wire: bytes, sizes: list[int], min_offset: int, end_offset: int) -> tuple[int, bytes, str]:
    """Where the log would end, what would be appended, and why the link ends."""
    options = SlaveOptions()
    session = SlaveSession(end_offset=end_offset, options=options, now_ms=0, min_offset=min_offset)
    is_empty, next_offset = min_offset == end_offset, end_offset
    appended = bytearray()
    position = 0
    for size in sizes:
        try:
            events = session.receive_data(wire[position : position + size], now_ms=position)
        except RemoteProtocolError as error:
            return next_offset, bytes(appended), error.counter
        position += size
        for event in events:
            if isinstance(event, AppendBytes):
                if is_empty:
                    is_empty, next_offset = False, event.start_offset
                    assert next_offset >= 0
                assert event.start_offset == next_offset, "a gap, or bytes twice"
                next_offset += len(event.data)
                appended += event.data
            else:
                assert isinstance(event, MasterHeartbeat)
        if appended:
            session.appended(next_offset)
        report = session.data_to_send()
        assert len(report) in (0, 8)
    return next_offset, bytes(appended), ""


def seeds(count: int, *, seed: int = 8) -> Iterator[bytes]:
    """Inputs to begin with."""
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


if __name__ == "__main__":
    run_all(run_one, seeds(20_000))
