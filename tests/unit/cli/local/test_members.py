"""The admin service beside a local cluster, what `tandemmq up --tracing` adds, and what both leave alone."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest
import yaml

from support.running_time import PATIENCE_S
from tandemmq.admin.rpc import Channels
from tandemmq.cli.ending import EXIT_REFUSED, CommandError
from tandemmq.cli.local import members as members_module
from tandemmq.cli.local.cluster import FREE_PORTS, checked_members
from tandemmq.cli.local.folder import (
    DEFAULT_PRESET,
    ClusterFolder,
    Member,
    lay_out,
    listens,
    member_problems,
    preset_files,
    read_members,
    renumber,
    split_overrides,
)
from tandemmq.cli.local.members import (
    MemberState,
    SupervisedMember,
    Tracing,
    admin_member,
    scrape_configuration,
    traced_members,
)


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.prepare()
    return folder


def _traced(folder: ClusterFolder, *overrides: str, target: str = "") -> dict[str, Member]:
    preset = lay_out(folder, None)
    renumber(folder, preset, range(21_000, 21_014))
    by_member = split_overrides(overrides, [*preset_files(preset), "admin"])
    members = read_members(folder, preset, by_member)
    members.append(admin_member(folder, members, by_member, near=True))
    found = traced_members(members, Tracing(target=target), near=True)
    assert member_problems(found) == []
    return {member.name: member for member in found}


def test_the_console_of_a_renumbered_cluster_keeps_its_port(folder: ClusterFolder) -> None:
    port = int(_traced(folder)["admin"].settings["httpPort"])
    assert 21_014 <= port < 21_100
    members = read_members(folder, lay_out(folder, None), {})
    assert admin_member(folder, members, {}, near=False).settings["httpPort"] == str(port)
    stated = split_overrides(["admin:httpPort=29999"], ["admin"])
    assert admin_member(folder, members, stated, near=False).settings["httpPort"] == "29999"


def test_every_broker_traces_every_message_and_every_member_tells_metrics_on_a_port_of_its_own(
    folder: ClusterFolder,
) -> None:
    members = _traced(folder, target="127.0.0.1:4317")
    assert list(members)[-1] == "admin"
    admin = members.pop("admin")
    assert admin.settings["namesrvAddr"] == "127.0.0.1:21000;127.0.0.1:21001"
    assert admin.health_address == f"127.0.0.1:{admin.settings['httpPort']}"
    assert len({member.ports["metricsPromExporterPort"] for member in members.values()}) == 6
    for name, member in members.items():
        assert member.tells_metrics
        traced = {key: value for key, value in member.settings.items() if key.startswith("trace")}
        assert traced == (
            {}
            if name.startswith("namesrv-")
            else {"traceEnable": "true", "traceSampleRate": "1.0", "traceExporterTarget": "127.0.0.1:4317"}
        )
    assert "--set" in members["broker-a"].command()
    assert "traceExporterTarget" not in _traced(folder)["broker-a"].settings


def test_what_is_stated_stays(folder: ClusterFolder) -> None:
    members = _traced(
        folder, "traceSampleRate=0.5", "broker-a:metricsPromExporterPort=21500", "admin:refreshInterval=500"
    )
    assert members["broker-a"].settings["metricsPromExporterPort"] == "21500"
    assert members["broker-b-s"].settings["traceSampleRate"] == "0.5"
    assert members["admin"].settings["refreshInterval"] == "500"


def test_files_are_not_changed(folder: ClusterFolder) -> None:
    _traced(folder)
    for path in folder.conf.glob("*.properties"):
        text = path.read_text(encoding="utf-8")
        assert "metricsExporterType" not in text
        assert "traceEnable" not in text


def test_prometheus_scrapes_all_of_them(folder: ClusterFolder) -> None:
    members = _traced(folder)
    document = yaml.safe_load(scrape_configuration(list(members.values()), folder))
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in document["scrape_configs"]}
    assert {name: len(targets) for name, targets in jobs.items()} == {"nameserver": 2, "broker": 4, "admin": 1}
    assert jobs["admin"] == [members["admin"].address("httpPort")]
    port = members["broker-b-s"].ports["metricsPromExporterPort"]
    assert f"127.0.0.1:{port}" in jobs["broker"]


def test_cluster_without_metrics_is_not_scraped(folder: ClusterFolder) -> None:
    preset = lay_out(folder, None)
    assert scrape_configuration(read_members(folder, preset, {}), folder) == ""


@pytest.mark.parametrize("name", [*preset_files(DEFAULT_PRESET), "admin"])
@pytest.mark.parametrize("spoiled", ["no text", "a folder", "a link to itself", "a link to nothing"])
def test_a_file_that_cannot_be_read_is_refused_by_its_name(name: str, spoiled: str, folder: ClusterFolder) -> None:
    for first_port in (None, FREE_PORTS):
        path = folder.conf / f"{name}-{first_port}" / "conf" / f"{name}.properties"
        path.parent.mkdir(parents=True)
        if spoiled == "no text":
            path.write_bytes(b"httpPort=\xff\xfe")
        elif spoiled == "a folder":
            path.mkdir()
        else:
            path.symlink_to(path.name)
        another = ClusterFolder(path.parents[1])
        with pytest.raises(CommandError) as refused, another.kept_if_done():
            checked_members(another, preset=None, first_port=first_port, overrides=[])
        assert str(path) in "\n".join(refused.value.lines())
        assert (refused.value.exit_code, bool(refused.value.remedy)) == (EXIT_REFUSED, True)


async def test_a_member_does_not_serve_because_another_cluster_answers_on_its_port(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as others:
        port = others.getsockname()[1]
        assert listens(os.getpid(), port)
        assert not listens(os.getpid(), 1)
        member = _Refusing("namesrv-0", {"listenPort": str(port)})
        lines: list[str] = []
        channels = Channels()
        supervised = SupervisedMember(
            member, folder, channels, restart=True, announce=lines.append, changed=lambda: None
        )
        monkeypatch.setattr(members_module, "serving", _serves)
        async with asyncio.timeout(PATIENCE_S):
            await supervised.run()
        await channels.close()
    assert supervised.failed_to_start
    assert supervised.last_words == ["the port is taken"]
    assert not any(str(MemberState.SERVING) in line for line in lines)


async def _serves(_channels: Channels, _address: str) -> bool:
    return True


class _Refusing(Member):
    def command(self, *extra: str) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(1); print('the port is taken'); raise SystemExit(2)"]
