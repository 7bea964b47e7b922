"""Known attacks on HTTP/2 servers as bytes to send, and a client that sends them.

An attack is an endless supply of chunks, or a few with silence behind them; the server has to end it by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

import hpack

from support.http2_peer import GRPC_HEADERS, block, data, open_request, unary_request
from support.running_time import PATIENCE_S
from tandemmq.http2 import frames
from tandemmq.http2.stream import MESSAGE_HEAD

GREETING: Final = frames.PREFACE + frames.settings({})
BIG_WINDOWS: Final = (
    frames.PREFACE
    + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: frames.WINDOW_MAX})
    + frames.window_update(0, frames.WINDOW_MAX - frames.DEFAULT_WINDOW_BYTES)
)
NO_WINDOW: Final = frames.PREFACE + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 0})
TLS_CLIENT_HELLO: Final = bytes.fromhex("16030100f4010000f00303") + bytes(232)

Chunks = Callable[[Callable[..., bytes]], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Attack:
    """`chunks` is given what makes a unary request: stream id, body."""

    name: str
    # What it raises, and whether that ends the connection: else only calls.
    counter: str
    chunks: Chunks
    ends_connection: bool = True
    reads: bool = True


def streams() -> Iterator[int]:
    return (2 * number + 1 for number in count())


def _endless(opening: bytes, chunk: bytes) -> Chunks:
    def chunks(_: Callable[..., bytes]) -> Iterator[bytes]:
        yield opening
        while True:
            yield chunk * 50

    return chunks


def _once(*parts: bytes) -> Chunks:
    return lambda _: iter(parts)


def _rapid_reset(request: Callable[..., bytes]) -> Iterator[bytes]:
    yield GREETING
    for stream in streams():
        yield request(stream) + frames.rst_stream(stream, 8)


def _open_and_reset(_: Callable[..., bytes]) -> Iterator[bytes]:
    yield GREETING
    for stream in streams():
        yield open_request(stream) + frames.rst_stream(stream, 8)


def _made_you_reset(request: Callable[..., bytes]) -> Iterator[bytes]:
    """The server is made to send RST_STREAM itself, while the handler works on."""
    yield NO_WINDOW
    for stream in streams():
        yield request(stream) + data(stream, b"behind the end")


def _malformed_requests(_: Callable[..., bytes]) -> Iterator[bytes]:
    yield GREETING
    for stream in streams():
        yield frames.headers(stream, block([("Upper", "case")]), end_stream=True)


def _small_continuations(_: Callable[..., bytes]) -> Iterator[bytes]:
    yield GREETING + frames.frame(frames.HEADERS, 0, 1, block(GRPC_HEADERS))
    while True:
        yield frames.frame(frames.CONTINUATION, 0, 1, b"\x00\x01a\x01b")


def _indexed_bomb(_: Callable[..., bytes]) -> Iterator[bytes]:
    """A 4,000-byte entry, then references to it, a byte each."""
    yield GREETING + frames.headers(1, b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4_000, end_stream=True)
    yield frames.headers(3, block(GRPC_HEADERS) + b"\xbe" * 16_000, end_stream=True)


def _huffman_bomb(_: Callable[..., bytes]) -> Iterator[bytes]:
    yield GREETING
    head = hpack.Encoder().encode([*GRPC_HEADERS, ("x", "0" * 24_000)], huffman=True)
    yield frames.frame(frames.HEADERS, frames.END_STREAM, 1, head[:16_000])
    yield frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, head[16_000:])


def _too_many_streams(_: Callable[..., bytes]) -> Iterator[bytes]:
    yield GREETING
    for stream in streams():
        yield open_request(stream)


def _zero_window(request: Callable[..., bytes]) -> Iterator[bytes]:
    yield NO_WINDOW + b"".join(request(stream) for stream in range(1, 11, 2))


def _dribbling_window(request: Callable[..., bytes]) -> Iterator[bytes]:
    """Takes a byte now and then, so that something always moves."""
    yield NO_WINDOW + request(1)
    while True:
        yield frames.window_update(1, 1)


def _slow_reader(request: Callable[..., bytes]) -> Iterator[bytes]:
    yield BIG_WINDOWS
    for stream in streams():
        yield request(stream)


def _window_see_saw(request: Callable[..., bytes]) -> Iterator[bytes]:
    yield NO_WINDOW + b"".join(request(stream) for stream in range(1, 11, 2))
    while True:
        yield frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1})
        yield frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 0})


def _half_messages(_: Callable[..., bytes]) -> Iterator[bytes]:
    yield GREETING
    for stream in range(1, 41, 2):
        yield open_request(stream) + data(stream, MESSAGE_HEAD.pack(0, 15_000) + bytes(10_000))


PING: Final = frames.frame(frames.PING, 0, 0, b"8 bytes.")

ATTACKS: Final = (
    Attack("rapid_reset", "too_many_resets", _rapid_reset),
    Attack("open_and_reset", "too_many_resets", _open_and_reset),
    Attack("made_you_reset", "too_many_resets", _made_you_reset),
    Attack("malformed_requests", "too_many_resets", _malformed_requests),
    Attack("continuation_flood", "continuation_flood", _small_continuations),
    Attack(
        "large_continuations",
        "header_block_too_large",
        _endless(
            GREETING + frames.frame(frames.HEADERS, 0, 1, b""), frames.frame(frames.CONTINUATION, 0, 1, bytes(16_000))
        ),
    ),
    Attack("indexed_header_bomb", "header_bomb", _indexed_bomb),
    Attack("huffman_bomb", "header_list_too_large", _huffman_bomb, ends_connection=False),
    Attack("settings_flood", "too_many_settings", _endless(GREETING, frames.settings({}))),
    Attack("many_settings_in_a_frame", "too_many_settings", _endless(GREETING, frames.frame(4, 0, 0, bytes(12_000)))),
    Attack("window_see_saw", "too_many_settings", _window_see_saw),
    Attack("ping_flood", "too_many_pings", _endless(GREETING, PING)),
    Attack("ping_flood_unread", "too_many_pings", _endless(GREETING, PING), reads=False),
    Attack("empty_data_flood", "too_many_empty_data_frames", _endless(GREETING + open_request(1), data(1, b""))),
    Attack(
        "padding_flood",
        "too_many_empty_data_frames",
        _endless(GREETING + open_request(1), frames.frame(frames.DATA, frames.PADDED, 1, b"\x05" + bytes(5))),
    ),
    Attack("priority_flood", "too_many_priority_frames", _endless(GREETING, frames.frame(2, 0, 3, bytes(5)))),
    Attack("window_update_flood", "too_many_window_updates", _endless(GREETING, frames.window_update(0, 1))),
    Attack("goaway_flood", "too_many_goaways", _endless(GREETING, frames.goaway(0, 0))),
    Attack("unknown_frame_flood", "too_many_unknown_frames", _endless(GREETING, frames.frame(0xAA, 0, 0, b"?"))),
    Attack("too_many_streams", "too_many_refused_streams", _too_many_streams),
    Attack("zero_window", "slow_reader", _zero_window),
    Attack("dribbling_window", "too_many_window_updates", _dribbling_window),
    Attack("slow_reader", "slow_reader", _slow_reader, reads=False),
    Attack("silence", "preface_timeout", _once()),
    Attack("half_a_preface", "preface_timeout", _once(frames.PREFACE[:10])),
    Attack("preface_without_settings", "preface_timeout", _once(frames.PREFACE)),
    Attack("unanswered_keepalive", "keepalive_timeout", _once(GREETING)),
    Attack("half_a_frame", "frame_timeout", _once(GREETING + open_request(1)[:20])),
    Attack(
        "half_a_header_block",
        "frame_timeout",
        _once(GREETING + frames.frame(frames.HEADERS, 0, 1, block(GRPC_HEADERS))),
    ),
    Attack("half_messages", "buffers_full", _half_messages, ends_connection=False),
    Attack("oversized_frame", "frame_too_large", _once(GREETING + frames.FRAME_HEAD.pack(1 << 31, 0, 1))),
    Attack(
        "oversized_message",
        "message_too_large",
        _once(GREETING + open_request(1) + data(1, MESSAGE_HEAD.pack(0, (1 << 32) - 1))),
        ends_connection=False,
    ),
    Attack("garbage", "preface_invalid", _once(bytes(range(256)))),
    Attack("http_1_1", "preface_invalid", _once(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")),
    Attack("tls_on_a_plaintext_port", "preface_invalid", _once(TLS_CLIENT_HELLO)),
    Attack("even_stream", "frame_malformed", _once(GREETING + open_request(2))),
    Attack("stream_zero", "frame_malformed", _once(GREETING + open_request(0))),
    Attack("stream_backwards", "frame_unexpected", _once(GREETING + open_request(9, end=True) + open_request(3))),
    Attack("data_on_an_idle_stream", "frame_unexpected", _once(GREETING + data(7, b"x"))),
    Attack("data_on_stream_zero", "frame_unexpected", _once(GREETING + data(0, b"x"))),
    Attack("push_promise", "frame_unexpected", _once(GREETING + frames.frame(5, 4, 1, bytes(4)))),
    Attack(
        "broken_header_block", "header_block_undecodable", _once(GREETING + frames.headers(1, b"\xff", end_stream=True))
    ),
    Attack("window_overflow", "window_overflow", _once(GREETING + frames.window_update(0, frames.WINDOW_MAX))),
)


async def run_attack(
    attack: Attack,
    port: int,
    *,
    request: Callable[..., bytes] = unary_request,
    chunks_max: int = 1_000_000,
    close_limit_s: float = PATIENCE_S,
    is_counted: Callable[[], bool] | None = None,
) -> bool:
    """Attacks until the server closes the connection or has nothing more to be sent; True if it closed it.

    `is_counted` tells that the server has noticed, for attacks that do not end their connection; without it they are
    given a moment.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    eof = asyncio.Event()

    async def read() -> None:
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        eof.set()

    reading = asyncio.ensure_future(read()) if attack.reads else None
    if reading is None:
        # Nothing is taken off the socket beyond what the reader keeps; its end shows in writing.
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    try:
        with suppress(ConnectionError):
            for number, chunk in enumerate(attack.chunks(request)):
                if eof.is_set() or number >= chunks_max or writer.transport.is_closing():
                    break
                writer.write(chunk)
                async with asyncio.timeout(close_limit_s):
                    await writer.drain()
                if number % 8 == 0:
                    await asyncio.sleep(0)
        if reading is None:
            reading = asyncio.ensure_future(read())
            with suppress(RuntimeError):
                writer.transport.resume_reading()  # type: ignore[attr-defined]
        if attack.ends_connection:
            with suppress(TimeoutError):
                async with asyncio.timeout(close_limit_s):
                    await eof.wait()
        elif is_counted is None:
            await asyncio.sleep(0.05)
        else:
            async with asyncio.timeout(close_limit_s):
                while not is_counted():
                    await asyncio.sleep(0.001)
        return eof.is_set()
    except TimeoutError:
        return eof.is_set()
    finally:
        writer.transport.abort()
        if reading is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
