"""Who is told what became of a put."""

from __future__ import annotations

from collections.abc import Callable

from mqcore.storage.put_result import AppendResult

__all__ = ["PutAnswer", "PutDone", "answer_of"]

# For those that put now and then: the write path makes a `PutAnswer` of it.
PutDone = Callable[[list[AppendResult]], None]


class PutAnswer:
    """Told the results of one put, in the order of its messages. A class, as a call of its method is one jump for the
    compiler, while one of a function that was put together is a search for its arguments."""

    __slots__ = ()

    def answer(self, results: list[AppendResult]) -> None:
        """What became of each message. Once."""
        raise NotImplementedError


class _Function(PutAnswer):
    """Tells a function."""

    __slots__ = ("_done",)

    def __init__(self, done: PutDone) -> None:
        self._done = done

    def answer(self, results: list[AppendResult]) -> None:
        self._done(results)


def answer_of(done: PutAnswer | PutDone) -> PutAnswer:
    """The same, whichever way it is to be told."""
    return done if isinstance(done, PutAnswer) else _Function(done)
