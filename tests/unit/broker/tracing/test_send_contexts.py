"""Contexts of sends by message id."""

from __future__ import annotations

from broker.tracing.send_contexts import SendContexts
from mqcore.tracing import TraceContext


def test_the_oldest_is_forgotten_beyond_the_limit() -> None:
    contexts = SendContexts(messages_max=2)
    for number in (1, 2, 3):
        contexts.note(f"id-{number}", TraceContext(7, number, True))
    assert contexts.context_of("id-1") is None
    assert contexts.context_of("id-3") == TraceContext(7, 3, True)
