"""What frames every page: where the reader is, who they are, how the cluster is, and what has just been done."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo, available_timezones

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined, Template, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from tandemmq.admin.cluster_state import Severity
from tandemmq.admin.operations.bodies import PREVIEW_BYTES, body_preview
from tandemmq.service.settings import VERSION
from tandemmq.service.texts import (
    age_text,
    bytes_text,
    count_text,
    counted,
    duration_text,
    iso_text,
    rate_text,
    seconds_text,
    wall_text,
)

if TYPE_CHECKING:
    from tandemmq.admin.audit_log import Actor
    from tandemmq.admin.cluster_reader import ClusterReading

# Long enough for a slow redirect and a few renewals; whoever keeps the address longer sees the page without it.
_FLASH_MS: Final = 120_000
_FLASHES_MAX: Final = 500
_CODE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    name: str
    label: str
    href: str


NAVIGATION: Final[Sequence[tuple[str, Sequence[NavigationEntry]]]] = (
    (
        "Cluster",
        (
            NavigationEntry("overview", "Overview", "/"),
            NavigationEntry("replication", "Replication", "/replication"),
            NavigationEntry("brokers", "Brokers", "/brokers"),
            NavigationEntry("consistency", "Consistency", "/consistency"),
            NavigationEntry("events", "Events", "/events"),
            NavigationEntry("users", "Users", "/users"),
            NavigationEntry("settings", "Settings", "/settings"),
        ),
    ),
    (
        "Data",
        (
            NavigationEntry("topics", "Topics", "/topics"),
            NavigationEntry("groups", "Groups", "/groups"),
            NavigationEntry("messages", "Messages", "/messages"),
            NavigationEntry("dead-letters", "Dead letters", "/dead-letters"),
            NavigationEntry("transactions", "Transactions", "/transactions"),
            NavigationEntry("traces", "Traces", "/traces"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Flash:
    """What has just been done, for the next page."""

    # ok, warning or bad.
    tone: str
    text: str
    lines: Sequence[str] = ()


class Flashes:
    """Flashes between a change and the page after it. The address carries a code, never the text."""

    def __init__(self) -> None:
        # By code, oldest first, with the time it was put (monotonic).
        self._kept: OrderedDict[str, tuple[int, Flash]] = OrderedDict()

    def put(self, flash: Flash, *, now_ms: int) -> str:
        """Keeps it and gives its code."""
        code = secrets.token_urlsafe(_CODE_BYTES)
        self._kept[code] = (now_ms, flash)
        while len(self._kept) > _FLASHES_MAX:
            self._kept.popitem(last=False)
        return code

    def get(self, code: str, *, now_ms: int) -> Flash | None:
        """The flash, as long as it is new; it stays, because a page that renews itself asks again."""
        put_ms, flash = self._kept.get(code, (0, None))
        return flash if flash is not None and now_ms - put_ms <= _FLASH_MS else None


@dataclass(frozen=True, slots=True)
class Frame:
    # Name of the navigation's entry; empty: none.
    active: str = ""
    cluster: str = ""
    # ok, bad or waiting, and the same in words.
    tone: str = "waiting"
    verdict: str = "reading"
    # None: not read yet.
    read_age_ms: int | None = None
    now_wall_ms: int = 0
    actor: Actor | None = None
    flash: Flash | None = None
    # True: somebody who logged in, and can log out.
    has_session: bool = False

    @property
    def may_change(self) -> bool:
        """False for viewers."""
        return self.actor is not None and self.actor.may_change


UNFRAMED: Final = Frame()


def frame_of(
    reading: ClusterReading | None,
    *,
    active: str,
    actor: Actor | None,
    flash: Flash | None,
    now_ms: int,
    now_wall_ms: int,
    has_session: bool = False,
) -> Frame:
    """The frame for a reading of the cluster; `now_ms` on the monotonic clock, `now_wall_ms` on the wall clock."""
    frame = Frame(active=active, actor=actor, flash=flash, now_wall_ms=now_wall_ms, has_session=has_session)
    if reading is None:
        return frame
    problems = sum(finding.severity is Severity.PROBLEM for finding in reading.findings)
    verdict = "healthy" if reading.healthy else counted(problems, "problem")
    return replace(
        frame,
        cluster=", ".join(sorted({broker.cluster for broker in reading.state.brokers})),
        tone="ok" if reading.healthy else "bad",
        verdict=verdict,
        read_age_ms=reading.age_ms(now_ms),
    )


# Where things have their pages. Names may hold `%` and `|`, which an address has to quote.


def topic_address(name: str, part: str = "") -> str:
    """A topic's page, or with `part` one below it."""
    return _below("/topics", name, part)


def group_address(name: str, part: str = "") -> str:
    """A group's page, or with `part` one below it."""
    return _below("/groups", name, part)


def dead_letters_address(group: str, part: str = "") -> str:
    """A group's dead letters, or with `part` a page below them."""
    return _below("/dead-letters", group, part)


def message_address(broker_name: str, physical_offset: int) -> str:
    return f"/message?{urlencode({'broker': broker_name, 'offset': physical_offset})}"


def place_address(broker_name: str, topic: str, queue_id: int, queue_offset: int) -> str:
    """A message's page by its place in a queue."""
    place = {"broker": broker_name, "topic": topic, "queue": queue_id, "queue_offset": queue_offset}
    return f"/message?{urlencode(place)}"


def messages_address(**fields: str | int) -> str:
    """A search for messages; empty fields are left out, `from_` and `to` are moments."""
    named = {name.rstrip("_"): value for name, value in fields.items() if value != ""}
    return f"/messages?{urlencode(named)}"


def trace_address(key: str) -> str:
    """Where the time of a message went."""
    return f"/traces?{urlencode({'id': key})}"


def _below(root: str, name: str, part: str) -> str:
    address = f"{root}/{quote(name, safe='')}"
    return f"{address}/{part}" if part else address


# Templates of all pages, and the files they load. Everything is served by this process.

_MEDIA_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    media_type: str


# The zone in which the reader of a page wants times; a cookie keeps it.

ZONE_COOKIE: Final = "zone"
_UTC_NAME: Final = "UTC"
_zone: Final[ContextVar[tzinfo]] = ContextVar("zone", default=UTC)


async def use_zone(request: Request) -> None:
    """Before each page; in the request's own task, so that pages for others keep theirs."""
    _zone.set(zone_of(request.cookies.get(ZONE_COOKIE, "")))


def zone_of(name: str) -> tzinfo:
    """By its name, as Europe/Berlin; UTC where there is none of that name."""
    if name in zone_names():
        return ZoneInfo(name)
    return UTC


@cache
def zone_names() -> tuple[str, ...]:
    """Those that this machine knows, UTC first. Without the zones' database it is UTC alone."""
    return (_UTC_NAME, *sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/")))


def zone_name() -> str:
    """Of the page that is made."""
    zone = _zone.get()
    return zone.key if isinstance(zone, ZoneInfo) else _UTC_NAME


def zoned(wall_ms: float) -> datetime:
    """A moment in the reader's zone."""
    return datetime.fromtimestamp(wall_ms / 1_000, _zone.get())


class PageTemplates:
    """Compiled once for the life of the process."""

    def __init__(self) -> None:
        self.static_files: Mapping[str, StaticFile] = MappingProxyType(_static_files())
        self._environment = Environment(
            loader=PackageLoader("tandemmq.admin.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {
            "duration": duration_text,
            "seconds": seconds_text,
            "bytes": bytes_text,
            "count": count_text,
            "rate": rate_text,
            "wall": wall_text,
            "segment": segment,
            "age": age_text,
            "known": _known,
            "agreed": agreed,
            "permission": _permission,
            "preview": lambda body: body_preview(body[:PREVIEW_BYTES]),
        }
        self._environment.globals |= {
            "version": VERSION,
            "navigation": NAVIGATION,
            "frame": UNFRAMED,
            "live_ms": 0,
            "static": self._static_path,
            "address": address,
            "moment": _moment,
            "since": _since,
            "topic_address": topic_address,
            "group_address": group_address,
            "dead_letters_address": dead_letters_address,
            "message_address": message_address,
            "messages_address": messages_address,
            "place_address": place_address,
            "trace_address": trace_address,
            "zone": zone_name,
        }

    def get(self, name: str) -> Template:
        return self._environment.get_template(name)

    def _static_path(self, name: str) -> str:
        # The digest makes a new file a new address, so that browsers may keep the old one for as long as they like.
        return f"/static/{name}?{hashlib.sha256(self.static_files[name].content).hexdigest()[:12]}"


def entry_of(path: str) -> NavigationEntry | None:
    """What a page belongs to, by its address."""
    first = "/" + path.lstrip("/").partition("/")[0]
    entries = (entry for _, group in NAVIGATION for entry in group)
    # /message?id=… and /new-topic are of the lists /messages and /topics.
    names = (first, f"{first}s", f"/{first.removeprefix('/new-')}s")
    return next((entry for entry in entries if entry.href in names), None)


def address(path: str, **parameters: object) -> str:
    """A path with a query; what is empty, 0, None or False is left out. `path` must be quoted already (`segment`)."""
    pairs = [(name, "true" if value is True else value) for name, value in parameters.items() if value]
    return f"{path}?{urlencode(pairs, doseq=True)}" if pairs else path


def segment(text: str) -> str:
    """One part of a path: names such as %RETRY%billing and a/b are one part."""
    return quote(text, safe="")


def agreed(values: Iterable[str]) -> str:
    """What all masters say, or that they say different things."""
    different = set(values)
    return different.pop() if len(different) == 1 else "differs" if different else "not known"


def _permission(bits: int) -> str:
    """RocketMQ's, in words."""
    words = [word for bit, word in ((4, "read"), (2, "write")) if bits & bit]
    return " and ".join(words) if len(words) == 2 else f"{words[0]} only" if words else "none"


def _known(count: int) -> str:
    """A count that is negative where nobody told it."""
    return count_text(count) if count >= 0 else "not known"


@pass_context
def _since(context: Context, wall_ms: int) -> str:
    """How long ago a moment of the wall clock was; empty where it is not known."""
    frame: Frame = context["frame"]
    return age_text(max(0, frame.now_wall_ms - wall_ms)) if wall_ms > 0 else ""


@pass_context
def _moment(context: Context, wall_ms: int) -> Markup:
    """A time of the wall clock with its age; a dash where it is not known (negative, or 0)."""
    if wall_ms <= 0:
        return Markup('<span class="fine">not known</span>')
    frame: Frame = context["frame"]
    try:
        machine, there = iso_text(wall_ms), zoned(wall_ms)
    except (ValueError, OverflowError, OSError):
        # The last hours of the year 9999 are in the next one in Asia, and what another store has may be any number.
        return Markup('<span class="fine">{}</span>').format(wall_text(wall_ms))
    people = f"{there:%Y-%m-%d %H:%M:%S}.{wall_ms % 1_000:03d}"
    return Markup('<time datetime="{}">{}</time> <span class="fine">{}</span>').format(
        machine, people, age_text(frame.now_wall_ms - wall_ms)
    )


def _static_files() -> dict[str, StaticFile]:
    found = {}
    for entry in files("tandemmq.admin.console").joinpath("static").iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            found[entry.name] = StaticFile(entry.read_bytes(), media_type)
    return found
