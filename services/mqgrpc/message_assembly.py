"""Request messages out of DATA that is cut anywhere."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from mqgrpc.frames import MESSAGE_HEAD, MESSAGE_HEAD_BYTES

__all__ = ["MessageAssembly"]

# Of an unfinished message a piece smaller than this takes in the next one.
_PIECE_BYTES_MIN: Final = 1_024


class MessageAssembly:
    """The message of one call that is not whole yet; its owner takes each prefix, judges it, and takes what is behind.

    Before each message there is gRPC's prefix: compressed or not (u8), and the length of what follows (u32). A
    message is copied twice at most: out of its reads, and together.
    """

    def __init__(self) -> None:
        self.kept_bytes: i64 = 0
        """Of the unfinished message and its prefix."""
        self.since = 0.0
        """When its first byte came; set by the owner, who has the clock."""
        self.is_compressed = False
        """With `message_bytes`, what the prefix says."""
        self.message_bytes = 0
        self.missing_bytes: i64 = -1
        """So many are still to come; -1: the prefix is not whole."""
        self._prefix = b""
        self._pieces: list[bytes] = []

    @property
    def piece_count(self) -> int:
        """The objects that the unfinished message is kept in."""
        return len(self._pieces)

    def take_prefix(self, data: bytes, at: i64, stop: i64) -> i64:
        """Takes the prefix, as far as it is in data[at:stop]; gives how many bytes that were."""
        end = at + MESSAGE_HEAD_BYTES - len(self._prefix)
        if end > stop:
            end = stop
        self._prefix += data[at:end]
        self.kept_bytes += end - at
        if len(self._prefix) == MESSAGE_HEAD_BYTES:
            compressed, length = MESSAGE_HEAD.unpack(self._prefix)
            self.is_compressed = compressed != 0
            self.message_bytes = length
            self.missing_bytes = length
        return end - at

    def take(self, data: bytes, at: i64, stop: i64) -> i64:
        """Takes the message behind a whole prefix, as far as it is in data[at:stop]; gives how many bytes that were."""
        end = at + self.missing_bytes
        if end > stop:
            end = stop
        if end > at:
            piece = data[at:end]
            pieces = self._pieces
            if pieces and len(pieces[-1]) < _PIECE_BYTES_MIN:
                # As one: as an object each, small ones would take many times the memory that they are counted with.
                pieces[-1] += piece
            else:
                pieces.append(piece)
            self.missing_bytes -= end - at
            self.kept_bytes += end - at
        return end - at

    def finish(self) -> bytes:
        """The message, of which nothing is missing; the next one may begin."""
        pieces = self._pieces
        message = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.clear()
        return message

    def clear(self) -> None:
        """Forgets what there is of a message."""
        self._pieces = []
        self._prefix = b""
        self.missing_bytes = -1
        self.kept_bytes = 0
