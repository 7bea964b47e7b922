"""Text that a terminal may be given, whatever a client wrote into it."""

from __future__ import annotations

import unicodedata

__all__ = ["one_line"]


def one_line(text: str) -> str:
    """Without line ends and what else moves a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(each) == "Cc" else each for each in text)
