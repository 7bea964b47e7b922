"""Where a search over several brokers goes on, as text that callers keep and do not read.

base64url of JSON: {"v": 1, "q": mark of the query, "b": {broker name: [page token, bound in ms, last offset taken]}}.
Brokers that have no more are left out. It gives access to nothing: whoever forges one reads from another place.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from admin.operations.failure import FailureKind, OperationFailed
from admin.operations.values import MessageQuery

__all__ = ["Standing", "standings_of", "token_of"]

_VERSION: Final = 1
_TOKEN_CHARACTERS_MAX: Final = 64 << 10
_INT64_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one broker's part of a search goes on."""

    # The broker's own token; empty: from the bound on.
    page_token: bytes = b""
    # Store time of the last message taken when the token was made: nothing beyond it is wanted again. -1: the query's.
    bound_ms: int = -1
    # Offset in the CommitLog of the last message taken; -1: none of those that are asked for.
    taken_offset: int = -1

    def has_taken(self, physical_offset: int, *, backwards: bool) -> bool:
        """Whether an earlier page had that message; `backwards`: newest first."""
        if self.taken_offset < 0:
            return False
        return physical_offset >= self.taken_offset if backwards else physical_offset <= self.taken_offset


def token_of(query: MessageQuery, standings: Mapping[str, Standing]) -> str:
    """Text for the next page; empty when nobody has more."""
    if not standings:
        return ""
    brokers = {
        name: [base64.b64encode(standing.page_token).decode(), standing.bound_ms, standing.taken_offset]
        for name, standing in sorted(standings.items())
    }
    text = json.dumps({"v": _VERSION, "q": _mark(query), "b": brokers}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def standings_of(query: MessageQuery) -> dict[str, Standing] | None:
    """What `query.page_token` says; None: it is the first page. INVALID: no token, or another search's."""
    token = query.page_token
    if not token:
        return None
    if len(token) > _TOKEN_CHARACTERS_MAX:
        raise _invalid("it is too long")
    try:
        content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if content["v"] != _VERSION:
            raise _invalid("it is of another version")
        if content["q"] != _mark(query):
            raise _invalid("it belongs to another search")
        return {str(name): _standing(*values) for name, values in content["b"].items()}
    except (binascii.Error, UnicodeError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _invalid("it is none") from error


def _standing(page_token: str, bound_ms: int, taken_offset: int) -> Standing:
    for number in (bound_ms, taken_offset):
        if type(number) is not int or not -1 <= number <= _INT64_MAX:
            raise ValueError(number)
    return Standing(base64.b64decode(page_token, validate=True), bound_ms, taken_offset)


def _mark(query: MessageQuery) -> int:
    """Of what is looked for; how much of it at once may change from page to page."""
    asked = replace(query, page_token="", limit=0, body_bytes=0, tags=tuple(query.tags))
    return crc32(repr(asked).encode())


def _invalid(cause: str) -> OperationFailed:
    return OperationFailed(
        FailureKind.INVALID, "the page token cannot be used", cause=cause, remedy="begin the search again without it"
    )
