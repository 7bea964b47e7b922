"""Sends audit lines, what somebody changed and what was refused, to a receiver of logs, from a thread of its own.

The log has each of them, whatever becomes of it here. While the receiver is away, refuses or hangs, the newest lines
wait for it; two lines in the log tell when that begins and when it ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

import structlog
from structlog.typing import EventDict

from tandemmq.service.telemetry.export import CALL_LIMIT_S, ExportThread, Sender

AUDIT_EVENTS: Final = frozenset(
    {
        *("operator_change", "operator_call", "user_created", "acl_created"),
        *("login", "login_refused", "token_refused", "forged_change_refused"),
        *("access_refused", "call_refused", "registration_refused", "secret_not_opened"),
    }
)
"""Whose lines are sent."""

_QUEUE_LINES: Final = 2_048
"""Some 2 MB. Beyond it the oldest go, and are counted."""
_BATCH_LINES: Final = 256
_PAUSE_S: Final = 1.0
"""How late a receiver hears of a line."""
_RETRY_PAUSE_S: Final = 5.0
_NOT_ATTRIBUTES: Final = frozenset({"timestamp", "level", "event"})

log = structlog.get_logger(__name__)


class AuditLine(NamedTuple):
    wall_ns: int
    level: str
    """As structlog has it: info, warning, error."""
    event: str
    fields: Mapping[str, str]


def open_audit_export(target: str, context: Mapping[str, str | int]) -> AuditExport:
    """An export by OTLP/gRPC to `target`, host:port or an URL (https:// asks for TLS). `context` is what each line of
    the process has: service, and of a broker cluster, broker_name and broker_id. The thread loads the SDK."""

    def connect() -> Sender[AuditLine]:
        from tandemmq.service.telemetry.otlp_sender import OtlpLogSender
        from tandemmq.service.telemetry.span_export import resource_attributes

        instance = [str(context[key]) for key in ("cluster", "broker_name", "broker_id") if key in context]
        resource = resource_attributes(service=str(context.get("service", "")), instance_id="/".join(instance))
        return OtlpLogSender(target, resource=resource, timeout_s=CALL_LIMIT_S)

    return AuditExport(connect, target=target, pause_s=_PAUSE_S, retry_pause_s=_RETRY_PAUSE_S)


class AuditExport(ExportThread[AuditLine]):
    """`note` takes lines, from any thread; `close` flushes for a moment, and returns within two seconds."""

    def __init__(
        self, connect: Callable[[], Sender[AuditLine]], *, target: str, pause_s: float, retry_pause_s: float
    ) -> None:
        super().__init__(connect, name="audit-export")
        self._target = target
        self._pause_s = pause_s
        self._retry_pause_s = retry_pause_s
        self._lines: deque[AuditLine] = deque()
        self._lock = threading.Lock()
        self._lost_count = 0
        self._closing = threading.Event()
        self._thread.start()

    def note(self, line: EventDict) -> None:
        """A line as structlog has it, with `timestamp` (ISO 8601), `level` and `event`; others than AUDIT_EVENTS are
        passed over."""
        if line.get("event") not in AUDIT_EVENTS:
            return
        wall_ns = round(datetime.fromisoformat(str(line["timestamp"])).timestamp() * 1e6) * 1_000
        fields = {
            str(key): str(value)
            for key, value in line.items()
            if key not in _NOT_ATTRIBUTES and not str(key).startswith("_")
        }
        with self._lock:
            self._lines.append(AuditLine(wall_ns, str(line["level"]), str(line["event"]), fields))
            if len(self._lines) > _QUEUE_LINES:
                self._lines.popleft()
                self._lost_count += 1

    def close(self) -> None:
        """Sends what waits if the receiver takes it quickly. Twice is fine."""
        self._closing.set()
        self._end()

    # On the export thread

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(self._retry_pause_s if self._is_failing else self._pause_s)
            while True:
                with self._lock:
                    batch, lost_before = list(islice(self._lines, _BATCH_LINES)), self._lost_count
                if not batch:
                    break
                problem = self._attempt(batch)
                self._judge(problem)
                if problem:
                    break
                with self._lock:
                    # What had no room meanwhile went from the front, too.
                    for _ in range(len(batch) - (self._lost_count - lost_before)):
                        self._lines.popleft()

    def _judge(self, problem: str) -> None:
        if not self._has_turned(problem):
            return
        if problem:
            log.warning("audit_export_failing", receiver=self._target, problem=problem, remedy="the log has each line")
        else:
            log.info("audit_export_recovered", receiver=self._target, lost=self._lost_count)
