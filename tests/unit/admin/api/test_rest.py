"""What operators ask and do over HTTP, on a cluster in memory."""

from __future__ import annotations

import base64
import json
import re

import pytest

from support.admin_in_memory import admin_in_memory
from support.fake_cluster import WAITS
from support.fake_operations import FakeOperations
from support.operations_samples import LONGEST_NAME, RECEIPTS
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import MessagePage, MessageQuery, SearchOrder


async def test_topics_are_listed_page_by_page() -> None:
    async with admin_in_memory() as admin:
        first = (await admin.client.get("/api/v1/topics?page_size=3")).json()
        second = (await admin.client.get("/api/v1/topics?page_size=3&page=2")).json()
        found = (await admin.client.get("/api/v1/topics?search=ORD")).json()
        others = (await admin.client.get("/api/v1/topics?category=retry&category=dead%20letter")).json()
        wrong = await admin.client.get("/api/v1/topics?page=0&page_size=100000&category=nonsense")
    names = [topic["name"] for topic in (*first["items"], *second["items"])]
    assert (len(names), names[0]) == (6, LONGEST_NAME)
    assert first["total"] == second["total"] >= 6
    assert [topic["name"] for topic in found["items"]] == ["orders"]
    assert {topic["category"] for topic in others["items"]} == {"retry", "dead letter"}
    assert wrong.status_code == 422
    assert all(field in wrong.json()["problem"] for field in ("page:", "page_size:", "category"))


async def test_a_topic_tells_queues_routes_and_who_reads_it() -> None:
    async with admin_in_memory() as admin:
        topic = (await admin.client.get("/api/v1/topics/orders")).json()
        routes = (await admin.client.get("/api/v1/topics/orders/routes")).json()
        awkward = (await admin.client.get(f"/api/v1/topics/{RECEIPTS.replace('%', '%25').replace('|', '%7C')}")).json()
    assert all(extent["held"] == extent["max_offset"] - extent["min_offset"] for extent in topic["extents"])
    assert {progress["group"] for progress in topic["groups"]} >= {"billing"}
    assert all(progress["lag"] >= 0 for progress in topic["groups"])
    assert len(routes["routes"]) == len(topic["routes"])
    assert awkward["summary"]["name"] == RECEIPTS


async def test_a_topic_is_made_changed_and_removed() -> None:
    async with admin_in_memory() as admin:
        shape = {"read_queue_count": 6, "write_queue_count": 4, "broker_names": ["broker-a"]}
        planned = (await admin.client.put("/api/v1/topics/fresh?dry_run=true", json=shape)).json()
        missing = await admin.client.get("/api/v1/topics/fresh")
        made = (await admin.client.put("/api/v1/topics/fresh", json=shape)).json()
        brokers = (await admin.client.get("/api/v1/topics/fresh")).json()["summary"]["brokers"]
        removed = (await admin.client.delete("/api/v1/topics/fresh")).json()
        gone = await admin.client.delete("/api/v1/topics/fresh")
    assert (planned["dry_run"], made["dry_run"], planned["changes"]) == (True, False, made["changes"])
    assert (missing.status_code, gone.status_code) == (404, 404)
    assert [(each["broker_name"], each["read_queue_count"], each["write_queue_count"]) for each in brokers] == [
        ("broker-a", 6, 4)
    ]
    assert removed["changes"]


async def test_the_description_is_whole() -> None:
    async with admin_in_memory() as admin:
        description = (await admin.client.get("/api/openapi.json")).json()
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description)))
    assert references <= set(description["components"]["schemas"])
    assert set(description["components"]["schemas"]["Problem"]["properties"]) >= {"problem", "cause", "remedy"}
    operations = [each for methods in description["paths"].values() for each in methods.values()]
    assert all(each.get("description") for each in operations)


async def test_unknown_fields_are_mistakes() -> None:
    async with admin_in_memory() as admin:
        refused = await admin.client.put("/api/v1/topics/fresh", json={"queues": 8})
    assert (refused.status_code, refused.json()["problem"]) == (422, "queues: Extra inputs are not permitted")


async def test_groups_their_members_and_where_they_go_on() -> None:
    async with admin_in_memory() as admin:
        group = (await admin.client.get("/api/v1/groups/billing")).json()
        clients = (await admin.client.get("/api/v1/clients?group=billing")).json()
        reset = "/api/v1/groups/billing/offsets/reset"
        planned = (await admin.client.post(f"{reset}?dry_run=true", json={"topic": "orders", "earliest": True})).json()
        done = (await admin.client.post(reset, json={"topic": "orders", "time": "2h"})).json()
        neither = await admin.client.post(reset, json={"topic": "orders"})
        both = await admin.client.post(reset, json={"topic": "orders", "time": "2h", "latest": True})
        unreadable = await admin.client.post(reset, json={"topic": "orders", "time": "yesterday"})
    assert group["summary"]["member_count"] == len(group["members"]) == clients["total"]
    assert sum(progress["lag"] for progress in group["progress"]) == group["summary"]["lag"]
    assert planned["dry_run"]
    assert {move["to_offset"] for move in planned["moves"]} == {0}
    assert not done["dry_run"]
    assert [answer.status_code for answer in (neither, both, unreadable)] == [422, 422, 422]
    assert unreadable.json()["problem"].startswith("time: 'yesterday' is no moment")


async def test_a_group_with_members_is_removed_only_on_purpose() -> None:
    async with admin_in_memory() as admin:
        refused = await admin.client.delete("/api/v1/groups/billing")
        done = await admin.client.delete("/api/v1/groups/billing?even_with_members=true")
        outcomes = [line.fields["outcome"] for line in admin.audit_log.lines()]
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:tandemmq:problem:refused")
    assert done.status_code == 200
    assert outcomes[0] == "done"
    assert outcomes[1].startswith("refused: ")


async def test_messages_are_searched_and_shown_whole() -> None:
    async with admin_in_memory() as admin:
        page = (await admin.client.get("/api/v1/topics/orders/messages?limit=2&body_bytes=10&start=30d")).json()
        found = page["messages"][0]
        where = f"{found['broker_name']}/messages/{found['physical_offset']}"
        whole = (await admin.client.get(f"/api/v1/broker-groups/{where}")).json()
        place = f"{found['broker_name']}/{found['queue_id']}/{found['queue_offset']}"
        same = (await admin.client.get(f"/api/v1/topics/orders/messages/{place}")).json()
        by_id = (await admin.client.get(f"/api/v1/messages?id={found['message_id']}")).json()
        trace = await admin.client.get(f"/api/v1/messages/{found['message_id']}")
        absurd = await admin.client.get(f"/api/v1/broker-groups/broker-a/messages/{10**30}")
    assert len(page["messages"]) == 2
    assert len(base64.b64decode(found["body_base64"])) <= 10
    assert whole == same
    assert whole["message"]["summary"]["message_id"] == found["message_id"]
    assert {copy["broker"] for copy in whole["copies"]}
    assert [each["message_id"] for each in by_id] == [found["message_id"]]
    assert "operations" in trace.json(), "a message's traces stay where they were"
    assert absurd.status_code == 422


async def test_a_search_is_what_its_address_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_in_memory() as admin:
        asked: list[MessageQuery] = []
        real = admin.operations.search

        async def noting(query: MessageQuery) -> MessagePage:
            asked.append(query)
            return await real(query)

        monkeypatch.setattr(admin.operations, "search", noting)
        path = "/api/v1/topics/orders/messages?order=oldest&tag=a&tag=b&key=k&start=2023-11-14T22:13:20Z"
        assert (await admin.client.get(path)).status_code == 200
    (query,) = asked
    assert (query.order, query.tags, query.key, query.start_ms, query.end_ms) == (
        SearchOrder.OLDEST, ["a", "b"], "k", 1_700_000_000_000, -1,
    )  # fmt: skip


async def test_a_message_is_sent_and_its_body_never_logged() -> None:
    async with admin_in_memory() as admin:
        path = "/api/v1/topics/orders/messages"
        raw = base64.b64encode(b"\x00secret").decode()
        sent = await admin.client.post(path, json={"body_base64": raw, "tag": "t", "properties": {"k": "secret"}})
        both = await admin.client.post(path, json={"body_base64": raw, "body_text": "x"})
        unreadable = await admin.client.post(path, json={"body_base64": "?"})
        lines = admin.audit_log.lines()
    assert (sent.status_code, both.status_code, unreadable.status_code) == (200, 422, 422)
    assert (lines[0].fields["action"], lines[0].fields["body_bytes"]) == ("send_message", "7")
    assert "secret" not in str(lines)


async def test_lite_topics_are_listed() -> None:
    async with admin_in_memory() as admin:
        page = (await admin.client.get("/api/v1/topics/sessions/lite-topics", params={"search": "session-1"})).json()
    assert [one["lite_topic"] for one in page["lite_topics"]] == ["session-1"]
    assert page["lite_topics"][0]["lags"] == {"workers": 3}


async def test_a_transaction_is_listed_and_ended_by_an_operator() -> None:
    async with admin_in_memory() as admin:
        listed = (await admin.client.get("/api/v1/transactions", params={"topic": "orders"})).json()
        path = "/api/v1/transactions/djE=/resolve"
        planned = await admin.client.post(path, params={"dry_run": True}, json={"end": "commit"})
        done = await admin.client.post(path, json={"end": "commit"})
        contrary = await admin.client.post(path, json={"end": "rollback"})
        unclear = await admin.client.post(path, json={"end": "perhaps"})
        lines = admin.audit_log.lines()
    assert (listed["total"], listed["transactions"][0]["message_id"]) == (1, "PAY-1")
    assert (planned.json(), done.status_code) == (done.json(), 200)
    assert (contrary.status_code, unclear.status_code) == (409, 422)
    assert {line.fields["action"] for line in lines} == {"resolve_transaction"}


async def test_a_client_is_told_something() -> None:
    async with admin_in_memory() as admin:
        client_id = admin.operations.cluster.clients[0].client_id
        body = {"command": "verify-message", "broker_name": "broker-a", "topic": "orders", "queue_offset": 7}
        told = await admin.client.post(f"/api/v1/clients/{client_id}/command", json=body)
        nobody = await admin.client.post("/api/v1/clients/nobody/command", json={"command": "reconnect"})
    assert (told.json()[0]["code"], told.json()[0]["text"]) == ("OK", "verify-message orders 7")
    assert nobody.status_code == 404


async def test_a_kept_tail_is_listed_and_restored_in_parts() -> None:
    async with admin_in_memory() as admin:
        [tail] = (await admin.client.get("/api/v1/kept-tails")).json()["tails"]
        path = f"/api/v1/brokers/{tail['broker']}/kept-tails/{tail['name']}/restore"
        first = (await admin.client.post(path, json={})).json()
        second = {"page_token": first["next_page_token"]}
        planned = (await admin.client.post(path, params={"dry_run": True}, json=second)).json()
        done = (await admin.client.post(path, json=second)).json()
        again = (await admin.client.post(path, json=second)).json()
        nobodys = await admin.client.post(f"/api/v1/brokers/{tail['broker']}/kept-tails/nothing/restore", json={})
        lines = admin.audit_log.lines()
    assert (tail["start_offset"], tail["reason"]) == (4_096, "it differs from the master's")
    assert (first["messages"][0]["state"], first["messages"][0]["held_by"]) == ("held", "broker-b")
    assert first["unreadable"][0]["reason"].startswith("CRC")
    assert [part["messages"][0]["new_queue_offset"] for part in (planned, done, again)] == [-1, 7, -1]
    assert [part["messages"][0]["state"] for part in (planned, done, again)] == ["missing", "missing", "held"]
    assert nobodys.status_code == 404
    assert {line.fields["action"] for line in lines} == {"restore_kept_tail"}


async def test_a_loss_is_accepted_by_whoever_names_what_it_is() -> None:
    async with admin_in_memory() as admin:
        admin.operations.cluster.waits["broker-b"] = WAITS
        path = "/api/v1/broker-groups/broker-b/accept-loss"
        planned = (await admin.client.post(path, params={"dry_run": True}, json={})).json()
        unnamed = await admin.client.post(path, json={})
        done = await admin.client.post(path, json={"names": [one["disk_id"] for one in planned["missing"]]})
        again = await admin.client.post(path, json={"names": ["d1"]})
        lines = admin.audit_log.lines()
    assert (planned["lost_bytes"], planned["missing"][0]["end_offset"], planned["dry_run"]) == (4_096, 8_192, True)
    assert (unnamed.status_code, done.status_code, again.status_code) == (409, 200, 409)
    assert [line.fields["outcome"].partition(":")[0] for line in lines] == ["refused", "done", "refused", "done"]
    assert {line.fields["action"] for line in lines} == {"accept_loss"}


async def test_a_group_fails_over_to_whom_an_operator_names() -> None:
    async with admin_in_memory() as admin:
        path = "/api/v1/broker-groups/broker-a/failover"
        planned = (await admin.client.post(path, params={"dry_run": True}, json={})).json()
        done = (await admin.client.post(path, json={"to_broker_id": 1})).json()
        unknown = await admin.client.post("/api/v1/broker-groups/broker-z/failover", json={})
        lines = admin.audit_log.lines()
    assert (planned["to_broker"], planned["epoch"], planned["changed"]) == ("broker-a:1", 1, False)
    assert (done["from_broker"], done["to_broker"], done["epoch"], done["changed"]) == (
        "broker-a:0",
        "broker-a:1",
        2,
        True,
    )
    assert unknown.status_code == 404
    assert {line.fields["action"] for line in lines} == {"failover"}


async def test_a_run_of_the_consistency_job_is_started_once() -> None:
    async with admin_in_memory() as admin:
        path = "/api/v1/verification"
        before = (await admin.client.get(path)).json()
        planned = (await admin.client.post(path, params={"dry_run": True}, json={})).json()
        done = await admin.client.post(path, json={"tier": "deep", "groups": ["broker-a"]})
        second = await admin.client.post(path, json={})
        wrong = await admin.client.post(path, json={"tier": "thorough"})
        after = (await admin.client.get(path)).json()
        lines = admin.audit_log.lines()
    assert (before["state"], planned["tier"], planned["state"]) == ("none", "quick", "running")
    assert (done.status_code, second.status_code, wrong.status_code) == (202, 409, 422)
    assert (after["state"], after["tier"], after["groups"]) == ("running", "deep", ["broker-a"])
    assert {line.fields["action"] for line in lines} == {"verify"}


async def test_settings_write_permission_and_events() -> None:
    async with admin_in_memory() as admin:
        path = "/api/v1/brokers/broker-a:0/settings"
        before = (await admin.client.get(path)).json()["settings"]
        key = next(each["key"] for each in before if each["changeable"])
        changed = (await admin.client.patch(path, json={"values": {key: "24"}})).json()
        after = (await admin.client.get(path)).json()["settings"]
        wiped = (
            await admin.client.put("/api/v1/broker-groups/broker-a/write-permission", json={"writable": False})
        ).json()
        events = (await admin.client.get("/api/v1/events?limit=1000")).json()["events"]
    assert [(change["key"], change["to_value"]) for change in changed] == [(key, "24")]
    (setting,) = (each for each in after if each["key"] == key)
    assert (setting["value"], setting["origin"], setting["differs"]) == ("24", "changed", True)
    assert wiped["changes"]
    ours = {event["fields"]["action"] for event in events if event["fields"].get("address")}
    assert ours == {"update_settings", "set_write_permission"}
    assert [event["time_ms"] for event in events] == sorted((event["time_ms"] for event in events), reverse=True)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (FailureKind.INVALID, 422),
        (FailureKind.NOT_FOUND, 404),
        (FailureKind.REFUSED, 409),
        (FailureKind.UNAVAILABLE, 503),
        (FailureKind.PARTIAL, 502),
    ],
)
async def test_each_way_to_fail_has_a_status(kind: FailureKind, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_in_memory() as admin:

        async def fails(*_: object, **__: object) -> None:
            raise OperationFailed(kind, "it did not work", cause="the cause", remedy="the remedy")

        monkeypatch.setattr(admin.operations, "topic", fails)
        answer = await admin.client.get("/api/v1/topics/orders")
    document = answer.json()
    assert (answer.status_code, document["status"]) == (status, status)
    assert (document["problem"], document["cause"], document["remedy"], document["detail"]) == (
        "it did not work", "the cause", "the remedy", "it did not work: the cause",
    )  # fmt: skip


async def test_a_defect_is_told_as_one_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_in_memory() as admin:

        async def breaks(*_: object, **__: object) -> None:
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(admin.operations, "delete_topic", breaks)
        with pytest.raises(ZeroDivisionError):
            # As the server sees it, which logs it; the caller's answer went out before.
            await admin.client.delete("/api/v1/topics/orders")
        assert admin.audit_log.lines()[0].fields["outcome"] == "failed unexpectedly: ZeroDivisionError"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/v1/topics/orders", b'{"broker_names": ["\\ud800"]}'),
        ("POST", "/api/v1/topics/orders/messages", b'{"properties": {"\\ud800": "x"}}'),
        ("POST", "/api/v1/topics/orders/messages", b'{"properties": {"x": "\\udfff"}}'),
        ("POST", "/api/v1/groups/billing/dead-letters/resend", b'{"broker_name": "broker-a", "queue_offsets": [-1]}'),
        (
            "POST",
            "/api/v1/groups/billing/dead-letters/resend",
            b'{"broker_name": "broker-a", "queue_offsets": [9223372036854775808]}',
        ),
    ],
)
async def test_what_no_broker_could_be_told_is_refused(method: str, path: str, body: bytes) -> None:
    async with admin_in_memory() as admin:
        headers = {"content-type": "application/json"}
        answer = await admin.client.request(method, path, content=body, headers=headers)
        events = await admin.client.get("/api/v1/events")
    assert (answer.status_code, events.status_code) == (422, 200)


async def test_half_a_surrogate_pair_breaks_no_list_of_events() -> None:
    async with admin_in_memory() as admin:
        admin.audit_log.record("operator_change", fields={"subject": "\ud800"})
        events = (await admin.client.get("/api/v1/events?limit=1000")).json()["events"]
    assert {"subject": "?"} in [event["fields"] for event in events]


async def test_a_tail_gives_what_comes_in_and_ends() -> None:
    operations = FakeOperations()
    newest = (await operations.search(MessageQuery("orders"))).messages[0]
    async with admin_in_memory(operations=operations) as admin:
        operations.arrive(newest)
        operations.arrive(newest)
        answer = await admin.client.get("/api/v1/topics/orders/tail?limit=2&body_bytes=100")
        operations.tail_ends()
        ended = await admin.client.get("/api/v1/topics/orders/tail")
        unknown = await admin.client.get("/api/v1/topics/nope/tail")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["message_id"] for line in lines] == [newest.message_id] * 2
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert (ended.status_code, ended.text) == (200, "")
    assert unknown.status_code == 404
