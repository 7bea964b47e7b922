"""Which span a message's send was, for those who deliver it and want to link to it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mqcore.tracing import TraceContext

__all__ = ["SendContexts"]

# A thousand traced sends a second are found for half a minute; about 200 bytes each.
_MESSAGES_MAX: Final = 30_000


class SendContexts:
    """The newest traced sends by message id. A message that brought a `traceparent` of its own needs none of this."""

    def __init__(self, *, messages_max: int = _MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        self._contexts: OrderedDict[str, TraceContext] = OrderedDict()

    def note(self, message_id: str, context: TraceContext) -> None:
        """The send of a message is traced, by this span. Forgets the oldest beyond the limit."""
        self._contexts[message_id] = context
        if len(self._contexts) > self._messages_max:
            self._contexts.popitem(last=False)

    def context_of(self, message_id: str) -> TraceContext | None:
        """The span of a message's send; None if that was not traced, or too long ago."""
        return self._contexts.get(message_id)
