"""The HTTP side without sockets: answers, refusals, headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import structlog
from pydantic import SecretStr

from support.admin_readings import cached, consistency_of
from support.audit_summaries import diverged_run, equal_run
from support.fake_operations import FakeOperations
from support.manual_time import ManualTime
from support.span_samples import MESSAGE_ID, TRACE_ID
from support.trace_samples import FakeTraces
from tandemmq.admin.api.access import Access
from tandemmq.admin.audit_log import AuditLog
from tandemmq.admin.cluster_reader import CachedCluster
from tandemmq.admin.consistency_runs import ConsistencyRuns
from tandemmq.admin.console.frame import PageTemplates
from tandemmq.admin.http_api import CONSOLE_PAGES, http_app
from tandemmq.admin.metrics import ClusterMetrics
from tandemmq.admin.operations.operations import OperationsDesk
from tandemmq.core.audit.run_summary import RunSummary

# Compiled once for all tests of a process.
_TEMPLATES = PageTemplates()
_TOKEN = "correct-horse-battery"


@asynccontextmanager
async def _client(
    cluster: CachedCluster,
    clock: ManualTime,
    *,
    consistency: ConsistencyRuns | None = None,
    peer: str = "127.0.0.1",
    token: str = "",
) -> AsyncIterator[httpx.AsyncClient]:
    consistency = consistency or ConsistencyRuns(None, clock=clock, log=structlog.get_logger(), overdue_after_ms=0)
    app = http_app(
        cluster,
        consistency,
        cast("Any", FakeTraces()),
        access=Access(SecretStr(token)),
        metrics=ClusterMetrics(cluster, consistency, clock=clock),
        templates=_TEMPLATES,
        clock=clock,
        desk=OperationsDesk(FakeOperations(), AuditLog(clock=clock, log=structlog.get_logger())),
        add_pages=CONSOLE_PAGES,
    )
    transport = httpx.ASGITransport(app, client=(peer, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        yield client


async def test_cluster_is_what_status_prints_and_how_old_it_is() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    clock.advance(250)
    async with _client(cluster, clock) as client:
        document = (await client.get("/api/v1/cluster")).json()
    assert (document["healthy"], document["age_ms"], document["revision"]) == (True, 250, 1)
    assert document["read_time"] == "2023-11-14T22:13:20.000Z"
    assert [broker["broker_id"] for broker in document["brokers"]] == [0, 1]
    assert document["brokers"][0]["status"]["slaves"][0]["lag_bytes"] == 67


async def test_findings_have_remedies() -> None:
    cluster, reader, clock = cached()
    reader.state = type(reader.state)(name_servers=reader.state.name_servers, brokers=())
    await cluster.read_once()
    async with _client(cluster, clock) as client:
        document = (await client.get("/api/v1/findings")).json()
    assert not document["healthy"]
    assert document["findings"][0] == {
        "severity": "problem",
        "subject": "cluster",
        "problem": "no broker is registered",
        "remedy": "start the brokers, and check their namesrvAddr against the addresses here",
    }


async def test_runs_of_the_consistency_job_are_told_briefly_and_whole() -> None:
    cluster, _, clock = cached()
    old = equal_run(run_id="20231114T210000Z-0000")
    consistency, _ = consistency_of(old, diverged_run(), clock=clock)
    async with _client(cluster, clock, consistency=consistency) as client:
        document = (await client.get("/api/v1/consistency/runs")).json()
        whole = (await client.get(f"/api/v1/consistency/runs/{old.run_id}")).json()
        latest = (await client.get("/api/v1/consistency/runs/latest")).json()
        missing = await client.get("/api/v1/consistency/runs/20200101T000000Z-0000")
    assert (document["watched"], document["error"]) == (True, "")
    assert [run["run_id"] for run in document["runs"]] == [diverged_run().run_id, old.run_id]
    assert document["runs"][0]["findings_by_kind"] == {"body-crc": 1}
    assert RunSummary.from_json(whole) == old
    assert RunSummary.from_json(latest) == diverged_run()
    assert missing.status_code == 404


async def test_without_a_place_no_run_is_known() -> None:
    cluster, _, clock = cached()
    async with _client(cluster, clock) as client:
        assert (await client.get("/api/v1/consistency/runs")).json() == {"watched": False, "error": "", "runs": []}
        assert (await client.get("/api/v1/consistency/runs/latest")).status_code == 404


async def test_before_the_first_reading_it_lives_but_is_not_ready() -> None:
    cluster, _, clock = cached()
    async with _client(cluster, clock) as client:
        codes = {
            path: (await client.get(path)).status_code
            for path in ("/healthz", "/readyz", "/api/v1/cluster", "/api/v1/findings", "/metrics", "/")
        }
        clock.advance(60_001)
        stuck = await client.get("/healthz")
    assert codes == {
        "/healthz": 200,
        "/readyz": 503,
        "/api/v1/cluster": 503,
        "/api/v1/findings": 503,
        "/metrics": 200,
        "/": 200,
    }
    assert stuck.status_code == 503


async def test_other_hosts_get_health_and_nothing_else_without_the_token() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    async with _client(cluster, clock, peer="10.0.0.7", token=_TOKEN) as client:
        for path in ("/healthz", "/readyz"):
            assert (await client.get(path)).status_code == 200
        for path in ("/", "/api/v1/cluster", "/metrics", "/api/docs", "/api/openapi.json", "/x"):
            refused = await client.get(path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/metrics", headers={"authorization": f"Bearer {_TOKEN}"})).status_code == 200
    async with _client(cluster, clock, token=_TOKEN) as client:
        assert (await client.get("/api/v1/cluster")).status_code == 200


async def test_name_resolved_to_loopback_is_refused() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    async with _client(cluster, clock) as client:
        refused = await client.get("/api/v1/cluster", headers={"host": "attacker.example:8080"})
    assert refused.status_code == 403


async def test_every_answer_has_security_headers() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    async with _client(cluster, clock) as client:
        for path in ("/", "/api/v1/cluster", "/nothing-here", "/static/shell.css"):
            headers = (await client.get(path)).headers
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers


async def test_only_reading_is_offered() -> None:
    cluster, _, clock = cached()
    await cluster.read_once()
    async with _client(cluster, clock) as client:
        assert (await client.post("/api/v1/cluster")).status_code == 405
        assert (await client.head("/")).status_code == 200
        missing = await client.get("/static/../settings.py")
        assert missing.status_code == 404
        assert missing.json()["detail"].endswith("see /api/docs")


async def test_api_is_described_without_anything_from_elsewhere() -> None:
    cluster, _, clock = cached()
    async with _client(cluster, clock) as client:
        schema = (await client.get("/api/openapi.json")).json()
        page = (await client.get("/api/docs")).text
    assert {"/api/v1/cluster", "/api/v1/findings", "/healthz", "/readyz", "/metrics"} <= set(schema["paths"])
    assert all(f"{method.upper()} {path}" in page for path, methods in schema["paths"].items() for method in methods)
    assert "http" not in page.replace("http://localhost:8080", "").replace('id="http"', "").replace(
        'aria-labelledby="http"', ""
    )


async def test_traces_by_message_and_by_trace_id_are_one_document() -> None:
    cluster, _, clock = cached()
    async with _client(cluster, clock) as client:
        by_message = await client.get(f"/api/v1/messages/{MESSAGE_ID}")
        by_trace = await client.get(f"/api/v1/traces/{TRACE_ID:032x}")
        unknown = await client.get("/api/v1/messages/01FF")
    assert (by_message.status_code, by_trace.status_code, unknown.status_code) == (200, 200, 404)
    document = by_message.json()
    assert document == by_trace.json()
    send = document["operations"][0]["span"]
    assert [child["name"] for child in send["children"]] == ["commitlog append", "replicate wait", "reply"]
    (copy,) = send["children"][1]["children"]
    assert (copy["name"], copy["broker"], copy["linked"]) == ("replica append", "broker-a:1", True)
    assert document["stored"][0]["physical_offset"] == 18_274_112
    assert unknown.json()["notes"]


async def test_newest_traces_and_the_notable_ones() -> None:
    cluster, _, clock = cached()
    async with _client(cluster, clock) as client:
        everything = (await client.get("/api/v1/traces")).json()["traces"]
        notable = (await client.get("/api/v1/traces?notable=true")).json()["traces"]
        refused = await client.get("/api/v1/traces?count=100000")
    assert [line["retained_for"] for line in everything] == ["slow", "failed", "sampled"]
    assert len(notable) == 2
    assert refused.status_code == 422


async def test_the_trace_page_is_told_nothing_but_what_it_shows() -> None:
    cluster, _, clock = cached()
    async with _client(cluster, clock) as client:
        listed = await client.get("/traces")
        found = await client.get(f"/traces?id=%20{MESSAGE_ID}%20")
        hostile = await client.get("/traces?id=%3Cscript%3Ealert(1)%3C/script%3E")
        long = await client.get(f"/traces?id={'x' * 300}")
    assert "Slow and failed" in listed.text
    assert "replica append" in found.text
    assert "<script>" not in hostile.text
    assert (hostile.status_code, long.status_code) == (200, 422)
    assert "style=" not in found.text, "the content policy refuses it"
    assert found.headers["cache-control"] == "no-store"
