"""A group of real processes changes its master, and loses nothing that it acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import grpc
import pytest

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ServiceProcess, commit_log_bytes, lasting_port, wait_until
from support.failover_group import KINDS, PARTITIONS, TOPIC, FailoverGroup
from support.http2_peer import unary_request
from support.own_network import NetworkUnavailable, can_make_networks, own_network
from support.running_time import PATIENCE_S, until
from support.settling_consumer import Deliveries, SettlingConsumer
from support.topic_admin import create_topic
from tandemmq.core.delivery.journal import GrantEntry, read_frames
from tandemmq.http2 import frames
from tandemmq.proto.rocketmq.v2 import definition_pb2 as definition
from tandemmq.proto.rocketmq.v2 import service_pb2 as service
from tandemmq.proto.rocketmq.v2 import service_pb2_grpc

EXIT_REFUSED = 2


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    with FailoverGroup(tmp_path) as group:
        first = group.change(kind)
        again = group.change(kind)
        assert again.epoch >= first.epoch
        _check(group)


def test_a_slave_beside_a_process_on_a_copy_of_its_disk_is_not_elected(tmp_path: Path) -> None:
    """What its master counted for the copy is lost with that: it waits for the master."""
    with FailoverGroup(tmp_path) as group:
        assert group.wait_master() == 0
        master, slave = group.brokers
        folder = tmp_path / "copy"
        subprocess.run(
            ["cp", "-a", "--sparse=always", slave.settings["storePathRootDir"], str(folder)],
            check=False,
            stderr=subprocess.DEVNULL,
        )
        copy = ServiceProcess(
            name="copy",
            module=slave.module,
            settings=slave.settings | {"storePathRootDir": str(folder)},
            log_path=tmp_path / "logs" / "copy.log",
            port_keys=slave.port_keys,
            ports={key: lasting_port() for key in slave.port_keys},
        )
        try:
            copy.start()
            wait_until(lambda: "master_not_followed" in slave.log_text(), limit_s=PATIENCE_S, what="it steps aside")
            count = len(group.acknowledged())
            wait_until(lambda: len(group.acknowledged()) > count + 50, limit_s=PATIENCE_S, what="the copy is counted")
            master.kill()
        finally:
            copy.kill()
        wait_until(lambda: "master_waits" in slave.log_text(), limit_s=PATIENCE_S, what="it waits for the master")
        state = group.state_of(slave)
        assert state is not None
        assert not state.acts
        master.start()
        group.wait_whole()
        _check(group)


@pytest.mark.skipif(not can_make_networks(), reason="needs root, ip and iptables")
@pytest.mark.parametrize("kind", PARTITIONS)
def test_nothing_acknowledged_is_lost_by_a_partition(tmp_path: Path, kind: str) -> None:
    try:
        with own_network(2) as network, FailoverGroup(tmp_path, network=network) as group:
            group.change(kind)
            _check(group)
    except NetworkUnavailable as error:
        pytest.skip(f"no network of our own: {error}")


@pytest.mark.skipif(not can_make_networks(), reason="needs root, ip and iptables")
@pytest.mark.parametrize("first", ["the master is cut off", "the member beside it is cut off"])
def test_clients_leave_a_member_that_can_pass_nothing_on(tmp_path: Path, first: str) -> None:
    """They reach it, and it would refuse them until the partition ends: their connections hold."""
    try:
        with own_network(2) as network, FailoverGroup(tmp_path, network=network) as group:
            kind = "master cut off" if first == "the master is cut off" else "link cut"
            if kind == "link cut":
                assert group.hand_over(1) == 1
                group.wait_whole()
            addresses = ",".join(f"{broker.host}:{broker.ports['grpcServerPort']}" for broker in group.brokers)
            with AcknowledgedSender(
                group.brokers[0], TOPIC, inflight=1, first_number=1 << 100, pause_s=0.02, target=f"ipv4:{addresses}"
            ) as sender:
                wait_until(lambda: len(sender.acknowledged) > 10, limit_s=PATIENCE_S, what="sends are acknowledged")
                mend = PARTITIONS[kind](group, group.brokers[group.wait_master()])
                wait_until(
                    lambda: "clients_turned_away" in group.brokers[0].log_text(), limit_s=PATIENCE_S, what="they are"
                )
                count = len(sender.acknowledged)
                wait_until(
                    lambda: len(sender.acknowledged) > count + 20, limit_s=PATIENCE_S, what="the other one has them"
                )
                assert mend is not None
                mend()
            group.wait_whole()
            _check(group)
    except NetworkUnavailable as error:
        pytest.skip(f"no network of our own: {error}")


def test_a_hand_over_refuses_nobody(tmp_path: Path) -> None:
    """Official clients pause after a refusal, and Go's take a refused acknowledgement for a good one."""
    deliveries = Deliveries()
    with FailoverGroup(tmp_path, pause_s=0) as group, ExitStack() as consumers:
        for broker in group.brokers:
            consumers.enter_context(SettlingConsumer(broker, TOPIC, deliveries))
        wait_until(lambda: len(deliveries.finished) > 100, limit_s=120, what="consumers finish messages")
        refused_sends, refusals = [sender.refused for sender in group.senders], len(deliveries.refusals)
        for to in (1, 0, 1, 0, 1, 0):
            began_s = time.monotonic()
            assert group.hand_over(to) == to
            if time.monotonic() - began_s > 2:
                pytest.skip("the machine stood still: what waits longer than a change takes is refused")
            group.wait_whole()
        told = deliveries.refusals[refusals:]
        assert told == []
        assert [sender.refused for sender in group.senders] == refused_sends
        _check(group)


def test_what_is_changed_while_a_master_hands_over_is_no_remainder_of_one_member(tmp_path: Path) -> None:
    """The next master copies the tables. What came later was refused, and yet stood on the former one for good."""
    made: list[str] = []
    is_over = threading.Event()

    async def make_topics(group: FailoverGroup, lane: int) -> None:
        for number in itertools.count():
            if is_over.is_set():
                return
            broker = group.brokers[number % 2]
            with suppress(grpc.aio.AioRpcError):
                await create_topic(broker, f"made-{lane}-{number}", queues=1)
                made.append(f"made-{lane}-{number}")

    def has_more_than(count: int) -> Callable[[], bool]:
        return lambda: len(made) > count

    with FailoverGroup(tmp_path) as group, ThreadPoolExecutor(4) as threads:
        lanes = [threads.submit(asyncio.run, make_topics(group, lane)) for lane in range(4)]
        try:
            for to in (1, 0, 1, 0, 1, 0):
                is_made_again = has_more_than(len(made))
                assert group.hand_over(to) == to
                group.wait_whole()
                wait_until(is_made_again, limit_s=PATIENCE_S, what="topics are made again")
        finally:
            is_over.set()
        for lane in lanes:
            lane.result()
        _check(group)

        def topics(broker: ServiceProcess) -> set[str]:
            text = (Path(broker.settings["storePathRootDir"]) / "config" / "topics.json").read_text()
            return set(json.loads(text)["topicConfigTable"])

        wait_until(
            lambda: len({frozenset(topics(broker)) for broker in group.brokers}) == 1, limit_s=PATIENCE_S, what="equal"
        )
        assert set(made) <= topics(group.brokers[0])
        assert not any('"table": "topics.json"' in broker.log_text() for broker in group.brokers)


def test_a_stop_in_order_refuses_nobody(tmp_path: Path) -> None:
    """What comes to the process that stops waits for the next master: the client may not find that one in time. Who
    waits there for a message asks again."""
    deliveries, idle = Deliveries(), Deliveries()
    with FailoverGroup(tmp_path, pause_s=0) as group, ExitStack() as consumers:
        asyncio.run(create_topic(group.brokers[group.wait_master()], "idle", queues=1))
        for broker in group.brokers:
            consumers.enter_context(SettlingConsumer(broker, TOPIC, deliveries))
            consumers.enter_context(SettlingConsumer(broker, "idle", idle))
        wait_until(lambda: len(deliveries.finished) > 100, limit_s=120, what="consumers finish messages")
        for _ in range(3):
            refused_sends, refusals = [sender.refused for sender in group.senders], len(deliveries.refusals)
            idle.refusals.clear()
            if group.change("stop").silent_s > 2:
                pytest.skip("the machine stood still: what waits longer than a change takes is refused")
            told = [*deliveries.refusals[refusals:], *idle.refusals]
            # A member that has just been started again may not know its master yet.
            assert [one for one in told if "this broker is a slave" not in one] == []
            if told:
                continue
            assert [sender.refused for sender in group.senders] == refused_sends
        _check(group)


@pytest.mark.parametrize("kind", ["hand over", "stopped in order"])
def test_the_next_master_renews_what_was_read_and_lets_run_out_what_was_not(tmp_path: Path, kind: str) -> None:
    with FailoverGroup(tmp_path) as group:
        wait_until(lambda: len(group.acknowledged()) > 10, limit_s=120, what="there are messages")
        group.stop_senders()
        with PushPeer(group.brokers[0], TOPIC, "silent@1"), PushPeer(group.brokers[0], TOPIC, "reader@1") as reader:
            reader.answer_pings()
            if kind == "hand over":
                assert group.hand_over(1) == 1
            else:
                group.brokers[0].stop()
            wait_until(lambda: group.master() == 1, limit_s=PATIENCE_S, what="broker 1 is the master")
            folder = Path(group.brokers[1].settings["storePathRootDir"])
            renewed: dict[str, bool] = {}

            def is_told() -> bool:
                # A snapshot takes the place of what is before it.
                with suppress(FileNotFoundError):
                    renewed.update(renewed_in(folder))
                return len(renewed) == 2

            wait_until(is_told, limit_s=PATIENCE_S, what="the leases are written")
            assert renewed == {"silent@1": False, "reader@1": True}


class PushPeer:
    """A push consumer by its bytes: it gets an answer with a message, and reads no further until it is told to."""

    def __init__(self, broker: ServiceProcess, topic: str, client_id: str) -> None:
        request = service.ReceiveMessageRequest(
            group={"name": "pushed"},
            message_queue={"topic": {"name": topic}},
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=1,
            auto_renew=True,
        )
        path = (":path", "/apache.rocketmq.v2.MessagingService/ReceiveMessage")
        self._socket = socket.create_connection((broker.host, broker.ports["grpcServerPort"]), timeout=PATIENCE_S)
        self._socket.sendall(frames.PREFACE + frames.settings({}))
        self._socket.sendall(unary_request(1, request.SerializeToString(), path, ("x-mq-client-id", client_id)))
        self._received = b""
        while topic.encode() not in self._received:
            self._received += self._socket.recv(1 << 16)
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def answer_pings(self) -> None:
        self._thread.start()

    def _answer(self) -> None:
        ping = frames.frame(frames.PING, 0, 0, b"")[3:]
        with suppress(OSError):
            while data := self._socket.recv(1 << 16):
                self._received += data
                while (at := self._received.find(ping)) >= 0:
                    payload = self._received[at + len(ping) : at + len(ping) + 8]
                    self._received = self._received[at + len(ping) :]
                    self._socket.sendall(frames.frame(frames.PING, frames.ACK, 0, payload))


def renewed_in(folder: Path) -> dict[str, bool]:
    """Whether the leases of each client are renewed, by a broker's files."""
    files = sorted((folder / "config").glob("leases-*"), key=lambda path: path.suffix != ".snapshot")
    entries = [entry for path in files for entry in read_frames(path.read_bytes())[0]]
    return {entry.client_id: entry.auto_renew for entry in entries if isinstance(entry, GrantEntry)}


def test_three_replicas_change_twice(tmp_path: Path) -> None:
    with FailoverGroup(tmp_path, replicas=3) as group:
        assert group.hand_over(2) == 2
        wait_until(lambda: group.master() == 2, limit_s=120, what="broker 2 is the master")
        group.wait_whole()
        group.change("kill, left dead")
        _check(group)


def test_a_master_whose_process_has_ended_is_replaced_before_its_lease_is_over(tmp_path: Path) -> None:
    with FailoverGroup(tmp_path, settings={"failoverLease": "30000"}) as group:
        group.brokers[0].kill()
        wait_until(lambda: group.master() == 1, limit_s=120, what="broker 1 is the master")

        def reason() -> str:
            state = group.state_of(group.brokers[1])
            return "" if state is None else state.reason

        wait_until(lambda: reason() == "the master's process has ended", limit_s=PATIENCE_S, what="that was why")
        group.brokers[0].start()
        group.wait_whole()
        _check(group)


def _check(group: FailoverGroup) -> None:
    wait_until(lambda: len(group.acknowledged()) > 100, limit_s=120, what="there are messages")
    group.stop_senders()
    wait_until(group.are_equal, limit_s=120, what="the replicas are equal")
    assert group.lost() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_consumers_finished_does_not_come_again(tmp_path: Path, kind: str) -> None:
    deliveries = Deliveries()
    with FailoverGroup(tmp_path) as group, ExitStack() as consumers:
        for broker in group.brokers:
            consumers.enter_context(SettlingConsumer(broker, TOPIC, deliveries))
        wait_until(lambda: len(deliveries.finished) > 100, limit_s=120, what="consumers finish messages")
        began = set(group.acknowledged())  # The group of consumers has begun at the newest message before.
        group.change(kind)
        group.change(kind)
        group.stop_senders()
        lacking = set(group.acknowledged()) - began
        wait_until(lambda: lacking <= deliveries.came, limit_s=120, what="everything has come")
    assert deliveries.again == []


def test_nobody_sees_a_message_that_only_the_master_holds(tmp_path: Path) -> None:
    deliveries = Deliveries()
    # The set does not shrink.
    with FailoverGroup(tmp_path, settings={"haMaxTimeSlaveNotCatchup": "60000"}) as group, ExitStack() as stack:
        group.stop_senders()
        stack.enter_context(SettlingConsumer(group.brokers[0], TOPIC, deliveries))
        first_number = 1 << 100
        sender = AcknowledgedSender(group.brokers[0], TOPIC, inflight=1, first_number=first_number, pause_s=0.05)
        stack.enter_context(sender)

        def came() -> set[str]:
            """Of this sender's: the others' come first."""
            return {message_id for message_id in list(deliveries.came) if int(message_id, 16) & first_number}

        wait_until(lambda: len(came()) > 10, limit_s=120, what="the consumer gets messages")
        os.kill(group.brokers[1].pid, signal.SIGSTOP)
        stack.callback(os.kill, group.brokers[1].pid, signal.SIGCONT)
        wait_until(lambda: sender.refused + sender.failed > 1, limit_s=120, what="sends are not acknowledged")
        assert came() <= set(sender.acknowledged)
        os.kill(group.brokers[1].pid, signal.SIGCONT)
        count = len(came())
        wait_until(lambda: len(came()) > count + 10, limit_s=120, what="messages come again")


def test_a_master_that_stood_still_gives_nothing_once_its_lease_is_over(tmp_path: Path) -> None:
    """Its slave takes what the master had sent to it, becomes master, and gives it. When the old one goes on, the
    slave's report lies in its socket, and a loop looks at sockets before timers."""
    message_id = f"01{1 << 100:032X}"
    # The set does not shrink.
    with FailoverGroup(tmp_path, settings={"haMaxTimeSlaveNotCatchup": "60000"}) as group:
        group.stop_senders()
        assert asyncio.run(_given_around_a_pause(group, message_id)) == (1, 0)
        group.wait_whole()


async def _given_around_a_pause(group: FailoverGroup, message_id: str) -> tuple[int, int]:
    """How often a message is given by the slave of a master that stands still, and by that master once it goes on: the
    slave has it from the master's last moment, and a receive waits there."""
    master, slave = group.brokers
    request = service.ReceiveMessageRequest(
        group=definition.Resource(name="billing"),
        message_queue=definition.MessageQueue(topic=definition.Resource(name=TOPIC)),
        filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
        batch_size=32,
    )
    request.invisible_duration.FromMilliseconds(300_000)
    request.long_polling_timeout.FromMilliseconds(200_000)
    message = definition.Message(topic=definition.Resource(name=TOPIC), body=b"once")
    message.system_properties.message_id = message_id
    message.system_properties.message_type = definition.NORMAL
    metadata = (("x-mq-client-id", "around-a-pause@1@0@0"), ("x-mq-language", "CPP"))

    async def ids(stub: service_pb2_grpc.MessagingServiceStub) -> list[str]:
        with suppress(grpc.aio.AioRpcError):
            elements = [one async for one in stub.ReceiveMessage(request, metadata=metadata, timeout=220)]
            return [one.message.system_properties.message_id for one in elements if one.HasField("message")]
        return []

    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{master.ports['grpcServerPort']}") as to_master,
        grpc.aio.insecure_channel(f"127.0.0.1:{slave.ports['grpcServerPort']}") as to_slave,
    ):
        old, new = service_pb2_grpc.MessagingServiceStub(to_master), service_pb2_grpc.MessagingServiceStub(to_slave)
        # What the group's senders have left.
        request.long_polling_timeout.FromMilliseconds(1_000)
        while await ids(old):
            pass
        request.long_polling_timeout.FromMilliseconds(200_000)
        waiting = asyncio.create_task(ids(old))
        await asyncio.sleep(2)
        os.kill(slave.pid, signal.SIGSTOP)
        sending = old.SendMessage(service.SendMessageRequest(messages=[message]), metadata=metadata, timeout=120)
        store = group.cluster.store_folder("broker-a-0")
        await until(lambda: message_id.encode() in b"".join(commit_log_bytes(store).values()))
        group.pause(master)
        try:
            os.kill(slave.pid, signal.SIGCONT)
            await asyncio.to_thread(
                wait_until, lambda: group.master() == 1, limit_s=120, what="the slave is the master"
            )
            by_slave = await ids(new)
        finally:
            os.kill(master.pid, signal.SIGCONT)
        by_master = await waiting
        sending.cancel()
    return by_slave.count(message_id), by_master.count(message_id)


def test_an_operator_makes_a_member_master_that_lacks_something(tmp_path: Path) -> None:
    with FailoverGroup(tmp_path) as group:
        group.brokers[1].kill()
        group.wait_in_sync(1)
        group.stop_senders()
        group.brokers[0].kill()
        group.brokers[1].start()
        refused = group.claim_unclean(1, dry_run=True)
        assert isinstance(refused, str), "the lease of the old master may run"
        wait_until(
            lambda: not isinstance(group.claim_unclean(1, dry_run=True), str), limit_s=120, what="the lease is over"
        )
        claim = group.claim_unclean(1, dry_run=False)
        assert not isinstance(claim, str)
        assert [replica.broker_id for replica in claim.missing] == [0]
        assert claim.lost_bytes > 0
        wait_until(lambda: group.master() == 1, limit_s=120, what="broker 1 is the master")
        group.brokers[0].start()
        group.wait_whole()
        wait_until(group.are_equal, limit_s=120, what="the replicas are equal")


def test_an_operator_names_a_master_when_the_authority_has_lost_the_record(tmp_path: Path) -> None:
    with FailoverGroup(tmp_path) as group:
        assert group.hand_over(1) == 1
        wait_until(lambda: group.master() == 1, limit_s=120, what="broker 1 is the master")
        group.wait_whole()
        group.stop_senders()
        for broker in group.brokers:
            broker.kill()
        for record in group.authority.glob("*.json"):
            shutil.rmtree(record)
        for broker in group.brokers:
            broker.start()
        wait_until(
            lambda: not isinstance(group.claim_unclean(0, dry_run=True), str), limit_s=120, what="the lease is over"
        )
        claim = group.claim_unclean(0, dry_run=False)
        assert not isinstance(claim, str)
        assert not claim.missing, "the other one answers, and is asked before"
        wait_until(lambda: group.master() == 0, limit_s=120, what="broker 0 is the master")
        group.wait_whole()
        wait_until(group.are_equal, limit_s=120, what="the replicas are equal")
        assert group.lost() == []


def test_exchanged_folders_are_refused_and_are_as_before_once_they_are_back(tmp_path: Path) -> None:
    with FailoverGroup(tmp_path) as group:
        group.stop_senders()
        stores = [group.cluster.store_folder(key) for key in sorted(group.cluster.brokers)]

        def exchange() -> None:
            aside = tmp_path / "aside"
            stores[0].rename(aside)
            stores[1].rename(stores[0])
            aside.rename(stores[1])

        for broker in group.brokers:
            broker.kill()
        exchange()
        for broker in group.brokers:
            broker.start(wait=False)
            assert broker.process is not None
            assert broker.process.wait(PATIENCE_S) == EXIT_REFUSED
            [refused] = [event for event in broker.events() if event.get("event") == "broker_not_started"]
            assert "give each member its own folder" in refused["error"]
        exchange()
        for broker in group.brokers:
            broker.start()
        group.wait_whole()
        assert group.lost() == []


def _go_on(process: ServiceProcess) -> None:
    if process.process is not None and process.process.poll() is None:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("first", ["the member", "the former master"])
def test_a_topic_that_was_confirmed_to_nobody_gives_way_or_is_the_whole_groups(tmp_path: Path, first: str) -> None:
    """Its master died before the member had it. It stood on one of them for good, and audits called them different."""

    def topics(broker: ServiceProcess) -> set[str]:
        text = (Path(broker.settings["storePathRootDir"]) / "config" / "topics.json").read_text()
        return set(json.loads(text)["topicConfigTable"])

    with FailoverGroup(tmp_path, settings={"inSyncReplicas": "2"}, pause_s=0.05) as group, ExitStack() as stack:
        number = group.master()
        assert number is not None
        master, member = group.brokers[number], group.brokers[1 - number]
        asyncio.run(create_topic(master, "confirmed", queues=1))
        os.kill(member.pid, signal.SIGSTOP)
        stack.callback(_go_on, member)
        with pytest.raises(grpc.aio.AioRpcError):
            asyncio.run(create_topic(master, "unconfirmed", queues=1))
        assert "unconfirmed" in topics(master)
        master.kill()
        if first == "the former master":
            master.start()
        _go_on(member)
        wait_until(lambda: group.master() is not None, limit_s=120, what="somebody is master")
        acts = group.master()
        if first == "the member":
            assert acts == 1 - number
            master.start()
        group.wait_whole()
        wait_until(lambda: topics(master) == topics(member), limit_s=60, what="equal")
        assert "confirmed" in topics(master)
        assert ("unconfirmed" in topics(master)) == (acts == number)
        given_up = [line for line in master.events() if line.get("event") == "metadata_unconfirmed"]
        assert bool(given_up) == (acts != number)
        group.hand_over()
        group.wait_whole()
        wait_until(lambda: topics(master) == topics(member), limit_s=60, what="equal")
        assert ("unconfirmed" in topics(member)) == (acts == number)
        _check(group)
