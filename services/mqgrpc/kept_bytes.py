"""What one connection keeps in memory for its peer."""

from __future__ import annotations

from mqgrpc.limits import Limits, Usage

__all__ = ["KeptBytes"]


class KeptBytes:
    """Bytes of unfinished requests, large headers and unsent answers; counted among all connections' as well.

    Nothing is refused here: whoever keeps more asks `is_over` and ends the call that asked for too much.
    """

    def __init__(self, limits: Limits, usage: Usage) -> None:
        self.count = 0
        self._limits = limits
        self._usage = usage

    def add(self, size: int) -> None:
        """So many more, or, below 0, fewer."""
        self.count += size
        self._usage.buffered_bytes += size

    @property
    def is_over(self) -> bool:
        """This connection, or all together, keep more than they may."""
        limits = self._limits
        return self.count > limits.connection_buffer_bytes or self._usage.buffered_bytes > limits.server_buffer_bytes
