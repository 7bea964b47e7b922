"""A whole cluster, the official client, and a master killed on the way: shows that nothing acknowledged is lost.

    python tools/demo.py            # what `make demo` runs; about a minute

Starts the preset 2m-2s-sync in build/demo, sends 10,000 real lines with the official RocketMQ client for Python in a
process and environment of its own, receives them, kills one master with SIGKILL on the way and leaves it dead: its
slave takes over. When all is received the dead one is started again, as a slave. Then the CommitLogs themselves are
read. Writes build/demo.json; exit code 1 when a row does not hold.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for the demo folder beside tools/

from demo.demo_cluster import DemoCluster, stop_process, until
from demo.evidence import compare_logs, logged_message_ids
from demo.official_client import install_official_client
from demo.real_lines import real_lines
from demo.report import Row, compared, result_table, verdict, write_rows

BUILD = ROOT / "build"
FOLDER = BUILD / "demo"
TOPIC, GROUP = "demo-lines", "demo-readers"
LINES = 10_000
# The master dies when this part of the lines is acknowledged.
KILL_AT = 0.4
GROUPS = ("broker-a", "broker-b")
KILLED = "broker-a"
# The bytes a dead master had handed to the system before it died arrive at its slave within this time.
SETTLE_S = 0.3
TAKE_OVER_LIMIT_S = 60.0
CLIENT_LIMIT_S = 150.0
# The official client takes this long to say goodbye while polls are open.
CLIENT_STOP_S = 15.0
CATCH_UP_LIMIT_S = 30.0
# Only what was under way when the master died may come, or be sent, twice: a few batches. Not what had been settled.
REPEATED_MAX = LINES // 10
# A pipe or a log file gets the table unwrapped.
WIDTH = 120

console = Console(width=None if sys.stdout.isatty() else WIDTH)


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

    # Read before anybody had taken over: what the group acknowledged until then, the killed one did.
    slave_message_ids: set[str]
    read_at_monotonic_s: float
    taken_over_after_s: float


@dataclass(frozen=True)
class Traffic:
    """What happened while lines were under way."""

    death: Death
    repeated_sends: int


def main() -> int:
    """Runs the demo and writes its report."""
    started_s = time.monotonic()
    client = install_official_client()
    DemoCluster(FOLDER).stop_former()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    rows = asyncio.run(run(client))
    rows.append(compared("demo_duration", round(time.monotonic() - started_s, 1), "s", "<= 180"))
    write_rows(rows, BUILD / "demo.json")
    console.print(result_table(rows))
    for line in verdict(rows, FOLDER):
        console.print(line, highlight=False, soft_wrap=True)
    return 0 if all(row.holds for row in rows) else 1


async def run(client: Path) -> list[Row]:
    """The story: cluster up, lines through it, a master dies and stays dead, comes back, cluster down, files read."""
    lines, source = real_lines(LINES, fallback=ROOT / "LICENSE")
    (FOLDER / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    console.print(f"{LINES:,} lines from {source}", highlight=False)
    cluster = DemoCluster(FOLDER)
    try:
        await cluster.start("2m-2s-sync")
        members = cluster.record()["members"]
        console.print(f"cluster ready: {len(members)} processes, clients at {cluster.record()['client_endpoints']}")
        await cluster.run("topic", "create", TOPIC)
        await cluster.run("group", "create", GROUP)
        traffic = await move_lines(cluster, client)
        role = await bring_back(cluster)
        ends = await caught_up(cluster)
        stores = {name: Path(cluster.member(name)["store"]) for name in (*GROUPS, *(f"{name}-s" for name in GROUPS))}
        ports = {int(cluster.member(name)["ports"]["grpcServerPort"]) for name in (KILLED, f"{KILLED}-s")}
    finally:
        await cluster.stop()
    back = compared("killed_master_back_as_a_slave", int(role == "SLAVE"), "broker", "== 1")
    return [*judge_lines(traffic, ports), back, *judge_logs(stores, ends)]


async def move_lines(cluster: DemoCluster, client: Path) -> Traffic:
    """Sends and receives at once; the master dies in between."""
    common = ["--endpoints", ";".join(cluster.record()["client_endpoints"]), "--topic", TOPIC]
    receiving = ["--group", GROUP, "--expect", str(LINES), "--limit-s", str(CLIENT_LIMIT_S)]
    receiver = await official(client, "receive", *common, *receiving)
    sender = await official(client, "send", *common, "--lines", str(FOLDER / "lines.txt"))
    kill_now = asyncio.Event()
    repeated_sends = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            sent = progress.add_task("acknowledged", total=LINES)
            received = progress.add_task("received", total=LINES)

            def sender_says(text: str) -> None:
                nonlocal repeated_sends
                if text.startswith("repeated"):
                    repeated_sends = int(text.split()[1])
                    return
                progress.update(sent, completed=int(text))
                if int(text) >= LINES * KILL_AT:
                    kill_now.set()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(follow(sender, sender_says))
                tasks.create_task(follow(receiver, lambda text: progress.update(received, completed=int(text))))
                death = tasks.create_task(kill_master(cluster, kill_now))
    finally:
        for process in (sender, receiver):
            await stop_process(process, signal.SIGKILL, 5.0)
    return Traffic(death=death.result(), repeated_sends=repeated_sends)


async def kill_master(cluster: DemoCluster, kill_now: asyncio.Event) -> Death:
    """SIGKILL by pid, the slave's log before anybody takes over, and the time until the slave is the master."""
    await kill_now.wait()
    pid = int(cluster.member(KILLED)["pid"])
    os.kill(pid, signal.SIGKILL)
    died_s = time.monotonic()
    console.print(f"killed {KILLED} (pid {pid}) with SIGKILL")
    await asyncio.sleep(SETTLE_S)
    read_at_s = time.monotonic()
    ids = await asyncio.to_thread(logged_message_ids, Path(cluster.member(f"{KILLED}-s")["store"]))

    async def is_taken_over() -> bool:
        return await role_of(cluster, 1) == "SYNC_MASTER"

    await until(is_taken_over, TAKE_OVER_LIMIT_S, f"the slave of {KILLED} is the master")
    taken_over_s = time.monotonic() - died_s
    console.print(f"its slave is the master after {taken_over_s:.1f} s; {KILLED} stays dead")
    console.print(
        "receiving takes longer than sending: what a consumer had in hand of the dead master comes again when its "
        "lease of 15 s ends, and the official client looks for a new route every 30 s",
        highlight=False,
        soft_wrap=True,
    )
    return Death(slave_message_ids=ids, read_at_monotonic_s=read_at_s, taken_over_after_s=taken_over_s)


async def bring_back(cluster: DemoCluster) -> str:
    """Starts the dead broker when all lines are received; returns its role, once it is back in the in-sync set."""
    await cluster.start_again(KILLED)

    async def is_back() -> bool:
        states = [broker["status"] for broker in (await cluster.status())["brokers"] if broker["broker_name"] == KILLED]
        in_sync = [len(status["failover"]["in_sync"]) for status in states if status and status["failover"]]
        return in_sync == [2, 2]

    await until(is_back, TAKE_OVER_LIMIT_S, f"{KILLED} is back in the in-sync set")
    role = await role_of(cluster, 0)
    console.print(f"{KILLED} is back, as {role}")
    return role


async def role_of(cluster: DemoCluster, broker_id: int) -> str:
    """What a broker of the killed one's group says it is now; empty when it does not answer."""
    brokers = (await cluster.status())["brokers"]
    states = (broker for broker in brokers if (broker["broker_name"], broker["broker_id"]) == (KILLED, broker_id))
    return next((str(broker["status"]["role"]) for broker in states if broker["status"]), "")


async def caught_up(cluster: DemoCluster) -> dict[str, int]:
    """Waits until every slave has all of its master's log; returns the end offset of each group."""
    ends: dict[str, int] = {}

    async def are_level() -> bool:
        offsets: dict[str, set[int]] = {name: set() for name in GROUPS}
        for broker in (await cluster.status())["brokers"]:
            offsets[broker["broker_name"]].add(broker["status"]["end_offset"] if broker["status"] else -1)
        ends.update({name: max(found) for name, found in offsets.items()})
        return all(len(found) == 1 and -1 not in found for found in offsets.values())

    await until(are_level, CATCH_UP_LIMIT_S, "slaves have caught up")
    return ends


def judge_lines(traffic: Traffic, group_ports: set[int]) -> list[Row]:
    """What the client was told against what it received, and against the slave at the master's death.

    Who acknowledged a line of the killed one's group is told by the time. The client writes down the first address of
    the route it held: until it asks for a new one, that is the dead one's, and another answers in its place.
    """
    acknowledged = read_acknowledgements()
    numbers = {each.number for each in acknowledged}
    deliveries = [line.split("\t") for line in (FOLDER / "receive.tsv").read_text().splitlines()]
    received = {int(number) for number, _, _ in deliveries}
    death = traffic.death
    by_group = [each for each in acknowledged if each.port in group_ports]
    before_death = {each.message_id for each in by_group if each.monotonic_s <= death.read_at_monotonic_s}
    by_new_master = len(by_group) - len(before_death)
    return [
        compared("lines_acknowledged", len(numbers), "lines", f"== {LINES}"),
        compared("lines_received", len(received), "lines", f"== {LINES}"),
        compared("acknowledged_lines_missing", len(numbers - received), "lines", "== 0"),
        compared("repeated_deliveries", len(deliveries) - len(received), "deliveries", f"<= {REPEATED_MAX}"),
        compared("sends_repeated_by_the_application", traffic.repeated_sends, "sends", f"<= {REPEATED_MAX}"),
        compared("acknowledged_by_the_killed_master_before", len(before_death), "messages", ">= 1"),
        compared("of_these_missing_on_its_slave_then", len(before_death - death.slave_message_ids), "messages", "== 0"),
        compared("slave_is_master_after", round(death.taken_over_after_s, 1), "s", "<= 30"),
        compared("acknowledged_by_the_new_master", by_new_master, "messages", ">= 1"),
    ]


def judge_logs(stores: dict[str, Path], ends: dict[str, int]) -> list[Row]:
    """What the CommitLogs hold once the cluster has stopped."""
    on_slaves: set[str] = set()
    rows = []
    for name in GROUPS:
        slave = stores[f"{name}-s"]
        on_slaves |= logged_message_ids(slave)
        comparison = compare_logs(stores[name], slave, end_offset=ends[name])
        label = name.replace("-", "_")
        rows.append(compared(f"{label}_commit_log", comparison.compared_bytes, "bytes", ">= 1"))
        rows.append(compared(f"{label}_commit_log_differing_on_slave", comparison.differing_bytes, "bytes", "== 0"))
    missing = {each.message_id for each in read_acknowledgements()} - on_slaves
    return [compared("acknowledged_messages_missing_on_slaves", len(missing), "messages", "== 0"), *rows]


def read_acknowledgements() -> list[Acknowledgement]:
    """The sender's record."""
    rows = (line.split("\t") for line in (FOLDER / "send.tsv").read_text().splitlines())
    return [Acknowledgement(int(number), message_id, int(port), float(at)) for number, message_id, port, at in rows]


async def official(client: Path, script: str, *arguments: str) -> asyncio.subprocess.Process:
    """Starts one of the official client's scripts; its own log goes below build/demo instead of the user's home."""
    home = FOLDER / "client-home"
    home.mkdir(exist_ok=True)
    with (FOLDER / f"{script}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(str(client / "bin" / "python"), str(ROOT / "demo" / f"official_{script}.py")),
            *(*arguments, "--record", str(FOLDER / f"{script}.tsv")),
            env=os.environ | {"HOME": str(home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )


async def follow(process: asyncio.subprocess.Process, say: Callable[[str], object]) -> None:
    """Hands over each line the process prints, until it ends; ends the demo when it failed or takes too long."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(CLIENT_LIMIT_S + CLIENT_STOP_S):
            async for line in process.stdout:
                say(line.decode().strip())
            code = await process.wait()
    except TimeoutError:
        raise SystemExit(f"a client did not end in time; see the logs in {FOLDER}") from None
    if code != 0:
        raise SystemExit(f"a client ended with {code}; see the logs in {FOLDER}")


if __name__ == "__main__":
    sys.exit(main())
