"""The preset files are complete, agree with each other, and do what RocketMQ's presets of these names do."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tandemmq.cli.local.folder import (
    PORT_KEYS,
    PRESETS,
    Member,
    MemberKind,
    member_problems,
    parse_properties,
    preset_files,
)

_ROLES = {
    "2m-2s-sync": ("SYNC_MASTER", "SYNC_MASTER", "SLAVE", "SLAVE"),
    "2m-2s-async": ("ASYNC_MASTER", "ASYNC_MASTER", "SLAVE", "SLAVE"),
    "2m-noslave": ("ASYNC_MASTER", "ASYNC_MASTER"),
}


def _members(preset: str) -> list[Member]:
    return [Member(name=name, settings=parse_properties(text)) for name, text in preset_files(preset).items()]


@pytest.mark.parametrize("preset", PRESETS)
def test_members_come_in_start_order_with_rocketmqs_roles(preset: str) -> None:
    members = _members(preset)
    assert [member.name for member in members[:2]] == ["namesrv-0", "namesrv-1"]
    assert tuple(member.role for member in members[2:]) == _ROLES[preset]


@pytest.mark.parametrize("preset", PRESETS)
def test_members_do_not_get_in_each_others_way(preset: str) -> None:
    assert member_problems(_members(preset)) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_every_name_server_has_a_folder_to_remember_in(preset: str) -> None:
    name_servers = [member for member in _members(preset) if member.kind is MemberKind.NAME_SERVER]
    assert [member.settings["storePathRootDir"] for member in name_servers] == ["store/namesrv-0", "store/namesrv-1"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_port_is_explicit(preset: str) -> None:
    for member in _members(preset):
        assert tuple(member.ports) == PORT_KEYS[member.kind], member.name


@pytest.mark.parametrize("preset", PRESETS)
def test_groups_share_what_a_group_must_share(preset: str) -> None:
    brokers = [member for member in _members(preset) if member.kind is MemberKind.BROKER]
    for key in ("mappedFileSizeCommitLog", "brokerClusterName", "totalReplicas", "flushDiskType"):
        assert len({member.settings[key] for member in brokers}) == 1, key


def test_groups_of_the_sync_preset_fail_over_and_the_others_do_not() -> None:
    for preset in PRESETS:
        brokers = [member for member in _members(preset) if member.kind is MemberKind.BROKER]
        wanted = "file:authority" if preset == "2m-2s-sync" else ""
        assert {member.settings.get("failoverAuthority", "") for member in brokers} == {wanted}


def test_new_groups_start_at_the_oldest_message_in_every_preset_local_and_helm() -> None:
    local = [
        parse_properties(text).get("consumeFromEarliest")
        for preset in PRESETS
        for member, text in preset_files(preset).items()
        if not member.startswith("namesrv-")
    ]
    assert set(local) == {"true"}
    for preset in PRESETS:
        values = yaml.safe_load((Path(__file__).parents[4] / "deploy" / "helm" / f"{preset}.yaml").read_text())
        assert values["brokers"]["settings"]["consumeFromEarliest"] is True
