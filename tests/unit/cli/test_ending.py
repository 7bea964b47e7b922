"""A command that is stopped, or that nobody reads any more, ends without a word: each is a process of its own."""

from __future__ import annotations

import ast
import errno
import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from support.cli_cluster import FakeCluster
from support.fake_operations import FakeOperations
from support.running_time import PATIENCE_S, run_program
from tandemmq.admin.operations.questions import FailureKind, OperationFailed
from tandemmq.admin.operations.values import OffsetReset, ResetTarget
from tandemmq.cli.cluster_address import ContextFile
from tandemmq.cli.commands.local_cluster import bring_down
from tandemmq.cli.commands.repair import read_plan
from tandemmq.cli.commands.transfer import line_key
from tandemmq.cli.ending import EXIT_FAILED, EXIT_REFUSED, CommandError, Refused
from tandemmq.cli.local.folder import (
    ClusterFolder,
    ClusterRecord,
    lay_out,
    read_members,
    replace_text,
    start_mark,
)
from tandemmq.cli.mqadmin import MQADMIN_COMMANDS, cluster_commands, group_commands, topic_commands

_ROOT = Path(__file__).parents[3]
_TANDEMMQ = (sys.executable, "-m", "tandemmq.cli")


def _unread(command: tuple[str, ...], *, errors_too: bool = False) -> subprocess.CompletedProcess[bytes]:
    """The command, its output a pipe whose reader has gone."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        return subprocess.run(
            command,
            stdout=write_end,
            stderr=write_end if errors_too else subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(write_end)


def test_ctrl_c_is_silent_before_the_first_module_is_imported() -> None:
    """Whatever is imported earlier, of Python's own library too, would end in a traceback of KeyboardInterrupt."""
    scripts = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    for name in ("tandemmq", "mqadmin"):
        module, _, function = scripts[name].partition(":")
        script = f"""
import sys, _signal
class Watch:
    def find_spec(self, name, path=None, target=None):
        if _signal.getsignal(_signal.SIGINT) is not _signal.SIG_DFL and name not in ("tandemmq", "{module}"):
            print("too early:", name, file=sys.stderr)
sys.meta_path.insert(0, Watch())
sys.argv = ["{name}", "--version"]
from {module} import {function}
{function}()
"""
        # Without site, which has imported half of it before.
        ended = subprocess.run(
            [sys.executable, "-S", "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert (ended.stderr, ended.stdout[:9]) == ("", "tandemmq ")


# Printed by typer, by rich, as JSON, and by the group that lists its commands itself.
@pytest.mark.parametrize("words", ["--help", "--version", "topic --help", "clusterList --help", "context list -o json"])
def test_output_that_nobody_reads_ends_a_command_as_sigpipe_does(words: str) -> None:
    ended = _unread((*_TANDEMMQ, *words.split()))
    assert ended.stderr == b""
    assert ended.returncode == -signal.SIGPIPE


def test_refusal_that_nobody_reads_ends_a_command_as_sigpipe_does(tmp_path: Path) -> None:
    ended = _unread((*_TANDEMMQ, "status", "--data", str(tmp_path)), errors_too=True)
    assert ended.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("words", ["--help", "--version", "topic --help", "context list -o json"])
@pytest.mark.parametrize("place", ["/dev/full", "closed"])
def test_output_that_cannot_be_written_is_told(words: str, place: str) -> None:
    to = ">&-" if place == "closed" else f">{place}"
    ended = subprocess.run(
        ("sh", "-c", f'exec "$@" {to}', "sh", *_TANDEMMQ, *words.split()),
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    first, cause, _ = ended.stderr.splitlines()
    assert first == "problem: the output cannot be written"
    assert cause.removeprefix("cause:   ") == os.strerror(errno.EBADF if place == "closed" else errno.ENOSPC)
    assert ended.returncode == EXIT_FAILED


@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full"])
def test_refusal_that_cannot_be_told_is_in_the_exit_code(to: str, tmp_path: Path) -> None:
    command = (*_TANDEMMQ, "status", "--data", str(tmp_path))
    ended = subprocess.run(
        ("sh", "-c", f'exec "$@" {to}', "sh", *command), capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == EXIT_REFUSED


def test_output_that_takes_nothing_for_a_while_is_waited_for() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with open(read_end, "rb") as reader:
        full = b"x" * fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ)
        os.write(write_end, full)
        with subprocess.Popen((*_TANDEMMQ, "--version"), stdout=write_end, stderr=subprocess.PIPE) as command:
            os.close(write_end)
            assert reader.read(len(full)) == full
            assert reader.read().startswith(b"tandemmq ")
            assert command.wait(PATIENCE_S) == 0


def _run_as_a_command(body: str) -> subprocess.CompletedProcess[str]:
    """A command whose action on the event loop is this."""
    script = f"""
import asyncio, contextlib, os, signal, sys
import typer
from tandemmq.cli import __main__ as program, app as commands, ending

async def action():
{body}

commands.app = typer.Typer(pretty_exceptions_enable=False)
commands.app.command()(lambda: ending.run(action()))
sys.argv = ["tandemmq"]
program.main()
"""
    return run_program((sys.executable, "-c", script))


def test_ctrl_c_lets_a_command_put_away_what_it_made() -> None:
    ended = _run_as_a_command(
        """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print("put away")
"""
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "put away\n", "")


def test_a_start_that_is_ended_while_it_checks_leaves_nothing(tmp_path: Path) -> None:
    """At moments of its second, drawn; whoever asked sees it in how the process ended."""
    chance = random.Random()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        data, after_s = tmp_path / number.name, chance.uniform(0, 1)
        command = subprocess.Popen(
            (*_TANDEMMQ, "up", "--check", "--free-ports", "--data", data),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert command.stdout is not None
        # Not Python's own start, in which nothing of ours is heard.
        assert command.stdout.readline().startswith("checking the configuration")
        time.sleep(after_s)
        command.send_signal(number)
        _, errors = command.communicate(timeout=PATIENCE_S)
        assert (errors, command.returncode) in (("", -number), ("", 0)), (after_s, number)
        assert data.exists() == (command.returncode == 0), (after_s, number)


def test_a_start_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """Each member's check would make its store."""
    words = ("up", "--free-ports", "--set", "broker-a:flushDiskType=WRONG", "--data")
    refused = run_program((*_TANDEMMQ, *words, tmp_path / "new" / "data"))
    assert (refused.returncode, "flushDiskType=WRONG" in refused.stderr) == (EXIT_REFUSED, True)
    assert list(tmp_path.iterdir()) == []


def test_second_ctrl_c_does_not_wait() -> None:
    ended = _run_as_a_command(
        """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        print("put away")
"""
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_in_one_of_several_tasks_says_nothing() -> None:
    ended = _run_as_a_command(
        """
    async def spoil():
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("the connection was cut")
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(spoil())
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
"""
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_after_an_orderly_stop_was_possible_says_nothing() -> None:
    ended = _run_as_a_command(
        """
    from tandemmq.service.settings import stop_requested
    with stop_requested() as stop:
        pass
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)
"""
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_second_signal_while_a_command_stops_in_order_ends_it() -> None:
    ended = _run_as_a_command(
        """
    from tandemmq.service.settings import stop_requested
    with stop_requested() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGINT)
        print("went on")
"""
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_mistake_of_ours_is_not_hidden() -> None:
    ended = _run_as_a_command("    raise ValueError('a bug')")
    assert ended.returncode == 1
    assert "ValueError: a bug" in ended.stderr


def test_missing_package_is_named_with_the_extra_that_brings_it() -> None:
    ended = _run_as_a_command("    sys.modules['numpy'] = None\n    import numpy")
    assert ended.returncode == 2
    assert "numpy" in ended.stderr
    assert "pip install 'tandemmq[broker]'" in ended.stderr
    assert "Traceback" not in ended.stderr


# RocketMQ's own commands: their options, their columns, and what they say of what is not here.

# As RocketMQ 5 prints them.
_HEADERS = {
    ("clusterList",): "#Cluster Name #Broker Name #BID #Addr #Version #InTPS(LOAD) #OutTPS(LOAD) #Timer(Progress) "
    "#PCWait(ms) #Hour #SPACE #ACTIVATED",
    ("clusterList", "-m"): "#Cluster Name #Broker Name #InTotalYest #OutTotalYest #InTotalToday #OutTotalToday",
    ("topicList", "-c"): "#Cluster Name #Topic #Consumer Group",
    ("topicRoute", "-t", "orders", "-l"): "#ClusterName #BrokerName #BrokerAddrs #ReadQueue #WriteQueue #Perm",
    ("topicStatus", "-t", "orders"): "#Broker Name #QID #Min Offset #Max Offset #Last Updated",
    ("consumerProgress",): "#Group #Count #Version #Type #Model #TPS #Diff Total",
    ("consumerProgress", "-g", "billing"): "#Topic #Broker Name #QID #Broker Offset #Consumer Offset #Diff #Inflight "
    "#LastTime",
    ("consumerProgress", "-g", "billing", "-s", "true"): "#Topic #Broker Name #QID #Broker Offset #Consumer Offset "
    "#Client IP #Diff #Inflight #LastTime",
    ("consumerStatus", "-g", "billing"): "#Index #ClientId #Version #ConsumerRunningInfoFile",
    ("consumerConnection", "-g", "billing"): "#ClientId #ClientAddr #Language #Version",
    ("queryMsgByKey", "-t", "orders", "-k", "eu"): "#Message ID #QID #Offset",
    ("sendMessage", "-t", "orders", "-p", "x"): "#Broker Name #QID #Send Result #MsgId",
    ("listUser", "-c", "DefaultCluster"): "#UserName #Password #UserType #UserStatus",
    ("getAcl", "-c", "DefaultCluster", "-s", "User:billing"): "#Subject #PolicyType #Resource #Actions #SourceIp "
    "#Decision",
}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are measured over a second otherwise."""
    for module in (cluster_commands, cluster_commands, topic_commands, group_commands):
        monkeypatch.setattr(module, "_RATE_INTERVAL_S", 0.0)


def test_the_commands_operators_use_most_are_all_there() -> None:
    assert set(MQADMIN_COMMANDS) == {
        *("clusterList", "topicList", "topicRoute", "topicStatus", "updateTopic", "deleteTopic"),
        *("updateSubGroup", "deleteSubGroup", "consumerProgress", "consumerStatus", "consumerConnection"),
        *("producerConnection", "brokerStatus", "getBrokerConfig", "updateBrokerConfig", "queryMsgById"),
        *("queryMsgByKey", "queryMsgByOffset", "queryMsgByUniqueKey", "printMsg", "sendMessage", "resetOffsetByTime"),
        *("wipeWritePerm", "addWritePerm", "haStatus", "getSyncStateSet", "electMaster"),
        *("createUser", "updateUser", "deleteUser", "getUser", "listUser", "copyUser"),
        *("createAcl", "updateAcl", "deleteAcl", "getAcl", "listAcl", "copyAcl"),
    }


@pytest.mark.parametrize("words", _HEADERS, ids=" ".join)
def test_columns_are_rocketmqs(words: tuple[str, ...]) -> None:
    first = FakeCluster().run(*words).splitlines()[0]
    assert " ".join(first.split()) == _HEADERS[words]


@pytest.mark.parametrize("words", [("clusterList",), ("topicList",), ("haStatus",), ("consumerProgress",)])
def test_programs_get_documents(words: tuple[str, ...]) -> None:
    assert isinstance(json.loads(FakeCluster().run(*words, "-o", "json")), list)


def test_cluster_list_has_a_line_for_each_broker() -> None:
    lines = FakeCluster().run("clusterList", "-c", "DefaultCluster").splitlines()
    assert [line.split()[1:4] for line in lines[1:3]] == [
        ["broker-a", "0", "127.0.0.1:10911"],
        ["broker-a", "1", "127.0.0.1:10931"],
    ]
    assert FakeCluster().failure("clusterList", "-c", "Elsewhere").cause == "there is DefaultCluster"


def test_route_is_rocketmqs_document() -> None:
    route = json.loads(FakeCluster().run("topicRoute", "-t", "orders"))
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.1.0:8081", "1": "10.0.1.1:8081"}
    assert route["queueDatas"][0] == {
        "brokerName": "broker-a",
        "perm": 6,
        "readQueueNums": 4,
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }


def test_topic_is_made_on_one_broker_or_on_all_and_deleted() -> None:
    cluster = FakeCluster()
    made = cluster.run(
        "updateTopic", "-c", "DefaultCluster", "-t", "fresh", "-r", "4", "-w", "2", "-p", "6", "-o", "false"
    )
    assert made.splitlines()[:2] == ["create topic to broker-a:0 success.", "create topic to broker-b:0 success."]
    assert "readQueueNums=4, writeQueueNums=2, perm=RW-" in made
    cluster.run("updateTopic", "-b", "127.0.0.1:10951", "-t", "one", "-a", "+message.type=FIFO")
    assert [each.broker_name for each in cluster.operations.cluster.topics["one"].brokers] == ["broker-b"]
    assert "delete topic [one] from NameServer success." in cluster.run("deleteTopic", "-t", "one", "--yes")


@pytest.mark.parametrize(
    "words",
    [
        ("updateTopic", "-t", "x"),
        ("updateTopic", "-t", "x", "-c", "DefaultCluster", "-o", "true"),
        ("updateTopic", "-t", "x", "-c", "DefaultCluster", "-a", "+nonsense=1"),
        ("updateSubGroup", "-g", "x"),
        ("createUser", "-u", "x", "-p", "open sesame"),
        ("brokerStatus",),
        ("brokerStatus", "-b", "10.9.9.9:1"),
        ("getBrokerConfig",),
        ("sendMessage", "-t", "orders", "-p", "x", "-b", "broker-a"),
        ("queryMsgById", "-t", "orders", "-i", "x", "-g", "billing", "-d", "client"),
        ("consumerStatus", "-g", "billing", "-s"),
        ("resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", "now", "-q", "1"),
        ("resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", "yesterday"),
        ("getSyncStateSet", "-b", "broker-z"),
        ("electMaster", "-a", "x", "-bn", "broker-a", "-c", "DefaultCluster"),
        ("electMaster", "-bn", "broker-a", "-b", "1", "-c", "DefaultCluster"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_or_not_here_is_refused_with_what_to_do_instead(words: tuple[str, ...]) -> None:
    failure = FakeCluster().failure(*words)
    assert failure.exit_code == EXIT_REFUSED
    assert failure.remedy


def test_group_is_made_with_what_is_kept_and_the_rest_is_named() -> None:
    cluster = FakeCluster()
    result = cluster.invoke("updateSubGroup", "-c", "DefaultCluster", "-g", "g", "-r", "5", "-s", "false", "-m", "true")
    assert "retryMaxTimes=5" in result.stdout
    assert "note: -m changes nothing" in result.stderr
    assert not cluster.operations.cluster.groups["g"].enabled
    assert "from broker [broker-a:0]" in cluster.run("deleteSubGroup", "-g", "g", "--yes")


def test_users_and_policies_are_made_changed_shown_and_deleted() -> None:
    cluster = FakeCluster()
    where = ("-c", "DefaultCluster")
    made = cluster.invoke("createUser", *where, "-u", "ann", "-p", "planted-secret", "-t", "Super", "-b", "broker-a")
    assert made.stdout.splitlines() == ["create user to broker-a:0 success.", "create user to broker-b:0 success."]
    assert "note: -b changes nothing" in made.stderr
    assert "note: others may have seen the secret in `ps`" in made.stderr
    assert "planted-secret" not in made.output
    assert "`ps`" not in cluster.invoke("updateUser", *where, "-u", "ann", "-s", "disable").stderr
    [line] = cluster.run("getUser", *where, "-u", "ann").splitlines()[1:]
    assert line.split() == ["ann", "******", "Super", "disable"]
    assert [line.split()[0] for line in cluster.run("listUser", *where, "-f", "n").splitlines()[1:]] == [
        "ann",
        "billing",
    ]
    created = cluster.run(
        "createAcl", *where, "-s", "User:ann", "-r", "Topic:a,Group:b", "-a", "Pub,Sub", "-i", "10.0.0.0/8"
    )
    assert created.splitlines()[0] == "create acl to broker-a:0 success."
    cluster.run("updateAcl", *where, "-s", "User:ann", "-r", "Topic:a", "-a", "All", "-d", "Deny")
    rows = [line.split() for line in cluster.run("getAcl", *where, "-s", "User:ann").splitlines()[1:]]
    assert rows == [
        ["User:ann", "Custom", "Topic:a", "All", "*", "Deny"],
        ["User:ann", "Custom", "Group:b", "Pub,Sub", "10.0.0.0/8", "Allow"],
    ]
    cluster.run("deleteAcl", *where, "-s", "User:ann", "-r", "Topic:a", "--yes")
    assert "Topic:a" not in cluster.run("listAcl", *where)
    assert cluster.run("copyUser", "-f", "broker-a", "-t", "broker-b", "-u", "ann").splitlines() == [
        "ann on broker-b:0: copied"
    ]
    assert "copied" in cluster.run("copyAcl", "-f", "broker-a", "-t", "broker-b", "-s", "User:ann")
    assert "delete user to broker-a:0 success." in cluster.run("deleteUser", *where, "-u", "ann", "--yes")
    assert cluster.failure("deleteUser", *where, "-u", "ann", "--yes").exit_code == EXIT_FAILED


def test_progress_has_totals() -> None:
    output = FakeCluster().run("consumerProgress", "-g", "billing", "-t", "payments")
    assert "Consume Diff Total: 6" in output
    assert "Consume Inflight Total: 8" in output


def test_members_that_subscribe_to_different_things_are_warned_of() -> None:
    assert "WARN: Different subscription" in FakeCluster().run("consumerStatus", "-g", "billing")
    assert FakeCluster().failure("consumerStatus", "-g", "newcomer").exit_code == EXIT_FAILED


def test_producers_of_a_topic_are_numbered() -> None:
    assert FakeCluster().run("producerConnection", "-t", "orders").split()[:2] == ["0001", "shop@1@1"]


def test_broker_status_names_the_broker_when_several_are_asked() -> None:
    assert "brokerRole                      : SYNC_MASTER" in FakeCluster().run("brokerStatus", "-b", "broker-a")
    assert "127.0.0.1:10931          brokerRole" in FakeCluster().run("brokerStatus", "-c", "DefaultCluster")


def test_settings_are_shown_and_changed_on_masters_unless_told() -> None:
    cluster = FakeCluster()
    assert "fileReservedTime                                  =  48" in cluster.run("getBrokerConfig", "-b", "broker-a")
    change = ("updateBrokerConfig", "-c", "DefaultCluster", "-k", "fileReservedTime", "-v", "24", "--yes")
    assert len(cluster.run(*change).splitlines()) == 2
    assert len(cluster.run(*change, "-a", "true").splitlines()) == 4


def test_message_is_shown_by_each_of_its_names() -> None:
    cluster = FakeCluster()
    message = next(each for each in cluster.operations.cluster.messages if each.topic == "payments")
    place = ("-b", message.broker_name, "-i", str(message.queue_id), "-o", str(message.queue_offset))
    for words in (
        ("queryMsgById", "-t", "payments", "-i", message.offset_message_id),
        ("queryMsgByUniqueKey", "-t", "payments", "-i", message.message_id, "-a"),
        ("queryMsgByOffset", "-t", "payments", *place),
    ):
        output = cluster.run(*words)
        assert f"OffsetID:            {message.offset_message_id}" in output
        assert 'Message Body:        {"paid": true}' in output
        assert "MessageTrack [consumerGroup=billing" in output
    assert cluster.failure("queryMsgById", "-t", "orders", "-i", "01NONE").problem == "Message not found!"


def test_all_messages_are_printed_queue_by_queue() -> None:
    output = FakeCluster().run("printMsg", "-t", "payments", "-s", "created || paid", "-d", "false")
    assert output.count("MSGID: ") == 4
    assert "NOT PRINT BODY" in output
    assert "minOffset=0, maxOffset=2, MessageQueue [topic=payments, brokerName=broker-a, queueId=0]" in output


def test_offsets_are_reset_by_time() -> None:
    cluster = FakeCluster()
    words = ("resetOffsetByTime", "-g", "billing", "-t", "orders", "-s")
    assert "come again" in cluster.run(*words, "1000000000000", "--dry-run")
    assert "#brokerName" in cluster.run(*words, "2026-11-22#01:00:00:000", "--yes")


class _Resets(FakeOperations):
    """Keeps where groups were told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[ResetTarget] = []

    async def reset_offsets(
        self, group: str, topic: str, target: ResetTarget, *, dry_run: bool = False
    ) -> Sequence[OffsetReset]:
        self.targets.append(target)
        return await super().reset_offsets(group, topic, target, dry_run=dry_run)


def test_offset_of_one_queue_is_reset_to_a_number_or_by_time() -> None:
    operations = _Resets()
    cluster = FakeCluster(operations)
    words = ("resetOffsetByTime", "-g", "billing", "-t", "orders", "-b", "broker-a", "-q", "0", "--yes")
    cluster.run(*words, "-s", "now", "-o", "3")
    assert operations.targets == [ResetTarget(offsets={("broker-a", 0): 3})]
    cluster.run(*words, "-s", "1000000000000")
    assert operations.targets[-1] == ResetTarget(offsets={("broker-a", 0): 0})


def test_permission_is_taken_at_every_name_server() -> None:
    cluster = FakeCluster()
    lines = cluster.run("wipeWritePerm", "-b", "broker-a", "--yes").splitlines()
    assert lines[0] == "wipe write perm of broker[broker-a] in name server[10.0.0.1:9876] OK, 13"
    assert cluster.run("addWritePerm", "-b", "broker-a", "--yes").startswith("add write perm of broker[broker-a]")


def test_replication_is_told_as_rocketmq_does() -> None:
    output = FakeCluster().run("haStatus", "-b", "broker-a")
    assert "#MasterCommitLogMaxOffset\t1234567" in output
    assert "#InSyncSlaveNum\t1" in output
    shown = FakeCluster().run("getSyncStateSet", "-b", "broker-a")
    assert "#SyncStateSetNums\t2" in shown
    replica = "ReplicaIdentity{brokerName='broker-a', brokerId=1, brokerAddress='127.0.0.1:10931', alive=true}"
    assert f"InSyncReplica:\t{replica}" in shown


def test_a_master_is_elected_as_rocketmq_tells_it() -> None:
    cluster = FakeCluster()
    planned = cluster.run("electMaster", "-bn", "broker-a", "-b", "1", "--dry-run")
    assert "#BrokerMasterAddr\t127.0.0.1:10931" in planned
    assert cluster.operations.cluster.masters["broker-a"] == (0, 1)
    lines = cluster.run("electMaster", "-bn", "broker-a", "-b", "1", "--yes").splitlines()
    assert "#MasterEpoch\t2" in lines
    assert cluster.operations.cluster.masters["broker-a"] == (1, 2)


def test_help_of_a_command_is_asked_for_as_in_rocketmq() -> None:
    cluster = FakeCluster()
    assert "InTPS" in cluster.run("help", "clusterList")
    assert "RocketMQ's own commands" in cluster.run("help")
    assert cluster.invoke("help", "nonsense").exit_code == EXIT_REFUSED


# What commands are given: files that are not what they should be, no home, no input, a terminal of another alphabet.

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _documents(*keys: str) -> st.SearchStrategy[bytes]:
    """What may lie in the place of a document with these keys."""
    near = st.fixed_dictionaries({}, optional=dict.fromkeys(keys, _JSON)).map(json.dumps)
    deep = st.sampled_from(["[", '{"a":', '{"contexts":', "- "]).map(lambda part: part * 2_000)
    return st.binary(max_size=40) | (_JSON.map(json.dumps) | near | deep).map(str.encode)


def _read_or_refused(read: Callable[[], object]) -> None:
    told: CommandError | None = None
    try:
        read()
    except CommandError as refused:
        told = refused
    if told is not None:
        assert told.remedy
        assert not _PYTHONS_WORDS.search(told.cause), told.cause


_PYTHONS_WORDS = re.compile(r"codec can't|object is not|object cannot|has no attribute")


@settings(max_examples=60, deadline=None)
@given(text=_documents("current", "contexts"))
def test_contexts_that_are_none_are_told(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "contexts.yaml"
        path.write_bytes(text)
        _read_or_refused(ContextFile(path).read)


@settings(max_examples=60, deadline=None)
@given(text=_documents("preset", "state", "supervisor_pid", "name_servers", "client_endpoints", "members"))
def test_a_record_of_a_cluster_that_is_none_is_told(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cluster.json").write_bytes(text)
        _read_or_refused(ClusterFolder(Path(folder)).read_record)


@settings(max_examples=60, deadline=None)
@given(text=_documents("schema", "run_id", "cluster", "steps"))
def test_a_repair_plan_that_is_none_is_told(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "repair-plan.json"
        path.write_bytes(text)
        _read_or_refused(lambda: read_plan(str(path)))


@settings(max_examples=20, deadline=None)
@given(text=st.binary(max_size=40) | st.sampled_from([b"", b"3m", b"../2m-2s-sync", b"2m-2s-sync\n"]))
@pytest.mark.parametrize("name", ["PRESET", "broker-a.properties"])
def test_a_data_folder_of_another_kind_is_told(name: str, text: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = ClusterFolder(Path(place))
        folder.prepare()
        (folder.conf / name).write_bytes(text)

        def read() -> None:
            read_members(folder, lay_out(folder, None), {})

        _read_or_refused(read)
        if name != "PRESET":
            assert (folder.conf / name).read_bytes() == text, "it is an operator's"


def test_a_file_that_cannot_be_written_anew_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "broker-a.properties"
    path.write_text("listenPort=1\n")
    path.with_name(path.name + ".new").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_text(path, "listenPort=2\n")
    assert path.read_text() == "listenPort=1\n"


@pytest.mark.parametrize("words", ["send t -", "user create ann --password-file -", "repair --plan -"])
def test_input_that_cannot_be_read_is_told(words: str, tmp_path: Path) -> None:
    """`0>file`, or a descriptor that a unit opened for writing."""
    with (tmp_path / "written").open("wb") as only_written:
        ended = run_program((*_TANDEMMQ, *words.split()), stdin=only_written)
    assert (ended.returncode, ended.stderr[:9]) == (EXIT_REFUSED, "problem: ")
    assert os.strerror(errno.EBADF) in ended.stderr


def test_a_terminal_of_another_alphabet_gets_what_it_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ended = _run_as_a_command("    print('gr\\u00fc\\u00dfe')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "gr??e\n", "")


def test_a_user_without_a_home_has_no_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container may run as any number."""
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.chdir(tmp_path)
    assert ContextFile().read().by_name == {}
    with pytest.raises(CommandError, match="no home folder"):
        ContextFile().write(ContextFile().read())
    assert list(tmp_path.iterdir()) == []


def test_another_users_cluster_is_not_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    folder = ClusterFolder(tmp_path)
    mark = start_mark(os.getpid()) or ""
    folder.write_record(ClusterRecord("2m-2s-sync", "ready", os.getpid(), mark, ("127.0.0.1:1",), (), ()))
    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(CommandError, match="cannot be stopped by user id") as refused:
        bring_down(folder, Console())
    assert "as that user" in refused.value.remedy
    assert folder.read_record() is not None


def test_a_key_in_a_line_without_end_is_none() -> None:
    assert line_key(b'{"id":' * 100_000, "id") is None


@pytest.mark.parametrize(
    ("words", "code"),
    [("verify --tier zz", 1), ("verify --nope", 1), ("check disk --warning x", 3), ("status --nope", EXIT_REFUSED)],
)
def test_a_wrong_call_is_no_verdict(words: str, code: int) -> None:
    """2 of `verify` says that replicas differ, and of `check` that the cluster is in trouble."""
    assert run_program([*_TANDEMMQ, *words.split()]).returncode == code


@pytest.mark.parametrize("words", ["status --namesrv 127.0.0.1:1", "topic list -n 127.0.0.1:1"])
@pytest.mark.parametrize(("name", "value"), [("PATH", "/nowhere"), ("PATH", ""), ("MODE", "zz")])
def test_a_certificate_of_the_environment_that_cannot_be_used_is_told(
    words: str, name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEMMQ_SERVICE_TLS_PATH", str(tmp_path))
    monkeypatch.setenv(f"TANDEMMQ_SERVICE_TLS_{name}", value)
    ended = run_program([*_TANDEMMQ, *words.split()])
    assert "Traceback" not in ended.stderr
    problem = "no NameServer answers" if (name, value) == ("PATH", "") else "the certificate that $TANDEMMQ_SERVICE_TLS"
    assert ended.stderr.startswith(f"problem: {problem}")
    assert "\nremedy:  " in ended.stderr


def test_a_home_that_is_no_folder_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of many a service's user is /dev/null."""
    monkeypatch.setenv("HOME", os.devnull)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert not ContextFile().read().by_name
    with pytest.raises(CommandError, match="cannot be written"):
        ContextFile().write(ContextFile().read())


_WITHOUT_REMEDY = {"'you said no; nothing was changed'", "'Message not found!'", "'the credentials are incomplete'"}


def test_every_failure_says_what_helps() -> None:
    """But where a person said no, in RocketMQ's own words, or where the cause says it."""
    lacking = set()
    for path in (_ROOT / "services" / "tandemmq" / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in _FAILURES:
                continue
            if "remedy" not in {each.arg for each in node.keywords}:
                lacking.add(ast.unparse(node.args[0]))
    assert lacking == _WITHOUT_REMEDY


_FAILURES = {CommandError.__name__, Refused.__name__}


def test_failed_operations_with_a_cause_say_what_helps() -> None:
    for kind in (FailureKind.INVALID, FailureKind.NOT_FOUND, FailureKind.UNAVAILABLE):
        assert OperationFailed(kind, "it failed", cause="somebody said so").remedy
    assert OperationFailed(FailureKind.INVALID, "it failed", cause="so", remedy="do this").remedy == "do this"


def test_an_empty_list_is_no_name_that_was_not_found() -> None:
    empty = FakeCluster(FakeOperations(empty=True))
    for words in ("topic list", "group list", "user list", "acl list", "clients"):
        assert "no such" not in empty.run(*words.split()), words
    for words in ("topic list --search x", "group list --search x", "user list --search x"):
        assert "no such" in empty.run(*words.split()), words
    assert empty.failure("clients", "--topic", "x").problem == "there is no topic x"


def test_a_transaction_has_no_end_that_was_not_named() -> None:
    assert FakeCluster().failure("transaction", "resolve", "x").remedy == "give --commit or --rollback"
