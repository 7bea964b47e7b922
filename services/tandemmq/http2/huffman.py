"""HPACK's Huffman code (RFC 7541, appendix B), read by tables.

A state is one of the 256 inner nodes of the code's tree; between two characters it is the root. `measure` goes a byte
at a time and finds out everything but the text itself, which for most headers nobody ever asks for; `decode` makes the
text, half a byte at a time, because its tables are small then.
"""

from __future__ import annotations

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from mypy_extensions import i64

from tandemmq.http2.errors import HeaderBlockError

__all__ = ["decode", "measure"]

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
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if nodes[node][bit] == 0:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = -1 - symbol
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
