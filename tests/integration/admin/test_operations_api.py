"""The admin's REST and gRPC as processes: what is changed there is changed in brokers, and strangers change nothing."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message import Message

from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from tandemmq.proto.admin.v1 import cluster_operations_service_pb2 as pb

_TOKEN = "correct-horse-battery"
_VIEWER_TOKEN = "another-horse-battery"
# Not whom the service takes for its own host, so as good as another machine.
_ELSEWHERE = "127.0.0.6"


class _Admin:
    """The admin process and ways to ask it."""

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process
        self.address = f"127.0.0.1:{process.ports['httpPort']}"
        self.here = self.client()

    def client(self, *, elsewhere: bool = False, token: str = "") -> httpx.Client:
        """A client on this host, or on another."""
        return httpx.Client(
            base_url=f"http://{self.address}",
            timeout=PATIENCE_S,
            transport=httpx.HTTPTransport(local_address=_ELSEWHERE if elsewhere else None),
            headers={"authorization": f"Bearer {token}"} if token else {},
        )

    def document(self, path: str) -> Any:
        answer = self.here.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def call(self, name: str, request: Message, reply: type[Message]) -> Any:
        """One call over gRPC."""
        with grpc.insecure_channel(self.address) as channel:
            method = channel.unary_unary(
                f"/tandemmq.admin.v1.ClusterOperationsService/{name}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=reply.FromString,
            )
            return method(request, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("operations-api")) as running:
        running.add_name_server()
        running.add_broker(broker_id=0)
        running.add_broker(broker_id=1)
        yield running


@pytest.fixture(scope="module")
def admin(cluster: ProcessCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Admin]:
    process = ServiceProcess(
        name="admin",
        module="tandemmq.admin",
        settings={
            "refreshInterval": "200",
            "namesrvAddr": cluster.namesrv_addr,
            "adminToken": _TOKEN,
            "viewerToken": _VIEWER_TOKEN,
        },
        log_path=tmp_path_factory.mktemp("admin-logs") / "admin.log",
        port_keys=("httpPort",),
    )
    process.start()
    try:
        found = _Admin(process)
        wait_until(lambda: _is_whole(found), limit_s=PATIENCE_S, what="a master and its slave are seen")
        yield found
        found.here.close()
    finally:
        process.kill()


def _is_whole(admin: _Admin) -> bool:
    answer = admin.here.get("/api/v1/cluster")
    brokers = answer.json()["brokers"] if answer.status_code == 200 else []
    return len(brokers) == 2 and all(broker["status"] is not None for broker in brokers) and answer.json()["healthy"]


def test_a_topic_and_its_message_from_making_to_removal(admin: _Admin) -> None:
    path = "/api/v1/topics/rest-orders"
    planned = admin.here.put(f"{path}?dry_run=true", json={"read_queue_count": 2, "write_queue_count": 2})
    assert (planned.status_code, planned.json()["dry_run"]) == (200, True)
    assert admin.here.get(path).status_code == 404
    assert admin.here.put(path, json={"read_queue_count": 2, "write_queue_count": 2}).status_code == 200
    body = base64.b64encode(b"\x00\xff binary").decode()
    sent = admin.here.post(f"{path}/messages", json={"body_base64": body, "keys": ["k-1"], "tag": "paid"})
    assert sent.status_code == 200, sent.text
    found = admin.document(f"{path}/messages?body_bytes=100")["messages"]
    assert [(each["message_id"], each["body_base64"], each["tag"]) for each in found] == [
        (sent.json()["message_id"], body, "paid")
    ]
    whole = admin.document(f"/api/v1/broker-groups/broker-a/messages/{found[0]['physical_offset']}")
    assert [(copy["broker"], copy["held"], copy["equal"]) for copy in whole["copies"]] == [
        ("broker-a:0", True, True),
        ("broker-a:1", True, True),
    ]
    by_key = admin.document(f"{path}/messages?key=k-1")["messages"]
    assert [each["physical_offset"] for each in by_key] == [found[0]["physical_offset"]]
    assert admin.document(path)["summary"]["held"] == 1
    assert admin.here.delete(path).status_code == 200
    assert admin.here.get(path).status_code == 404


def test_groups_and_settings_change_in_the_broker(admin: _Admin) -> None:
    group = "/api/v1/groups/rest-group"
    assert admin.here.put(group, json={"retry_max_times": 3, "enabled": False}).status_code == 200
    summary = admin.document(group)["summary"]
    assert (summary["retry_max_times"], summary["enabled"]) == (3, False)
    assert admin.here.delete(group).status_code == 200
    assert admin.here.get(group).status_code == 404
    settings = "/api/v1/brokers/broker-a:0/settings"
    before = {each["key"]: each for each in admin.document(settings)["settings"]}
    changed = admin.here.patch(settings, json={"values": {"fileReservedTime": "49"}})
    assert [(each["key"], each["to_value"]) for each in changed.json()] == [("fileReservedTime", "49")]
    after = {each["key"]: each for each in admin.document(settings)["settings"]}
    assert (before["fileReservedTime"]["value"] != "49", after["fileReservedTime"]["origin"]) == (True, "changed")
    unknown = admin.here.patch(settings, json={"values": {"noSuchSetting": "1"}})
    assert unknown.status_code == 422, unknown.text


def test_grpc_does_the_same(admin: _Admin) -> None:
    admin.call(
        "PutClusterTopic",
        pb.PutClusterTopicRequest(name="grpc-orders", read_queue_count=1, write_queue_count=1),
        pb.PutClusterTopicResponse,
    )
    listed = admin.call("ListClusterTopics", pb.ListClusterTopicsRequest(search="grpc-"), pb.ListClusterTopicsResponse)
    assert [topic.name for topic in listed.topics] == ["grpc-orders"]
    sent = admin.call(
        "SendTestMessage",
        pb.SendTestMessageRequest(topic="grpc-orders", body=b"x" * (3 << 20)),
        pb.SendTestMessageResponse,
    )
    inspect = pb.InspectMessageRequest(broker_name=sent.broker_name)
    inspect.queue.topic, inspect.queue.queue_offset = "grpc-orders", sent.queue_offset
    inspect.queue.queue_id = sent.queue_id
    whole = admin.call("InspectMessage", inspect, pb.InspectMessageResponse)
    assert whole.message.message.body_size == 3 << 20
    assert all(copy.equal for copy in whole.copies)
    with pytest.raises(grpc.RpcError) as missing:
        admin.call("GetClusterTopic", pb.GetClusterTopicRequest(name="nope"), pb.GetClusterTopicResponse)
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND
    events = admin.call("ListClusterEvents", pb.ListClusterEventsRequest(), pb.ListClusterEventsResponse).events
    assert {("admin", "operator_change")} <= {(event.source, event.event) for event in events}


def test_tails_tell_what_comes_in_and_end_with_their_readers(admin: _Admin) -> None:
    path = "/api/v1/topics/rest-tail"
    assert admin.here.put(path, json={}).status_code == 200
    # More than may be open at once: each ends because its reader goes.
    for _ in range(25):
        with admin.here.stream("GET", f"{path}/tail?seconds=600") as opened:
            assert opened.status_code in (200, 409)
    wait_until(lambda: _tail_opens(admin, path), limit_s=PATIENCE_S, what="readers that went are missed")
    came = threading.Event()

    def send() -> None:
        """It begins at the end as the brokers tell it, which is asked for first: what was sent before is not told."""
        with admin.client() as other:
            while not came.wait(0.2):
                assert other.post(f"{path}/messages", json={"body_text": "grüße"}).status_code == 200

    with admin.here.stream("GET", f"{path}/tail?limit=1&seconds=300") as tail, ThreadPoolExecutor(1) as beside:
        sending = beside.submit(send)
        try:
            (line,) = list(tail.iter_lines())
        finally:
            came.set()
        sending.result()
    assert json.loads(line)["body_text"] == "grüße"


def _tail_opens(admin: _Admin, path: str) -> bool:
    with admin.here.stream("GET", f"{path}/tail?seconds=1") as opened:
        return opened.status_code == 200


def test_what_a_page_elsewhere_posts_is_refused(admin: _Admin) -> None:
    forged = admin.here.put(
        "/api/v1/topics/forged", json={}, headers={"origin": "https://attacker.example", "sec-fetch-site": "cross-site"}
    )
    assert forged.status_code == 403
    assert admin.here.get("/api/v1/topics/forged").status_code == 404
    events = admin.document("/api/v1/events?limit=1000")["events"]
    assert "forged_change_refused" in {event["event"] for event in events}


def test_callers_from_elsewhere_prove_who_they_are(admin: _Admin) -> None:
    path = "/api/v1/topics/rest-elsewhere"
    with admin.client(elsewhere=True) as stranger:
        codes = [stranger.get(each).status_code for each in ("/healthz", "/metrics", "/api/v1/topics")]
    with admin.client(elsewhere=True, token=_VIEWER_TOKEN) as viewer:
        codes += [viewer.get("/api/v1/topics").status_code, viewer.put(path, json={}).status_code]
    assert codes == [200, 401, 401, 200, 403]
    with admin.client(elsewhere=True) as browser:
        sent_on = browser.get("/topics", headers={"accept": "text/html"})
        assert sent_on.headers["location"] == "/login?next=/topics"
        logged_in = browser.post("/login", data={"token": _TOKEN, "next": "/topics"})
        assert (logged_in.status_code, logged_in.headers["location"]) == (303, "/topics")
        caller = browser.get("/api/v1/caller").json()
        assert caller == {"name": "adminToken", "role": "operator", "address": _ELSEWHERE}
        assert browser.put(path, json={}).status_code == 200
        browser.post("/logout")
        assert browser.get("/api/v1/topics").status_code == 401
    log = admin.process.log_path.read_text()
    assert _TOKEN not in log
    assert _VIEWER_TOKEN not in log


def test_a_body_without_end_is_cut_off(admin: _Admin) -> None:
    head = (
        "PUT /api/v1/topics/endless HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", admin.process.ports["httpPort"]), PATIENCE_S) as connection:
        connection.sendall(head.encode())
        sent = 0
        received = b""
        connection.settimeout(0.2)
        while sent < 100 and not received:
            try:
                connection.sendall(piece)
                sent += 1
                received = connection.recv(65_536) if sent > 20 else b""
            except TimeoutError:
                continue
            except OSError:
                break
    assert sent < 100
    assert received.startswith(b"HTTP/1.1 413") or not received


def test_a_lost_master_is_told_of_and_nothing_changes_without_it(admin: _Admin, cluster: ProcessCluster) -> None:
    """The last one: it takes the master away."""
    cluster.brokers["broker-a-0"].kill()
    wait_until(lambda: not admin.document("/api/v1/cluster")["healthy"], limit_s=PATIENCE_S, what="the loss is seen")
    topics = admin.here.get("/api/v1/topics")
    assert topics.status_code in (200, 503), topics.text
    if topics.status_code == 200:
        assert "broker-a:0" in {each["subject"] for each in topics.json()["unseen"]}
    refused = admin.here.put("/api/v1/topics/too-late", json={})
    assert refused.status_code in (409, 503), refused.text
    assert refused.json()["problem"]
    assert refused.json()["remedy"]
    assert admin.here.get("/", headers={"accept": "text/html"}).status_code == 200
