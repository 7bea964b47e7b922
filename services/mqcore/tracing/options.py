"""What an operator decides about traces."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TraceOptions"]


@dataclass(slots=True)
class TraceOptions:
    """When a trace is kept. A caller's own decision in its `traceparent` goes before `sample_rate`.

    Both may change while traces are made; who keeps a copy of them is told by whoever changes them.
    """

    # Share of operations without a context, 0 to 1.
    sample_rate: float
    # An operation that takes longer, or fails, is kept whatever chance said. 0: none for its slowness.
    slow_ms: int
