"""What every page of the console is given, and how pages are added to the HTTP side.

    def add_topic_pages(app: FastAPI, pages: Pages) -> None:
        @app.get("/topics", include_in_schema=False)
        async def topics(request: Request, search: str = "") -> Response:
            found = await pages.operations(request).topics(search=search)
            ...

        @app.post("/topics", include_in_schema=False, dependencies=[OPERATOR_ONLY])
        async def put_topic(request: Request) -> Response:
            fields = await form_of(request)
            ...

A page that raises `OperationFailed` is answered with a page that says so; one that can show the problem beside the
field it comes from catches it. `OperationFailed` of a viewer's change and every change are recorded by the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from fastapi import FastAPI, Request

from admin.api.acting_operations import OperationsDesk
from admin.api.actors import current_actor
from admin.audit_log import AuditLog
from admin.cluster_cache import CachedCluster
from admin.cluster_traces import TraceSource
from admin.consistency_runs import ConsistencyRuns
from admin.history import ClusterHistory
from admin.operations.interface import Operations
from admin.web.frame import Flashes
from admin.web.page_templates import PageTemplates
from mqcore.clock import Clock

__all__ = ["AddPages", "Pages"]


@dataclass(frozen=True, slots=True)
class Pages:
    """What pages are made of."""

    templates: PageTemplates
    desk: OperationsDesk
    cluster: CachedCluster
    consistency: ConsistencyRuns
    traces: TraceSource
    clock: Clock
    # How often an open page renews itself.
    refresh_ms: int
    # The last hour, for plots.
    history: ClusterHistory = field(default_factory=ClusterHistory)
    # What the page after a change says of it.
    flashes: Flashes = field(default_factory=Flashes)

    def operations(self, request: Request) -> Operations:
        """The cluster's operations in the name of who sent the request."""
        return self.desk.acting_as(current_actor(request))

    @property
    def audit_log(self) -> AuditLog:
        """What operators did through this process."""
        return self.desk.audit_log


AddPages: TypeAlias = Callable[[FastAPI, Pages], None]
"""Adds the routes of some pages."""
