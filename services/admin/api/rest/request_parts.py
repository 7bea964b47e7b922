"""What routes have in common: whose operations they are, parameters, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict

from admin.api.acting_operations import OperationsDesk
from admin.api.actors import current_actor
from admin.moments import MomentUnreadable, read_moment
from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.interface import Operations

__all__ = ["CHANGE_PROBLEMS", "PROBLEMS", "Body", "DryRun", "PageNumber", "PageSize", "moment_of", "operations_of"]

DryRun = Annotated[bool, Query(description="Change nothing; the answer says what would change.")]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000, description="Which page, from 1.")]
PageSize = Annotated[int, Query(ge=1, le=500, description="Items a page.")]


def _problem(description: str) -> dict[str, Any]:
    # By name: a model here would be compiled anew for each route, which takes as long as all the rest of the start.
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    401: _problem("Nobody is known to have sent this."),
    404: _problem("There is no such thing."),
    422: _problem("The question is wrong; `problem` names the field."),
    503: _problem("Nobody who could answer does."),
}
"""For `responses` of routes that look."""

CHANGE_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = PROBLEMS | {
    403: _problem("The sender may look and not change, or a page of another origin sent this. Nothing was done."),
    409: _problem("The state of the cluster forbids it. Nothing was done."),
    502: _problem("Some brokers did it and others did not; repeating it is safe."),
}
"""For `responses` of routes that change something."""


class Body(BaseModel):
    """A request's JSON: unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def operations_of(desk: OperationsDesk) -> Any:
    """A dependency: the operations in the name of who sent the request."""

    def acting(request: Request) -> Operations:
        return desk.acting_as(current_actor(request))

    dependency: Callable[[Request], Operations] = acting
    return Depends(dependency)


def moment_of(text: str, *, field: str, now_ms: int) -> int:
    """A moment in milliseconds, -1 for an empty text."""
    if not text:
        return -1
    try:
        return read_moment(text, now_ms=now_ms)
    except MomentUnreadable as error:
        raise OperationFailed(FailureKind.INVALID, f"{field}: {error}") from error
