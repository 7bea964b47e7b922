"""The same bytes give the same events and the same output, however they are cut, and whenever there is no time left."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.http2_peer import GRPC_HEADERS, RecordedCall, ServerRig, block, data, message, open_request, unary_request
from tandemmq.http2 import frames
from tandemmq.http2.errors import Limits

LIMITS = Limits(
    message_bytes=200,
    concurrent_streams=3,
    header_block_bytes=1_000,
    continuation_frames=3,
    header_list_bytes=600,
    frame_bytes=16_384,
    stream_window_bytes=2_000,
    connection_window_bytes=70_000,
    connection_buffer_bytes=300,
    idle_burst=20,
)
STREAMS = st.sampled_from([1, 3, 5, 7, 9])
ANY_STREAM = st.one_of(STREAMS, st.sampled_from([0, 2, 4, frames.STREAM_ID_MAX]))
BODY = st.binary(max_size=250)
VALID = st.one_of(
    st.builds(unary_request, STREAMS, BODY),
    st.builds(open_request, STREAMS),
    st.builds(lambda stream, body, end: data(stream, message(body), end=end), STREAMS, BODY, st.booleans()),
    st.builds(lambda stream, body, end: data(stream, body, end=end), STREAMS, BODY, st.booleans()),
    st.builds(frames.rst_stream, STREAMS, st.just(8)),
    st.builds(frames.window_update, st.one_of(STREAMS, st.just(0)), st.integers(1, 1_000)),
    st.builds(lambda value: frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: value}), st.integers(0, 500)),
    st.builds(lambda value: frames.frame(frames.PING, 0, 0, value), st.binary(min_size=8, max_size=8)),
    st.builds(
        lambda stream, cut: (
            frames.frame(frames.HEADERS, 0, stream, block(GRPC_HEADERS)[:cut])
            + frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream, block(GRPC_HEADERS)[cut:])
        ),
        STREAMS,
        st.integers(0, 60),
    ),
)
BROKEN = st.builds(frames.frame, st.integers(0, 11), st.integers(0, 255), ANY_STREAM, st.binary(max_size=60))


def act(rig: ServerRig, wire: bytes, cuts: list[int]) -> tuple[object, ...]:
    """What happened, as far as a peer or an owner can tell."""
    places = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    output = rig.output_bytes()
    for start, end in itertools.pairwise(places):
        rig.receive(wire[start:end])
        output += rig.output_bytes()
    kept = rig.connection.buffered_bytes
    rig.lose()
    hooks = {stream: call.hooks for stream, call in rig.calls.items()}
    return output, hooks, dict(rig.counters), rig.connection.is_closed, kept


def answer(call: RecordedCall) -> None:
    call.send_bytes(b"first")
    if call.stream_id % 4 == 1:
        call.respond(b"x" * 400)
    else:
        call.end(5, "no")


def stream_back(call: RecordedCall, body: bytes) -> None:
    if body.startswith(b"\x00"):
        call.end(3, "zero")
    else:
        call.send_bytes(body)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(st.one_of(VALID, VALID, VALID, BROKEN), max_size=25),
    st.lists(st.integers(0, 1 << 16), max_size=40),
    st.booleans(),
)
def test_any_chunking_gives_the_same(parts: list[bytes], cuts: list[int], is_whole: bool) -> None:
    wire = frames.PREFACE + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 300}) + b"".join(parts)

    def rig() -> ServerRig:
        return ServerRig(limits=LIMITS, on_half_closed=answer, on_message=stream_back, greet=False)

    if is_whole:
        cuts = list(range(len(wire)))
    assert act(rig(), wire, cuts) == act(rig(), wire, [])


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.one_of(VALID, VALID, VALID, BROKEN), max_size=25), st.integers(0, 5), st.booleans())
def test_having_no_time_left_changes_nothing(parts: list[bytes], frames_a_turn: int, is_torn: bool) -> None:
    """What was left is gone on with when nothing else has come."""
    wire = frames.PREFACE + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 300}) + b"".join(parts)
    if is_torn:
        wire = wire[:-3]
    whole, other = (
        ServerRig(limits=LIMITS, on_half_closed=answer, on_message=stream_back, greet=False) for _ in range(2)
    )
    expected = act(whole, wire, [])
    connection = other.connection
    output = other.output_bytes()
    connection.receive(wire, other.now, itertools.count().__next__, frames_a_turn)
    while connection.has_more:
        output += other.output_bytes()
        connection.receive(b"", other.now, itertools.count().__next__, frames_a_turn)
    output += other.output_bytes()
    kept = connection.buffered_bytes
    other.lose()
    hooks = {stream: call.hooks for stream, call in other.calls.items()}
    assert (output, hooks, dict(other.counters), connection.is_closed, kept) == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 1 << 16), max_size=10), st.booleans())
def test_any_bytes_in_any_chunks_end_in_order(noise: bytes, cuts: list[int], has_preface: bool) -> None:
    wire = frames.PREFACE + frames.settings({}) + noise if has_preface else noise
    one, other = (ServerRig(limits=LIMITS, on_half_closed=answer, greet=False) for _ in range(2))
    assert act(one, wire, cuts) == act(other, wire, [])
