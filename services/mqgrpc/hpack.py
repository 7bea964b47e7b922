"""HPACK (RFC 7541): a decoder for requests, and the few header blocks a gRPC server answers with.

Only the static table and the Huffman code come from the `hpack` package: its decoder takes seven times as long as this
one (docs/adr/0011), at a place that every request passes.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from hpack.table import HeaderTable

from mqgrpc.errors import HeaderBlockError
from mqgrpc.huffman import decode as huffman_decode

__all__ = ["ENTRY_OVERHEAD_BYTES", "TABLE_BYTES", "Header", "HeaderDecoder", "HeaderEncoder", "literal"]

# Name in lower case and value, each character one byte.
Header: TypeAlias = tuple[str, str]

# Size of the dynamic tables, the protocol's default, which we neither raise nor lower.
TABLE_BYTES: Final = 4_096
# What an entry counts beside its name and value (RFC 7541, 4.1).
ENTRY_OVERHEAD_BYTES: Final = 32
_STATIC: Final[tuple[Header, ...]] = (
    ("", ""),  # Index 0 does not exist.
    *((name.decode("ascii"), value.decode("ascii")) for name, value in HeaderTable.STATIC_TABLE),
)
_FIRST_DYNAMIC: Final = len(_STATIC)
# 2**28 and more is no length or index of ours.
_INTEGER_SHIFT_MAX: Final = 21


class HeaderDecoder:
    """One connection's decoder. Every block must pass it, also of refused calls, or the table goes astray."""

    def __init__(self) -> None:
        self._entries: deque[Header] = deque()  # newest first
        self._entry_bytes = 0
        self._table_bytes = TABLE_BYTES
        # Upper bound of the size of any entry met, for a quick check of a list's size.
        self._largest_bytes = 128
        # True when the last block had a name or value that no header may have.
        self.malformed = False
        # True once such a header was put into the table, from where later blocks may take it.
        self._has_malformed_entries = False

    def decode(self, block: bytes) -> list[Header]:
        """The block's headers in order. HeaderBlockError if it cannot be decoded."""
        self.malformed = False
        headers: list[Header] = []
        entries = self._entries
        pos = 0
        end = len(block)
        try:
            while pos < end:
                first = block[pos]
                if first >= 0x80:  # indexed
                    index = first & 0x7F
                    pos += 1
                    if index == 0x7F:
                        index, pos = _integer(block, pos, 0x7F)
                    headers.append(_STATIC[index] if index < _FIRST_DYNAMIC else entries[index - _FIRST_DYNAMIC])
                    if index == 0:
                        raise HeaderBlockError("index 0")
                elif first >= 0x40:  # literal, to be added to the table
                    pos += 1
                    index = first & 0x3F
                    if index == 0x3F:
                        index, pos = _integer(block, pos, 0x3F)
                    size = block[pos]
                    if index and size & 0x7F < 0x7F:  # a known name and a short value, the usual one
                        name = _STATIC[index][0] if index < _FIRST_DYNAMIC else entries[index - _FIRST_DYNAMIC][0]
                        start = pos + 1
                        pos = start + (size & 0x7F)
                        if pos > end:
                            raise HeaderBlockError("a string beyond the end of its block")
                        data = block[start:pos]
                        value = huffman_decode(data) if size & 0x80 else data.decode("latin-1")
                        if not (value.isascii() and value.isprintable()):
                            self.malformed = True
                        header = (name, value)
                    else:
                        header, pos = self._literal(block, pos, index)
                    self._add(header)
                    if self.malformed:
                        self._has_malformed_entries = True
                    headers.append(header)
                elif first >= 0x20:
                    if headers:
                        raise HeaderBlockError("a table size update behind a header")
                    pos = self._resize(block, pos)
                else:  # literal, not to be added (0x00), never to be added (0x10)
                    pos += 1
                    index = first & 0x0F
                    if index == 0x0F:
                        index, pos = _integer(block, pos, 0x0F)
                    header, pos = self._literal(block, pos, index)
                    headers.append(header)
        except IndexError:
            raise HeaderBlockError("an index beyond the table, or a block that ends too early") from None
        if self._has_malformed_entries and not self.malformed:
            self.malformed = any(_is_bad_name(name) or _is_bad_value(value) for name, value in headers)
        return headers

    def list_bytes_at_most(self, headers: list[Header], block: bytes, limit: int) -> bool:
        """True if the list's size (RFC 9113, 6.5.2) is within `limit`; exact only when a quick bound is not enough."""
        if len(headers) * self._largest_bytes + 2 * len(block) <= limit:
            return True
        return sum(len(name) + len(value) + ENTRY_OVERHEAD_BYTES for name, value in headers) <= limit

    def _literal(self, block: bytes, pos: int, index: int) -> tuple[Header, int]:
        if index == 0:
            name, pos = _text(block, pos)
            if _is_bad_name(name):
                self.malformed = True
        elif index < _FIRST_DYNAMIC:
            name = _STATIC[index][0]
        else:
            name = self._entries[index - _FIRST_DYNAMIC][0]
        value, pos = _text(block, pos)
        if _is_bad_value(value):
            self.malformed = True
        return (name, value), pos

    def _add(self, header: Header) -> None:
        size = len(header[0]) + len(header[1]) + ENTRY_OVERHEAD_BYTES
        if size > self._largest_bytes:
            self._largest_bytes = size
        self._entry_bytes += size
        self._entries.appendleft(header)
        while self._entry_bytes > self._table_bytes:
            name, value = self._entries.pop()
            self._entry_bytes -= len(name) + len(value) + ENTRY_OVERHEAD_BYTES

    def _resize(self, block: bytes, pos: int) -> int:
        size = block[pos] & 0x1F
        pos += 1
        if size == 0x1F:
            size, pos = _integer(block, pos, 0x1F)
        if size > TABLE_BYTES:
            raise HeaderBlockError(f"a table of {size} bytes where {TABLE_BYTES} were offered")
        self._table_bytes = size
        while self._entry_bytes > size:
            name, value = self._entries.pop()
            self._entry_bytes -= len(name) + len(value) + ENTRY_OVERHEAD_BYTES
        return pos


def _is_bad_name(name: str) -> bool:
    return not name or name != name.lower() or not (name.isascii() and name.isprintable()) or " " in name


def _is_bad_value(value: str) -> bool:
    # gRPC's ASCII-Value: 0x20 to 0x7E.
    return not (value.isascii() and value.isprintable())


def _integer(block: bytes, pos: int, start: int) -> tuple[int, int]:
    """An integer's continuation bytes; gives it and where it ends."""
    byte = block[pos]
    if byte < 0x80:
        return start + byte, pos + 1
    value = start
    shift = 0
    while True:
        byte = block[pos]
        pos += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > _INTEGER_SHIFT_MAX:
            raise HeaderBlockError("an integer out of range")


def _text(block: bytes, pos: int) -> tuple[str, int]:
    """A string literal; gives it and where it ends."""
    first = block[pos]
    length = first & 0x7F
    pos += 1
    if length == 0x7F:
        length, pos = _integer(block, pos, 0x7F)
    end = pos + length
    if end > len(block):
        raise HeaderBlockError("a string beyond the end of its block")
    data = block[pos:end]
    return (huffman_decode(data) if first >= 0x80 else data.decode("latin-1")), end


def literal(name: str, value: str) -> bytes:
    """A header that touches no table: valid in any block at any time. ASCII."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    data = text.encode("ascii")
    if len(data) < 0x7F:
        return bytes((len(data),)) + data
    encoded = bytearray((0x7F,))
    rest = len(data) - 0x7F
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded) + data


_STATUS_200: Final = b"\x88"
_CONTENT_TYPE_LITERAL: Final = literal("content-type", "application/grpc")
_CONTENT_TYPE_ADD: Final = b"\x5f\x10application/grpc"  # 0x40 | 31, content-type's static index
_OK_LITERAL: Final = literal("grpc-status", "0")
_OK_ADD: Final = b"\x40\x0bgrpc-status\x010"


class HeaderEncoder:
    """The header blocks of answers, prepared. Blocks must go out in the order in which they were taken.

    The usual two (response headers, trailers of an OK) are put into the peer's dynamic table when first used, and are
    two bytes and one byte long from then on. Nothing else is ever added, so their indices stay.
    """

    def __init__(self) -> None:
        self._uses_table = True
        self._table_must_be_emptied = False
        self._added: list[str] = []
        self.response_block = _STATUS_200 + _CONTENT_TYPE_ADD
        self.ok_block = _OK_ADD
        # True once `response_block` and `ok_block` are the two bytes and the one byte, for callers in a hurry.
        self.is_short = False

    def peer_table_bytes(self, size: int) -> None:
        """The peer announced the table it keeps. One below the default: from then on without a table.

        A smaller table has to be acknowledged in the next block; emptying it for good is the simplest way to.
        """
        if size < TABLE_BYTES and self._uses_table:
            self._uses_table = False
            self._table_must_be_emptied = True
            self.response_block = _STATUS_200 + _CONTENT_TYPE_LITERAL
            self.ok_block = _OK_LITERAL
            self.is_short = False

    def response(self) -> bytes:
        """`:status 200`, `content-type application/grpc`."""
        block = self.response_block
        return block if self.is_short else self._longer("content-type", block)

    def ok(self) -> bytes:
        """`grpc-status 0`."""
        block = self.ok_block
        return block if self.is_short else self._longer("grpc-status", block)

    def block(self, *parts: bytes) -> bytes:
        """A block of `literal`s, or of what else touches no table."""
        return self._longer("", b"".join(parts))

    def _longer(self, name: str, block: bytes) -> bytes:
        """A block before all is short: it may add `name` to the table, or have to empty it first."""
        if self._table_must_be_emptied:
            self._table_must_be_emptied = False
            return b"\x20" + block  # table size 0
        if name and self._uses_table and name not in self._added:
            self._added.append(name)
            # Newest entry first, at index 62.
            for index, added in enumerate(reversed(self._added)):
                indexed = bytes((0x80 | _FIRST_DYNAMIC + index,))
                if added == "content-type":
                    self.response_block = _STATUS_200 + indexed
                else:
                    self.ok_block = indexed
            self.is_short = len(self._added) == 2
        return block
