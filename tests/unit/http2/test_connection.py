"""The connection, frame by frame."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.http2_peer import (
    Frame,
    H2Pair,
    RecordedCall,
    ServerRig,
    data,
    message,
    open_request,
    parse_frames,
    unary_request,
)
from tandemmq.http2 import frames
from tandemmq.http2.connection import Connection
from tandemmq.http2.errors import ErrorCode, Limits
from tandemmq.http2.stream import MESSAGE_HEAD, Stream

GRPC_UNIMPLEMENTED, GRPC_RESOURCE_EXHAUSTED, GRPC_DEADLINE_EXCEEDED = "12", "8", "4"


def echo(call: RecordedCall) -> None:
    call.respond(b"".join(hook for hook in call.hooks if isinstance(hook, bytes)))


def kinds(found: list[Frame]) -> list[int]:
    return [frame.kind for frame in found]


def ends_with_goaway(rig: ServerRig, code: ErrorCode, counter: str) -> None:
    """The connection ended for this reason and keeps nothing."""
    last = rig.output()[-1]
    assert (last.kind, ErrorCode(last.error_code)) == (frames.GOAWAY, code)
    assert rig.counters[counter] == 1
    assert rig.connection.is_closed
    rig.lose()


def pair(**arguments: object) -> H2Pair:
    return H2Pair(ServerRig(greet=False, **arguments))  # type: ignore[arg-type]


# Calls


def test_unary_call_and_its_answer_in_one_piece_each() -> None:
    rig = ServerRig(on_half_closed=echo)
    rig.receive(unary_request(1, b"hello") + unary_request(3, b"again"))
    head, body, trailers, *second = rig.output()
    assert rig.headers_of(head) == {":status": "200", "content-type": "application/grpc"}
    assert (body.kind, body.payload) == (frames.DATA, message(b"hello"))
    assert rig.headers_of(trailers) == {"grpc-status": "0"}
    assert trailers.flags == frames.END_HEADERS | frames.END_STREAM
    assert [len(frame.payload) for frame in second] == [2, 10, 1]
    assert rig.calls[1].hooks == ["opened", b"hello", "half_closed"]
    assert rig.connection.open_streams == 0
    rig.lose()
    assert rig.calls[1].hooks == ["opened", b"hello", "half_closed"]


def test_a_call_knows_its_traceparent() -> None:
    found: list[str] = []
    calls = H2Pair(ServerRig(greet=False, on_opened=lambda call: found.append(call.traceparent)))
    calls.start()
    calls.start(("traceparent", "00-1-2-01"), ("x", "1"))
    calls.exchange()
    assert found == ["", "00-1-2-01"]


def test_answer_without_a_message_is_trailers_only() -> None:
    rig = ServerRig(on_half_closed=lambda call: call.end(5, "no such thing: 100 % \u00fcber\n"))
    rig.receive(unary_request(1))
    (trailers,) = rig.output()
    assert trailers.flags & frames.END_STREAM
    assert rig.headers_of(trailers) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "5",
        "grpc-message": "no such thing: 100 %25 %C3%BCber%0A",
    }


@pytest.mark.parametrize("detail", ["x" * 100_000, "\u20ac" * 100_000, "\ud800"])
def test_a_detail_never_becomes_a_header_that_clients_refuse(detail: str) -> None:
    rig = ServerRig(on_half_closed=lambda call: call.end(5, detail))
    rig.receive(unary_request(1))
    assert 0 < len(rig.headers_of(rig.output()[0])["grpc-message"]) <= 4_096


def test_request_in_many_frames_with_padding_priority_continuation_and_trailers() -> None:
    rig = ServerRig(on_half_closed=echo)
    head = open_request(1)[frames.FRAME_HEAD_BYTES :]
    padded = bytes([3]) + b"\x00\x00\x00\x00\x10" + head[:10] + bytes(3)
    rig.receive(
        frames.frame(frames.HEADERS, frames.PADDED | frames.PRIORITY_FLAG, 1, padded)
        + frames.frame(frames.CONTINUATION, 0, 1, head[10:20])
        + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, head[20:])
    )
    body = message(b"one") + message(b"") + message(b"three")
    for byte in body:
        rig.receive(frames.frame(frames.DATA, frames.PADDED, 1, bytes([2, byte, 0, 0])))
    rig.receive(frames.headers(1, b"\x00\x01a\x01b", end_stream=True))
    assert rig.calls[1].hooks == ["opened", b"one", b"", b"three", "half_closed"]
    assert b"onethree" in rig.output_bytes()
    rig.lose()


def test_streams_interleave_in_both_directions() -> None:
    both = pair(on_message=lambda call, body: call.send_bytes(body.upper()), on_half_closed=lambda call: call.end())
    first, second = both.start(), both.start()
    for text in (b"a", b"b", b"c"):
        both.send(first, text)
        both.send(second, text * 2)
        both.exchange()
    both.send(second, b"end", end=True)
    both.send(first, b"end", end=True)
    both.exchange()
    assert both.messages(first) == [b"A", b"B", b"C", b"END"]
    assert both.messages(second) == [b"AA", b"BB", b"CC", b"END"]
    assert [both.headers(stream)[-1] for stream in (first, second)] == [{"grpc-status": "0"}] * 2


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_530, 4 << 20])
def test_messages_of_every_size_pass_both_ways(size: int) -> None:
    both = pair(on_half_closed=echo)
    body = bytes(range(256)) * (size // 256 + 1)
    stream = both.unary(body[:size])
    assert both.messages(stream) == [body[:size]]
    assert both.headers(stream)[-1] == {"grpc-status": "0"}
    assert both.rig.connection.buffered_bytes == 0


def test_a_message_may_be_as_large_as_the_limit_and_no_larger() -> None:
    # The default is 130 MiB; the rule is the same for any.
    both = pair(limits=Limits(message_bytes=1_000), on_half_closed=echo)
    assert len(both.messages(both.unary(bytes(1_000)))[0]) == 1_000
    stream = both.unary(bytes(1_001))
    assert both.headers(stream)[0]["grpc-status"] == GRPC_RESOURCE_EXHAUSTED
    assert both.rig.calls[stream].hooks == ["opened", "cancelled"]
    assert both.rig.counters["message_too_large"] == 1
    assert both.rig.connection.buffered_bytes == 0


def test_a_message_of_130_mib_is_refused_by_its_prefix() -> None:
    rig = ServerRig()
    rig.receive(open_request(1) + data(1, MESSAGE_HEAD.pack(0, (130 << 20) + 1)))
    assert rig.headers_of(rig.output()[0])["grpc-status"] == GRPC_RESOURCE_EXHAUSTED
    rig.receive(open_request(3) + data(3, MESSAGE_HEAD.pack(0, 130 << 20)))
    assert rig.output() == []
    assert rig.connection.open_streams == 1


def test_a_compressed_message_is_refused_by_name() -> None:
    rig = ServerRig(on_half_closed=echo)
    rig.receive(
        open_request(1, ("grpc-encoding", "gzip")) + data(1, message(b"\x1f\x8b", compressed=1), end=True),
    )
    found = rig.headers_of(rig.output()[0])
    assert found["grpc-status"] == GRPC_UNIMPLEMENTED
    assert "gzip" in found["grpc-message"]
    assert found["grpc-accept-encoding"] == "identity"
    assert rig.calls[1].hooks == ["opened", "cancelled"]


def test_an_answer_before_the_end_of_the_request_ends_the_request_too() -> None:
    rig = ServerRig(on_opened=lambda call: call.end(7, "not you"))
    rig.receive(open_request(1) + data(1, b"\x00\x00\x00"))
    trailers, reset = rig.output()
    assert rig.headers_of(trailers)["grpc-status"] == "7"
    assert (reset.kind, reset.error_code) == (frames.RST_STREAM, ErrorCode.NO_ERROR)
    # What was on its way is no error.
    rig.receive(data(1, b"\x00\x00", end=True) + frames.rst_stream(1, ErrorCode.CANCEL) + frames.window_update(1, 5))
    assert not rig.connection.is_closed
    assert rig.calls[1].hooks == ["opened"]
    rig.lose()


@pytest.mark.parametrize(
    ("declared", "sent", "is_good"),
    [("8", message(b"abc"), True), ("7", message(b"abc"), False), ("9", message(b"abc"), False)],
)
def test_content_length_must_be_true(declared: str, sent: bytes, *, is_good: bool) -> None:
    rig = ServerRig(on_half_closed=echo)
    rig.receive(open_request(1, ("content-length", declared)) + data(1, sent, end=True))
    assert (rig.output()[0].kind == frames.HEADERS) is is_good


def test_a_request_that_ends_inside_a_message_is_reset() -> None:
    rig = ServerRig()
    rig.receive(open_request(1) + data(1, message(b"abc")[:-1], end=True))
    (reset,) = rig.output()
    assert (reset.kind, reset.error_code) == (frames.RST_STREAM, ErrorCode.PROTOCOL_ERROR)
    assert rig.calls[1].hooks == ["opened", "cancelled"]
    rig.lose()


@pytest.mark.parametrize(("field", "status"), [((":method", "GET"), "405"), (("content-type", "text/html"), "415")])
def test_http_that_is_no_grpc_gets_a_status_of_http(field: tuple[str, str], status: str) -> None:
    rig = ServerRig()
    rig.receive(open_request(1, field, end=True))
    assert rig.headers_of(rig.output()[0])[":status"] == status
    assert rig.calls == {}
    assert rig.connection.open_streams == 0


# :method POST or GET, :scheme http, :path /; content-type as a new entry of the table, or as that entry.
POST, GET, REST = b"\x83", b"\x82", b"\x86\x84"
NEW_TYPE, SAME_TYPE, NEW_OTHER_TYPE = b"\x5f\x10application/grpc", b"\xbe", b"\x5f\x04text"


@pytest.mark.parametrize(
    ("second", "status"),
    [(GET + REST + SAME_TYPE, "405"), (POST + REST + NEW_OTHER_TYPE, "415"), (POST + REST + SAME_TYPE, "200")],
)
def test_a_head_almost_like_the_one_before_is_judged_anew(second: bytes, status: str) -> None:
    rig = ServerRig(on_half_closed=lambda call: call.end(5))
    for stream_id, block, expected in ((1, POST + REST + NEW_TYPE, "200"), (3, second, status)):
        rig.receive(frames.headers(stream_id, block, end_stream=True))
        assert rig.headers_of(rig.output()[0])[":status"] == expected


def test_a_head_like_one_that_was_refused_unseen_is_judged() -> None:
    rig = ServerRig(limits=Limits(concurrent_streams=1))
    rig.receive(frames.headers(1, POST + REST + NEW_TYPE, end_stream=False))
    rig.receive(frames.headers(3, GET + REST + SAME_TYPE, end_stream=True))
    rig.receive(frames.rst_stream(1, ErrorCode.CANCEL))
    rig.output()
    rig.receive(frames.headers(5, GET + REST + SAME_TYPE, end_stream=True))
    assert rig.headers_of(rig.output()[0])[":status"] == "405"


def test_a_head_like_one_that_was_found_bad_is_bad() -> None:
    rig = ServerRig()
    for stream_id, content_type in ((1, NEW_TYPE), (3, SAME_TYPE), (5, SAME_TYPE)):
        rig.receive(frames.headers(stream_id, GET + REST + content_type, end_stream=True))
        assert rig.headers_of(rig.output()[0])[":status"] == "405"


# Ends of calls


def test_a_reset_reaches_the_handler_once() -> None:
    rig = ServerRig()
    rig.receive(open_request(1))
    rig.receive(frames.rst_stream(1, ErrorCode.CANCEL), frames.rst_stream(1, ErrorCode.CANCEL))
    rig.calls[1].send_bytes(b"late")
    rig.calls[1].end()
    assert rig.output() == []
    rig.lose()
    assert rig.calls[1].hooks == ["opened", "cancelled"]


def test_a_deadline_ends_the_call_with_its_status() -> None:
    rig = ServerRig()
    rig.receive(unary_request(1, b"x", ("grpc-timeout", "500m")))
    rig.advance(0.4)
    assert rig.output() == []
    rig.advance(0.2)
    assert rig.headers_of(rig.output()[0])["grpc-status"] == GRPC_DEADLINE_EXCEEDED
    assert rig.calls[1].hooks[-1] == "cancelled"
    rig.lose()
    assert rig.calls[1].hooks.count("cancelled") == 1


def test_a_timeout_that_is_none_is_refused() -> None:
    rig = ServerRig()
    rig.receive(unary_request(1, b"x", ("grpc-timeout", "soon")))
    assert rig.headers_of(rig.output()[0])["grpc-status"] == "13"
    assert rig.calls == {}


def confirming(call: RecordedCall) -> None:
    call.confirms = True
    call.respond(b"answer")


def test_undelivered_tells_of_what_was_not_written_when_the_socket_broke() -> None:
    rig = ServerRig(on_half_closed=confirming)
    rig.receive(unary_request(1))
    first = len(rig.output_bytes())
    rig.receive(unary_request(3))
    second = len(rig.output_bytes())
    rig.receive(unary_request(5))
    rig.connection.output_written(second)  # the first is written, the second not, the third not even taken
    rig.lose()
    assert first > 0
    assert [rig.calls[stream].hooks[-1] for stream in (1, 3, 5)] == ["half_closed", "undelivered", "undelivered"]


def test_what_waits_for_confirmation_is_not_kept_once_written_though_the_socket_is_never_empty() -> None:
    rig = ServerRig(on_half_closed=confirming)
    for number in range(100):
        rig.receive(unary_request(2 * number + 1))
        rig.output_bytes()
        rig.connection.output_written(1)
    rig.lose()
    assert [call.hooks[-1] for call in rig.calls.values()].count("undelivered") == 1


def test_a_refused_call_that_wanted_confirmation_hears_of_its_end_once() -> None:
    rig = ServerRig()
    rig.receive(unary_request(1, b"", ("grpc-timeout", "1S")))
    rig.calls[1].confirms = True
    rig.advance(2)
    rig.output_bytes()
    rig.lose()
    assert rig.calls[1].hooks[2:] == ["half_closed", "cancelled"]


def noting_unread(call: RecordedCall) -> None:
    call.unread = call.note_unread
    confirming(call)


def test_unread_tells_of_what_was_written_before_the_connection_broke() -> None:
    rig = ServerRig(on_half_closed=noting_unread, limits=Limits(keepalive_s=60))
    rig.receive(unary_request(1))
    rig.advance(25)
    rig.receive(unary_request(3))
    rig.output_bytes()
    rig.connection.output_written()
    rig.advance(8)
    rig.receive(unary_request(5))  # It is heard: what it was told 33 s ago it has read.
    rig.output_bytes()
    rig.connection.is_broken = True
    rig.lose()
    assert [rig.calls[stream].hooks[2:] for stream in (1, 3, 5)] == [
        ["half_closed"],
        ["half_closed", "unread"],
        ["half_closed", "undelivered", "unread"],
    ]


def test_a_connection_that_ends_in_order_has_read_what_was_written() -> None:
    rig = ServerRig(on_half_closed=noting_unread)
    rig.receive(unary_request(1))
    rig.output_bytes()
    rig.connection.output_written()
    rig.lose()
    assert rig.calls[1].hooks[2:] == ["half_closed"]


def test_a_peer_that_fell_silent_may_not_have_read_what_it_was_told_last() -> None:
    rig = ServerRig(on_half_closed=noting_unread)
    rig.receive(unary_request(1))
    rig.output_bytes()
    rig.connection.output_written()
    rig.advance(20)
    assert rig.counters["keepalive_timeout"] == 1
    rig.output_bytes()
    rig.lose()
    assert rig.calls[1].hooks[2:] == ["half_closed", "unread"]


@pytest.mark.parametrize(
    ("code", "told"), [(ErrorCode.CANCEL, ["half_closed", "unread"]), (ErrorCode.NO_ERROR, ["half_closed"])]
)
def test_a_call_that_is_taken_back_behind_its_answer_was_not_read(code: ErrorCode, told: list[str]) -> None:
    rig = ServerRig(on_half_closed=noting_unread)
    rig.receive(unary_request(1))
    rig.output_bytes()
    rig.connection.output_written()
    rig.receive(frames.rst_stream(1, code), frames.rst_stream(1, code))
    assert rig.calls[1].hooks[2:] == told


def settled(rig: ServerRig, *answers: bytes) -> list[list[str]]:
    """What the first three calls were told when a peer that sends `answers` was asked, and then did no more."""
    assert rig.connection.ask_if_read()
    [ping] = [frame for frame in rig.output() if frame.kind == frames.PING]
    rig.receive(*(answer or frames.frame(frames.PING, frames.ACK, 0, ping.payload) for answer in answers))
    if not rig.connection.has_read:
        rig.connection.tell_unread()
    assert rig.connection.has_read
    return [rig.calls[stream_id].hooks[3:] for stream_id in (1, 3, 5)]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([b""], [[], [], []]),
        ([], [["unread"], ["unread"], []]),
        ([frames.frame(frames.PING, frames.ACK, 0, b"another!")], [["unread"], ["unread"], []]),
        ([frames.rst_stream(1, ErrorCode.CANCEL), b""], [["unread"], [], []]),
        ([b"", b"", frames.rst_stream(1, ErrorCode.CANCEL)], [[], [], []]),
    ],
)
def test_a_peer_that_is_asked_has_read_what_was_put_before_or_may_not_have(
    answers: list[bytes], told: list[list[str]]
) -> None:
    rig = ServerRig(on_half_closed=noting_unread)
    rig.receive(unary_request(1), unary_request(3))
    rig.output_bytes()
    rig.on_half_closed = confirming  # Nobody wants to hear of this one.
    rig.receive(unary_request(5))
    rig.output_bytes()
    rig.connection.output_written()
    assert settled(rig, *answers) == told
    assert not rig.connection.ask_if_read(), "what was told or read is known no more"
    rig.connection.is_broken = True
    rig.lose()
    assert [rig.calls[stream_id].hooks[3:] for stream_id in (1, 3, 5)] == told


def test_what_the_peer_passes_on_is_not_read_by_its_answer() -> None:
    def passed_on(call: RecordedCall) -> None:
        call.is_passed_on = True
        noting_unread(call)

    rig = ServerRig(on_half_closed=passed_on)
    rig.receive(unary_request(1))
    rig.output_bytes()
    rig.connection.output_written()
    assert not rig.connection.ask_if_read()
    rig.connection.is_broken = True
    rig.lose()
    assert rig.calls[1].hooks[3:] == ["unread"]


def test_an_answer_that_waits_for_the_peers_window_is_not_read() -> None:
    def long_answer(call: RecordedCall) -> None:
        call.unread = call.note_unread
        call.confirms = True
        call.send_bytes(bytes(100_000))
        call.end()

    rig = ServerRig(on_half_closed=long_answer)
    rig.receive(unary_request(1))
    rig.output_bytes()
    assert rig.connection.ask_if_read()
    assert not rig.connection.has_read
    rig.connection.tell_unread()
    assert rig.connection.has_read
    assert rig.calls[1].hooks[3:] == ["unread"]


def test_a_connection_that_is_over_is_not_asked() -> None:
    rig = ServerRig(on_half_closed=noting_unread)
    rig.receive(unary_request(1))
    rig.lose()
    assert not rig.connection.ask_if_read()
    assert rig.connection.has_read


def test_hooks_that_end_other_calls_while_the_connection_breaks() -> None:
    rig = ServerRig()
    rig.receive(unary_request(1) + unary_request(3))
    first, second = rig.calls[1], rig.calls[3]
    first.cancelled = lambda: second.end(10, "gone")  # type: ignore[method-assign]
    rig.lose()
    assert second.hooks == ["opened", b"", "half_closed"]


# Flow control towards the peer


def test_answers_wait_for_the_stream_s_window_and_trailers_for_the_answers() -> None:
    rig = ServerRig(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 10}, on_half_closed=echo)
    rig.receive(unary_request(1, b"0123456789"))
    head, body = rig.output()
    assert (head.kind, len(body.payload)) == (frames.HEADERS, 10)
    assert rig.connection.buffered_bytes == 5
    rig.receive(frames.window_update(1, 4))
    assert [len(frame.payload) for frame in rig.output()] == [4]
    rig.receive(frames.window_update(1, 100))
    body, trailers = rig.output()
    assert (body.payload, trailers.kind) == (b"9", frames.HEADERS)
    assert rig.connection.open_streams == 0
    rig.lose()


def test_an_initial_window_below_what_was_used_makes_windows_negative() -> None:
    rig = ServerRig(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 100})
    rig.receive(unary_request(1))
    call = rig.calls[1]
    call.send_bytes(bytes(75))
    assert kinds(rig.output()) == [frames.HEADERS, frames.DATA]
    rig.receive(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 50}))
    call.send_bytes(bytes(15))
    assert kinds(rig.output()) == [frames.SETTINGS]
    rig.receive(frames.window_update(1, 30))  # 50 - 80 + 30
    assert rig.output() == []
    rig.receive(frames.window_update(1, 5))
    assert [len(frame.payload) for frame in rig.output()] == [5]
    rig.receive(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 65}))
    assert [(frame.kind, len(frame.payload)) for frame in rig.output()] == [(frames.SETTINGS, 0), (frames.DATA, 15)]
    rig.lose()


def test_the_connection_s_window_is_shared_in_turn() -> None:
    rig = ServerRig(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20}, on_half_closed=echo)
    for stream in (1, 3, 5):
        rig.receive(unary_request(stream, bytes(50_000)))
    sent = [frame for frame in rig.output() if frame.kind == frames.DATA]
    assert sum(len(frame.payload) for frame in sent) == frames.DEFAULT_WINDOW_BYTES
    order = []
    for _ in range(6):
        rig.receive(frames.window_update(0, 10_000))
        order += [frame.stream_id for frame in rig.output() if frame.kind == frames.DATA]
    assert set(order) >= {3, 5}
    rig.receive(frames.window_update(0, 1 << 20))
    assert len([frame for frame in rig.output() if frame.kind == frames.HEADERS]) >= 2
    assert rig.connection.open_streams == 0
    rig.lose()


def test_larger_frames_are_sent_to_a_peer_that_takes_them() -> None:
    rig = ServerRig(
        settings={frames.SETTINGS_MAX_FRAME_SIZE: 1 << 20, frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20},
        on_half_closed=echo,
    )
    rig.receive(frames.window_update(0, 1 << 20))
    rig.receive(unary_request(1, bytes(60_000)))
    assert max(len(frame.payload) for frame in rig.output()) == 60_005


def test_a_full_socket_stops_data_and_nothing_else() -> None:
    rig = ServerRig(on_half_closed=echo)
    rig.connection.pause_output(rig.now, 1_000)
    assert rig.usage.buffered_bytes == 1_000
    rig.receive(unary_request(1, b"abc"))
    assert kinds(rig.output()) == [frames.HEADERS]
    rig.connection.resume_output(rig.now)
    assert kinds(rig.output()) == [frames.DATA, frames.HEADERS]
    assert rig.usage.buffered_bytes == 0


@pytest.mark.parametrize(("unfinished_elsewhere", "is_cut"), [(0, False), (3_000, False), (4_000, True)])
def test_half_a_frame_ends_its_connection_only_where_halves_of_frames_fill_the_memory(
    unfinished_elsewhere: int, is_cut: bool
) -> None:
    """Behind a proxy all clients have one address: answers that some read slowly must not cost the others theirs."""
    rig = ServerRig(limits=Limits(server_buffer_bytes=10_000), on_half_closed=echo)
    rig.usage.buffered_bytes += 12_000
    rig.usage.unfinished_bytes += unfinished_elsewhere
    request = unary_request(3, b"x" * 4_000)
    rig.receive(open_request(1), request[:2_000])
    assert rig.counters["buffers_full"] == is_cut
    assert rig.connection.is_closed == is_cut
    rig.receive(request[2_000:])
    assert rig.calls[1].hooks == ["opened", *["cancelled"] * is_cut]
    assert ("half_closed" in rig.calls[3].hooks) != is_cut
    rig.usage.buffered_bytes -= 12_000
    rig.usage.unfinished_bytes -= unfinished_elsewhere
    rig.lose()


def test_what_its_owner_did_not_come_to_is_not_late() -> None:
    rig = ServerRig(on_half_closed=echo, limits=Limits(keepalive_s=10, keepalive_timeout_s=5, frame_timeout_s=60))
    request = unary_request(1, b"abc")
    rig.receive(request[:-1])
    for _ in range(10):
        rig.now += 30
        rig.connection.on_time(rig.now, is_read_late=True)
    assert rig.output() == []
    rig.receive(request[-1:])
    assert kinds(rig.output())[-1:] == [frames.HEADERS]
    # What is late in earnest ends it.
    rig.advance(15)
    assert rig.counters["keepalive_timeout"] == 1


def test_whole_frames_that_wait_for_their_turn_are_no_halves_of_frames() -> None:
    """An orderly client that is busy keeps them here as long as others are served."""
    rig = ServerRig(limits=Limits(server_buffer_bytes=10_000), on_half_closed=echo)
    rig.usage.buffered_bytes += 12_000
    rig.usage.unfinished_bytes += 4_000
    connection = rig.connection
    connection.receive(unary_request(1) + unary_request(3, b"x" * 4_000), rig.now, lambda: 1.0, 0.0)
    while connection.has_more:
        assert rig.usage.unfinished_bytes > 8_000
        connection.receive(b"", rig.now, lambda: 1.0, 0.0)
    assert not rig.counters
    assert all("half_closed" in call.hooks for call in rig.calls.values())
    assert len(rig.calls) == 2
    rig.usage.buffered_bytes -= 12_000
    rig.usage.unfinished_bytes -= 4_000
    rig.lose()


@pytest.mark.parametrize(
    ("kept_elsewhere", "before", "sizes", "is_crowded_out"),
    [(160_000, [], [80_000], True), (0, [150_000], [80_000], True), (0, [], [90_000, 90_000], False)],
    ids=["all connections", "another call", "it alone"],
)
def test_a_call_without_room_for_its_answer_knows_whether_others_have_taken_it(
    kept_elsewhere: int, before: list[int], sizes: list[int], is_crowded_out: bool
) -> None:
    def answer(call: RecordedCall) -> None:
        for size in before if call.stream_id == 1 else sizes:
            call.send_bytes(bytes(size))
            if call.is_finished:
                return
        call.end()

    rig = ServerRig(limits=Limits(connection_buffer_bytes=100_000, server_buffer_bytes=150_000), on_half_closed=answer)
    rig.receive(unary_request(1))
    rig.usage.buffered_bytes += kept_elsewhere
    rig.receive(unary_request(3))
    assert rig.calls[3].hooks[-1] == "cancelled"
    assert rig.calls[3].is_crowded_out == is_crowded_out
    assert not rig.calls[1].is_crowded_out
    rig.usage.buffered_bytes -= kept_elsewhere
    rig.lose()


def test_output_comes_in_pieces_that_leave_room_for_others() -> None:
    both = pair(on_half_closed=lambda call: call.respond(bytes(8 << 20)))
    rig = both.rig
    rig.receive(
        frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(0, 1 << 30),
    )
    rig.output_bytes()
    rig.receive(unary_request(99))
    pieces = []
    while piece := rig.connection.take_output():
        pieces.append(len(piece))
    assert len(pieces) >= 8
    assert max(pieces) < 2 << 20


def test_neighbouring_messages_share_frames_as_far_as_they_fit() -> None:
    messages = [bytes(1_000 + size) for size in range(32)]
    rig = ServerRig(on_half_closed=lambda call: call.send_all_bytes(messages))
    rig.receive(unary_request(1))
    sent = [frame for frame in rig.output() if frame.kind == frames.DATA]
    # 16 KiB have room for 16 of the first ones and for 15 of the others.
    assert [len(frame.payload) for frame in sent] == [
        sum(len(message(data)) for data in some) for some in (messages[:16], messages[16:31], messages[31:])
    ]
    assert b"".join(frame.payload for frame in sent) == b"".join(message(data) for data in messages)


@given(
    sizes=st.lists(st.one_of(st.integers(0, 200), st.integers(16_000, 17_000), st.integers(0, 40_000)), max_size=12),
    window=st.integers(0, 70_000),
    is_paused=st.booleans(),
    behind=st.booleans(),
)
def test_messages_sent_together_arrive_as_those_sent_one_by_one(
    sizes: list[int], window: int, is_paused: bool, behind: bool
) -> None:
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]

    def arrived(send: Callable[[RecordedCall], None]) -> tuple[bytes, int, int, bytes]:
        """Before the windows open: what came, and what waits; after that: the rest."""

        def answer(call: RecordedCall) -> None:
            if behind:
                call.send_bytes(b"first" * 1_000)
            send(call)
            call.end()

        rig = ServerRig(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: window}, on_half_closed=answer)
        if is_paused:
            rig.connection.pause_output(rig.now)
        rig.receive(unary_request(1))
        at_once = rig.output()
        waiting, answers = rig.connection.buffered_bytes, rig.connection._budget.answers
        if is_paused:
            rig.connection.resume_output(rig.now)
        rig.receive(frames.window_update(0, 1 << 20) + frames.window_update(1, 1 << 20))
        rest = rig.output()
        assert rest + at_once
        assert (rest or at_once)[-1].kind == frames.HEADERS
        assert rig.connection.buffered_bytes == 0
        data_of = [b"".join(frame.payload for frame in found if frame.kind == frames.DATA) for found in (at_once, rest)]
        assert all(len(frame.payload) <= frames.DEFAULT_FRAME_BYTES for frame in at_once + rest)
        return data_of[0], waiting, answers, data_of[1]

    def one_by_one(call: RecordedCall) -> None:
        for body in messages:
            call.send_bytes(body)

    assert arrived(lambda call: call.send_all_bytes(messages)) == arrived(one_by_one)


def test_nothing_is_sent_together_on_a_call_that_has_ended() -> None:
    rig = ServerRig(on_half_closed=lambda call: call.end(5))
    rig.receive(unary_request(1))
    rig.output()
    rig.calls[1].send_all_bytes([b"one", b"two"])
    rig.connection.answers.send_messages(rig.calls[1], [b"one", b"two"])
    assert rig.output() == []


def test_the_answer_to_a_ping_waits_for_other_output_and_goes_before_it() -> None:
    noted: list[str] = []
    calls: list[Stream] = []

    class Waiting(Stream):
        def half_closed(self) -> None:
            calls.append(self)

    connection = Connection(
        Waiting,
        limits=Limits(),
        now=0,
        on_output=lambda: noted.append("output"),
        on_waiting_output=lambda: noted.append("waiting"),
    )
    ping = frames.frame(frames.PING, 0, 0, b"12345678")
    connection.receive(frames.PREFACE + frames.settings({}) + unary_request(1) + unary_request(3), 0)
    connection.take_output()
    noted.clear()
    connection.receive(ping + ping, 0)
    assert noted == ["waiting"]
    calls[0].respond(b"answer")
    calls[1].respond(b"answer")
    assert noted == ["waiting", "output"]
    assert kinds(parse_frames(connection.take_output()))[:3] == [frames.PING, frames.PING, frames.HEADERS]
    connection.receive(ping, 0)
    assert noted == ["waiting", "output", "waiting"]
    assert kinds(parse_frames(connection.take_output())) == [frames.PING]


# Flow control from the peer


def test_windows_are_given_back_before_they_close() -> None:
    limits = Limits(stream_window_bytes=1_000, connection_window_bytes=70_000)
    both = pair(limits=limits)
    stream = both.start()
    both.exchange()
    for _ in range(500):
        both.send(stream, bytes(700))
    both.send(stream, b"end", end=True)
    both.exchange()
    assert both.rig.calls[stream].hooks[-2:] == [b"end", "half_closed"]


def test_padding_counts_for_the_stream_s_window() -> None:
    rig = ServerRig(limits=Limits(stream_window_bytes=1_000))
    rig.receive(open_request(1))
    sent = given_back = 0
    for _ in range(50):
        rig.receive(frames.frame(frames.DATA, frames.PADDED, 1, bytes([99]) + b"\x00" + bytes(99)))
        sent += 101
        given_back += sum(
            int.from_bytes(frame.payload, "big") for frame in rig.output() if frame.kind == frames.WINDOW_UPDATE
        )
        assert sent - given_back <= 1_000


def test_data_beyond_the_stream_s_window_is_reset() -> None:
    rig = ServerRig(limits=Limits(stream_window_bytes=1_000))
    rig.receive(open_request(1) + data(1, bytes(1_001)))
    found = [frame for frame in rig.output() if frame.kind == frames.RST_STREAM]
    assert found[0].error_code == ErrorCode.FLOW_CONTROL_ERROR
    rig.lose()


def test_data_beyond_the_connection_s_window_ends_the_connection() -> None:
    rig = ServerRig(limits=Limits(connection_window_bytes=70_000))
    rig.receive(b"".join(open_request(stream) + data(stream, bytes(16_000)) for stream in range(1, 11, 2)))
    ends_with_goaway(rig, ErrorCode.FLOW_CONTROL_ERROR, "window_exceeded")


# Frames that are no part of a call


def test_settings_and_pings_are_acknowledged() -> None:
    rig = ServerRig()
    rig.receive(
        frames.settings({0x99: 1, frames.SETTINGS_ENABLE_PUSH: 0}) + frames.frame(frames.PING, 0, 0, b"12345678")
    )
    settings, ping = rig.output()
    assert (settings.kind, settings.flags, settings.payload) == (frames.SETTINGS, frames.ACK, b"")
    assert (ping.kind, ping.flags, ping.payload) == (frames.PING, frames.ACK, b"12345678")
    rig.receive(
        frames.frame(frames.PING, frames.ACK, 0, b"12345678") + frames.frame(frames.SETTINGS, frames.ACK, 0, b"")
    )
    rig.receive(frames.frame(0xFA, 0xFF, 7, b"unknown") + frames.frame(frames.PRIORITY, 0, 9, bytes(5)))
    rig.receive(frames.goaway(0, 0, "bye"))
    assert rig.output() == []


@pytest.mark.parametrize(
    ("wire", "code", "counter"),
    [
        (data(1, b"x"), ErrorCode.PROTOCOL_ERROR, "frame_unexpected"),
        (data(0, b"x"), ErrorCode.PROTOCOL_ERROR, "frame_unexpected"),
        (open_request(2), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (open_request(0), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xbe"), ErrorCode.COMPRESSION_ERROR, ""),
        (frames.frame(frames.HEADERS, frames.PADDED | 4, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.frame(frames.HEADERS, frames.PADDED | 4, 1, b""), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.frame(frames.HEADERS, 0x24, 1, b"\0\0"), ErrorCode.FRAME_SIZE_ERROR, "frame_malformed"),
        (frames.frame(frames.HEADERS, 0x24, 1, b"\0\0\0\1\0"), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.frame(frames.CONTINUATION, 4, 1, b""), ErrorCode.PROTOCOL_ERROR, "frame_unexpected"),
        (frames.frame(frames.HEADERS, 0, 1, b"") * 2, ErrorCode.PROTOCOL_ERROR, "frame_unexpected"),
        (
            frames.frame(frames.HEADERS, 0, 1, b"") + frames.frame(frames.CONTINUATION, 4, 3, b""),
            ErrorCode.PROTOCOL_ERROR,
            "frame_unexpected",
        ),
        (frames.frame(frames.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.frame(frames.RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR, "frame_unexpected"),
        (frames.frame(frames.RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR, "frame_malformed"),
        (frames.frame(frames.SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.frame(frames.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR, "frame_malformed"),
        (frames.frame(frames.SETTINGS, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR, "frame_malformed"),
        (frames.settings({frames.SETTINGS_ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR, "settings_invalid"),
        (frames.settings({frames.SETTINGS_MAX_FRAME_SIZE: 16_383}), ErrorCode.PROTOCOL_ERROR, "settings_invalid"),
        (frames.settings({frames.SETTINGS_MAX_FRAME_SIZE: 1 << 24}), ErrorCode.PROTOCOL_ERROR, "settings_invalid"),
        (
            frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 31}),
            ErrorCode.FLOW_CONTROL_ERROR,
            "settings_invalid",
        ),
        (frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR, "frame_unexpected"),
        (frames.frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.frame(frames.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR, "frame_malformed"),
        (frames.frame(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.frame(frames.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR, "frame_malformed"),
        (frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR, "frame_malformed"),
        (frames.window_update(1, 1), ErrorCode.PROTOCOL_ERROR, "frame_unexpected"),
        (frames.window_update(0, frames.WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR, "window_overflow"),
        (frames.frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR, "frame_malformed"),
        (frames.frame(frames.DATA, 0, 1, bytes((64 << 10) + 1)), ErrorCode.FRAME_SIZE_ERROR, "frame_too_large"),
    ],
)
def test_what_ends_the_connection(wire: bytes, code: ErrorCode, counter: str) -> None:
    rig = ServerRig()
    rig.receive(wire)
    ends_with_goaway(rig, code, counter or "header_block_undecodable")


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(1, frames.WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.frame(frames.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(frames.PRIORITY, 0, 1, b"\0\0\0\1\0"), ErrorCode.PROTOCOL_ERROR),
        (open_request(1), ErrorCode.PROTOCOL_ERROR),  # trailers without END_STREAM
        (frames.headers(1, b"\x84", end_stream=True), ErrorCode.PROTOCOL_ERROR),  # :path in trailers
        (data(1, message(b""), end=True) + data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (data(1, b"", end=True) + frames.headers(1, b"", end_stream=True), ErrorCode.STREAM_CLOSED),
    ],
)
def test_what_ends_one_call_only(wire: bytes, code: ErrorCode) -> None:
    rig = ServerRig()
    rig.receive(open_request(1) + open_request(3))
    rig.receive(wire)
    (reset,) = rig.output()
    assert (reset.kind, reset.stream_id, ErrorCode(reset.error_code)) == (frames.RST_STREAM, 1, code)
    assert rig.calls[1].hooks[-1] == "cancelled"
    assert rig.calls[3].hooks == ["opened"]
    rig.lose()


@pytest.mark.parametrize("before", [("x", "\x01"), ("x", "y" * 5_000)], ids=["malformed", "large"])
def test_a_request_without_headers_is_refused_whatever_came_before_it(before: tuple[str, str]) -> None:
    rig = ServerRig()
    rig.receive(open_request(1, before))
    rig.output()
    rig.receive(frames.headers(3, b"", end_stream=True))
    (reset,) = rig.output()
    assert (reset.kind, reset.stream_id, reset.error_code) == (frames.RST_STREAM, 3, ErrorCode.PROTOCOL_ERROR)
    rig.lose()


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (open_request(1), ErrorCode.PROTOCOL_ERROR),
        (frames.headers(1, b"\x84", end_stream=True), ErrorCode.PROTOCOL_ERROR),
        (frames.rst_stream(1, ErrorCode.CANCEL) + data(1, b"x"), ErrorCode.STREAM_CLOSED),
    ],
)
def test_mistakes_on_a_stream_that_was_answered_early_are_named(wire: bytes, code: ErrorCode) -> None:
    rig = ServerRig(on_opened=lambda call: call.end(7))
    rig.receive(open_request(1))
    rig.output()
    rig.receive(wire)
    (reset,) = rig.output()
    assert (reset.kind, ErrorCode(reset.error_code)) == (frames.RST_STREAM, code)
    assert not rig.connection.is_closed


def test_data_on_a_stream_that_ended_long_ago_ends_the_connection() -> None:
    rig = ServerRig(on_half_closed=echo)
    rig.receive(unary_request(1))
    rig.output()
    rig.receive(data(1, b"x"))
    ends_with_goaway(rig, ErrorCode.STREAM_CLOSED, "frame_unexpected")


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/1.1", b"\0" * 64])
def test_anything_but_the_preface_is_refused_at_its_first_wrong_byte(first: bytes) -> None:
    rig = ServerRig(greet=False)
    rig.receive(first)
    ends_with_goaway(rig, ErrorCode.PROTOCOL_ERROR, "preface_invalid")


def test_the_first_frame_must_be_settings() -> None:
    for frame in (frames.frame(frames.PING, 0, 0, bytes(8)), frames.frame(frames.SETTINGS, frames.ACK, 0, b"")):
        rig = ServerRig(greet=False)
        rig.receive(frames.PREFACE + frame)
        ends_with_goaway(rig, ErrorCode.PROTOCOL_ERROR, "preface_invalid")


# Time


def test_a_silent_peer_is_pinged_and_given_up() -> None:
    rig = ServerRig()
    rig.advance(10.1)
    (ping,) = rig.output()
    assert ping.kind == frames.PING
    rig.receive(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
    rig.advance(9)
    assert not rig.connection.is_closed
    assert rig.output() == []
    rig.advance(7)
    assert rig.connection.is_closed
    assert rig.counters["keepalive_timeout"] == 1


def test_a_peer_that_reads_slowly_is_not_called_silent_while_it_is_not_read() -> None:
    rig = ServerRig()
    rig.receive(open_request(1)[:5])
    rig.connection.pause_output(rig.now)
    rig.advance(50)
    assert not rig.connection.is_closed
    rig.connection.resume_output(rig.now)
    rig.advance(9)
    assert not rig.connection.is_closed


def test_no_preface_in_time() -> None:
    rig = ServerRig(greet=False)
    rig.receive(frames.PREFACE[:10])
    rig.advance(11)
    ends_with_goaway(rig, ErrorCode.SETTINGS_TIMEOUT, "preface_timeout")


def test_deadlines_hidden_behind_each_other_all_fire() -> None:
    rig = ServerRig()
    for number in range(50):
        rig.receive(unary_request(2 * number + 1, b"", ("grpc-timeout", f"{1_000 + number * 7}m")))
    rig.advance(1.1)
    assert 10 <= rig.connection.open_streams <= 40
    rig.advance(1)
    assert rig.connection.open_streams == 0


# Drain


def test_drain_lets_calls_end_and_takes_those_on_their_way() -> None:
    rig = ServerRig()
    rig.receive(unary_request(1))
    rig.connection.drain(rig.now)
    goaway, ping = rig.output()
    assert (goaway.kind, goaway.payload[:8]) == (frames.GOAWAY, b"\x7f\xff\xff\xff\0\0\0\0")
    rig.receive(unary_request(3) + frames.frame(frames.PING, frames.ACK, 0, ping.payload) + unary_request(5))
    final, refused = rig.output()
    assert (final.kind, final.payload[:8]) == (frames.GOAWAY, b"\0\0\0\x03\0\0\0\0")
    assert (refused.kind, refused.stream_id, refused.error_code) == (frames.RST_STREAM, 5, ErrorCode.REFUSED_STREAM)
    assert not rig.connection.is_drained
    rig.calls[1].respond(b"one")
    rig.calls[3].respond(b"three")
    assert rig.connection.is_drained
    assert kinds(rig.output()) == [frames.HEADERS, frames.DATA, frames.HEADERS] * 2


def test_drain_does_not_wait_for_a_ping_that_is_not_answered() -> None:
    rig = ServerRig()
    rig.connection.drain(rig.now)
    assert not rig.connection.is_drained
    rig.advance(1.1)
    assert rig.connection.is_drained


def test_answers_shrink_to_indices_and_follow_a_smaller_table() -> None:
    rig = ServerRig(on_half_closed=echo)
    rig.receive(unary_request(1) + unary_request(3))
    sizes = [len(frame.payload) for frame in rig.output()]
    assert sizes[-3:] == [2, 5, 1]
    rig.receive(frames.settings({frames.SETTINGS_HEADER_TABLE_SIZE: 0}) + unary_request(5) + unary_request(7))
    assert rig.output()[1].payload[0] == 0x20


def test_h2_understands_answers_across_a_smaller_table() -> None:
    both = pair(on_half_closed=echo)
    both.unary(b"a")
    both.client.update_settings({1: 0})
    both.exchange()
    streams = [both.unary(b"b"), both.unary(b"c")]
    assert [both.headers(stream)[1] for stream in streams] == [{"grpc-status": "0"}] * 2
