"""Unpacks bodies, and never more of one than is wanted: a few bytes of a compressed one may stand for gigabytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Final

from broker.queries.values import Body
from mqcore.message.record_layout import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZSTD,
    CRC_MASK,
    crc32,
)

__all__ = ["compression_of", "unpacked"]

_BY_FLAG: Final = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}
"""By sysFlag; everything else is zlib, as clients before 5.0 wrote it."""
_BY_MAGIC: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
"""Clients of the gRPC API say only that a body is compressed, and readers look at its first bytes."""
_ANY_ZLIB: Final = 32 + zlib.MAX_WBITS
"""Takes zlib's header and gzip's."""
_ZSTD_WINDOW_BYTES_MAX: Final = 16 << 20
"""A frame may ask for 2 GiB of memory. RocketMQ's clients compress at levels that need 8 MiB at most."""


def compression_of(sys_flag: int, first_bytes: bytes) -> str:
    """zlib, gzip, lz4 or zstd; empty: the body is not compressed. Without `first_bytes` the flag alone counts."""
    if not sys_flag & COMPRESSED:
        return ""
    for magic, name in _BY_MAGIC:
        if first_bytes.startswith(magic):
            return name
    return _BY_FLAG.get(sys_flag & COMPRESSION_TYPE_MASK, "zlib")


def unpacked(stored: bytes, *, sys_flag: int, body_crc: int | None, max_bytes: int) -> Body:
    """The first `max_bytes` of a body, unpacked. `stored` is all of it, or at least as much if it is not compressed.

    `body_crc` None: not checked. Takes 3 ms for each MiB that comes out; may run in a thread.
    """
    assert max_bytes > 0, "to zlib 0 means without end"
    compression = compression_of(sys_flag, stored[:4])
    problem = ""
    if body_crc is not None and crc32(stored) & CRC_MASK != body_crc:
        problem = "the body does not match its checksum (bodyCRC): this copy is damaged"
    if not compression:
        return Body(stored[:max_bytes], "", problem)
    unpack = _UNPACK.get(compression)
    if unpack is None:
        return Body(b"", compression, problem or f"this broker cannot unpack {compression}")
    try:
        return Body(unpack(stored, max_bytes), compression, problem)
    except tuple(_UNPACK_ERRORS) as error:
        return Body(b"", compression, problem or f"it says it is compressed by {compression}, and is not: {error}")


def _unzipped(stored: bytes, max_bytes: int) -> bytes:
    return zlib.decompressobj(_ANY_ZLIB).decompress(stored, max_bytes)


def _from_lz4(stored: bytes, max_bytes: int) -> bytes:
    assert _lz4_frame is not None, "there is no lz4"
    data: bytes = _lz4_frame.LZ4FrameDecompressor().decompress(stored, max_length=max_bytes)
    return data


def _from_zstd(stored: bytes, max_bytes: int) -> bytes:
    assert _zstandard is not None, "there is no zstandard"
    decompressor = _zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    with decompressor.stream_reader(stored) as reader:
        data: bytes = reader.read(max_bytes)
        return data


def _module(name: str) -> ModuleType | None:
    """A package an image may lack: only a store taken over from a Java broker has bodies for it."""
    try:
        return import_module(name)
    except ImportError:
        return None


_lz4_frame: Final = _module("lz4.frame")
_zstandard: Final = _module("zstandard")
_UNPACK: Final[dict[str, Callable[[bytes, int], bytes]]] = {"zlib": _unzipped, "gzip": _unzipped}
_UNPACK_ERRORS: list[type[Exception]] = [zlib.error, EOFError]
if _lz4_frame is not None:
    _UNPACK["lz4"] = _from_lz4
    _UNPACK_ERRORS.append(RuntimeError)
if _zstandard is not None:
    _UNPACK["zstd"] = _from_zstd
    _UNPACK_ERRORS.append(_zstandard.ZstdError)
