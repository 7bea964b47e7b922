"""Kills a SYNC_MASTER, then its slave, again and again under load by the official Python client.

    make kill-rounds                    # 20 rounds each: build/kill-rounds.json
    python tools/kill_rounds.py --rounds 3

A round: the official client sends until its line count is reached, repeating what was not acknowledged; on the way the
process is killed with SIGKILL and started again. Then: every acknowledged message is on the slave (for a killed master
also at the moment of its death, before it is started again), and both CommitLogs are the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from demo.evidence import compare_logs, logged_message_ids  # noqa: E402
from demo.official_client import install_official_client  # noqa: E402
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until  # noqa: E402
from support.topic_admin import broker_status, create_topic  # noqa: E402

TOPIC: Final = "kill-rounds"
MASTER, SLAVE = "broker-a-0", "broker-a-1"
# The bytes a dead master had handed to the kernel reach its slave within this time.
SETTLE_S: Final = 0.3
CLIENT_LIMIT_S: Final = 120.0
CATCH_UP_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """What one round showed."""

    killed: str
    acknowledged: int
    acknowledged_at_death: int
    missing_at_death: int
    missing_on_slave: int
    missing_on_master: int
    differing_bytes: int

    @property
    def holds(self) -> bool:
        """Nothing acknowledged is missing and the replicas are equal."""
        missing = self.missing_at_death + self.missing_on_slave + self.missing_on_master
        return missing == 0 and self.differing_bytes == 0


def acknowledged_ids(record: Path) -> set[str]:
    """Message ids the client was told are stored, so far."""
    if not record.exists():
        return set()
    whole = record.read_text(encoding="ascii").rpartition("\n")[0]
    return {line.split("\t")[1] for line in whole.splitlines()}


def play_round(
    cluster: ProcessCluster, client: Path, *, killed: ServiceProcess, kill_at: int, lines: Path, record: Path
) -> Round:
    """Sends, kills, restarts, compares."""
    master, slave = cluster.brokers[MASTER], cluster.brokers[SLAVE]
    record.unlink(missing_ok=True)
    sender = subprocess.Popen(
        [
            *(str(client / "bin" / "python"), str(ROOT / "demo" / "official_send.py")),
            *("--endpoints", f"127.0.0.1:{master.ports['grpcServerPort']}", "--topic", TOPIC),
            *("--lines", str(lines), "--record", str(record)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=(cluster.folder / "logs" / "client.log").open("ab"),
    )
    try:
        wait_until(
            lambda: len(acknowledged_ids(record)) >= kill_at or sender.poll() is not None,
            limit_s=CLIENT_LIMIT_S,
            what=f"{kill_at} acknowledged sends",
        )
        killed.kill()
        time.sleep(SETTLE_S)
        at_death = acknowledged_ids(record)
        missing_at_death = len(at_death - logged_message_ids(cluster.store_folder(SLAVE)))
        killed.start()
        if sender.wait(CLIENT_LIMIT_S) != 0:
            raise SystemExit(f"the client failed; see {cluster.folder / 'logs' / 'client.log'}")
    finally:
        sender.kill()
    wait_until(lambda: ends_equal(master, slave), limit_s=CATCH_UP_LIMIT_S, what="master and slave hold one length")
    acknowledged = acknowledged_ids(record)
    stores = cluster.store_folder(MASTER), cluster.store_folder(SLAVE)
    end_offset = asyncio.run(broker_status(master)).end_offset
    return Round(
        killed=killed.name,
        acknowledged=len(acknowledged),
        acknowledged_at_death=len(at_death),
        missing_at_death=missing_at_death,
        missing_on_slave=len(acknowledged - logged_message_ids(stores[1])),
        missing_on_master=len(acknowledged - logged_message_ids(stores[0])),
        differing_bytes=compare_logs(*stores, end_offset=end_offset).differing_bytes,
    )


def ends_equal(master: ServiceProcess, slave: ServiceProcess) -> bool:
    """True when the slave is connected, in sync, and as long as its master."""
    ours, theirs = asyncio.run(broker_status(master)), asyncio.run(broker_status(slave))
    return ours.end_offset == theirs.end_offset and any(known.in_sync for known in ours.slaves)


def main() -> int:
    """Plays all rounds; exit code 1 when one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds for the master, and as many for the slave")
    parser.add_argument("--lines", type=int, default=600, help="messages a round")
    arguments = parser.parse_args()
    client = install_official_client()
    folder = ROOT / "build" / "kill-rounds"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lines = folder / "lines.txt"
    lines.write_text("\n".join(f"line {number} " + "x" * 200 for number in range(arguments.lines)), encoding="utf-8")
    rounds: list[Round] = []
    with ProcessCluster(folder) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a")
        slave = cluster.add_broker("broker-a", broker_id=1)
        asyncio.run(create_topic(master, TOPIC))
        wait_until(lambda: ends_equal(master, slave), limit_s=CATCH_UP_LIMIT_S, what="the slave is in sync")
        for killed in (master, slave):
            for number in range(arguments.rounds):
                # Early, in the middle, late: another moment each time.
                kill_at = arguments.lines * (1 + number % 8) // 10
                done = play_round(
                    cluster, client, killed=killed, kill_at=kill_at, lines=lines, record=folder / "record.tsv"
                )
                rounds.append(done)
                print(f"{'holds' if done.holds else 'FAILS'}  {done}", flush=True)
    rows = []
    for name, played in (("master", rounds[: arguments.rounds]), ("slave", rounds[arguments.rounds :])):
        missing = sum(done.missing_at_death + done.missing_on_slave + done.missing_on_master for done in played)
        differing = sum(done.differing_bytes for done in played)
        acknowledged = sum(done.acknowledged for done in played)
        rows += [
            {"name": f"{name}_kills", "value": len(played), "unit": "rounds", "target": ">= 1", "holds": bool(played)},
            {"name": f"{name}_acknowledged", "value": acknowledged, "unit": "messages", "target": None, "holds": True},
            {"name": f"{name}_lost", "value": missing, "unit": "messages", "target": "0", "holds": missing == 0},
            {"name": f"{name}_differing", "value": differing, "unit": "bytes", "target": "0", "holds": differing == 0},
        ]
    (ROOT / "build" / "kill-rounds.json").write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(f"  {row['name']:<22} {row['value']:>10} {row['unit']}")
    return 0 if all(done.holds for done in rounds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
