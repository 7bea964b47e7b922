"""Problems as people and programs get them: a page for a browser, RFC 9457's `application/problem+json` below /api."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Final

from fastapi.responses import JSONResponse

from tandemmq.admin.operations.questions import FailureKind, OperationFailed

__all__ = ["Problem", "plain_problem", "problem_of", "problem_response"]

_STATUSES: Final = {
    FailureKind.INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
    FailureKind.NOT_FOUND: HTTPStatus.NOT_FOUND,
    FailureKind.REFUSED: HTTPStatus.CONFLICT,
    FailureKind.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    # Some brokers did it: neither done nor undone.
    FailureKind.PARTIAL: HTTPStatus.BAD_GATEWAY,
}


@dataclass(frozen=True)
class Problem:
    """What went wrong (RFC 9457), and what to do about it."""

    # A name of the kind of problem.
    type: str
    title: str
    status: int
    # The problem and its cause in one sentence.
    detail: str
    problem: str
    cause: str = ""
    remedy: str = ""


def problem_of(failure: OperationFailed, *, status: HTTPStatus | None = None) -> Problem:
    """A failed operation. `status` in place of the kind's own."""
    status = status or _STATUSES[failure.kind]
    return Problem(
        type=f"urn:tandemmq:problem:{failure.kind.name.lower().replace('_', '-')}",
        title=status.phrase,
        status=status,
        detail=f"{failure.problem}: {failure.cause}" if failure.cause else failure.problem,
        problem=failure.problem,
        cause=failure.cause,
        remedy=failure.remedy,
    )


def plain_problem(status: HTTPStatus, detail: str) -> Problem:
    """A problem of the request itself."""
    return Problem(type="about:blank", title=status.phrase, status=status, detail=detail, problem=detail)


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    """As it is sent."""
    return JSONResponse(
        asdict(problem), problem.status, {"cache-control": "no-store", **(headers or {})}, "application/problem+json"
    )
