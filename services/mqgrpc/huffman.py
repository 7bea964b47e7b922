"""HPACK's Huffman code (RFC 7541, appendix B), decoded a byte at a time.

A state is an inner node of the code's tree; a table gives, for a state and the next byte, the symbols that end within
the byte and the state after it. Rows are filled as they are met: clients use a small part of the 256 x 256.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from mqgrpc.errors import HeaderBlockError

__all__ = ["decode"]

_EOS: Final = 256
_PADDING_BITS_MAX: Final = 7

# Symbols as text (latin-1) and the next state; None where the code has no such path.
_Step: TypeAlias = "tuple[str, int] | None"


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


def _final_states(nodes: list[list[int]]) -> frozenset[int]:
    """States a text may end in: between symbols, or within padding of at most 7 one bits."""
    states = {0}
    node = 0
    for _ in range(_PADDING_BITS_MAX):
        node = nodes[node][1]
        states.add(node)
    return frozenset(states)


_NODES: Final = _tree()
_FINAL: Final = _final_states(_NODES)
_UNKNOWN: Final = ("", -1)
_ROWS: Final[list[list[_Step]]] = [[_UNKNOWN] * 256 for _ in _NODES]


def decode(data: bytes) -> str:
    """The text, each byte one character. HeaderBlockError for anything a correct encoder does not make."""
    state = 0
    symbols = []
    for byte in data:
        step = _ROWS[state][byte]
        if step is _UNKNOWN:
            step = _ROWS[state][byte] = _step(state, byte)
        if step is None:
            raise HeaderBlockError("the end-of-string symbol inside a Huffman string")
        text, state = step
        symbols.append(text)
    if state not in _FINAL:
        raise HeaderBlockError("a Huffman string with wrong padding")
    return "".join(symbols)


def _step(state: int, byte: int) -> _Step:
    text = ""
    for shift in range(7, -1, -1):
        state = _NODES[state][byte >> shift & 1]
        if state < 0:
            symbol = -1 - state
            if symbol == _EOS:
                return None
            text += chr(symbol)
            state = 0
    return text, state
