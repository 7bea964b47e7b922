"""Which span a message's send was, for those who deliver it and want to link to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from mqcore.tracing.trace_context import TraceContext

__all__ = ["SendContexts"]

# A thousand traced sends a second are found for half a minute; about 150 bytes each.
_MESSAGES_MAX: Final = 30_000


class SendContexts:
    """The newest traced sends by the physical offset of their message.

    A message that brought a `traceparent` of its own needs none of this.
    """

    def __init__(self, *, messages_max: int = _MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        self._contexts: OrderedDict[int, TraceContext] = OrderedDict()

    def note(self, physical_offset: int, context: TraceContext) -> None:
        """The send of the message there is traced, by this span. Forgets the oldest beyond the limit."""
        self._contexts[physical_offset] = context
        if len(self._contexts) > self._messages_max:
            self._contexts.popitem(last=False)

    def contexts_at(self, physical_offsets: Iterable[int]) -> dict[int, TraceContext]:
        """The spans of the sends of the messages there; of those that were traced, and not too long ago."""
        contexts = self._contexts
        return {physical_offset: contexts[physical_offset] for physical_offset in contexts.keys() & physical_offsets}
