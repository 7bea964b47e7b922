"""A browser without a screen: asks for the console's pages behind their guard, on a cluster in memory."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from html import unescape
from typing import Any, cast

import httpx
import structlog
from pydantic import SecretStr

from support.admin_readings import cached, consistency_of
from support.fake_operations import FakeOperations
from support.manual_time import ManualTime
from support.operations_samples import NOW_MS
from tandemmq.admin.api.access import Access, AccessRules
from tandemmq.admin.audit_log import AuditLog, Role
from tandemmq.admin.cluster_state import ClusterState
from tandemmq.admin.consistency_runs import ConsistencyRuns
from tandemmq.admin.console.answers import AddPages
from tandemmq.admin.console.frame import PageTemplates
from tandemmq.admin.history import ClusterHistory
from tandemmq.admin.http_api import http_app
from tandemmq.admin.metrics import ClusterMetrics
from tandemmq.admin.operations.operations import Operations, OperationsDesk
from tandemmq.admin.trace_reader import TraceFindings, TraceList

# Compiled once for all tests of a process.
_TEMPLATES = PageTemplates()


class ConsoleClient:
    """Pages as their text; forms are posted as browsers do, and redirects followed."""

    def __init__(self, client: httpx.AsyncClient, clock: ManualTime) -> None:
        self._client = client
        self.clock = clock

    async def get(self, address: str, *, status: int = 200) -> Page:
        return _page(await self._client.get(address), status)

    async def post(self, address: str, fields: Mapping[str, str | Sequence[str]], *, status: int = 200) -> Page:
        """The page that answers a form, or the one it leads to."""
        return _page(await self._client.post(address, data=dict(fields)), status)

    async def answer(self, address: str) -> httpx.Response:
        return await self._client.get(address, follow_redirects=False)


class Page:
    def __init__(self, html: str, address: str) -> None:
        self.html = html
        # Where redirects ended: path and query, without the code of a flash.
        self.address = re.sub(r"[?&]said=[\w-]+$", "", address)
        content = html[html.index("<main") :]
        self.text = " ".join(unescape(re.sub(r"<[^>]*>", " ", content)).split())
        """What a reader sees of its content."""

    def links(self) -> list[str]:
        """Addresses of all links of the content."""
        content = self.html[self.html.index("<main") :]
        return [unescape(href) for href in re.findall(r'<a\b[^>]*\bhref="([^"]*)"', content)]

    def fields(self) -> dict[str, list[str]]:
        """Hidden fields, as a form posts them."""
        found: dict[str, list[str]] = {}
        for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', self.html):
            found.setdefault(unescape(name), []).append(unescape(value))
        return found


@asynccontextmanager
async def console_client(
    operations: Operations,
    *add_pages: AddPages,
    role: Role = Role.OPERATOR,
    state: ClusterState | None = None,
    is_read: bool = True,
    consistency: ConsistencyRuns | None = None,
    history: ClusterHistory | None = None,
) -> AsyncIterator[ConsoleClient]:
    """The console on `operations`, for somebody on the same host in that role. `state`: what readings give."""
    clock = ManualTime(wall_ms=NOW_MS)
    cluster, _, _ = cached(state, clock=clock)
    if is_read:
        await cluster.read_once()
    if consistency is None:
        consistency, _ = consistency_of(clock=clock)
    log = structlog.get_logger()
    app = http_app(
        cluster,
        consistency,
        cast("Any", _NoTraces()),
        access=Access(SecretStr(""), AccessRules(local_role=role)),
        metrics=ClusterMetrics(cluster, consistency, clock=clock),
        templates=_TEMPLATES,
        clock=clock,
        desk=OperationsDesk(operations, AuditLog(clock=clock, log=log)),
        add_pages=add_pages,
        history=history,
    )
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 50_000))
    headers = {"accept": "text/html", "sec-fetch-site": "same-origin"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost:8080", headers=headers, follow_redirects=True
    ) as client:
        yield ConsoleClient(client, clock)


def console_of(*add_pages: AddPages) -> Callable[..., AbstractAsyncContextManager[ConsoleClient]]:
    """Of the operations that it is called with, perhaps with a role, the console with these pages; without any it has
    its own."""

    def console(
        operations: Operations | None = None, role: Role = Role.OPERATOR
    ) -> AbstractAsyncContextManager[ConsoleClient]:
        return console_client(operations or FakeOperations(), *add_pages, role=role)

    return console


class _NoTraces:
    async def find(self, key: str, *, topic: str = "") -> TraceFindings:
        raise AssertionError("no page asks for traces by itself")

    async def newest(self, *, count: int, notable_only: bool = False) -> TraceList:
        raise AssertionError("no page asks for traces by itself")


def _page(answer: httpx.Response, status: int) -> Page:
    assert answer.status_code == status, f"{answer.request.url}: {answer.status_code} {answer.text[-2_000:]}"
    assert answer.headers["content-type"].startswith("text/html")
    return Page(answer.text, answer.url.raw_path.decode())
