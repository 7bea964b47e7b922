"""How a servicer's methods refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import pytest

from tandemmq.service.grpc_server import Invalid, Refused, by_kind, refusing


class _Aborted(Exception):
    """As gRPC ends a call."""


class _Context:
    async def abort(self, code: grpc.StatusCode, detail: str) -> None:
        raise _Aborted(code, detail)


@refusing(by_kind((KeyError, grpc.StatusCode.NOT_FOUND), (LookupError, grpc.StatusCode.INTERNAL)))
class _Servicer:
    """Each method raises what it is asked for, or answers."""

    is_closed = False

    async def Ask(self, request: Exception | str, _context: Any) -> str:
        if isinstance(request, Exception):
            raise request
        return request

    async def Watch(self, request: Exception | str, context: Any) -> AsyncIterator[str]:
        try:
            yield "first"
            yield await self._told(request)
        finally:
            self.is_closed = True

    async def _told(self, request: Exception | str) -> str:
        if isinstance(request, Exception):
            raise request
        return request


REFUSALS: Final = (
    (Refused(grpc.StatusCode.ABORTED, "not now"), grpc.StatusCode.ABORTED, "not now"),
    (Invalid("topic: it is empty"), grpc.StatusCode.INVALID_ARGUMENT, "topic: it is empty"),
    (KeyError(1), grpc.StatusCode.NOT_FOUND, "1"),
    (IndexError("far"), grpc.StatusCode.INTERNAL, "far"),
)


@pytest.mark.parametrize(("error", "code", "detail"), REFUSALS)
async def test_an_error_of_the_table_ends_a_call_and_a_stream_with_its_status(
    error: Exception, code: grpc.StatusCode, detail: str
) -> None:
    servicer = _Servicer()
    with pytest.raises(_Aborted) as aborted:
        await servicer.Ask(error, _Context())
    assert aborted.value.args == (code, detail)
    stream: Any = servicer.Watch(error, _Context())
    assert await anext(stream) == "first"
    with pytest.raises(_Aborted) as ended:
        await anext(stream)
    assert (ended.value.args, servicer.is_closed) == ((code, detail), True)


async def test_a_defect_passes_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        await _Servicer().Ask(ZeroDivisionError(), _Context())


async def test_answers_pass_and_a_stream_that_is_left_is_closed() -> None:
    servicer = _Servicer()
    assert await servicer.Ask("yes", _Context()) == "yes"
    stream: Any = servicer.Watch("second", _Context())
    assert await anext(stream) == "first"
    await stream.aclose()
    assert servicer.is_closed
