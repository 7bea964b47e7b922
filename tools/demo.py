"""A whole cluster, the official client, and a master killed on the way: shows that nothing acknowledged is lost.

    python tools/demo.py            # what `make demo` runs; about a minute

Starts the preset 2m-2s-sync in build/demo, sends 10,000 real lines with the official RocketMQ client for Python in a
process and environment of its own, receives them, kills one master with SIGKILL on the way and lets the supervisor
bring it back. Then reads the CommitLogs themselves. Writes build/demo.json; exit code 1 when a row does not hold.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for the demo folder beside tools/

from demo.evidence import compare_logs, logged_message_ids  # noqa: E402
from demo.official_client import install_official_client  # noqa: E402
from demo.real_lines import real_lines  # noqa: E402

BUILD = ROOT / "build"
FOLDER = BUILD / "demo"
CLIENT = BUILD / "official-client"
TOPIC, GROUP = "demo-lines", "demo-readers"
LINES = 10_000
# The master dies when this part of the lines is acknowledged.
KILL_AT = 0.4
GROUPS = ("broker-a", "broker-b")
KILLED = "broker-a"
# The bytes a dead master had handed to the system before it died arrive at its slave within this time.
SETTLE_S = 0.3
START_LIMIT_S = 120.0
CLIENT_LIMIT_S = 150.0
CATCH_UP_LIMIT_S = 30.0
STOP_LIMIT_S = 75.0

console = Console()


@dataclass(frozen=True)
class Row:
    """One line of the result."""

    name: str
    value: float
    unit: str
    target: str
    holds: bool


@dataclass(frozen=True)
class Acknowledgement:
    """A line the official client was told is stored."""

    number: int
    message_id: str
    port: int
    monotonic_s: float


@dataclass(frozen=True)
class Death:
    """The master's death as its slave saw it."""

    at_s: float
    # When the slave's log was read; the master was still dead.
    read_at_s: float
    slave_message_ids: set[str]
    back_after_s: float


def main() -> int:
    """Runs the demo and writes its report."""
    started_s = time.monotonic()
    install_official_client()
    stop_former_cluster()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    rows = asyncio.run(run())
    rows.append(row("demo_duration", round(time.monotonic() - started_s, 1), "s", "<= 180"))
    (BUILD / "demo.json").write_text(json.dumps([asdict(each) for each in rows], indent=2) + "\n")
    show(rows)
    return 0 if all(each.holds for each in rows) else 1


async def run() -> list[Row]:
    """The story: cluster up, lines through it, a master dies, cluster down, files read."""
    lines, source = real_lines(LINES, fallback=ROOT / "LICENSE")
    lines_file = FOLDER / "lines.txt"
    lines_file.write_text("\n".join(lines), encoding="utf-8")
    console.print(f"{LINES:,} lines from {source}", highlight=False)
    log = (FOLDER / "up.log").open("wb")
    cluster = await asyncio.create_subprocess_exec(
        *cli("up", "--preset", "2m-2s-sync", "--data", str(FOLDER), "--free-ports", "--no-live"), stdout=log, stderr=log
    )
    try:
        record = await until_ready(cluster)
        console.print(f"cluster ready: {len(record['members'])} processes, {record['client_endpoints']}")
        await tandemmq("topic", "create", TOPIC)
        await tandemmq("group", "create", GROUP)
        death, repeated = await move_lines(record, lines_file)
        ends = await caught_up(record)
    finally:
        await stop(cluster, signal.SIGTERM, STOP_LIMIT_S)
        log.close()
    return judge(record, death, repeated, ends)


async def move_lines(record: dict[str, Any], lines_file: Path) -> tuple[Death, int]:
    """Sends and receives at once; the master dies in between. Returns its death and how many sends were repeated."""
    endpoints = ";".join(record["client_endpoints"])
    common = ["--endpoints", endpoints, "--topic", TOPIC]
    receiver = await official(
        "receive", *common, "--group", GROUP, "--expect", str(LINES), "--limit-s", str(CLIENT_LIMIT_S)
    )
    sender = await official("send", *common, "--lines", str(lines_file))
    kill_now, repeated = asyncio.Event(), [0]
    try:
        with Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        ) as progress:
            sent = progress.add_task("acknowledged", total=LINES)
            received = progress.add_task("received", total=LINES)

            def on_sent(word: str) -> None:
                if word.startswith("repeated"):
                    repeated[0] = int(word.split()[1])
                    return
                progress.update(sent, completed=int(word))
                if int(word) >= LINES * KILL_AT:
                    kill_now.set()

            async with asyncio.timeout(CLIENT_LIMIT_S), asyncio.TaskGroup() as tasks:
                tasks.create_task(follow(sender, on_sent))
                tasks.create_task(follow(receiver, lambda word: progress.update(received, completed=int(word))))
                death = tasks.create_task(kill_master(record, kill_now))
        if sender.returncode != 0:
            raise SystemExit(f"the sender ended with {sender.returncode}; see {FOLDER / 'send.log'}")
        return death.result(), repeated[0]
    finally:
        for client in (sender, receiver):
            await stop(client, signal.SIGKILL, 5.0)


async def kill_master(record: dict[str, Any], kill_now: asyncio.Event) -> Death:
    """SIGKILL by pid, the slave's log while the master is dead, and the time until the supervisor has it back."""
    await kill_now.wait()
    pid = member(cluster_record(), KILLED)["pid"]
    os.kill(pid, signal.SIGKILL)
    died_s = time.monotonic()
    console.print(f"killed {KILLED} (pid {pid}) with SIGKILL")
    await asyncio.sleep(SETTLE_S)
    read_s = time.monotonic()
    ids = await asyncio.to_thread(logged_message_ids, Path(member(record, f"{KILLED}-s")["store"]))
    if member(cluster_record(), KILLED)["pid"] not in (0, pid):
        raise SystemExit("the master was back before its slave's log was read: the evidence is not valid")

    async def is_back() -> bool:
        return KILLED in (await serving_masters())

    await until(is_back, START_LIMIT_S, f"{KILLED} serves again")
    back_s = time.monotonic() - died_s
    console.print(f"{KILLED} serves again after {back_s:.1f} s, as pid {member(cluster_record(), KILLED)['pid']}")
    return Death(at_s=died_s, read_at_s=read_s, slave_message_ids=ids, back_after_s=back_s)


async def serving_masters() -> set[str]:
    """Groups whose master answers and is registered."""
    state = await status()
    return {
        broker["broker_name"]
        for broker in state["brokers"]
        if broker["broker_id"] == 0 and broker["registered"] and broker["status"]
    }


async def caught_up(record: dict[str, Any]) -> dict[str, int]:
    """Waits until every slave has all of its master's log; returns the end offset of each group."""
    ends: dict[str, int] = {}

    async def is_level() -> bool:
        offsets: dict[str, set[int]] = {name: set() for name in GROUPS}
        for broker in (await status())["brokers"]:
            offsets[broker["broker_name"]].add(broker["status"]["end_offset"] if broker["status"] else -1)
        ends.update({name: max(found) for name, found in offsets.items()})
        return all(len(found) == 1 and -1 not in found for found in offsets.values())

    await until(is_level, CATCH_UP_LIMIT_S, "slaves have caught up")
    return ends


def judge(record: dict[str, Any], death: Death, repeated: int, ends: dict[str, int]) -> list[Row]:
    """Compares what the client was told, what it received, and what is in the files."""
    acknowledged = read_acknowledgements()
    numbers = {each.number for each in acknowledged}
    deliveries = [line.split("\t") for line in (FOLDER / "receive.tsv").read_text().splitlines()]
    received = {int(number) for number, _, _ in deliveries}
    stores = {each["name"]: Path(each["store"]) for each in record["members"] if each["store"]}
    killed_port = member(record, KILLED)["ports"]["grpcServerPort"]
    before_death = {
        each.message_id for each in acknowledged if each.port == killed_port and each.monotonic_s <= death.read_at_s
    }
    on_slaves = set().union(*(logged_message_ids(stores[f"{name}-s"]) for name in GROUPS))
    rows = [
        row("lines_acknowledged", len(numbers), "lines", f"== {LINES}"),
        row("lines_received", len(received), "lines", f"== {LINES}"),
        row("acknowledged_lines_missing", len(numbers - received), "lines", "== 0"),
        row("repeated_deliveries", len(deliveries) - len(received), "deliveries", ">= 0"),
        row("sends_repeated_by_the_application", repeated, "sends", ">= 0"),
        row("acknowledged_by_the_killed_master_before_its_death", len(before_death), "messages", ">= 1"),
        row(
            "of_these_missing_on_its_slave_at_that_moment",
            len(before_death - death.slave_message_ids),
            "messages",
            "== 0",
        ),
        row(
            "acknowledged_messages_missing_on_slaves",
            len({a.message_id for a in acknowledged} - on_slaves),
            "messages",
            "== 0",
        ),
    ]
    for name in GROUPS:
        compared = compare_logs(stores[name], stores[f"{name}-s"], end_offset=ends[name])
        label = name.replace("-", "_")
        rows.append(row(f"{label}_commit_log", compared.compared_bytes, "bytes", ">= 1"))
        rows.append(row(f"{label}_commit_log_differing_on_slave", compared.differing_bytes, "bytes", "== 0"))
    rows.append(row("killed_master_back_after", round(death.back_after_s, 1), "s", "<= 60"))
    return rows


def row(name: str, value: float, unit: str, target: str) -> Row:
    """A row whose target is a comparison, for example `== 0`."""
    operator, limit = target.split()
    holds = {"==": value == float(limit), ">=": value >= float(limit), "<=": value <= float(limit)}[operator]
    return Row(name, value, unit, target, holds)


def show(rows: list[Row]) -> None:
    """The table for people."""
    table = Table(title="What the demo shows")
    for column in ("", "value", "unit", "target", "holds"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for each in rows:
        verdict = "[green]yes[/green]" if each.holds else "[bold red]NO[/bold red]"
        table.add_row(each.name.replace("_", " "), f"{each.value:,}", each.unit, each.target, verdict)
    console.print(table)


def read_acknowledgements() -> list[Acknowledgement]:
    """The sender's record."""
    rows = (line.split("\t") for line in (FOLDER / "send.tsv").read_text().splitlines())
    return [Acknowledgement(int(number), message_id, int(port), float(at)) for number, message_id, port, at in rows]


def stop_former_cluster() -> None:
    """What an interrupted demo left running."""
    if (FOLDER / "cluster.json").exists():
        subprocess.run(cli("down", "--data", str(FOLDER)), check=True)


def cli(*arguments: str) -> list[str]:
    """The product's own command line."""
    return [sys.executable, "-m", "admin.cli", *arguments]


async def tandemmq(*arguments: str) -> None:
    """Runs one command against the demo's cluster and shows what it says."""
    process = await asyncio.create_subprocess_exec(*cli(*arguments, "--data", str(FOLDER)))
    if await process.wait() != 0:
        raise SystemExit(f"tandemmq {' '.join(arguments)} failed")


async def status() -> dict[str, Any]:
    """`tandemmq status --json`; its exit code does not matter here, a dead master is part of the demo."""
    process = await asyncio.create_subprocess_exec(
        *cli("status", "--json", "--data", str(FOLDER)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    found: dict[str, Any] = json.loads(output)
    return found


async def official(script: str, *arguments: str) -> asyncio.subprocess.Process:
    """Starts one of the official client's scripts; its own log goes below build/demo instead of the user's home."""
    home = FOLDER / "client-home"
    home.mkdir(exist_ok=True)
    with (FOLDER / f"{script}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            str(CLIENT / "bin" / "python"),
            str(ROOT / "demo" / f"official_{script}.py"),
            *arguments,
            "--record",
            str(FOLDER / f"{script}.tsv"),
            env=os.environ | {"HOME": str(home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )


async def follow(process: asyncio.subprocess.Process, on_line: Callable[[str], object]) -> None:
    """Hands over each line the process prints until it ends."""
    assert process.stdout is not None
    async for line in process.stdout:
        on_line(line.decode().strip())
    await process.wait()


async def stop(process: asyncio.subprocess.Process, number: signal.Signals, limit_s: float) -> None:
    """Ends a process of ours, by its pid; kills it after the limit."""
    if process.returncode is None:
        process.send_signal(number)
        try:
            async with asyncio.timeout(limit_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def until_ready(cluster: asyncio.subprocess.Process) -> dict[str, Any]:
    """cluster.json once all members serve."""

    async def is_ready() -> bool:
        if cluster.returncode is not None:
            raise SystemExit(f"the cluster did not start:\n{(FOLDER / 'up.log').read_text()}")
        return (FOLDER / "cluster.json").exists() and cluster_record()["state"] == "ready"

    await until(is_ready, START_LIMIT_S, "the cluster is ready")
    return cluster_record()


def cluster_record() -> dict[str, Any]:
    """What `tandemmq up` says runs."""
    record: dict[str, Any] = json.loads((FOLDER / "cluster.json").read_text())
    return record


def member(record: dict[str, Any], name: str) -> dict[str, Any]:
    """One member of cluster.json."""
    found: dict[str, Any] = next(each for each in record["members"] if each["name"] == name)
    return found


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> None:
    """Polls until the condition holds; ends the demo when the limit passes."""
    deadline = time.monotonic() + limit_s
    while not await condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {limit_s:.0f} s: {what}")
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
