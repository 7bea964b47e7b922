"""Feeds header blocks to `tandemmq.http2.hpack` and `tandemmq.http2.hpack`: they must do what the `hpack` package
does.

    make fuzz ONLY=header_blocks      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.header_blocks      # a few thousand cases of one seed, without atheris

An input is the blocks of one connection, which share a table. They are made from it well-formed, and then sometimes
bent; input whose first byte is odd is one block as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import hpack
from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from fuzz.source import Source, any_bytes, run_all
from tandemmq.http2.hpack import ENTRY_OVERHEAD_BYTES, TABLE_BYTES, HeaderBlockError, HeaderDecoder

INPUT_BYTES_MAX: Final = 500
BLOCKS_MAX: Final = 12
FIELDS_MAX: Final = 20
_HUFFMAN: Final = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
_TEXTS: Final = (
    *(b"", b"a", b"te", b"trailers", b"grpc-timeout", b"2999999u", b":path", b"x" * 126, b"x" * 127, b"y" * 300),
    # What no header may have; one that empties the table.
    *(b"Upper", b"a b", b"\n", b"\xff", bytes(range(256)), b"z" * (TABLE_BYTES - ENTRY_OVERHEAD_BYTES + 1)),
)
_STATIC_ENTRIES: Final = 61
# What there is not; the first dynamic entries; where indices take another byte; the last possible entries; beyond any.
_ODD_INDICES: Final = (0, 62, 63, 126, 127, 128, 189, 190, 5_000)
_TABLE_SIZES: Final = (0, 30, 31, 32, 100, 1_000, TABLE_BYTES - 1, TABLE_BYTES)
# A number has up to so many digits that it does not need, and one more; ours takes none of more than four.
_ZEROS_MAX: Final = 4

Field = tuple[bytes, bytes]


class Peer:
    """Both decoders of one connection."""

    def __init__(self) -> None:
        self._ours = HeaderDecoder()
        self._theirs = hpack.Decoder(max_header_list_size=1 << 30)
        self._theirs.max_allowed_table_size = TABLE_BYTES
        # Of the block before, if the decoder is to have kept them.
        self._names_before: list[bytes] = []

    def block(self, block: bytes, around: bytes) -> bool:
        """Decodes one block, which `around` stands before and behind; false when the connection is lost by it."""
        expected = self._read_by_theirs(block)
        try:
            headers = self._ours.decode(around + block + around, len(around), len(around) + len(block))
        except HeaderBlockError as error:
            # Stricter than the package in one thing, which RFC 7541, 5.1 allows.
            is_right = expected is None or str(error) == "an integer out of range"
            assert is_right, (block.hex(), expected)
            return False
        found = [(header.name.encode("latin-1"), header.value.encode("latin-1")) for header in headers]
        assert found == expected, (block.hex(), found, expected)
        self._check_findings(found)
        return True

    def _read_by_theirs(self, block: bytes) -> list[Field] | None:
        try:
            return [(bytes(name), bytes(value)) for name, value in self._theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            return None

    def _check_findings(self, fields: list[Field]) -> None:
        """What the decoder says of a block beside its headers."""
        names = [name for name, _ in fields]
        list_bytes = sum(len(name) + len(value) + ENTRY_OVERHEAD_BYTES for name, value in fields)
        is_malformed = any(_is_malformed(field) for field in fields)
        assert self._ours.list_bytes == list_bytes, (fields, self._ours.list_bytes)
        assert self._ours.malformed == is_malformed, fields
        assert self._ours.same_names == (names == self._names_before != []), (fields, self._names_before)
        self._names_before = names if list_bytes <= TABLE_BYTES and not is_malformed else []


def _is_malformed(field: Field) -> bool:
    name, value = field
    return (
        not name
        or any(not 0x20 < byte < 0x7F or 0x41 <= byte <= 0x5A for byte in name)
        or any(not 0x20 <= byte < 0x7F for byte in value)
    )


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    source = Source(data)
    peer = Peer()
    if source.byte() & 1:
        peer.block(source.rest(), b"")
        return
    writer = Writer(source)
    for _ in range(BLOCKS_MAX):
        if source.is_empty or not peer.block(writer.block(), b"\x82" * source.below(3)):
            break


class Writer:
    """Makes the blocks of one connection as its input says."""

    def __init__(self, source: Source) -> None:
        self._source = source
        # Entries put into the table, as if none ever left it.
        self._added = 0

    def block(self) -> bytes:
        """The next block; one of 16 is bent."""
        source = self._source
        parts = [self._resize() for _ in range(max(0, source.below(16) - 13))]
        parts += [self._field() for _ in range(source.below(FIELDS_MAX))]
        block = b"".join(parts)
        bend = source.below(32)
        if bend == 1:
            return block[: source.below(len(block) + 1)]
        if bend == 2:
            at = source.below(len(block) + 1)
            return block[:at] + source.some(source.below(8)) + block[at:]
        return block

    def _field(self) -> bytes:
        choice = self._source.byte()
        if choice == 0xFF:
            return self._resize()
        if choice & 3 == 0:
            return self._integer(7, 0x80, self._index())
        is_added = choice & 3 != 3
        prefix, bits = (0x40, 6) if is_added else (choice & 0x10, 4)
        name = self._integer(bits, prefix, self._index()) if choice & 4 else bytes((prefix,)) + self._string()
        self._added += is_added
        return name + self._string()

    def _index(self) -> int:
        source = self._source
        choice = source.byte()
        if choice >= 0xFC:
            return _ODD_INDICES[source.below(len(_ODD_INDICES))]
        if choice & 1 and self._added:
            # Of the newest, which are likely to be there still.
            return _STATIC_ENTRIES + 1 + (choice >> 1) % min(self._added, 8)
        return 1 + (choice >> 1) % _STATIC_ENTRIES

    def _resize(self) -> bytes:
        place = self._source.byte()
        size = TABLE_BYTES + 1 if place == 1 else _TABLE_SIZES[place % len(_TABLE_SIZES)]
        return self._integer(5, 0x20, size)

    def _string(self) -> bytes:
        source = self._source
        choice = source.byte()
        text = _TEXTS[choice % len(_TEXTS)] if choice & 0x40 else source.some(choice & 0x1F)
        if choice & 0x80 == 0:
            return self._integer(7, 0, len(text)) + text
        # Huffman's code, or what hardly is one.
        code = text if choice & 0x3F == 0x3F else _HUFFMAN.encode(text)
        return self._integer(7, 0x80, len(code)) + code

    def _integer(self, bits: int, prefix: int, value: int) -> bytes:
        """Sometimes with digits that it does not need."""
        encoded = encode_integer(value, bits)
        encoded[0] |= prefix
        if len(encoded) > 1 and self._source.byte() == 1:
            encoded[-1] |= 0x80
            encoded += b"\x80" * self._source.below(_ZEROS_MAX) + b"\x00"
        return bytes(encoded)


def seeds(count: int, *, seed: int = 4) -> Iterator[bytes]:
    """Inputs to begin with."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), ("te", "trailers"), ("x-mq", "a" * 100)]
    for uses_huffman in (False, True):
        yield b"\x01" + hpack.Encoder().encode(headers, huffman=uses_huffman)
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


if __name__ == "__main__":
    run_all(run_one, seeds(5_000))
