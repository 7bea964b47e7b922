"""Who may look and who may change, by a second admin service with tokens beside the same cluster."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from e2e.admin.brokers import MASTERS
from e2e.admin.console import Console, open_console
from e2e.admin.second_admin import second_admin
from e2e.admin.stage import Stage
from support.running_time import PATIENCE_S

OPERATOR = "operators-token-of-the-test"
VIEWER = "viewers-token-of-the-test"


@pytest.fixture(scope="module")
def guarded(stage: Stage) -> Iterator[str]:
    """Address of an admin service that lets nobody change anything without a token."""
    settings = {"localRole": "viewer", "adminToken": OPERATOR, "viewerToken": VIEWER}
    with second_admin(stage, settings, name="guarded-admin") as url:
        yield url


@pytest.fixture
def viewer(guarded: str, browser: Browser) -> Iterator[Console]:
    """A browser on the same machine, who may look."""
    with open_console(browser, guarded) as console:
        yield console
        assert console.faults == []


def test_a_viewer_sees_no_buttons_and_is_refused(viewer: Console, stage: Stage) -> None:
    for path in ("/topics", "/topics/orders", "/groups/billing", "/brokers/broker-a:0", "/dead-letters/fraud-check"):
        viewer.open(path)
        changing = viewer.page.locator("main form[method=post], main a[href$='/edit'], main a[href$='/delete']")
        expect(changing).to_have_count(0)
    assert viewer.open("/topics/orders/edit") == 403
    answer = viewer.page.request.post(
        f"{viewer.url}/new-topic", form={"name": "viewers"}, headers={"Sec-Fetch-Site": "same-origin"}
    )
    assert answer.status == 403
    assert stage.brokers.topic("viewers") == {}


def test_an_operator_logs_in_changes_something_and_logs_out(viewer: Console, stage: Stage) -> None:
    viewer.open("/login?next=/new-topic")
    viewer.page.get_by_label("Token").fill("wrong")
    viewer.page.get_by_role("button", name="Log in").click()
    expect(viewer.page.get_by_role("alert")).to_be_visible()
    viewer.page.get_by_label("Token").fill(OPERATOR)
    viewer.page.get_by_role("button", name="Log in").click()
    viewer.open("/new-topic")
    viewer.type("Name", "operators")
    viewer.press("Create topic")
    viewer.expect_heading("operators")
    assert len(stage.brokers.topic("operators")) == len(MASTERS)
    (cookie,) = viewer.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert OPERATOR not in cookie["value"]
    viewer.open("/topics/operators/delete")
    viewer.type("Type the topic's name to delete it", "operators")
    viewer.press("Delete operators")
    viewer.expect_said("operators")
    viewer.page.get_by_role("button", name="Log out").click()
    assert viewer.open("/new-topic") == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://elsewhere.example"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
    ],
    ids=lambda headers: ",".join(headers.values()),
)
def test_a_post_from_another_site_is_refused(headers: dict[str, str], stage: Stage) -> None:
    status = _post(stage.cluster.admin_url, "/new-topic", {"name": "forged"}, headers)
    assert status == 403
    assert stage.brokers.topic("forged") == {}


def test_a_page_of_another_site_cannot_change_anything(browser: Browser, stage: Stage) -> None:
    # The browser itself says where the post comes from: a page of another origin, with the operator's cookies and all.
    with open_console(browser, stage.cluster.admin_url) as console:
        page = console.page
        page.route("http://elsewhere.example/", lambda route: route.fulfill(content_type="text/html", body="<p>hello"))
        page.goto("http://elsewhere.example/")
        with page.expect_response(lambda answer: answer.url.endswith("/new-topic")) as answer:
            page.evaluate(
                """url => {
                    const form = document.createElement("form");
                    form.method = "post"; form.action = url + "/new-topic";
                    form.innerHTML = '<input name="name" value="forged">';
                    document.body.append(form); form.submit();
                }""",
                console.url,
            )
        assert answer.value.status == 403
    assert stage.brokers.topic("forged") == {}


def test_a_foreign_host_name_is_refused(stage: Stage) -> None:
    status = _post(stage.cluster.admin_url, "/new-topic", {"name": "forged"}, {"Host": "rebound.example"})
    assert status in (400, 403, 421)
    assert stage.brokers.topic("forged") == {}


def _post(url: str, path: str, form: dict[str, str], headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    try:
        sent = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        connection.request("POST", path, urlencode(form), sent)
        return connection.getresponse().status
    finally:
        connection.close()
