"""Structured logs on standard output, and the memory of a process's own newest lines.

On a terminal a line is readable; anywhere else it is one JSON object. An event is a constant phrase in snake_case, and
everything else is a key. Standard-library loggers (grpc, asyncio) pass through the same formatting, so that a pod's log
is JSON without exception. Lines written inside a traced operation have its `trace_id` and `span_id`: between
`traced_lines`, and within the spans of an application's own OpenTelemetry SDK.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from tandemmq.core.tracing.span_data import TraceContext
from tandemmq.service.telemetry.audit_export import AuditExport, open_audit_export

# The newest lines of a process, for those who ask over the network and not in a pod's log. Their number and the length
# of each are bounded, so that a broker in trouble does not fill its memory with them.

_LINES_MAX: Final = 2_000
_FIELDS_MAX: Final = 24
_TEXT_MAX: Final = 400
# Told elsewhere of a remembered event, or the same on each line of the process.
_LEFT_OUT: Final = frozenset(
    {"timestamp", "level", "event", "service", "cluster", "broker_name", "broker_id", "role", "settings", "exc_info"}
)
_LEVELS: Final = frozenset({"info", "warning", "error", "critical"})


@dataclass(frozen=True, slots=True)
class RememberedEvent:
    # From 1, without gaps.
    sequence: int
    wall_ms: int
    # info, warning, error or critical.
    level: str
    event: str
    fields: Mapping[str, str]


class EventMemory:
    """The last lines, of one kind at most a quarter of them: what is told each ten seconds shall not push out what was
    told once. Any thread may add one."""

    def __init__(self, *, lines_max: int = _LINES_MAX) -> None:
        self._lines_max = lines_max
        self._of_one_kind_max = max(1, lines_max // 4)
        # By number, oldest first, and the numbers of each kind.
        self._events: dict[int, RememberedEvent] = {}
        self._numbers: dict[str, deque[int]] = {}
        self._lock = threading.Lock()
        self.last_sequence = 0
        """Number of the newest line; 0 without any."""

    def note(self, line: EventDict) -> None:
        """A line as structlog has it, with `timestamp` (ISO 8601), `level` and `event`. Debug lines are left out."""
        level = str(line.get("level", ""))
        if level not in _LEVELS:
            return
        fields = {
            str(key): _short(value)
            for key, value in islice(line.items(), _FIELDS_MAX)
            if key not in _LEFT_OUT and not str(key).startswith("_")
        }
        wall_ms = round(datetime.fromisoformat(str(line["timestamp"])).timestamp() * 1_000)
        with self._lock:
            self.last_sequence += 1
            event = RememberedEvent(self.last_sequence, wall_ms, level, _short(line.get("event", "")), fields)
            self._events[event.sequence] = event
            numbers = self._numbers.setdefault(event.event, deque())
            numbers.append(event.sequence)
            if len(numbers) > self._of_one_kind_max:
                del self._events[numbers.popleft()]
            elif len(self._events) > self._lines_max:
                oldest = self._events.pop(next(iter(self._events)))
                self._numbers[oldest.event].popleft()
                if not self._numbers[oldest.event]:
                    del self._numbers[oldest.event]

    def events_after(self, sequence: int, limit: int) -> list[RememberedEvent]:
        """Lines after this number, oldest first; if they are more than `limit`, the newest of them."""
        with self._lock:
            newest_first = list(islice(reversed(self._events.values()), max(0, limit)))
        return [event for event in reversed(newest_first) if event.sequence > sequence]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


_KINDS_MAX: Final = 100
_KINDS_OF_ONE: Final = _KINDS_MAX // 4
_LINE_PAUSE_MS: Final = 10_000


class NotTold(NamedTuple):
    """Refusals without a line, since the last line: of the same kind, and those there was no room for."""

    of_this_kind: int
    others: int

    def fields(self) -> dict[str, int]:
        """What the line says besides."""
        told = {"not_told": self.of_this_kind, "others_not_told": self.others}
        return {name: count for name, count in told.items() if count}


class _Line(NamedTuple):
    """A kind that was told of: when it may be again, whose it is, and how many came since."""

    due_ms: int
    whose: str
    unseen: int


class LineRoom:
    """Lines that others can cause as often as they like: one of a kind in ten seconds, a hundred kinds at most, and of
    one host, or user, a quarter of them, so that nobody keeps the lines of others out. The rest is counted. Event loop
    only."""

    def __init__(self) -> None:
        # The one that is due first at the front.
        self._lines: dict[tuple[str, ...], _Line] = {}
        self._shares: Counter[str] = Counter()
        self._others = 0

    def take(self, kind: tuple[str, ...], whose: str, now_ms: int) -> NotTold | None:
        """What the line has to say of those that had none; None: there is none now, and this one is counted."""
        line = self._lines.get(kind)
        if line is not None and now_ms < line.due_ms:
            self._lines[kind] = _Line(line.due_ms, line.whose, line.unseen + 1)
            return None
        if line is not None:
            self._drop(kind, line)
        elif not self._has_room(whose, now_ms):
            self._others += 1
            return None
        self._lines[kind] = _Line(now_ms + _LINE_PAUSE_MS, whose, 0)
        self._shares[whose] += 1
        self._collect(now_ms)
        others, self._others = self._others, 0
        return NotTold(0 if line is None else line.unseen, others)

    def _collect(self, now_ms: int) -> None:
        """What did not come again for long is counted with the others: no line of its own will say how often it did."""
        for kind, line in tuple(self._lines.items()):
            if now_ms < line.due_ms + _LINE_PAUSE_MS:
                return
            self._drop(kind, line)
            self._others += line.unseen

    def _has_room(self, whose: str, now_ms: int) -> bool:
        while len(self._lines) >= _KINDS_MAX or self._shares[whose] >= _KINDS_OF_ONE:
            kind = next(iter(self._lines))
            line = self._lines[kind]
            if now_ms < line.due_ms:
                return False
            self._drop(kind, line)
            self._others += line.unseen
        return True

    def _drop(self, kind: tuple[str, ...], line: _Line) -> None:
        del self._lines[kind]
        self._shares[line.whose] -= 1
        if not self._shares[line.whose]:
            del self._shares[line.whose]


LEVELS: Final[Mapping[str, int]] = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
}

_OPENTELEMETRY: Final = "opentelemetry.trace"
_traced: Final[ContextVar[TraceContext | None]] = ContextVar("traced", default=None)


@contextmanager
def traced_lines(context: TraceContext | None) -> Iterator[None]:
    """What is logged in this block belongs to a span; None: to none, as without the block."""
    if context is None:
        yield
        return
    token = _traced.set(context)
    try:
        yield
    finally:
        _traced.reset(token)


def _current_trace() -> tuple[int, int] | None:
    """Ids of the trace and the span at work."""
    context = _traced.get()
    if context is not None:
        return context.trace_id, context.span_id
    # A process that makes no spans by that library has not loaded it either; or a thread is just loading it, and the
    # module is there before what is in it.
    get_current_span = getattr(sys.modules.get(_OPENTELEMETRY), "get_current_span", None)
    if get_current_span is None:
        return None
    current = get_current_span().get_span_context()
    return (current.trace_id, current.span_id) if current.is_valid else None


def _add_trace(_logger: object, _method: str, event: EventDict) -> EventDict:
    ids = _current_trace()
    if ids is not None:
        event["trace_id"], event["span_id"] = f"{ids[0]:032x}", f"{ids[1]:016x}"
    return event


_SHARED: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    _add_trace,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


class LevelSwitch:
    """Below which level the lines of this process are dropped; it may change at any time."""

    def __init__(self, name: str) -> None:
        """Made with a level of LEVELS, which works at once."""
        self._started = name
        self.set(name)

    def set(self, name: str) -> None:
        """One of LEVELS; empty: the one it was made with."""
        level = LEVELS[name or self._started]
        logging.getLogger().setLevel(level)
        for library in ("grpc", "asyncio"):
            # gRPC reports every look at the event loop at DEBUG.
            logging.getLogger(library).setLevel(max(level, logging.INFO))


def configure_logging(
    environ: Mapping[str, str], *, memory: EventMemory | None = None, **context: str | int
) -> LevelSwitch:
    """Sets up logging for this process, once, before anything is logged. `memory` is given every line of structlog's.

    The level is LOG_LEVEL of `environ` (one of LEVELS, default INFO; an unknown one counts as INFO and is warned of),
    until what is returned changes it. `context` appears on every line, for example service, cluster, broker_name. Where
    OTEL_EXPORTER_OTLP_LOGS_ENDPOINT of `environ` names a receiver, audit lines are sent there, too.
    """
    wanted = environ.get("LOG_LEVEL", "INFO").upper()
    level = LevelSwitch(wanted if wanted in LEVELS else "INFO")
    structlog.configure(
        processors=[
            *_SHARED,
            *_into(memory),
            *_into(_audit_export(environ, context)),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        # The standard library's loggers at the end filter: they can be told another level, and what is remembered does
        # not depend on what is written.
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers()],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**context)
    if wanted not in LEVELS:
        get_logger().warning("log_level_unknown", log_level=wanted, known=list(LEVELS), using="INFO")
    return level


def get_logger(**context: str | int) -> FilteringBoundLogger:
    """A logger that adds `context` to each line."""
    logger: FilteringBoundLogger = structlog.get_logger(**context)
    return logger


def _audit_export(environ: Mapping[str, str], context: Mapping[str, str | int]) -> AuditExport | None:
    target = environ.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")
    if not target:
        return None
    export = open_audit_export(target, context)
    atexit.register(export.close)
    return export


def _into(sink: EventMemory | AuditExport | None) -> list[Processor]:
    if sink is None:
        return []

    def note(_logger: object, _method: str, event: EventDict) -> EventDict:
        sink.note(event)
        return event

    return [note]


def _renderers() -> list[Processor]:
    if sys.stdout.isatty():
        # Not in rich's way, which shows the values of local variables: secrets and bodies are among them.
        console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        return [structlog.processors.format_exc_info, _only_printable, console]
    return [structlog.processors.format_exc_info, _what_people_look_for_first, structlog.processors.JSONRenderer()]


def _only_printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """What strangers say, such as a topic's name, does nothing to a terminal. JSON escapes it anyway."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            kept = "\n\t" if key in ("event", "exception", "stack") else ""
            event[key] = "".join(
                one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in value
            )
    return event


def _what_people_look_for_first(_logger: object, _method: str, event: EventDict) -> EventDict:
    leading = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return {**leading, **event}
