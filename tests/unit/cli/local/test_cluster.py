"""What people and programs see of a recorded state."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from support.cluster_states import healthy_cluster, master, with_broker
from support.running_time import PATIENCE_S
from tandemmq.admin.cluster_state import diagnose
from tandemmq.cli.ending import CommandError, OutputClosed, signals_to_end
from tandemmq.cli.local.cluster import (
    FREE_PORTS,
    LocalCluster,
    MemberLine,
    PutRates,
    checked_members,
    connect_lines,
    up_picture,
)
from tandemmq.cli.local.folder import DEFAULT_FOLDER, ClusterFolder, ClusterRecord
from tandemmq.cli.local.members import Tracing
from tandemmq.cli.output import Shown, drawing, status_document, status_tables

_RECORD = ClusterRecord(
    preset="2m-2s-sync",
    state="ready",
    supervisor_pid=1,
    supervisor_start_mark="",
    name_servers=("127.0.0.1:9876",),
    client_endpoints=("127.0.0.1:8081", "127.0.0.1:8082"),
    members=(),
)
_LINE = MemberLine(
    name="broker-a",
    role="SYNC_MASTER",
    pid=4711,
    state="serving",
    ports={"grpcServerPort": 8081},
    restart_count=0,
    last_exit="",
    broker_key="broker-a:0",
)


def _text(shown: Shown) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(drawing(shown))
    return out.getvalue()


def test_status_shows_offsets_and_lag_of_a_healthy_cluster() -> None:
    state = healthy_cluster()
    lines = _text(status_tables(state, diagnose(state))).splitlines()
    assert any(line.split()[:2] == ["broker-a:0", "SYNC_MASTER"] and "1,234,567" in line for line in lines)
    assert any(line.startswith("broker-a:0 -> broker-a:1") and " 67 " in line for line in lines)
    assert lines[-1] == "healthy"


def test_status_says_what_is_wrong_and_what_to_do() -> None:
    state = with_broker(healthy_cluster(), master(slaves=()))
    lines = _text(status_tables(state, diagnose(state))).splitlines()
    assert lines[-2].startswith("degraded: broker-a:0 has 0 of 1 slaves in sync")
    assert lines[-1] == "  remedy: start the slave of this group"


def test_status_has_no_empty_table_of_replication() -> None:
    state = healthy_cluster()
    alone = replace(state, brokers=tuple(replace(broker, status=None) for broker in state.brokers))
    heads = [line.split()[0] for line in _text(status_tables(alone, ())).splitlines() if line.split()]
    assert "NameServer" in heads
    assert "replication" not in heads


def test_json_holds_health_findings_and_every_field() -> None:
    state = with_broker(healthy_cluster(), replace(master(), status=None, error="UNAVAILABLE"))
    document = json.loads(json.dumps(status_document(state, diagnose(state))))
    assert document["healthy"] is False
    assert document["findings"][0]["severity"] == "problem"
    assert document["brokers"][0]["error"] == "UNAVAILABLE"
    assert document["brokers"][1]["status"]["master_link"]["state"] == "transfer"
    assert document["name_servers"][0]["revision"] == 7


def test_live_picture_shows_members_before_the_first_reading() -> None:
    text = _text(up_picture(replace(_RECORD, state="starting"), [_LINE], None, {}, [], "/data"))
    assert "4711" in text
    assert "endpoints for SDKs" not in text


def test_live_picture_says_how_to_connect_once_ready() -> None:
    text = _text(up_picture(_RECORD, [_LINE], healthy_cluster(), {"broker-a:0": 250.0}, ["12:00 event"], "/data"))
    assert "127.0.0.1:8081;127.0.0.1:8082" in text
    assert " 250 " in text
    assert "12:00 event" in text


def test_dead_member_shows_why() -> None:
    dead = replace(_LINE, state="died", pid=0, last_exit="killed by signal 9")
    assert "died (killed by signal 9)" in _text(up_picture(_RECORD, [dead], None, {}, [], "/data"))


def test_put_rate_is_per_second_and_never_negative() -> None:
    rates = PutRates()
    rates.update(with_broker(healthy_cluster(), master(put_counts={"PUT_OK": 100})), now_s=10.0)
    rates.update(with_broker(healthy_cluster(), master(put_counts={"PUT_OK": 300})), now_s=12.0)
    assert rates.per_second["broker-a:0"] == 100.0
    rates.update(with_broker(healthy_cluster(), master(put_counts={"PUT_OK": 5})), now_s=13.0)
    assert rates.per_second["broker-a:0"] == 0.0


def test_cluster_with_a_console_says_where_it_is() -> None:
    record = replace(_RECORD, admin_url="http://127.0.0.1:8080/")
    lines = connect_lines(record, "/data")
    assert "console              http://127.0.0.1:8080/" in lines
    assert "metrics              prometheus --config.file=/data/prometheus.yml" in lines
    assert len(connect_lines(_RECORD, "/data")) == len(lines) - 2


def test_hints_say_which_cluster_where_a_command_would_not_find_it_by_itself() -> None:
    named = "\n".join(connect_lines(_RECORD, "/a folder/data"))
    assert "tandemmq produce greetings --data '/a folder/data'\n" in named
    assert "tandemmq consume greetings --group readers --data '/a folder/data'\n" in named
    assert named.endswith("tandemmq down --data '/a folder/data'")
    assert "--data" not in "\n".join(connect_lines(_RECORD, str(DEFAULT_FOLDER.absolute())))


async def test_record_that_cannot_be_written_does_not_stop_the_members(tmp_path: Path) -> None:
    (tmp_path / "cluster.json.new").mkdir()
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    cluster = LocalCluster(ClusterFolder(tmp_path), "2m-noslave", (), restart=True, live=False, console=console)
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    await cluster.run()
    assert "cluster.json was not written: Is a directory" in shown.getvalue()
    assert "cluster: stopping" in shown.getvalue()


class _Unread(io.StringIO):
    """Takes two lines, and then nobody reads any more."""

    def write(self, text: str) -> int:
        if self.getvalue().count("\n") >= 2:
            raise OutputClosed
        return super().write(text)


@pytest.mark.parametrize("live", [False, True])
async def test_a_cluster_whose_output_nobody_reads_stops_in_order_and_says_why_afterwards(
    live: bool, tmp_path: Path
) -> None:
    console = Console(file=_Unread(), width=200, force_terminal=live)
    cluster = LocalCluster(ClusterFolder(tmp_path), "2m-noslave", (), restart=True, live=live, console=console)
    async with asyncio.timeout(PATIENCE_S):
        asyncio.get_running_loop().call_later(1, cluster._announce, "more")
        with pytest.raises(OutputClosed):
            await cluster.run()
    assert not (tmp_path / "cluster.json").exists()


def test_a_closed_terminal_ends_a_cluster_unless_nohup_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests themselves may run under nohup.
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_DFL)
    assert signal.SIGHUP in signals_to_end()
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_IGN)
    assert signals_to_end() == [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize(
    ("problem", "target", "remedy"),
    [
        ("broker-a: flushDiskType=MAYBE (--set): input should be …", "", "mend what --set says"),
        ("broker-a: traceExporterTarget=zz (--set): write it as host:port", "zz", "mend what --trace-target says"),
        ("broker-a: listenPort=10911: another process listens on this port", "", "for other ports, tandemmq up"),
    ],
)
def test_remedy_of_a_wrong_configuration_is_about_what_is_wrong(
    problem: str, target: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemmq.cli.local.cluster._own_problems", lambda *_: [problem])
    folder = ClusterFolder(tmp_path)
    folder.prepare()
    tracing = Tracing(target) if target else None
    with pytest.raises(CommandError) as wrong:
        checked_members(folder, preset="2m-noslave", first_port=FREE_PORTS, overrides=[], admin=False, tracing=tracing)
    assert problem in wrong.value.cause
    assert remedy in wrong.value.remedy
    assert ("for other ports" in wrong.value.remedy) == ("another process" in problem)


def test_a_new_folder_without_room_for_a_message_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came up, was healthy, and stored nothing. A cluster that is there may start to be read and emptied."""
    monkeypatch.setattr("tandemmq.cli.local.cluster._own_problems", lambda *_: [])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=(64 << 20) - 1))
    for known in (False, True):
        folder = ClusterFolder(tmp_path / "data")
        folder.prepare()
        if known:
            assert len(checked_members(folder, preset="2m-noslave", first_port=FREE_PORTS, overrides=[])[1]) == 5
            continue
        with pytest.raises(CommandError) as refused:
            checked_members(folder, preset="2m-noslave", first_port=FREE_PORTS, overrides=[])
        assert refused.value.cause == "brokers reserve 64.0 MiB for their first messages"
