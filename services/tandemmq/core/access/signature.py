"""The signature that official clients put into each call's metadata: MQv2-HMAC-SHA1. And what
failed ones cost their address.

    authorization:   MQv2-HMAC-SHA1 Credential=<user>[/<more>], SignedHeaders=x-mq-date-time, Signature=<hex>
    x-mq-date-time:  20261125T155436Z, or RFC 3339

The signature is HMAC-SHA1 of exactly the date's text, with the user's secret as the key. So whoever reads a call off
the wire can sign others for as long as its date counts; TLS keeps that from happening. Java's, Go's and Python's
clients write the local time and yet end it with a Z: the caller says which zones count.
"""

from __future__ import annotations

import hmac
import re
from collections import OrderedDict
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final, NamedTuple

from tandemmq.core.quotas import counted_host

ALGORITHM: Final = "MQv2-HMAC-SHA1"
DATE_WINDOW_MS: Final = 15 * 60_000
"""How far a date may be off, in either direction."""
_CHARACTERS_MAX: Final = 1_024
_COMPACT: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)
_ZONE: Final = re.compile(r"([+-])(\d\d):(\d\d)", re.ASCII)
_ZONE_MINUTES_MAX: Final = 14 * 60


class Credential(NamedTuple):
    """What an `authorization` header says."""

    username: str
    signature: bytes


def parse_authorization(text: str) -> Credential | str:
    """The credential, or what is wrong with the header; as tolerant as DefaultAuthenticationContextBuilder."""
    if not text:
        return "the request has no authorization header: give the client its access key and secret key"
    algorithm, _, rest = text.partition(" ")
    if len(text) > _CHARACTERS_MAX or algorithm != ALGORITHM:
        return f"authorization: it must be {ALGORITHM} with Credential and Signature"
    fields: dict[str, str] = {}
    for part in rest.split(","):
        key, _, value = part.strip().partition("=")
        fields[key] = value
    username = fields.get("Credential", "").partition("/")[0]
    if not username:
        return "authorization: Credential names no user; give the client its access key"
    try:
        signature = bytes.fromhex(fields.get("Signature", ""))
    except ValueError:
        return "authorization: Signature is not hexadecimal"
    return Credential(username, signature)


def sign(secret: bytes, date: str) -> bytes:
    """The signature of a date's text."""
    return hmac.digest(secret, date.encode(), "sha1")


def is_signed(secret: bytes, date: str, signature: bytes) -> bool:
    """Whether the signature was made with the secret; takes as long whatever is wrong."""
    return hmac.compare_digest(sign(secret, date), signature)


def date_problem(text: str, *, now_ms: int, zones: Collection[int]) -> str | None:
    """Why a date does not count at wall time `now_ms`; None: it does. `zones` are offsets from UTC in minutes, in one
    of which a date without an offset of its own may be."""
    moment = _moment(text)
    if moment is None:
        return "x-mq-date-time: it is neither like 20261125T155436Z nor RFC 3339"
    stated_ms, is_exact = moment
    off_ms = min(abs(stated_ms - zone * 60_000 - now_ms) for zone in ((0,) if is_exact else zones or (0,)))
    if off_ms <= DATE_WINDOW_MS:
        return None
    return (
        f"x-mq-date-time: it is {off_ms // 60_000} minutes off, the limit is {DATE_WINDOW_MS // 60_000}; set the "
        "client's clock, or, if it is right and writes the time of another zone, name the zone in signatureTimeZones"
    )


def zone_offset(text: str) -> int | None:
    """Minutes east of UTC of `+08:00`; None: it is no offset."""
    match = _ZONE.fullmatch(text)
    if match is None:
        return None
    minutes = int(match[2]) * 60 + int(match[3])
    return None if minutes > _ZONE_MINUTES_MAX or int(match[3]) > 59 else minutes if match[1] == "+" else -minutes


def _moment(text: str) -> tuple[int, bool] | None:
    """Milliseconds since the epoch, as if it were UTC where no offset is stated; and whether one is."""
    if len(text) > 64:
        return None
    compact = _COMPACT.fullmatch(text)
    try:
        if compact is not None:
            year, month, day, hour, minute, second = map(int, compact.groups())
            return _epoch_ms(datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)), False
        stated = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    if stated.tzinfo is None:
        return _epoch_ms(stated.replace(tzinfo=UTC)), False
    # A Z may stand behind a local time here as well.
    return _epoch_ms(stated), not text.endswith("Z")


def _epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)


# How failed sign-ins slow their address down, and nobody else: it guesses a few secrets a second at most.
#
# No clock: the caller tells the time, in ms of the monotonic clock.

WINDOW_MS: Final = 60_000
FREE_FAILURES: Final = 5
"""In a window, before answers are held back: a mistyped key is found at once."""
FAILURES_MAX: Final = 300
"""In a window; beyond it what an address sends is not even looked at, but for users that signed in from there."""
_DELAY_MS: Final = 50
_DELAY_MS_MAX: Final = 2_000
"""Below the 3 s that clients wait, so that they hear why."""
_KNOWN_MS: Final = 600_000
_ADDRESSES_MAX: Final = 10_000
_KNOWN_MAX: Final = 10_000


class SignInLimit:
    """Counts failures by address, of IPv6 by its /64: one host may have as many as it likes there. Of very many
    addresses the one that failed longest ago is forgotten."""

    def __init__(self) -> None:
        # When the window began, and the failures in it.
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()
        # When a user last signed in from an address.
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()

    def is_blocked(self, address: str, username: str, *, now_ms: int) -> bool:
        """Whether a sign-in is refused unseen."""
        address = counted_host(address)
        began_ms, count = self._failures.get(address, (now_ms, 0))
        if count < FAILURES_MAX or now_ms - began_ms >= WINDOW_MS:
            return False
        known_ms = self._known.get((address, username))
        return known_ms is None or now_ms - known_ms >= _KNOWN_MS

    def failed(self, address: str, *, now_ms: int) -> int:
        """Counts a failure; for how long its answer is held back, in ms."""
        address = counted_host(address)
        began_ms, count = self._failures.pop(address, (now_ms, 0))
        if now_ms - began_ms >= WINDOW_MS:
            began_ms, count = now_ms, 0
        count += 1
        self._failures[address] = began_ms, count
        if len(self._failures) > _ADDRESSES_MAX:
            self._failures.popitem(last=False)
        if count <= FREE_FAILURES:
            return 0
        return min(_DELAY_MS << min(count - FREE_FAILURES - 1, 10), _DELAY_MS_MAX)

    def succeeded(self, address: str, username: str, *, now_ms: int) -> None:
        """A user signed in. Failures stay: one good key must not free the guesses at others."""
        address = counted_host(address)
        self._known.pop((address, username), None)
        self._known[address, username] = now_ms
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
