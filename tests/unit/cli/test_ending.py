"""A command that is stopped, or that nobody reads any more, ends without a word: each is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_LIMIT_S = 60.0
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
            timeout=_LIMIT_S,
            check=False,
        )
    finally:
        os.close(write_end)


# Printed by typer, by rich, as JSON, and by the group that lists its commands itself.
@pytest.mark.parametrize("words", ["--help", "--version", "topic --help", "clusterList --help", "context list -o json"])
def test_output_that_nobody_reads_ends_a_command_as_sigpipe_does(words: str) -> None:
    ended = _unread((*_TANDEMMQ, *words.split()))
    assert ended.stderr == b""
    assert ended.returncode == -signal.SIGPIPE


def test_refusal_that_nobody_reads_ends_a_command_as_sigpipe_does(tmp_path: Path) -> None:
    ended = _unread((*_TANDEMMQ, "status", "--data", str(tmp_path)), errors_too=True)
    assert ended.returncode == -signal.SIGPIPE


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
    return subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, timeout=_LIMIT_S, check=False)


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
    from tandemmq.service.command_line import stop_requested
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
    from tandemmq.service.command_line import stop_requested
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
