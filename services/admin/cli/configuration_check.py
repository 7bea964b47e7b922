"""Lays out a local cluster's configuration and has all of it checked before anything starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from admin.cli.admin_member import admin_member
from admin.cli.cluster_folder import ClusterFolder
from admin.cli.conf_files import free_ports, lay_out, port_count, read_members, renumber, split_overrides
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.member import Member, MemberKind, member_environment, member_problems
from admin.cli.preset import preset_files
from admin.cli.traced_members import Tracing, traced_members

__all__ = ["FREE_PORTS", "checked_members", "refuse_leftovers"]

# As the first port: whatever is free.
FREE_PORTS: Final = 0
_CHECK_LIMIT_S: Final = 60.0


def refuse_leftovers(folder: ClusterFolder) -> None:
    """CommandError when members of an earlier `tandemmq up` that was killed still run. The folder is locked by us."""
    record = folder.read_record()
    left = [member for member in record.members if member.running] if record else []
    if left:
        raise CommandError(
            f"members of an earlier cluster still run in {folder.root}",
            cause=", ".join(f"{member.name} (pid {member.pid})" for member in left),
            remedy=f"stop them with `tandemmq down --data {folder.root}`",
            exit_code=EXIT_REFUSED,
        )


def checked_members(
    folder: ClusterFolder,
    *,
    preset: str | None,
    first_port: int | None,
    overrides: Sequence[str],
    admin: bool = True,
    tracing: Tracing | None = None,
) -> tuple[str, list[Member]]:
    """The preset's name and the members in start order. CommandError names every mistake of every member.

    `first_port` None keeps the ports that are in the files; FREE_PORTS or a port writes new ones into them. With
    `admin` the admin service is the last of the members.
    """
    name = lay_out(folder, preset)
    if first_port is not None:
        count = port_count(name)
        ports = free_ports(count) if first_port == FREE_PORTS else range(first_port, first_port + count)
        renumber(folder, name, ports)
    names = [*preset_files(name), *([MemberKind.ADMIN] if admin else [])]
    by_member = split_overrides(overrides, names)
    members = read_members(folder, name, by_member)
    near = first_port is not None
    if admin:
        members.append(admin_member(folder, members, by_member, near=near))
    if tracing is not None:
        members = traced_members(members, tracing, near=near)
    problems = [*member_problems(members), *_own_problems(members, folder)]
    if problems:
        raise CommandError(
            f"{len(problems)} mistake(s) in the configuration; nothing was started",
            cause="\n".join(problems),
            remedy=f"edit the files in {folder.conf}, or delete one to get the preset's back; "
            "for other ports, --port-base or --free-ports",
            exit_code=EXIT_REFUSED,
        )
    return name, members


def _own_problems(members: Sequence[Member], folder: ClusterFolder) -> list[str]:
    """What each member says of its own configuration: asked of the very program that will read it."""
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        answers = pool.map(lambda member: _check(member, folder), members)
        return [f"{member.name}: {line}" for member, lines in zip(members, answers, strict=True) for line in lines]


def _check(member: Member, folder: ClusterFolder) -> list[str]:
    try:
        checked = subprocess.run(
            member.command("--check"),
            cwd=folder.root,
            env=member_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"its check gave no answer within {_CHECK_LIMIT_S:.0f} s"]
    if checked.returncode == 0:
        return []
    lines = [line for line in (checked.stdout + checked.stderr).splitlines() if line.strip()]
    if checked.returncode == EXIT_REFUSED and lines:
        return lines
    return [f"its check ended with exit code {checked.returncode}: {lines[-1] if lines else 'no output'}"]
