"""However the network cuts the bytes, both sessions come to the same end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.core.replication.frames import (
    REPORT,
    TRANSFER_HEADER,
    AppendBytes,
    MasterHeartbeat,
    MasterOptions,
    RemoteProtocolError,
    SlaveOptions,
)
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.sessions import SlaveSession

from .memory_log import MemoryLog

START = 1_000
BODIES = st.lists(st.binary(max_size=40), max_size=12)
CUTS = st.lists(st.integers(0, 700), max_size=30)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[start:end] for start, end in pairwise(places)]


def frames(bodies: list[bytes]) -> bytes:
    """Transfers of the bodies one after the other from START on; an empty body is a heartbeat."""
    stream, offset = b"", START
    for body in bodies:
        stream += TRANSFER_HEADER.pack(offset, len(body)) + body
        offset += len(body)
    return stream


class Received:
    """What a slave made of a stream: its log, its heartbeats, whether it gave up."""

    def __init__(self, parts: list[bytes]) -> None:
        self.log = b""
        self.heartbeats: list[int] = []
        self.refused: str | None = None
        self.reports: list[int] = []
        session = SlaveSession(end_offset=START, options=SlaveOptions(), now_ms=0)
        for part in parts:
            try:
                events = session.receive_data(part, now_ms=0)
            except RemoteProtocolError as error:
                self.refused = error.counter
                return
            for event in events:
                match event:
                    case AppendBytes(start_offset, data):
                        assert start_offset == START + len(self.log)
                        self.log += data
                    case MasterHeartbeat(offset):
                        self.heartbeats.append(offset)
            session.appended(START + len(self.log))
            if report := session.data_to_send():
                self.reports.append(REPORT.unpack(report)[0])


@settings(deadline=None)
@given(bodies=BODIES, cuts=CUTS)
def test_slave_makes_the_same_of_any_chunks(bodies: list[bytes], cuts: list[int]) -> None:
    stream = frames(bodies)

    whole, cut = Received([stream]), Received(chunks(stream, cuts))

    assert cut.log == whole.log == b"".join(bodies)
    assert cut.heartbeats == whole.heartbeats
    assert cut.refused is whole.refused is None
    assert cut.reports == sorted(cut.reports)
    assert cut.reports[-1] == whole.reports[-1] == START + len(whole.log) if stream else not cut.reports


@settings(deadline=None)
@given(bodies=BODIES, cuts=CUTS, shift=st.integers(1, 100), after=BODIES)
def test_slave_never_appends_what_does_not_follow(
    bodies: list[bytes], cuts: list[int], shift: int, after: list[bytes]
) -> None:
    good = b"".join(bodies)
    wrong = TRANSFER_HEADER.pack(START + len(good) + shift, 5) + b"wrong" + b"".join(after)

    received = Received(chunks(frames(bodies) + wrong, cuts))

    assert good.startswith(received.log)
    assert received.refused == "offset_mismatch"


@settings(deadline=None)
@given(steps=st.lists(st.integers(0, 100), max_size=20), cuts=CUTS)
def test_master_takes_the_same_of_any_chunks(steps: list[int], cuts: list[int]) -> None:
    log = MemoryLog(end_offset=5_000)
    reports, offset = REPORT.pack(0), 0
    for step in steps:
        offset += step
        reports += REPORT.pack(offset)

    ends = []
    for parts in [reports[:8], reports[8:]], [reports[:8], *chunks(reports[8:], cuts)]:
        replica = MasterReplica(log, MasterOptions())
        link = replica.slave_connected("peer", now_ms=0)
        for part in parts:
            replica.receive_data(link, part, now_ms=0)
            replica.take_transfers(link, budget_bytes=5_000, now_ms=0)
        ends.append([slave.acked_offset for slave in replica.slaves()])

    assert ends == [[offset], [offset]]
