"""HTTP requests of strangers at the admin service: addresses, headers, cookies, bodies. Each is answered, none with an
error of the server's, and none of them changes anything.

    make fuzz ONLY=admin_requests      # coverage-guided, by atheris: build/fuzz.json
    python -m fuzz.admin_requests      # some cases of one seed, without atheris

An input is a program that makes requests behind HTTP's own framing, which is uvicorn's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from fuzz.source import Source, any_bytes, run_all
from support.admin_in_memory import admin_in_memory

INPUT_BYTES_MAX: Final = 300
_REQUESTS_MAX: Final = 3
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_PATHS: Final = (
    *("/", "/login", "/logout", "/metrics", "/healthz", "/readyz", "/api/v1/topics", "/api/v1/topics/orders"),
    *("/api/v1/users", "/api/v1/acls", "/api/v1/groups/billing", "/api/v1/cluster", "/api/v1/messages", "/topics"),
    *("/topics/orders", "/static/app.js", "/static/../settings.py", "/api/v1/consistency/runs/x", "/openapi.json"),
)
_BODIES: Final = (
    b"",
    b"{}",
    b"[" * 600,
    b'{"name": "x", "queues": 1e400}',
    b"token=guess&next=//x",
    b'{"topic":"\\ud800"}',
    b"\xff\xfe{}",
)
_TYPES: Final = ("", "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "\xff")
_NAMES: Final = ("cookie", "authorization", "origin", "sec-fetch-site", "x-forwarded-user", "accept", "x-request-id")
_VALUES: Final = ("tandemmq_session=x; zone=UTC", "Bearer guess", "http://localhost:8080", "same-origin", "text/html")


def run_one(data: bytes) -> None:
    """One input. AssertionError, or whatever escapes, is a finding."""
    asyncio.run(_run(Source(data)))


async def _run(source: Source) -> None:
    async with admin_in_memory(f"adminToken={'t' * 40}", peer="10.6.6.6", host="admin.example:8080") as admin:
        topics_before, users_before = set(admin.operations.cluster.topics), set(admin.operations.users_by_name)
        for _ in range(_REQUESTS_MAX):
            if source.is_empty:
                break
            method = _METHODS[source.below(len(_METHODS))]
            status = await _ask(admin.client._transport, method, source)
            assert status < 500, (method, status)
        assert set(admin.operations.cluster.topics) == topics_before
        assert set(admin.operations.users_by_name) == users_before


async def _ask(transport: Any, method: str, source: Source) -> int:
    """Straight to the application, as uvicorn calls it: httpx would not let odd bytes pass."""
    path = _PATHS[source.below(len(_PATHS))]
    if source.below(4) == 0:
        path += "/" + source.some(source.below(12)).decode("latin-1")
    body = _BODIES[source.below(len(_BODIES))] if source.byte() & 1 else source.some(source.below(60))
    headers = [(b"host", b"admin.example:8080")]
    if kind := _TYPES[source.below(len(_TYPES))]:
        headers.append((b"content-type", kind.encode("latin-1")))
    for _ in range(source.below(4)):
        name = _NAMES[source.below(len(_NAMES))].encode()
        odd = source.byte() & 1
        value = source.some(source.below(40)) if odd else _VALUES[source.below(len(_VALUES))].encode()
        headers.append((name, value))
    headers.append((b"content-length", str(len(body)).encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "root_path": "",
        "query_string": source.some(source.below(30)),
        "headers": headers,
        "client": ("10.6.6.6", 50_000),
        "server": ("admin.example", 8080),
    }
    statuses: list[int] = []
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return pieces.pop() if pieces else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await transport.app(scope, receive, send)
    [status] = statuses
    return status


def seeds(count: int, *, seed: int = 10) -> Iterator[bytes]:
    """Inputs to begin with."""
    yield from any_bytes(count, seed=seed, bytes_max=INPUT_BYTES_MAX)


if __name__ == "__main__":
    run_all(run_one, seeds(40))
