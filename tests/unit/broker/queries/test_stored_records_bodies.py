"""Bodies are unpacked by what they begin with, and never further than they are wanted."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
import zstandard

from tandemmq.broker.queries.stored_records import compression_of, unpacked
from tandemmq.core.message.record_layout import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD

lz4_frame = pytest.importorskip("lz4.frame")

TEXT = b"a body that is longer when it is unpacked. " * 40

PACKED = {
    "zlib": (zlib.compress(TEXT), COMPRESSED | COMPRESSION_ZLIB),
    "lz4": (lz4_frame.compress(TEXT), COMPRESSED | COMPRESSION_LZ4),
    "zstd": (zstandard.compress(TEXT), COMPRESSED | COMPRESSION_ZSTD),
    # What clients of the gRPC API send has no type in its flag.
    "gzip": (gzip.compress(TEXT), COMPRESSED),
}


@pytest.mark.parametrize("name", PACKED)
def test_each_compression(name: str) -> None:
    stored, sys_flag = PACKED[name]
    crc = zlib.crc32(stored) & 0x7FFF_FFFF
    for wanted in (1, 100, len(TEXT), 1 << 20):
        body = unpacked(stored, sys_flag=sys_flag, body_crc=crc, max_bytes=wanted)
        assert (body.data, body.compression, body.problem) == (TEXT[:wanted], name, "")


def test_old_clients_flag_says_nothing_of_the_kind() -> None:
    for stored in (zlib.compress(TEXT), lz4_frame.compress(TEXT), zstandard.compress(TEXT)):
        assert unpacked(stored, sys_flag=COMPRESSED, body_crc=None, max_bytes=10).data == TEXT[:10]
    assert compression_of(COMPRESSED, b"") == "zlib"
    assert compression_of(COMPRESSED | COMPRESSION_ZSTD, b"") == "zstd"
    assert compression_of(0, b"\x1f\x8b") == ""


@pytest.mark.parametrize("name", PACKED)
def test_a_torn_or_damaged_body_is_told_of(name: str) -> None:
    stored, sys_flag = PACKED[name]
    damaged = stored[:8] + bytes(len(stored) - 8)
    body = unpacked(damaged, sys_flag=sys_flag, body_crc=zlib.crc32(stored) & 0x7FFF_FFFF, max_bytes=1 << 20)
    assert "damaged" in body.problem
    assert body.data == b"" or TEXT.startswith(body.data[:1])
    for length in (0, 1, 4, 10, len(stored) // 2):
        torn = unpacked(stored[:length], sys_flag=sys_flag, body_crc=None, max_bytes=1 << 20)
        assert TEXT.startswith(torn.data)


@pytest.mark.parametrize("name", ["zlib", "gzip", "lz4", "zstd"])
def test_a_bomb_takes_no_more_memory_than_was_asked_for(name: str) -> None:
    zeros = bytes(64 << 20)
    pack = {"zlib": zlib.compress, "gzip": gzip.compress, "lz4": lz4_frame.compress, "zstd": zstandard.compress}[name]
    bomb = pack(zeros)
    del zeros
    tracemalloc.start()
    try:
        body = unpacked(bomb, sys_flag=COMPRESSED, body_crc=None, max_bytes=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body.data) == 1 << 20
    assert peak < 8 << 20


def test_a_frame_that_asks_for_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compressobj().compress(bytes(40 << 20))
    body = unpacked(packed, sys_flag=COMPRESSED, body_crc=None, max_bytes=100)
    assert body.data == b""
    assert "not" in body.problem
