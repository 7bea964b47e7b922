"""A header block that comes in more than one frame: HEADERS and its CONTINUATIONs (RFC 9113, 6.10)."""

from __future__ import annotations

from tandemmq.http2.errors import ConnectionFailure, ErrorCode, Limits

__all__ = ["HeaderBlock"]


class HeaderBlock:
    """The block that is being put together, if there is one. One connection has one at a time: no other frame may come
    between its parts.

    Both `begin` and `extend` raise ConnectionFailure when the block grows beyond `Limits`, in bytes or in frames.
    """

    def __init__(self, limits: Limits) -> None:
        self.is_open = False
        """A block has begun and is not whole."""
        self.stream_id = 0
        """The stream of the block that began last. The flags are those of its HEADERS frame."""
        self.flags = 0
        self._limits = limits
        self._data = bytearray()
        self._frame_count = 0

    def begin(self, part: bytes, flags: int, stream_id: int) -> None:
        """The block's bytes in a HEADERS frame that does not end it."""
        self.is_open = True
        self.stream_id = stream_id
        self.flags = flags
        self._frame_count = 0
        self.extend(part)

    def extend(self, part: bytes) -> None:
        """Those in a CONTINUATION."""
        self._data += part
        self._frame_count += 1
        if len(self._data) > self._limits.header_block_bytes:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "header_block_too_large", "a header block too large")
        if self._frame_count > self._limits.continuation_frames:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "continuation_flood", "too many CONTINUATION frames")

    def finish(self) -> bytes:
        """The whole block."""
        block = bytes(self._data)
        self.clear()
        return block

    def clear(self) -> None:
        """Forgets what there is of a block."""
        self.is_open = False
        self._data = bytearray()
