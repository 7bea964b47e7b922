"""Puts a preset's files into a data folder, gives them ports, and reads them back as members."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from admin.cli.cluster_folder import ClusterFolder, join_addresses
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.member import PORT_KEYS, Member, MemberKind
from admin.cli.preset import DEFAULT_PRESET, preset_files
from admin.cli.properties_file import parse_properties, with_values

__all__ = [
    "free_ports",
    "is_free",
    "lay_out",
    "port_count",
    "read_member",
    "read_members",
    "renumber",
    "split_overrides",
]

_PRESET_NOTE: Final = "PRESET"
# Below 32768, where Linux begins with ports for outgoing connections; others begin higher.
_FREE_PORTS: Final = range(20_000, 32_000)


def lay_out(folder: ClusterFolder, preset: str | None) -> str:
    """Copies the files of the preset that are not there yet; returns its name.

    A folder keeps its preset: mixing two would leave stores that no longer fit their roles.
    """
    note = folder.conf / _PRESET_NOTE
    kept = note.read_text(encoding="utf-8").strip() if note.exists() else None
    if kept is not None and preset is not None and kept != preset:
        raise CommandError(
            f"{folder.root} holds a cluster of preset {kept}, not {preset}",
            remedy=f"leave --preset out to start it, or choose another --data for {preset}",
            exit_code=EXIT_REFUSED,
        )
    name = kept or preset or DEFAULT_PRESET
    for member, text in preset_files(name).items():
        path = folder.conf / f"{member}.properties"
        if not path.exists():
            path.write_text(text, encoding="utf-8")
    note.write_text(name + "\n", encoding="utf-8")
    return name


def read_members(folder: ClusterFolder, preset: str, overrides: dict[str, list[str]]) -> list[Member]:
    """The members of the folder in start order, with the overrides of this run (from `split_overrides`)."""
    return [read_member(folder, name, overrides) for name in preset_files(preset)]


def read_member(folder: ClusterFolder, name: str, overrides: dict[str, list[str]]) -> Member:
    """One member, as its file is, with the overrides of this run."""
    text = (folder.conf / f"{name}.properties").read_text(encoding="utf-8")
    filed = Member(name=name, settings=parse_properties(text))
    for_all = overrides.get("", []) if filed.kind is MemberKind.BROKER else []
    own = (*for_all, *overrides.get(name, []))
    return replace(filed, settings={**filed.settings, **parse_properties("\n".join(own))}, overrides=own)


def split_overrides(values: Sequence[str], members: Sequence[str]) -> dict[str, list[str]]:
    """`key=value` for all brokers (under "") and `member:key=value` for one, by member."""
    overrides: dict[str, list[str]] = {}
    for value in values:
        target, colon, assignment = value.partition(":")
        # A value may hold colons (namesrvAddr=host:port); a member's name stands before the key.
        if not colon or "=" in target:
            target, assignment = "", value
        if "=" not in assignment or (target and target not in members):
            raise CommandError(
                f"--set {value} cannot be understood",
                cause=f"there is no member {target}" if "=" in assignment else "it has no '='",
                remedy=f"write key=value for all brokers, or member:key=value with one of {', '.join(members)}",
                exit_code=EXIT_REFUSED,
            )
        overrides.setdefault(target, []).append(assignment)
    return overrides


def renumber(folder: ClusterFolder, preset: str, ports: Sequence[int]) -> None:
    """Writes these ports into the files, in start order, and the NameServers' into every namesrvAddr."""
    remaining = iter(ports)
    members = read_members(folder, preset, {})
    chosen = {member.name: {key: str(next(remaining)) for key in PORT_KEYS[member.kind]} for member in members}
    name_servers = join_addresses(
        f"{member.host}:{chosen[member.name]['listenPort']}"
        for member in members
        if member.kind is MemberKind.NAME_SERVER
    )
    for member in members:
        values = chosen[member.name]
        if member.kind is MemberKind.BROKER:
            values["namesrvAddr"] = name_servers
        path = folder.conf / f"{member.name}.properties"
        path.write_text(with_values(path.read_text(encoding="utf-8"), values), encoding="utf-8")


def port_count(preset: str) -> int:
    """How many ports the preset's members listen on."""
    return sum(len(PORT_KEYS[Member(name=name, settings={}).kind]) for name in preset_files(preset))


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, below the range systems take for outgoing connections.

    A broker that restarts must find its port free again, and in that range any connection may have it by then.
    """
    first = _FREE_PORTS.start + os.getpid() * count % len(_FREE_PORTS)
    candidates = itertools.chain(range(first, _FREE_PORTS.stop), range(_FREE_PORTS.start, first))
    return list(itertools.islice(filter(is_free, candidates), count))


def is_free(port: int) -> bool:
    """True when nobody listens on this port of loopback."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
