"""HPACK (RFC 7541): a decoder for requests, and the few header blocks a gRPC server answers with.

Only the static table and the Huffman code come from the `hpack` package: its decoder takes seven times as long as this
one (docs/adr/0011), at a place that every request passes.
"""

from __future__ import annotations

from typing import Final, final

from hpack.table import HeaderTable
from mypy_extensions import i64, mypyc_attr

from tandemmq.http2.errors import HeaderBlockError
from tandemmq.http2.huffman import decode as huffman_decode
from tandemmq.http2.huffman import measure as huffman_measure

__all__ = ["ENTRY_OVERHEAD_BYTES", "TABLE_BYTES", "Header", "HeaderDecoder", "HeaderEncoder", "literal"]

# Size of the dynamic tables, the protocol's default, which we neither raise nor lower.
TABLE_BYTES: Final = 4_096
# What an entry counts beside its name and value (RFC 7541, 4.1).
ENTRY_OVERHEAD_BYTES: Final = 32
# No more entries than these fit into the table; a power of two.
_ENTRIES_MAX: Final = 128
_FIRST_DYNAMIC: Final = 62
# 2**28 and more is no length or index of ours.
_INTEGER_SHIFT_MAX: Final = 21
_ENDS_TOO_EARLY: Final = "a block that ends too early"


@final
@mypyc_attr(acyclic=True)
class Header:
    """A name in lower case and a value, each character one byte. Shared by all requests that name it by its index."""

    __slots__ = ("_code", "_text", "is_malformed", "list_bytes", "name")

    def __init__(self, name: str, text: str | None, code: bytes, value_bytes: i64, is_malformed: bool) -> None:
        """With `text`, the value; or None, and its Huffman code, which is decoded if anybody asks for the value."""
        self.name = name
        self._text = text
        self._code = code
        # A name or value that no header may have.
        self.is_malformed = is_malformed
        # What it counts in a table or list.
        self.list_bytes: i64 = len(name) + value_bytes + ENTRY_OVERHEAD_BYTES

    @property
    def value(self) -> str:
        """Decoded when it is asked for first."""
        text = self._text
        if text is None:
            text = self._text = huffman_decode(self._code)
            self._code = b""
        return text


def _static_table() -> list[Header]:
    # Index 0 does not exist.
    fields = [("", ""), *((name.decode("ascii"), value.decode("ascii")) for name, value in HeaderTable.STATIC_TABLE)]
    assert len(fields) == _FIRST_DYNAMIC, "the static table has 61 entries"
    return [Header(name, value, b"", len(value), False) for name, value in fields]


_STATIC: Final = _static_table()
_NO_HEADERS: Final[list[Header]] = []


class HeaderDecoder:
    """One connection's decoder. Every block must pass it, also of refused calls, or the table goes astray.

    A request differs from the one before it in a header or two: what is the same is found out by the way and costs
    little.
    """

    def __init__(self) -> None:
        # The dynamic table; entry number n, counted from the connection's beginning, at n modulo its length.
        self._entries: list[Header] = [_STATIC[0]] * _ENTRIES_MAX
        self._added: i64 = 0
        self._count: i64 = 0
        self._entry_bytes: i64 = 0
        self._table_bytes: i64 = TABLE_BYTES
        # The list that the last block gave. Shared with its request, so it is never changed.
        self._last: list[Header] = _NO_HEADERS
        self._last_bytes: i64 = 0
        # True when the last block had a name or value that no header may have.
        self.malformed = False
        # True when it had names, and they were those of the block before it.
        self.same_names = False
        # Size of its list of headers (RFC 9113, 6.5.2).
        self.list_bytes: i64 = 0

    def decode(self, data: bytes, start: i64 = 0, end: i64 = -1) -> list[Header]:
        """The headers of the block that is data[start:end], in order. HeaderBlockError if it cannot be decoded.

        The list belongs to the decoder as well: it may be kept, but not changed.
        """
        if end < 0:
            end = len(data)
        headers = self._last.copy()
        known: i64 = len(headers)
        count: i64 = 0
        list_bytes = self._last_bytes
        malformed = False
        same_names = True
        entries = self._entries
        last_index = _FIRST_DYNAMIC - 1 + self._count
        newest = _FIRST_DYNAMIC - 1 + self._added
        pos = start
        while pos < end:
            first: i64 = data[pos]
            pos += 1
            if first >= 0x80:  # indexed
                index = first & 0x7F
                if index >= _FIRST_DYNAMIC:
                    if index == 0x7F:
                        index, pos = _integer(data, pos, end, 0x7F)
                    if index > last_index:
                        raise HeaderBlockError("an index beyond the table")
                    header = entries[(newest - index) & (_ENTRIES_MAX - 1)]
                elif index:
                    header = _STATIC[index]
                else:
                    raise HeaderBlockError("index 0")
            elif first >= 0x40:  # literal, to be added to the table
                index = first & 0x3F
                if index == 0x3F:
                    index, pos = _integer(data, pos, end, 0x3F)
                header, pos = self._literal(data, pos, end, index)
                self._add(header)
                last_index = _FIRST_DYNAMIC - 1 + self._count
                newest = _FIRST_DYNAMIC - 1 + self._added
            elif first >= 0x20:
                if count:
                    raise HeaderBlockError("a table size update behind a header")
                pos = self._resize(data, pos, end, first)
                last_index = _FIRST_DYNAMIC - 1 + self._count
                continue
            else:  # literal, not to be added (0x00), never to be added (0x10)
                index = first & 0x0F
                if index == 0x0F:
                    index, pos = _integer(data, pos, end, 0x0F)
                header, pos = self._literal(data, pos, end, index)
            if count < known:
                before = headers[count]
                if before is header:
                    count += 1
                    continue
                headers[count] = header
                list_bytes -= before.list_bytes
                if before.name != header.name:
                    same_names = False
            else:
                headers.append(header)
            count += 1
            list_bytes += header.list_bytes
            if header.is_malformed:
                malformed = True
        if count < known:
            for before in headers[count:]:
                list_bytes -= before.list_bytes
            del headers[count:]
        # No names would be the same as those of any block whose list was not kept.
        self.same_names = same_names and 0 < count == known
        self.malformed = malformed
        self.list_bytes = list_bytes
        # Kept for the next one, whatever becomes of the request; so it must be neither large nor malformed.
        if list_bytes <= TABLE_BYTES and not malformed:
            self._last = headers
            self._last_bytes = list_bytes
        else:
            self._last = _NO_HEADERS
            self._last_bytes = 0
        return headers

    def _literal(self, data: bytes, pos: i64, end: i64, index: i64) -> tuple[Header, i64]:
        """A header with a value of its own, and maybe a name; gives it and where it ends."""
        if index == 0:
            name, pos = _text(data, pos, end)
            malformed = _is_bad_name(name)
        else:
            if index < _FIRST_DYNAMIC:
                named = _STATIC[index]
            elif index - _FIRST_DYNAMIC < self._count:
                named = self._entries[(self._added - 1 - (index - _FIRST_DYNAMIC)) & (_ENTRIES_MAX - 1)]
            else:
                raise HeaderBlockError("an index beyond the table")
            name = named.name
            malformed = named.is_malformed and _is_bad_name(name)
        is_coded, pos, stop = _bounds(data, pos, end)
        if is_coded:
            measured = huffman_measure(data, pos, stop)
            return Header(name, None, data[pos:stop], measured >> 1, malformed or measured & 1 != 0), stop
        value = data[pos:stop].decode("latin-1")
        # gRPC's ASCII-Value: 0x20 to 0x7E.
        return Header(name, value, b"", stop - pos, malformed or not (value.isascii() and value.isprintable())), stop

    def _add(self, header: Header) -> None:
        self._entry_bytes += header.list_bytes
        # The oldest go first, so that there is a place. One larger than the table empties it and is not in it.
        self._evict()
        if header.list_bytes <= self._table_bytes:
            self._entries[self._added & (_ENTRIES_MAX - 1)] = header
            self._added += 1
            self._count += 1
        else:
            self._entry_bytes = 0

    def _evict(self) -> None:
        while self._entry_bytes > self._table_bytes and self._count:
            place = (self._added - self._count) & (_ENTRIES_MAX - 1)
            self._entry_bytes -= self._entries[place].list_bytes
            # It need not be kept.
            self._entries[place] = _STATIC[0]
            self._count -= 1

    def _resize(self, data: bytes, pos: i64, end: i64, first: i64) -> i64:
        size = first & 0x1F
        if size == 0x1F:
            size, pos = _integer(data, pos, end, 0x1F)
        if size > TABLE_BYTES:
            raise HeaderBlockError(f"a table of {size} bytes where {TABLE_BYTES} were offered")
        self._table_bytes = size
        self._evict()
        return pos


def _is_bad_name(name: str) -> bool:
    return not name or name != name.lower() or not (name.isascii() and name.isprintable()) or " " in name


def _integer(data: bytes, pos: i64, end: i64, start: i64) -> tuple[i64, i64]:
    """An integer's continuation bytes; gives it and where it ends."""
    value = start
    shift: i64 = 0
    while True:
        if pos >= end:
            raise HeaderBlockError(_ENDS_TOO_EARLY)
        byte: i64 = data[pos]
        pos += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > _INTEGER_SHIFT_MAX:
            raise HeaderBlockError("an integer out of range")


def _bounds(data: bytes, pos: i64, end: i64) -> tuple[bool, i64, i64]:
    """Whether a string literal is Huffman-coded, where its bytes begin and where they end."""
    if pos >= end:
        raise HeaderBlockError(_ENDS_TOO_EARLY)
    first: i64 = data[pos]
    length = first & 0x7F
    pos += 1
    if length == 0x7F:
        length, pos = _integer(data, pos, end, 0x7F)
    stop = pos + length
    if stop > end:
        raise HeaderBlockError("a string beyond the end of its block")
    return first >= 0x80, pos, stop


def _text(data: bytes, pos: i64, end: i64) -> tuple[str, i64]:
    """A string literal; gives it and where it ends."""
    is_coded, start, stop = _bounds(data, pos, end)
    text = data[start:stop]
    if not is_coded:
        return text.decode("latin-1"), stop
    huffman_measure(data, start, stop)
    return huffman_decode(text), stop


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
