"""Wrong arguments are refused before anything is asked of a cluster."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from support.running_time import run_program
from tandemmq.admin.cluster_state import ClusterState, NameServerState
from tandemmq.cli.app import app
from tandemmq.cli.cluster_address import find_address
from tandemmq.cli.connection import refuse_blindness
from tandemmq.cli.ending import EXIT_FAILED, EXIT_REFUSED, CommandError, command_error_in


def _refusal(*arguments: str) -> CommandError:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, CommandError), error
    assert error.exit_code == EXIT_REFUSED
    assert error.remedy
    return error


def test_unknown_preset_is_refused_with_those_there_are(tmp_path: Path) -> None:
    refusal = _refusal("up", "--preset", "3m", "--data", str(tmp_path))
    assert refusal.problem == "there is no preset 3m"
    assert "2m-2s-async" in refusal.remedy


def test_two_ways_to_choose_ports_exclude_each_other(tmp_path: Path) -> None:
    _refusal("up", "--free-ports", "--port-base", "20000", "--data", str(tmp_path))


def test_refused_up_says_first_what_it_does_and_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    shown = CliRunner().invoke(app, ["up", "--set", "nonsense", "--data", str(folder)])
    assert isinstance(shown.exception, CommandError)
    assert shown.output.splitlines() == [f"checking the configuration in {folder}/conf"]
    assert list(tmp_path.iterdir()) == []


def test_check_without_an_answer_is_no_mistake_in_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemmq.cli.local.cluster._CHECK_LIMIT_S", 0.0)
    refusal = CliRunner().invoke(app, ["up", "--free-ports", "--data", str(tmp_path)]).exception
    assert isinstance(refusal, CommandError)
    assert "gave no answer within" in refusal.problem
    assert "--check" in refusal.remedy


def test_folder_without_cluster_is_refused(tmp_path: Path) -> None:
    assert "tandemmq up" in _refusal("status", "--data", str(tmp_path)).remedy
    assert f"`tandemmq up --data '{tmp_path}/a b'`" in _refusal("status", "--data", str(tmp_path / "a b")).remedy


@pytest.mark.parametrize("address", ["localhost", "host:port", "a:1,b:2", ";", "", "a:0", "a:65536"])
def test_malformed_name_server_address_is_refused(address: str) -> None:
    assert "names no NameServer" in _refusal("status", "--namesrv", address).problem


def test_unknown_topic_type_is_refused() -> None:
    assert "FIFO" in _refusal("topic", "create", "orders", "--type", "fifo").remedy


def test_named_name_servers_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "elsewhere:9876")
    assert find_address("here:9876;there:9876", None, None).name_servers == ("here:9876", "there:9876")
    assert find_address(None, None, None).name_servers == ("elsewhere:9876",)


def test_every_command_explains_itself() -> None:
    for command in (["up"], ["down"], ["status"], ["topic", "create"], ["group", "list"], ["produce"], ["consume"]):
        shown = CliRunner().invoke(app, [*command, "--help"])
        assert shown.exit_code == 0
        assert "Usage" in shown.output


@pytest.mark.parametrize(
    "words",
    [
        "status",
        "ha status",
        "broker list",
        "broker config get broker-a",
        "topic list",
        "events",
        "trace",
        "clusterList",
        "haStatus",
        "getSyncStateSet",
        "brokerStatus -b broker-a:0",
        "topicList",
    ],
)
def test_absent_cluster_is_one_clear_error_and_no_empty_table(words: str) -> None:
    shown = CliRunner().invoke(app, [*words.split(), "--namesrv", "127.0.0.1:1"])
    assert isinstance(shown.exception, CommandError)
    assert shown.exception.problem == "no NameServer answers"
    assert "127.0.0.1:1: UNAVAILABLE" in shown.exception.cause
    assert "--namesrv" in shown.exception.remedy
    assert shown.stdout == ""


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ("UNAVAILABLE: connection attempt timed out before receiving SETTINGS frame", "says nothing"),
        ("UNAVAILABLE: errors resolving mq1:9876: Domain name not found", "spelt right"),
        ("UNAVAILABLE: ipv4:127.0.0.1:10912: Socket closed", "10912"),
        ("UNAVAILABLE: Connection refused", "tandemmq up"),
    ],
)
def test_what_helps_is_said_by_how_nobody_answers(told: str, word: str) -> None:
    with pytest.raises(CommandError) as raised:
        refuse_blindness(ClusterState((NameServerState("mq1:9876", told, 0, ()),), ()))
    assert word in raised.value.remedy


@pytest.mark.parametrize("words", ["status", "topic list", "trace", "ha status"])
def test_port_of_another_service_is_told_from_an_absent_cluster(words: str) -> None:
    """A gRPC server that is no NameServer, as a broker's port for clients is."""
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            shown = CliRunner().invoke(app, [*words.split(), "--namesrv", f"127.0.0.1:{port}"])
        finally:
            server.stop(None).wait()
    assert isinstance(shown.exception, CommandError), shown.output
    assert shown.exception.problem == "no NameServer answers"
    assert "somebody else answers on that port" in shown.exception.remedy
    assert "9876" in shown.exception.remedy


def test_absent_cluster_is_a_document_for_programs() -> None:
    shown = CliRunner().invoke(app, ["status", "--json", "--namesrv", "127.0.0.1:1"])
    assert json.loads(shown.stdout)["healthy"] is False
    assert shown.exit_code == 1


def test_failure_reads_as_problem_cause_remedy() -> None:
    error = CommandError("it broke", cause="first\nsecond", remedy="mend it")
    assert error.lines() == ["problem: it broke", "cause:   first", "         second", "remedy:  mend it"]


def test_failure_moves_no_cursor_and_keeps_its_lines() -> None:
    error = CommandError("no folder a\x1b[31m\nb", cause="first\r\nsec\x07ond", remedy="name \x9b another")
    assert error.lines() == [
        "problem: no folder a\ufffd[31m\ufffdb",
        "cause:   first",
        "         sec\ufffdond",
        "remedy:  name \ufffd another",
    ]


def test_failure_is_found_inside_nested_groups() -> None:
    error = CommandError("it broke")
    assert command_error_in(ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("bug"), error])])) is error
    assert command_error_in(ExceptionGroup("outer", [ValueError("bug")])) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--path"],
        ["certs", "show", "--data"],
        ["certs", "make", "--data"],
        ["restore-kept-tail", "--store"],
    ],
)
def test_a_path_that_no_file_system_takes_is_named(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "tandemmq.cli", *arguments, "a" * 300]
    done = run_program(command)
    assert done.returncode == EXIT_FAILED
    problem, cause, remedy = done.stderr.splitlines()
    assert "a" * 300 in problem
    assert "File name too long" in cause
    assert remedy
