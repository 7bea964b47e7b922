"""HPACK's Huffman code (RFC 7541, appendix B), decoded a byte at a time.

A state is an inner node of the code's tree; a table gives, for a state and the next byte, the symbols that end within
the byte and the state after it. Entries are made as they are met: clients use a small part of the 257 x 256.
"""

from __future__ import annotations

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from mqgrpc.errors import HeaderBlockError

__all__ = ["decode"]

_EOS: Final = 256
_PADDING_BITS_MAX: Final = 7


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


_NODES: Final = _tree()
# Where the forbidden end-of-string symbol leads; no text ends there and nothing leads out.
_FORBIDDEN: Final = len(_NODES)


def _final_states() -> frozenset[int]:
    """States a text may end in: between symbols, or within padding of at most 7 one bits; shifted as in the table."""
    states = {0}
    node = 0
    for _ in range(_PADDING_BITS_MAX):
        node = _NODES[node][1]
        states.add(node << 8)
    return frozenset(states)


_FINAL: Final = _final_states()
# At state << 8 | byte: symbols as text (latin-1), next state << 8. None: not made yet.
_STEPS: Final[list[tuple[str, int] | None]] = [None] * ((len(_NODES) + 1) << 8)


def decode(data: bytes) -> str:
    """The text, each byte one character. HeaderBlockError for anything a correct encoder does not make."""
    steps = _STEPS
    while True:
        state = 0
        symbols = []
        place = 0
        try:
            for byte in data:
                place = state | byte
                text, state = steps[place]  # type: ignore[misc]  # None raises TypeError, once for each place
                symbols.append(text)
        except TypeError:
            steps[place] = _step(place >> 8, place & 0xFF)
            continue
        if state not in _FINAL:
            raise HeaderBlockError("a Huffman string with wrong padding, or with the end-of-string symbol")
        return "".join(symbols)


def _step(node: int, byte: int) -> tuple[str, int]:
    text = ""
    if node == _FORBIDDEN:
        return text, _FORBIDDEN << 8
    for shift in range(7, -1, -1):
        node = _NODES[node][byte >> shift & 1]
        if node < 0:
            symbol = -1 - node
            if symbol == _EOS:
                return text, _FORBIDDEN << 8
            text += chr(symbol)
            node = 0
    return text, node << 8
