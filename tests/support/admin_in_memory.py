"""The admin's HTTP side over a cluster in memory, asked without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
import structlog

from support.admin_readings import cached
from support.fake_operations import FakeOperations
from support.manual_time import ManualTime
from support.trace_samples import FakeTraces
from tandemmq.admin.api.access import Access, AccessRules, SessionTable, TokenGuesses
from tandemmq.admin.audit_log import AuditLog
from tandemmq.admin.consistency_runs import ConsistencyRuns
from tandemmq.admin.console.answers import AddPages
from tandemmq.admin.console.frame import PageTemplates
from tandemmq.admin.http_api import http_app
from tandemmq.admin.metrics import ClusterMetrics
from tandemmq.admin.operations.operations import OperationsDesk
from tandemmq.admin.settings import AdminSettings
from tandemmq.service.settings import load_settings

# Compiled once for all tests of a process.
_TEMPLATES = PageTemplates()


@dataclass(frozen=True)
class AdminInMemory:
    """What a test asks, and what it looks at afterwards."""

    client: httpx.AsyncClient
    operations: FakeOperations
    audit_log: AuditLog
    clock: ManualTime


@asynccontextmanager
async def admin_in_memory(
    *overrides: str,
    peer: str = "127.0.0.1",
    host: str = "localhost:8080",
    operations: FakeOperations | None = None,
    add_pages: Sequence[AddPages] = (),
) -> AsyncIterator[AdminInMemory]:
    """An admin with these settings, asked by `peer` for `host`."""
    cluster, _, clock = cached()
    await cluster.read_once()
    operations = operations or FakeOperations()
    settings = load_settings(AdminSettings, environ={}, overrides=overrides)
    consistency = ConsistencyRuns(None, clock=clock, log=structlog.get_logger(), overdue_after_ms=0)
    audit_log = AuditLog(clock=clock, log=structlog.get_logger())
    app = http_app(
        cluster,
        consistency,
        cast("Any", FakeTraces()),
        access=Access(
            settings.admin_token,
            AccessRules.of(settings),
            SessionTable(clock=clock),
            guesses=TokenGuesses(clock=clock),
            audit_log=audit_log,
        ),
        metrics=ClusterMetrics(cluster, consistency, clock=clock),
        templates=_TEMPLATES,
        clock=clock,
        desk=OperationsDesk(operations, audit_log),
        add_pages=add_pages,
    )
    transport = httpx.ASGITransport(app, client=(peer, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        yield AdminInMemory(client, operations, audit_log, clock)
