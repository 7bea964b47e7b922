"""What every request passes: forged changes, sizes, sessions, roles."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import SecretStr

from support.admin_in_memory import admin_in_memory
from support.manual_time import ManualTime
from tandemmq.admin.api import access as access_module
from tandemmq.admin.api.access import Access, AccessRules, Request, SessionTable, TokenGuesses
from tandemmq.admin.audit_log import Actor, AuditLog
from tandemmq.admin.console.answers import Pages
from tandemmq.admin.http_api import CONSOLE_PAGES

_TOKEN = "correct-horse-battery"
_VIEWER_TOKEN = "another-horse-battery"
_TOKENS = (f"adminToken={_TOKEN}", f"viewerToken={_VIEWER_TOKEN}")
_TOPIC = "/api/v1/topics/orders"
_FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        # What the browser says itself counts more than an origin that fits.
        {"sec-fetch-site": "cross-site", "origin": "http://localhost:8080"},
        {"origin": "https://attacker.example"},
        {"origin": "http://localhost:9090"},
        {"origin": "null"},
    ],
)
async def test_a_change_from_another_origin_is_refused_and_recorded(headers: dict[str, str]) -> None:
    async with admin_in_memory() as admin:
        refused = await admin.client.delete(_TOPIC, headers=headers)
        (line,) = admin.audit_log.lines()
        kept = await admin.client.get(_TOPIC)
    assert (refused.status_code, refused.json()["problem"]) == (403, "a page of another origin sent this")
    assert (line.event, line.fields["subject"], line.fields["who"]) == ("forged_change_refused", _TOPIC, "local")
    assert kept.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"origin": "http://localhost:8080"},
        {"sec-fetch-site": "same-origin", "origin": "http://localhost:8080"},
    ],
)
async def test_a_change_from_our_own_page_or_no_page_is_made(headers: dict[str, str]) -> None:
    async with admin_in_memory() as admin:
        assert (await admin.client.delete(_TOPIC, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["/", "/login", "/api/v1/topics", "/nothing/here"])
async def test_a_query_with_bytes_that_no_address_has_is_refused_before_anybody_reads_it(path: str) -> None:
    statuses: list[int] = []

    async def passed_on(*_: object) -> None:
        raise AssertionError("the application was asked")

    async def send(message: dict[str, Any]) -> None:
        statuses.append(message.get("status", 0))

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"a=\xbe", "headers": []}
    access = Access(SecretStr(_TOKEN), AccessRules(), SessionTable(clock=ManualTime()))
    await access_module.Guard(passed_on, access)(scope, passed_on, send)  # type: ignore[arg-type]
    assert statuses[0] == 400


async def test_a_link_from_elsewhere_may_look() -> None:
    async with admin_in_memory() as admin:
        assert (await admin.client.get(_TOPIC, headers={"sec-fetch-site": "cross-site"})).status_code == 200


async def test_viewers_look_and_what_they_try_to_change_is_recorded() -> None:
    async with admin_in_memory(*_TOKENS, peer="10.0.0.7") as admin:
        admin.client.headers["authorization"] = f"Bearer {_VIEWER_TOKEN}"
        assert (await admin.client.get(_TOPIC)).status_code == 200
        refused = await admin.client.delete(_TOPIC)
        (line,) = admin.audit_log.lines()
        assert (await admin.client.get("/api/v1/caller")).json()["role"] == "viewer"
    assert refused.status_code == 403
    assert (line.fields["who"], line.fields["address"], line.fields["action"]) == ("viewerToken", "10.0.0.7", "DELETE")
    assert (line.level, line.fields["outcome"]) == ("warning", "refused: may look and not change")


async def test_viewers_push_nothing_out_of_the_audit_log_that_operators_did() -> None:
    async with admin_in_memory(*_TOKENS, peer="10.0.0.7") as admin:
        operator, viewer = ({"authorization": f"Bearer {token}"} for token in (_TOKEN, _VIEWER_TOKEN))
        assert (await admin.client.delete(_TOPIC, headers=operator)).status_code == 200
        for _ in range(510):
            assert (await admin.client.delete(_TOPIC, headers=viewer)).status_code == 403
            admin.clock.advance(11_000)
        lines = admin.audit_log.lines(limit=1_000)
        newest = admin.audit_log.lines(limit=2)
    assert [line.fields["who"] for line in newest] == ["viewerToken"] * 2
    assert (lines[-1].fields["who"], lines[-1].fields["outcome"]) == ("adminToken", "done")
    assert len(lines) == 501


async def test_every_route_that_changes_something_is_the_operators() -> None:
    """Walks the API's own description, so that a new route cannot be forgotten."""
    async with admin_in_memory("localRole=viewer") as admin:
        paths = (await admin.client.get("/api/openapi.json")).json()["paths"]
        changes = [(method, path) for path, methods in paths.items() for method in methods if method != "get"]
        for method, path in changes:
            answer = await admin.client.request(method, path.replace("{", "").replace("}", ""), json={})
            assert answer.status_code == 403, (method, path)
    assert len(changes) >= 9


async def test_every_page_that_changes_something_is_the_operators() -> None:
    """Walks all routes of the console, so that a new one cannot be forgotten."""
    found: list[tuple[str, str]] = []

    def collect(app: FastAPI, _: Pages) -> None:
        routes = [route for route in app.routes if isinstance(route, APIRoute)]
        found.extend((method, route.path) for route in routes for method in (route.methods or set()) - {"GET"})

    async with admin_in_memory("localRole=viewer", add_pages=(*CONSOLE_PAGES, collect)) as admin:
        # The time zone is a cookie of one's own browser.
        own = ("/login", "/logout", "/settings/zone")
        changes = [(method, path) for method, path in found if path not in own]
        for method, path in changes:
            answer = await admin.client.request(method, re.sub(r"{\w+}", "x", path), content="", headers=_FORM)
            assert answer.status_code == 403, (method, path)
        assert {line.fields["outcome"] for line in admin.audit_log.lines()} == {"refused: may look and not change"}
    assert len(changes) >= 10


async def test_headers_that_are_there_twice_are_not_believed() -> None:
    async with admin_in_memory("trustedProxies=10.1.0.0/16", "operatorGroups=ops", peer="10.1.2.3") as admin:
        user, groups = ("x-forwarded-user", "ada"), ("x-forwarded-groups", "ops")
        assert (await admin.client.get("/api/v1/caller", headers=[user, groups])).json()["role"] == "operator"
        twice = await admin.client.get("/api/v1/caller", headers=[user, groups, ("x-forwarded-groups", "staff")])
        assert twice.json()["role"] == "viewer"
        assert (await admin.client.get("/api/v1/caller", headers=[user, user, groups])).status_code == 401


async def test_bodies_have_a_limit_whatever_they_say_of_themselves() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * (256 << 10)

    async with admin_in_memory() as admin:
        said = await admin.client.put(_TOPIC, content=b" " * ((1 << 20) + 1))
        unsaid = await admin.client.put(_TOPIC, content=endless(), headers={"content-type": "application/json"})
        message = await admin.client.post(f"{_TOPIC}/messages", content=endless())
        fits = await admin.client.post(f"{_TOPIC}/messages", json={"body_text": "x" * (4 << 20)})
    assert (said.status_code, unsaid.status_code, message.status_code, fits.status_code) == (413, 413, 413, 200)
    for refused in (said, unsaid):
        assert refused.json()["problem"] == "a request of this kind has at most 1 MiB"
        assert refused.headers["connection"] == "close"


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    monkeypatch.setattr(access_module, "BODY_LIMIT_S", 0.05)
    async with admin_in_memory() as admin:
        headers = {"content-type": "application/json"}
        answer = await admin.client.put(_TOPIC, content=stuck(), headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")


async def test_a_browser_elsewhere_logs_in_and_out() -> None:
    async with admin_in_memory(*_TOKENS, peer="10.0.0.7", host="mq.example") as admin:
        client = admin.client
        sent_on = await client.get("/api/docs?x=1", headers={"accept": "text/html"})
        assert (sent_on.status_code, sent_on.headers["location"]) == (303, "/login?next=/api/docs%3Fx%3D1")
        page = await client.get(sent_on.headers["location"])
        assert 'value="/api/docs?x=1"' in page.text
        wrong = await client.post("/login", content="token=guess-guess-guess&next=/", headers=_FORM)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        right = await client.post("/login", content=f"token={_TOKEN}&next=/api/docs", headers=_FORM)
        assert (right.status_code, right.headers["location"]) == (303, "/api/docs")
        cookie = right.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/", "max-age=43200"))
        assert _TOKEN not in cookie
        assert (await client.get("/api/v1/caller")).json() == {
            "name": "adminToken", "role": "operator", "address": "10.0.0.7",
        }  # fmt: skip
        strange = {"cookie": f'a={{"b": [1,2]}}; =; c; tandemmq_session={right.cookies["tandemmq_session"]}; d="'}
        client.cookies.clear()
        assert (await client.get("/api/v1/caller", headers=strange)).status_code == 200
        client.cookies.set("tandemmq_session", right.cookies["tandemmq_session"])
        assert (await client.post("/logout")).headers["location"] == "/login"
        client.cookies.set("tandemmq_session", right.cookies["tandemmq_session"])
        assert (await client.get("/api/v1/caller")).status_code == 401
        events = [line.event for line in admin.audit_log.lines()]
    assert events == ["login", "login_refused"]


async def test_whoever_logs_in_again_has_one_session() -> None:
    """Nobody could end the former one: its id is gone from the browser, and may be kept elsewhere."""
    async with admin_in_memory(*_TOKENS, peer="10.0.0.7", host="mq.example") as admin:
        client = admin.client
        first = await client.post("/login", content=f"token={_TOKEN}", headers=_FORM)
        wrong = await client.post("/login", content="token=guess-guess-guess", headers=_FORM)
        assert (wrong.status_code, (await client.get("/api/v1/caller")).status_code) == (401, 200)
        second = await client.post("/login", content=f"token={_TOKEN}", headers=_FORM)
        found = []
        for answer in (first, second):
            client.cookies.clear()
            cookie = {"cookie": f"tandemmq_session={answer.cookies['tandemmq_session']}"}
            found.append((await client.get("/api/v1/caller", headers=cookie)).status_code)
    assert found == [401, 200]


async def test_whoever_logs_in_comes_to_the_topic_that_was_asked_for() -> None:
    async with admin_in_memory(*_TOKENS, peer="10.0.0.7", host="mq.example") as admin:
        sent_on = await admin.client.get("/topics/%25RETRY%25billing", headers={"accept": "text/html"})
        page = await admin.client.get(sent_on.headers["location"])
    assert 'value="/topics/%25RETRY%25billing"' in page.text


async def test_a_page_elsewhere_logs_nobody_in() -> None:
    async with admin_in_memory(*_TOKENS, peer="10.0.0.7", host="mq.example") as admin:
        headers = {**_FORM, "origin": "https://attacker.example"}
        assert (await admin.client.post("/login", content=f"token={_TOKEN}", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["https://attacker.example", "//attacker.example", "/\\attacker.example", "/%0d%0ax:y", "javascript:alert(1)"],
)
async def test_logging_in_never_leads_elsewhere(path: str) -> None:
    async with admin_in_memory(*_TOKENS, peer="10.0.0.7", host="mq.example") as admin:
        answer = await admin.client.post("/login", content=f"token={_TOKEN}&next={path}", headers=_FORM)
    assert answer.headers["location"] == "/"


async def test_tokens_are_not_guessed_by_the_thousand() -> None:
    async with admin_in_memory(*_TOKENS, peer="10.0.0.7") as admin:
        codes = [(await admin.client.post("/login", content="token=x", headers=_FORM)).status_code for _ in range(11)]
        right = f"token={_TOKEN}"
        assert (await admin.client.post("/login", content=right, headers=_FORM)).status_code == 429
        admin.clock.advance(60_000)
        assert (await admin.client.post("/login", content=right, headers=_FORM)).status_code == 303
    assert codes == [401] * 10 + [429]


def _guarded() -> tuple[Access, ManualTime]:
    clock = ManualTime()
    audit_log = AuditLog(clock=clock, log=structlog.get_logger())
    proxies = AccessRules(trusted_proxies=(ip_network("10.1.0.0/16"),), proxy_user_header="x-forwarded-user")
    guesses = TokenGuesses(clock=clock)
    return Access(SecretStr(_TOKEN), proxies, SessionTable(clock=clock), guesses=guesses, audit_log=audit_log), clock


def _asks(access: Access, token: str, peer: str, **headers: str) -> str:
    named = {"authorization": f"Bearer {token}", **{key.replace("_", "-"): value for key, value in headers.items()}}
    found = access.actor_of(Request(peer, header=lambda name: named.get(name, "")))
    return found.name if isinstance(found, Actor) else found.name.lower()


def test_a_host_with_many_ipv6_addresses_guesses_as_one() -> None:
    access, _ = _guarded()
    for number in range(10):
        _asks(access, f"guess-{number}", f"2001:db8:0:7::{number:x}")
    assert _asks(access, _TOKEN, "2001:db8:0:7:ffff::1") == "too_many_tokens"
    assert _asks(access, _TOKEN, "2001:db8:0:8::1") == "adminToken"


@pytest.mark.parametrize("way", ["request", "page", "either"])
def test_who_guesses_is_slowed_down_and_keeps_nobody_else_out(way: str) -> None:
    access, clock = _guarded()
    stranger, colleague = "10.0.0.7", "10.0.0.8"
    assert _asks(access, _TOKEN, colleague) == "adminToken"
    for number in range(1_000):
        for peer in (stranger, colleague):
            if way == "request" or (way == "either" and number % 2):
                assert _asks(access, f"guess-{number}", peer) in ("token_wrong", "too_many_tokens")
            else:
                assert access.actor_with(f"guess-{number}", address=peer) is None
    # Also the right one is not taken from there by either way, so that nobody hears that it is right.
    assert _asks(access, _TOKEN, stranger) == "too_many_tokens"
    assert access.actor_with(_TOKEN, address=stranger) is None
    assert _asks(access, _TOKEN, "10.0.0.9") == "adminToken"
    assert _asks(access, _TOKEN, colleague) == "adminToken", "who was at work there before goes on"
    clock.advance(60_000)
    assert _asks(access, _TOKEN, stranger) == "adminToken"


def test_a_proxy_s_user_that_guesses_is_counted_alone() -> None:
    access, _ = _guarded()
    for number in range(20):
        assert _asks(access, f"guess-{number}", "10.1.2.3", x_forwarded_user="eve") == "eve"
    assert _asks(access, _TOKEN, "10.1.2.3", x_forwarded_user="eve") == "eve", "it is looked at no more"
    assert _asks(access, _TOKEN, "10.1.2.3", x_forwarded_user="ada") == "adminToken"


def test_who_comes_from_very_many_addresses_fills_no_memory() -> None:
    access, _ = _guarded()
    for number in range(30_000):
        _asks(access, "guess", f"10.{2 + (number >> 16)}.{number >> 8 & 255}.{number & 255}")
    assert access._guesses is not None
    assert access._audit_log is not None
    assert len(access._guesses._counts) <= 10_000
    assert len(access._audit_log.lines()) <= 100
    assert len(access._audit_log._refusals._lines) <= 100


async def test_a_token_that_is_none_leaves_a_line_and_a_thousand_leave_one() -> None:
    for rules, code in ((_TOKENS, 401), ((*_TOKENS, "anonymousRole=viewer"), 200)):
        async with admin_in_memory(*rules, peer="10.0.0.7") as admin:
            assert (await admin.client.get(_TOPIC)).status_code == code
            assert not admin.audit_log.lines(), "nobody guessed"
            for number in range(1_000):
                guess = {"authorization": f"Bearer guess-guess-guess-{number}"}
                told = (await admin.client.get("/api/v1/caller", headers=guess)).status_code
                assert told == (429 if code == 401 and number >= 9 else code)
            (line,) = admin.audit_log.lines()
            admin.clock.advance(60_000)
            await admin.client.get(_TOPIC, headers={"authorization": "bearer x"})
            later, _ = admin.audit_log.lines()
        assert (line.event, line.level, line.fields["address"]) == ("token_refused", "warning", "10.0.0.7")
        assert "guess" not in str(line)
        assert "not_told" not in line.fields
        assert later.fields["not_told"] == "999"


def _stranger(number: int) -> str:
    return f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1"


_FLOODS: dict[str, tuple[str, str, dict[str, str]]] = {
    "login_refused": ("POST", "/login", {"content-type": "application/x-www-form-urlencoded"}),
    "token_refused": ("GET", "/api/v1/caller", {"authorization": "Bearer guess-guess-guess"}),
    "operator_change": ("DELETE", _TOPIC, {}),
    "forged_change_refused": ("DELETE", _TOPIC, {"origin": "https://attacker.example"}),
}


@pytest.mark.parametrize("event", _FLOODS)
async def test_what_strangers_are_refused_fills_no_log_and_pushes_out_nothing(event: str) -> None:
    """From a network of IPv6 as large as they like. What was left out is counted, and what operators did, and tried
    to, is still there."""
    method, path, headers = _FLOODS[event]
    async with admin_in_memory(*_TOKENS, "anonymousRole=viewer", peer="10.0.0.7") as admin:
        admin.audit_log.record("operator_change", fields={"outcome": "done"})
        admin.audit_log.record("operator_change", level="warning", fields={"outcome": "unavailable: a broker"})
        app = admin.client._transport.app  # type: ignore[attr-defined]
        for number in range(1_500):
            admin.clock.advance(10)
            transport = httpx.ASGITransport(app, client=(_stranger(number), 50_000))
            async with httpx.AsyncClient(transport=transport, base_url="http://mq.example") as stranger:
                content = "token=x" if event == "login_refused" else None
                answer = await stranger.request(method, path, headers=headers, content=content)
                assert answer.status_code in (200, 401, 403)
        lines = [line for line in admin.audit_log.lines(limit=2_000) if line.fields.get("address", "")]
        assert {line.event for line in lines} == {event}
        assert 100 <= len(lines) <= 200
        told = sum(1 + int(line.fields.get("others_not_told", "0")) for line in lines)
        admin.clock.advance(60_000)
        admin.audit_log.refused(event, fields={"address": "10.0.0.9"})
        assert told + int(admin.audit_log.lines()[0].fields.get("others_not_told", "0")) == 1_500
        outcomes = [line.fields.get("outcome", "") for line in admin.audit_log.lines(limit=2_000)]
        assert outcomes[-2:] == ["unavailable: a broker", "done"]


async def test_a_proxy_s_own_token_is_no_guess() -> None:
    async with admin_in_memory(*_TOKENS, "trustedProxies=10.1.0.0/16", peer="10.1.2.3") as admin:
        headers = {"authorization": "Bearer of.its.user", "x-forwarded-user": "ada"}
        assert (await admin.client.get(_TOPIC, headers=headers)).status_code == 200
        assert not admin.audit_log.lines()


async def test_behind_https_the_cookie_stays_there() -> None:
    proxied = ("trustedProxies=10.1.0.0/16", *_TOKENS)
    for peer, is_secure in (("10.1.2.3", True), ("10.2.0.1", False)):
        async with admin_in_memory(*proxied, peer=peer) as admin:
            headers = {**_FORM, "x-forwarded-proto": "https"}
            answer = await admin.client.post("/login", content=f"token={_TOKEN}", headers=headers)
            assert ("secure" in answer.headers["set-cookie"].lower()) is is_secure


async def test_forms_are_read_within_limits() -> None:
    async with admin_in_memory(*_TOKENS) as admin:
        other_kind = await admin.client.post("/login", json={"token": _TOKEN})
        many = await admin.client.post("/login", content="&".join(["a=1"] * 2_000), headers=_FORM)
        no_text = await admin.client.post("/login", content="token=%FF", headers=_FORM)
    assert (other_kind.status_code, many.status_code, no_text.status_code) == (415, 422, 422)


async def test_problems_of_pages_are_pages_and_those_of_the_api_are_documents() -> None:
    async with admin_in_memory() as admin:
        page = await admin.client.get("/nowhere", headers={"accept": "text/html,*/*"})
        document = await admin.client.get("/api/nowhere", headers={"accept": "text/html,*/*"})
    assert (page.status_code, page.headers["content-type"].split(";")[0]) == (404, "text/html")
    assert "there is no page /nowhere" in page.text
    assert document.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "back"),
    [
        ("/topics/none-such", ("/topics", "Back to Topics")),
        ("/groups/none/reset", ("/groups", "Back to Groups")),
        ("/dead-letters/none/nothing", ("/dead-letters", "Back to Dead letters")),
        ("/nowhere", ("/", "To the overview")),
    ],
)
async def test_a_page_of_a_problem_leads_on(path: str, back: tuple[str, str]) -> None:
    async with admin_in_memory() as admin:
        page = await admin.client.get(path, headers={"accept": "text/html,*/*"})
    assert page.status_code >= 400
    assert '<a class="button" href="{}">{}</a>'.format(*back) in page.text


async def test_the_address_of_a_form_that_is_reloaded_says_that_nothing_was_done() -> None:
    async with admin_in_memory() as admin:
        page = await admin.client.get("/logout", headers={"accept": "text/html,*/*"})
    assert page.status_code == 405
    assert "/logout only takes what a form sends: nothing was done" in page.text
    assert "To the overview" in page.text
