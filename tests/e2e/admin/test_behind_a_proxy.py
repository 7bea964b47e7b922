"""People by name: a real proxy signs them in with OpenID Connect and tells the admin service who they are."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from e2e.admin.apache import signing_in_proxy
from e2e.admin.brokers import MASTERS
from e2e.admin.console import Console, open_console
from e2e.admin.identity_provider import IdentityProvider, identity_provider
from e2e.admin.second_admin import second_admin
from e2e.admin.stage import Stage
from support.running_time import PATIENCE_S

_SETTINGS = {"trustedProxies": "127.0.0.1/32", "operatorGroups": "on-call;messaging-team"}


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    """Who signs people in."""
    with identity_provider() as running:
        yield running


@pytest.fixture(scope="module")
def admin(stage: Stage) -> Iterator[str]:
    """Address of an admin service that believes the proxy, and nobody for being on the same host."""
    with second_admin(stage, _SETTINGS, name="proxied-admin", ready_status=401) as url:
        yield url


@pytest.fixture(scope="module")
def proxy(stage: Stage, admin: str, provider: IdentityProvider) -> Iterator[str]:
    """Address that people know."""
    with signing_in_proxy(stage.folder / "proxy", admin_url=admin, provider=provider) as url:
        yield url


@pytest.fixture
def person(proxy: str, provider: IdentityProvider, browser: Browser) -> Iterator[Console]:
    """A browser of somebody who has not signed in yet."""
    with open_console(browser, proxy, also=(provider.url,)) as console:
        yield console
        assert console.faults == []


def test_an_operator_is_known_by_name(person: Console, provider: IdentityProvider, stage: Stage) -> None:
    provider.user, provider.groups = "ada@example.org", ("staff", "on-call")
    person.open("/new-topic")
    person.type("Name", "made-by-ada")
    person.press("Create topic")
    person.expect_heading("made-by-ada")
    assert len(stage.brokers.topic("made-by-ada")) == len(MASTERS)
    person.open("/events")
    line = person.page.get_by_role("row").filter(has_text="made-by-ada").first
    expect(line).to_contain_text("ada@example.org")


def test_who_is_in_no_group_of_operators_only_looks(person: Console, provider: IdentityProvider, stage: Stage) -> None:
    provider.user, provider.groups = "bob", ("staff",)
    assert person.open("/topics/orders") == 200
    expect(person.page.get_by_role("main").locator("form[method=post]")).to_have_count(0)
    assert person.open("/topics/orders/edit") == 403
    # What the browser adds by itself is not what the admin hears.
    claimed = {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "on-call", "Sec-Fetch-Site": "same-origin"}
    answer = person.page.request.post(f"{person.url}/new-topic", form={"name": "made-by-bob"}, headers=claimed)
    assert answer.status == 403
    assert stage.brokers.topic("made-by-bob") == {}


def test_nobody_passes_the_proxy_unsigned(proxy: str, provider: IdentityProvider, admin: str) -> None:
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    opener = urllib.request.build_opener(Stay)
    from_a_browser = {"X-Forwarded-User": "ada", "Accept": "text/html"}
    with pytest.raises(urllib.error.HTTPError) as sent_away:
        opener.open(urllib.request.Request(f"{proxy}/topics", headers=from_a_browser), timeout=PATIENCE_S)
    with sent_away.value as answer:
        assert answer.code == 302
        assert answer.headers["Location"].startswith(f"{provider.url}/authorize?")
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(f"{admin}/topics", timeout=PATIENCE_S)
    with refused.value as answer:
        assert answer.code == 401
