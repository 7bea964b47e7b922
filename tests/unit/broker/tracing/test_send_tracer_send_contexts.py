"""Contexts of sends by where their messages are."""

from __future__ import annotations

from tandemmq.broker.tracing.send_tracer import SendContexts
from tandemmq.core.tracing.span_data import TraceContext


def test_the_oldest_is_forgotten_beyond_the_limit() -> None:
    contexts = SendContexts(messages_max=2)
    for number in (1, 2, 3):
        contexts.note(number * 100, TraceContext(7, number, True))
    assert contexts.contexts_at([100, 150, 300]) == {300: TraceContext(7, 3, True)}
