from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.cli.ending import CommandError
from tandemmq.cli.local.folder import (
    ClusterFolder,
    free_ports,
    lay_out,
    make_authority_folders,
    member_problems,
    port_count,
    preset_files,
    read_members,
    renumber,
    replace_text,
    split_overrides,
)

_NAMES = ["namesrv-0", "broker-a"]


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.prepare()
    return folder


def test_changed_file_wins_over_the_preset(folder: ClusterFolder) -> None:
    preset = lay_out(folder, None)
    changed = folder.conf / "broker-a.properties"
    changed.write_text(changed.read_text().replace("flushDiskType=ASYNC_FLUSH", "flushDiskType=SYNC_FLUSH"))
    assert lay_out(folder, None) == preset == "2m-2s-sync"
    members = {member.name: member for member in read_members(folder, preset, {})}
    assert members["broker-a"].settings["flushDiskType"] == "SYNC_FLUSH"
    assert members["broker-b"].settings["flushDiskType"] == "ASYNC_FLUSH"


def test_folder_keeps_its_preset(folder: ClusterFolder) -> None:
    lay_out(folder, "2m-noslave")
    assert lay_out(folder, None) == "2m-noslave"
    with pytest.raises(CommandError, match="holds a cluster of preset 2m-noslave"):
        lay_out(folder, "2m-2s-sync")


@pytest.mark.parametrize("written", range(5))
def test_a_folder_whose_making_was_killed_holds_files_of_one_preset(
    written: int, folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(range(written))

    def write(path: Path, text: str) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        replace_text(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("tandemmq.cli.local.folder.replace_text", write)
        with pytest.raises(KeyboardInterrupt):
            lay_out(folder, "2m-noslave")
    preset = lay_out(folder, None)
    found = {path.stem: path.read_text(encoding="utf-8") for path in folder.conf.glob("*.properties")}
    assert found == preset_files(preset)


def test_renumbered_members_find_their_name_servers(folder: ClusterFolder) -> None:
    preset = lay_out(folder, None)
    renumber(folder, preset, range(21_000, 21_000 + port_count(preset)))
    members = read_members(folder, preset, {})
    assert member_problems(members) == []
    assert sorted(port for member in members for port in member.ports.values()) == list(range(21_000, 21_014))
    assert members[2].settings["namesrvAddr"] == "127.0.0.1:21000;127.0.0.1:21001"


def test_overrides_reach_all_brokers_or_the_named_member(folder: ClusterFolder) -> None:
    preset = lay_out(folder, None)
    overrides = split_overrides(["slaveTimeout=5000", "broker-a:namesrvAddr=h:1;h:2"], ["broker-a", "broker-b"])
    members = {member.name: member for member in read_members(folder, preset, overrides)}
    assert members["namesrv-0"].overrides == ()
    authority = f"failoverAuthority=file:{folder.root}/authority"
    assert members["broker-b"].overrides == ("slaveTimeout=5000", authority)
    assert members["broker-a"].settings["namesrvAddr"] == "h:1;h:2"
    command = members["broker-a"].command()
    assert command[-6:] == ["--set", "slaveTimeout=5000", "--set", "namesrvAddr=h:1;h:2", "--set", authority]


def test_the_authority_is_a_folder_of_this_data_folder_and_of_the_whole_group(folder: ClusterFolder) -> None:
    preset = lay_out(folder, None)
    names = ["broker-a", "broker-a-s"]
    members = read_members(folder, preset, {})
    make_authority_folders(folder, members)
    assert (folder.root / "authority").is_dir()
    off = read_members(folder, preset, split_overrides(["failoverAuthority="], names))
    assert {member.authority for member in off} == {""}
    assert member_problems(off) == []
    mixed = read_members(folder, preset, split_overrides(["broker-a-s:failoverAuthority="], names))
    [problem] = member_problems(mixed)
    assert problem.startswith("broker-a-s: failoverAuthority: (empty) is not that of broker-a")


@pytest.mark.parametrize("value", ["slaveTimeout", "broker-x:slaveTimeout=1", "broker-a:slaveTimeout"])
def test_override_that_cannot_be_understood_is_refused(value: str) -> None:
    with pytest.raises(CommandError, match="cannot be understood"):
        split_overrides([value], _NAMES)


def test_value_with_a_colon_is_no_member() -> None:
    assert split_overrides(["namesrvAddr=127.0.0.1:9876"], _NAMES) == {"": ["namesrvAddr=127.0.0.1:9876"]}


def test_free_ports_are_distinct_and_below_outgoing_ones() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < 32_768
