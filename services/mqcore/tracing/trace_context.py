"""W3C Trace Context: the `traceparent` of a message or a call.

Source: W3C Recommendation, Trace Context Level 1, 3.2.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final, NamedTuple

__all__ = ["TRACEPARENT", "TraceContext", "parse_traceparent"]

TRACEPARENT: Final = "traceparent"
"""Name of the header, and of the message property."""

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED_FLAG: Final = 0x01


class TraceContext(NamedTuple):
    """One span's place: `trace_id` of 16 bytes and `span_id` of 8, both above 0."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The header's text."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"


made_context: Final = partial(tuple.__new__, TraceContext)
"""TraceContext of a tuple of its parts, without a frame of Python's: five are made for a send that is traced."""


def parse_traceparent(text: str) -> TraceContext | None:
    """The context a header states; None for anything that is none, which is then as if it were not there.

    Versions above 00 may go on after the flags; ff is none.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED_FLAG))
    return context if context.trace_id and context.span_id else None
