"""HPACK (RFC 7541): a decoder for requests, and the few header blocks a gRPC server answers with.
Its tables come first, its Huffman code last.

The `hpack` package's decoder takes seven times as long as this one (docs/adr/0011), at a place that every request
passes, and its tables take a tenth of a broker's start.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

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

# The static table (RFC 7541, appendix A), from index 1: a name, and behind a blank its value.
_STATIC_FIELDS: Final = """
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|:status 204
:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate
accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control
content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type|cookie
date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified
link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|server|set-cookie
strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate
"""

# Bits of each symbol's Huffman code (appendix B), sixteen symbols a line. The code is canonical: it follows from them.
_CODE_LENGTHS: Final = """
13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28
28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28
 6 10 10 12 13  6  8 11 10 10  8 11  8  6  6  6
 5  5  5  6  6  6  6  6  6  6  7  8 15  6 12 10
13  6  7  7  7  7  7  7  7  7  7  7  7  7  7  7
 7  7  7  7  7  7  7  7  8  7  8 13 19 13 14  6
15  5  6  5  6  5  6  6  6  5  7  7  6  6  6  5
 6  7  6  5  5  6  7  7  7  7  7 15 11 14 13 28
20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23
24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24
22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23
21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23
26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25
19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27
20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23
26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26
30
"""


class HeaderBlockError(Exception):
    """A header block that cannot be decoded; the shared table is out of step, so the connection is lost."""


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
            text = self._text = decode(self._code)
            self._code = b""
        return text


def _static_table() -> list[Header]:
    # Index 0 does not exist.
    fields = [field.partition(" ") for field in _STATIC_FIELDS.strip().replace("\n", "|").split("|")]
    fields.insert(0, ("", "", ""))
    assert len(fields) == _FIRST_DYNAMIC, "the static table has 61 entries"
    return [Header(name, value, b"", len(value), False) for name, _, value in fields]


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
            measured = measure(data, pos, stop)
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
    measure(data, start, stop)
    return decode(text), stop


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


# HPACK's Huffman code (RFC 7541, appendix B), read by tables.
#
# A state is one of the 256 inner nodes of the code's tree; between two characters it is the root. `measure` goes a byte
# at a time and finds out everything but the text itself, which for most headers nobody ever asks for; `decode` makes
# the text, half a byte at a time, because its tables are small then.

_EOS: Final = 256
_PADDING_BITS_MAX: Final = 7

# What a step says beside the next state: how many characters ended in it (a byte ends at most two), and whether one of
# them is outside gRPC's 0x20 to 0x7E, or is the end-of-string symbol, which no text may have.
_COUNT: Final = 0x03
_UNPRINTABLE: Final = 0x04
_FORBIDDEN: Final = 0x08


def _tree() -> list[list[int]]:
    """Inner nodes as [child of 0, child of 1]; a leaf is -1 - symbol."""
    nodes: list[list[int]] = [[0, 0]]
    lengths = [int(length) for length in _CODE_LENGTHS.split()]
    assert len(lengths) == _EOS + 1, "every byte has a code, and the end of a string"
    code, before = 0, 0
    for symbol in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[symbol]
        code <<= length - before
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if nodes[node][bit] == 0:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = -1 - symbol
        code, before = code + 1, length
    return nodes


def _half_byte_tables(nodes: list[list[int]]) -> tuple[bytes, bytes, bytes]:
    """At state << 4 | four bits: the next state, what is to be said of the step, and the character that ended in it."""
    states, notes, symbols = bytearray(), bytearray(), bytearray()
    for start in range(len(nodes)):
        for bits in range(16):
            node, note, found = start, 0, 0
            for shift in (3, 2, 1, 0):
                node = nodes[node][bits >> shift & 1]
                if node < 0:
                    # No code is shorter than five bits, so there is one at most.
                    symbol, node = -1 - node, 0
                    if symbol == _EOS:
                        note |= _FORBIDDEN
                    else:
                        found = symbol
                        note |= 1 if 0x20 <= symbol < 0x7F else 1 | _UNPRINTABLE
            states.append(node)
            notes.append(note)
            symbols.append(found)
    return bytes(states), bytes(notes), bytes(symbols)


def _byte_tables(states: bytes, notes: bytes) -> tuple[bytes, bytes]:
    """The same at state << 8 | byte, without the characters: two steps of half a byte each, row by row."""
    both = [bytes((a & _COUNT) + (b & _COUNT) | (a | b) & ~_COUNT for b in range(256)) for a in range(16)]
    rows = [(state << 4, note) for state, note in zip(states, notes, strict=True)]
    return (
        b"".join([states[row : row + 16] for row, _ in rows]),
        b"".join([notes[row : row + 16].translate(both[note]) for row, note in rows]),
    )


def _final_states(nodes: list[list[int]]) -> bytes:
    """1 for the states a text may end in: between characters, or within padding of at most 7 one bits."""
    final = bytearray(len(nodes))
    final[0] = 1
    node = 0
    for _ in range(_PADDING_BITS_MAX):
        node = nodes[node][1]
        final[node] = 1
    return bytes(final)


_HALF_TABLES: Final = _half_byte_tables(_tree())
_HALF_STATES: Final = _HALF_TABLES[0]
_HALF_NOTES: Final = _HALF_TABLES[1]
_HALF_SYMBOLS: Final = _HALF_TABLES[2]
_TABLES: Final = _byte_tables(_HALF_STATES, _HALF_NOTES)
_STATES: Final = _TABLES[0]
_NOTES: Final = _TABLES[1]
_FINAL: Final = _final_states(_tree())

# Short texts come again and again: names, versions, and timeouts (a client uses some hundred).
_known: Final[dict[bytes, str]] = {}
_KNOWN_MAX: Final = 1_024
_KNOWN_BYTES_MAX: Final = 16


def measure(data: bytes, start: i64, stop: i64) -> i64:
    """How many characters the code in data[start:stop] has, twice; and 1 if one of them is no printable ASCII.

    HeaderBlockError for anything a correct encoder does not make.
    """
    states = _STATES
    notes = _NOTES
    state: i64 = 0
    count: i64 = 0
    unprintable: i64 = 0
    for pos in range(start, stop):
        place: i64 = state << 8 | data[pos]
        note: i64 = notes[place]
        if note > _COUNT:
            if note & _FORBIDDEN:
                raise HeaderBlockError("a Huffman string with the end-of-string symbol")
            unprintable = 1
            note &= _COUNT
        count += note
        state = states[place]
    if not _FINAL[state]:
        raise HeaderBlockError("a Huffman string with wrong padding")
    return count << 1 | unprintable


def decode(code: bytes) -> str:
    """The text of a code that `measure` took, each byte one character."""
    if len(code) > _KNOWN_BYTES_MAX:
        return _decoded(code)
    text = _known.get(code)
    if text is None:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        text = _known[code] = _decoded(code)
    return text


def _decoded(code: bytes) -> str:
    states = _HALF_STATES
    notes = _HALF_NOTES
    symbols = _HALF_SYMBOLS
    parts: list[bytes] = []
    # Up to seven characters are collected in one number.
    word: i64 = 0
    held: i64 = 0
    state: i64 = 0
    pos: i64 = 0
    end: i64 = len(code)
    while pos < end:
        byte: i64 = code[pos]
        pos += 1
        place: i64 = state << 4 | byte >> 4
        if notes[place]:
            word = word << 8 | symbols[place]
            held += 1
        place = states[place]
        place = place << 4 | byte & 0x0F
        if notes[place]:
            word = word << 8 | symbols[place]
            held += 1
        state = states[place]
        if held >= 6:
            parts.append(int(word).to_bytes(int(held), "big"))
            word = held = 0
    if held:
        parts.append(int(word).to_bytes(int(held), "big"))
    return b"".join(parts).decode("latin-1")
