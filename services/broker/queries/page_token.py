"""Where the next page of a query begins, in a form that callers keep and do not read.

| offset | size | name     | meaning                                                              |
|--------|------|----------|----------------------------------------------------------------------|
| 0      | 1    | version  | 1                                                                    |
| 1      | 4    | query    | CRC-32 of the query: a token goes on with its own query only         |
| 5      | 8    | position | i64: offset in the queue, or in the CommitLog, as the query needs it |
| 13     | 4    | checksum | CRC-32 of the above                                                  |

It holds nothing secret and gives access to nothing: whoever forges one reads from another place.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from broker.queries.criteria import WantedMessages
from broker.queries.errors import PageTokenInvalid

__all__ = ["position_of", "token_of"]

_VERSION: Final = 1
_CONTENT: Final = Struct(">BIq")
_CHECKSUM: Final = Struct(">I")


def token_of(wanted: WantedMessages, position: int) -> bytes:
    """Goes on with `wanted` at `position`."""
    content = _CONTENT.pack(_VERSION, _query_mark(wanted), position)
    return content + _CHECKSUM.pack(crc32(content))


def position_of(wanted: WantedMessages, token: bytes) -> int | None:
    """Where to go on; None for the first page. Raises PageTokenInvalid."""
    if not token:
        return None
    content, checksum = token[: _CONTENT.size], token[_CONTENT.size :]
    if len(checksum) != _CHECKSUM.size or _CHECKSUM.unpack(checksum) != (crc32(content),):
        raise PageTokenInvalid("page_token: none of this broker's; begin again without one")
    version, mark, position = _CONTENT.unpack(content)
    if version != _VERSION:
        raise PageTokenInvalid("page_token: another version's; begin again without one")
    if mark != _query_mark(wanted) or position < 0:
        raise PageTokenInvalid("page_token: it belongs to another query; begin again without one")
    return int(position)


def _query_mark(wanted: WantedMessages) -> int:
    """Same topic, criteria and tags; how much of it at once may change from page to page."""
    return crc32(repr((wanted.topic, wanted.criteria, sorted(wanted.tags))).encode())
