"""A master that may have lost something waits where operators see it, until a replica comes or they give it up."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from support.acknowledged_sends import AcknowledgedSender
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.topic_admin import broker_status, create_topic, wait_remembered
from tandemmq.cli.app import app

TOPIC = "orders"


def _end_offset(broker: ServiceProcess) -> int:
    return int(asyncio.run(broker_status(broker)).end_offset)


class _Commands:
    def __init__(self, cluster: ProcessCluster) -> None:
        self._name_servers = cluster.namesrv_addr

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--namesrv", self._name_servers])

    def document(self, *words: str) -> Any:
        result = self.run(*words, "-o", "json")
        assert result.stdout, repr(result.exception)
        return json.loads(result.stdout)

    def settled_wait(self, key: str) -> Any:
        """What the broker waits for once it has heard whom it can reach: an operator may give that up."""

        def is_settled() -> bool:
            wait = self.waits(key)
            return bool(wait and wait["acceptable"])

        wait_until(is_settled, limit_s=120, what=f"status says what {key} waits for")
        return self.waits(key)

    def waits(self, key: str) -> Any:
        """What a broker waits for by `tandemmq status`; None when it does not."""
        for broker in self.document("status")["brokers"]:
            if f"{broker['broker_name']}:{broker['broker_id']}" == key and broker["status"]:
                return broker["status"]["start_wait"]
        return None


def _pair_with_empty_master(cluster: ProcessCluster) -> tuple[ServiceProcess, ServiceProcess, int]:
    """A pair that has messages, its slave stopped, and its master begun anew with an empty disk."""
    cluster.add_name_server()
    master = cluster.add_broker("broker-a")
    slave = cluster.add_broker("broker-a", broker_id=1)
    asyncio.run(create_topic(master, TOPIC))
    with AcknowledgedSender(master, TOPIC) as sender:
        wait_until(lambda: len(sender.acknowledged) > 50, limit_s=120, what="50 acknowledged sends")
    wait_until(lambda: _end_offset(slave) == _end_offset(master), limit_s=120, what="the slave holds everything")
    end_offset = _end_offset(master)
    [name_server] = cluster.name_servers
    wait_remembered(name_server, "broker-a", end_offset)
    assert slave.stop() == 0
    master.kill()
    shutil.rmtree(cluster.store_folder("broker-a-0"))
    master.start(wait=False)
    return master, slave, end_offset


def test_a_master_with_an_empty_disk_waits_in_sight_until_its_slave_comes(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave, end_offset = _pair_with_empty_master(cluster)
        commands = _Commands(cluster)
        wait = commands.settled_wait("broker-a:0")
        assert wait["lost_bytes"] == end_offset
        assert "broker-a:1" in wait["missing"]
        shown = commands.run("status")
        assert shown.exit_code == 1
        assert "SYNC_MASTER, waiting" in shown.stdout
        assert "tandemmq broker accept-loss broker-a" in shown.stdout
        assert commands.run("check", "health").exit_code == 2
        assert commands.run("check", "replication").exit_code == 2
        doctor = commands.document("doctor")
        assert any("waits" in check["fact"] and check["verdict"] == "problem" for check in doctor["checks"])

        planned = commands.document("broker", "accept-loss", "broker-a", "--dry-run")
        assert (planned["lost_bytes"], planned["end_offset"], planned["dry_run"]) == (end_offset, 0, True)
        missing = {one["broker"]: one for one in planned["missing"]}
        assert missing["broker-a:1"]["end_offset"] == end_offset
        assert missing["broker-a:1"]["last_seen_ms"] > 0
        remembered = {one["lost_bytes"] for one in planned["witnesses"] if one["source"].startswith("NameServer ")}
        assert max(remembered) == end_offset, "the sum says whose memory it is of"
        assert commands.waits("broker-a:0"), "a dry run changes nothing"

        slave.start()
        master.wait_serving()
        assert _end_offset(master) == end_offset
        wait_until(lambda: commands.run("status").exit_code == 0, limit_s=120, what="status is healthy")
        refused = str(commands.run("broker", "accept-loss", "broker-a", "--yes").exception)
        assert "broker-a:0 serves and waits for nothing; nothing was given up" in refused


def test_what_an_operator_gave_up_is_kept_by_the_slave_that_comes_later(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        master, slave, end_offset = _pair_with_empty_master(cluster)
        commands = _Commands(cluster)
        commands.settled_wait("broker-a:0")
        given_up = commands.document("broker", "accept-loss", "broker-a", "--yes")
        assert (given_up["lost_bytes"], given_up["dry_run"]) == (end_offset, False)
        master.wait_serving()
        assert _end_offset(master) == 0
        slave.start()
        wait_until(lambda: _end_offset(slave) == 0, limit_s=120, what="the slave follows the new history")
        wait_until(
            lambda: bool(commands.document("restore-kept-tail")["tails"]), limit_s=120, what="its tail is listed"
        )
        [tail] = commands.document("restore-kept-tail")["tails"]
        assert (tail["broker"], tail["start_offset"], tail["end_offset"]) == ("broker-a:1", 0, end_offset)


def test_a_member_that_is_gone_is_missed_until_it_is_back_or_forgotten(tmp_path: Path) -> None:
    """No NameServer has it any more, so that nobody but the master can tell."""
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        # A SYNC_MASTER of fixed roles says that it refuses sends.
        cluster.add_broker("broker-a", settings={"brokerRole": "ASYNC_MASTER"})
        slave = cluster.add_broker("broker-a", broker_id=1)
        commands = _Commands(cluster)

        def wait_healthy() -> None:
            wait_until(lambda: commands.run("status").exit_code == 0, limit_s=120, what="status is healthy")

        def wait_missed() -> None:
            wait_until(
                lambda: "broker-a:0 misses broker-a:1, which was there before" in commands.run("status").stdout,
                limit_s=120,
                what="status says who is gone",
            )

        wait_healthy()
        slave.kill()
        wait_missed()
        slave.start()
        wait_healthy()
        assert slave.stop() == 0
        wait_missed()
        assert commands.run("broker", "accept-loss", "broker-a", "--yes").exit_code == 0
        wait_healthy()


def test_a_master_whose_topics_cannot_be_read_waits_instead_of_exiting(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a", settings={"brokerRole": "ASYNC_MASTER", "totalReplicas": "1"})
        asyncio.run(create_topic(master, TOPIC))
        assert master.stop() == 0
        config = cluster.store_folder("broker-a-0") / "config"
        (config / "topics.json").write_bytes(b"{half a file")
        (config / "topics.json.bak").unlink(missing_ok=True)
        master.start(wait=False)
        commands = _Commands(cluster)
        assert "topics.json" in commands.settled_wait("broker-a:0")["reason"]
        [table] = commands.document("broker", "accept-loss", "broker-a", "--dry-run")["damaged_tables"]
        assert table["file"] == "topics.json"
        assert commands.run("broker", "accept-loss", "broker-a", "--yes").exit_code == 0
        master.wait_serving()
        wait_until((config / "topics.json.damaged").exists, limit_s=120, what="what was damaged is kept")
