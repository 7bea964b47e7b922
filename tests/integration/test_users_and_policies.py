"""Real brokers ask who calls: before and after a change of master, the master and a slave that passes calls on."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.running_time import PATIENCE_S
from support.topic_admin import create_topic
from tandemmq.admin.cluster_reader import ClusterReader
from tandemmq.admin.operations.operations import Operations
from tandemmq.admin.operations.questions import OperationFailed
from tandemmq.admin.operations.values import AclEntry, ChangeResult, UserChange
from tandemmq.admin.rpc import Channels, FailoverCalls
from tandemmq.client import BrokerRefused, ClientError, ClientOptions, Credentials, Producer, SendFailed, SimpleConsumer
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.service.event_loop import SystemClock

TOPIC, GROUP = "orders", "billing"
OPS = Credentials("ops", "planted-secret-of-ops")
SHOP = Credentials("shop", "planted-secret-of-shop")
BILLING = Credentials("billing", "planted-secret-of-billing")
WRONG = Credentials("shop", "planted-secret-of-nobody")
PLANTED = b"planted-secret-of"
CLOCK = SystemClock()
SOON_S = 60.0


class GuardedGroup:
    """Two brokers of a group that fails over and asks who calls, and an operator."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self.in_sync_count = 2
        """Members that a master must have in its in-sync set, itself among them."""
        folder = cluster.folder
        (folder / "authority").mkdir()
        (folder / "auth.key").write_text(base64.b64encode(b"k" * 32).decode())
        users = [{"username": OPS.access_key, "password": OPS.secret_key, "userType": "Super"}]
        (folder / "seeds.json").write_text(json.dumps({"users": users}))
        settings = {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authKeyPath": str(folder / "auth.key"),
            "authSeedPath": str(folder / "seeds.json"),
            "consumeFromEarliest": "true",
            "failoverAuthority": f"file:{folder / 'authority'}",
            "failoverLease": "3000",
        }
        cluster.add_name_server(with_disk=True)
        self.brokers = [cluster.add_broker("broker-a", broker_id=number, settings=settings) for number in (0, 1)]

    def master(self) -> ServiceProcess | None:
        """Whoever acts, with so many members in sync."""
        return next((broker for broker in self.brokers if asyncio.run(self._acts(broker))), None)

    def wait_master(self) -> ServiceProcess:
        """On a busy machine it may not answer in time."""
        found: list[ServiceProcess] = []

        def is_there() -> bool:
            found.extend(filter(None, [self.master()]))
            return bool(found)

        wait_until(is_there, limit_s=SOON_S, what="somebody is master")
        return found[0]

    async def _acts(self, broker: ServiceProcess) -> bool:
        channels = Channels()
        try:
            state = await FailoverCalls(channels, f"127.0.0.1:{broker.ports['listenPort']}").state()
        except grpc.aio.AioRpcError:
            return False
        finally:
            await channels.close()
        return state.acts and len(state.in_sync) >= self.in_sync_count

    def made_topic(self) -> bool:
        master = self.master()
        try:
            if master is not None:
                asyncio.run(create_topic(master, TOPIC))
        except grpc.aio.AioRpcError:
            return False
        return master is not None

    def operate(self, method: str, *arguments: Any, **options: Any) -> Any:
        """One call of `Operations`."""
        return asyncio.run(self._operate(method, arguments, options))

    async def _operate(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        channels = Channels()
        try:
            state = await ClusterReader(channels, tuple(self.cluster.namesrv_addr.split(";"))).read()
            operations = Operations(
                channels,
                members=lambda: state,
                send_client=lambda points: Producer(ClientOptions(points, request_timeout_ms=30_000), CLOCK),
                clock=CLOCK,
            )
            return await getattr(operations, method)(*arguments, **options)
        finally:
            await channels.close()

    def send(self, credentials: Credentials | None, broker: ServiceProcess) -> str:
        """OK, or what the refusal or failure says."""

        async def send() -> str:
            options = ClientOptions(
                (_address(broker),), credentials=credentials, send_attempts_max=1, request_timeout_ms=30_000
            )
            async with Producer(options, CLOCK) as producer:
                try:
                    await producer.send(TOPIC, b"one")
                except SendFailed as failed:
                    return ", ".join(map(_code, failed.failures))
                except ClientError as failed:
                    return _code(failed)
                return "OK"

        return asyncio.run(send())

    def receive(self, credentials: Credentials, broker: ServiceProcess) -> int:
        """Messages received and acknowledged."""

        async def receive() -> int:
            options = ClientOptions((_address(broker),), credentials=credentials, request_timeout_ms=30_000)
            async with SimpleConsumer(options, CLOCK, group=GROUP, subscriptions={TOPIC: "*"}) as consumer:
                messages = await consumer.receive(10, invisible_ms=30_000)
                for message in messages:
                    await consumer.ack(message)
                return len(messages)

        return asyncio.run(receive())


def _address(broker: ServiceProcess) -> str:
    return f"127.0.0.1:{broker.ports['grpcServerPort']}"


def _code(failed: ClientError) -> str:
    return definition.Code.Name(failed.code) if isinstance(failed, BrokerRefused) else str(failed)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedGroup]:
    with ProcessCluster(tmp_path_factory.mktemp("guarded")) as cluster:
        group = GuardedGroup(cluster)
        wait_until(group.made_topic, limit_s=SOON_S, what="a master takes the topic")
        # Through either of them: a slave passes a send on, with its caller's signature.
        for broker in group.brokers:
            wait_until(lambda broker=broker: group.send(OPS, broker) == "OK", limit_s=SOON_S, what="ops sends")  # type: ignore[misc]
        yield group


def test_users_and_policies_from_the_seed_to_the_next_master(group: GuardedGroup) -> None:
    first = group.wait_master()
    second = next(broker for broker in group.brokers if broker is not first)

    for broker in group.brokers:
        assert group.send(None, broker) == "UNAUTHORIZED"
        assert group.send(SHOP, broker) == "UNAUTHORIZED", "there is no such user yet"

    group.operate("create_user", UserChange(SHOP.access_key, SHOP.secret_key))
    group.operate("create_user", UserChange(BILLING.access_key, BILLING.secret_key))
    with pytest.raises(OperationFailed, match="there is a user shop"):
        group.operate("create_user", UserChange(SHOP.access_key, SHOP.secret_key))
    assert group.send(SHOP, first) == "UNAUTHORIZED", "no policy"
    result: ChangeResult = group.operate("put_acl", "User:shop", [AclEntry(f"Topic:{TOPIC}", ("Pub",))])
    assert [change.what for change in result.changes] == ["changed"]
    entries = [AclEntry(f"Topic:{TOPIC}", ("Sub",)), AclEntry(f"Group:{GROUP}", ("Sub",))]
    group.operate("put_acl", "User:billing", entries)
    users, unseen = group.operate("users")
    assert ([user.username for user in users], unseen) == (["billing", "ops", "shop"], ())

    # A slave answers for routes itself: it has the policies within a second.
    for broker in group.brokers:
        wait_until(lambda broker=broker: group.send(SHOP, broker) == "OK", limit_s=PATIENCE_S, what="shop sends")  # type: ignore[misc]
        assert group.send(WRONG, broker) == "UNAUTHORIZED"
        assert group.send(BILLING, broker) == "UNAUTHORIZED", "it may read alone"
    assert group.receive(BILLING, first) > 0

    group.in_sync_count = 1
    first.kill()
    wait_until(lambda: group.master() is second, limit_s=SOON_S, what="the other one is master")
    wait_until(lambda: group.send(SHOP, second) == "OK", limit_s=SOON_S, what="shop sends to the new master")
    assert group.send(None, second) == "UNAUTHORIZED"
    assert group.send(WRONG, second) == "UNAUTHORIZED"
    group.operate("put_acl", "User:shop", [AclEntry(f"Topic:{TOPIC}", ("Pub",), "Deny")])
    assert group.send(SHOP, second) == "UNAUTHORIZED", "in force when the command ends"

    first.start()
    wait_until(lambda: group.send(OPS, first) == "OK", limit_s=SOON_S, what="the old master passes calls on")
    wait_until(lambda: group.send(SHOP, first) == "UNAUTHORIZED", limit_s=PATIENCE_S, what="it has the new policy")
    group.operate("delete_user", "shop")
    acls, _ = group.operate("acls")
    assert [acl.subject for acl in acls] == ["User:billing"]

    # Logs, tables, their copies, journals: everything that the run has left behind.
    seen = [path for path in group.cluster.folder.rglob("*") if path.is_file() and path.name != "seeds.json"]
    assert {"users.json", "acls.json"} <= {path.name for path in seen}
    assert [path for path in seen if PLANTED in _content(path)] == []


def _content(path: Path) -> bytes:
    """Nothing of a file that a running broker has replaced meanwhile, such as its authority's record."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
