"""What pages that change something answer with: a status for their form, and what to say when it is done."""

from __future__ import annotations

from http import HTTPStatus

from admin.api.problems import problem_of
from admin.operations.failure import OperationFailed
from admin.operations.values import ChangeResult
from admin.web.frame import Flash

__all__ = ["change_flash", "form_status"]


def change_flash(text: str, result: ChangeResult) -> Flash:
    """`text`, and what was done where."""
    lines = [f"{change.subject}: {change.what}" for change in result.changes]
    return Flash("warning" if result.warnings else "ok", text, (*lines, *result.warnings))


def form_status(failure: OperationFailed | None, *, is_wrong: bool) -> HTTPStatus:
    """Status of a form's page: what failed decides, then whether a field is wrong."""
    if failure is not None:
        return HTTPStatus(problem_of(failure).status)
    return HTTPStatus.UNPROCESSABLE_ENTITY if is_wrong else HTTPStatus.OK
