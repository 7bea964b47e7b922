"""Fields of a posted form. Bounded: the body by the guard before it is read, the number of fields here."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from fastapi import HTTPException, Request

__all__ = ["Form", "form_of"]

_MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
_FIELDS_MAX: Final = 1_000


class Form:
    """What a browser sent. A field that is not there is empty, as an empty one is."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """The field's first value, without blanks around it."""
        return self.raw(name).strip()

    def raw(self, name: str) -> str:
        """The same as it was typed. Lines end as HTML sends them, in CR LF."""
        return self._fields.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """All values: of check boxes of one name."""
        return self._fields.get(name, [])

    def is_checked(self, name: str) -> bool:
        """Whether a check box was."""
        return name in self._fields


async def form_of(request: Request) -> Form:
    """The form of a request. 415 when it is of another kind (so are files), 422 when it cannot be read."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _MEDIA_TYPE:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the form as {_MEDIA_TYPE}")
    try:
        text = (await request.body()).decode("ascii")
        return Form(parse_qs(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX, errors="strict"))
    except ValueError as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"this is no form: {error}") from error
