"""What was cut off comes back to a real cluster once, though a broker dies in the middle of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, wait_until
from support.messages import outgoing_message
from support.running_time import PATIENCE_S
from support.stores import new_store, with_options
from support.topic_admin import broker_status, create_topic
from tandemmq.broker.posix_disk import PosixDisk
from tandemmq.cli.app import app
from tandemmq.core.message.properties import decode_properties
from tandemmq.core.message.record import decode_record
from tandemmq.core.storage.kept_tail import TailWalk

_MESSAGES = 1_500


def _plant_tail(folder: Path) -> None:
    """A kept tail of messages that no broker has; one of them is damaged, and it ends within another."""
    store = new_store(PosixDisk(folder / "elsewhere"), options=with_options(commit_log_file_bytes=4 << 20))
    store.load()
    for number in range(_MESSAGES + 2):
        store.put(outgoing_message(topic="orders", queue_id=number % 4, body=b"%d" % number, keys=(f"T-{number}",)))
        store.write_appended()
    kept = store.truncate(0, reason="planted")
    assert kept is not None
    store.close()
    for path in (folder / "elsewhere" / "kept-tails").iterdir():
        data = bytearray(path.read_bytes())
        if path.suffix == ".log":
            data[88] ^= 1  # The first body.
            del data[-10:]
        (folder / "kept-tails").mkdir(exist_ok=True)
        (folder / "kept-tails" / path.name).write_bytes(data)


def _ids(store: Path) -> Counter[str]:
    """How often each message of the topic is in a log."""
    found: Counter[str] = Counter()
    for name, data in commit_log_bytes(store).items():
        walk = TailWalk(int(name), int(name) + len(data))
        while (wanted := walk.wanted) is not None:
            offset, length = wanted
            for _, record in walk.take(data[offset - int(name) :][:length]).records:
                decoded = decode_record(record)
                if decoded.topic == "orders":
                    found[decode_properties(decoded.properties)["UNIQ_KEY"]] += 1
    return found


def _end_offset(broker: ServiceProcess) -> int:
    return int(asyncio.run(broker_status(broker)).end_offset)


def test_a_tail_comes_back_once_though_the_master_is_killed_in_the_middle(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        master = cluster.add_broker("broker-a")
        slave = cluster.add_broker("broker-a", broker_id=1)
        asyncio.run(create_topic(master, "orders"))
        assert slave.stop() == 0
        _plant_tail(cluster.store_folder("broker-a-1"))
        slave.start()

        def is_in_sync() -> bool:
            return any(one.in_sync for one in asyncio.run(broker_status(master)).slaves)

        def run(*words: str) -> Result:
            return CliRunner().invoke(app, ["restore-kept-tail", *words, "--namesrv", cluster.namesrv_addr])

        def document(*words: str) -> Any:
            return json.loads(run(*words, "-o", "json").stdout)

        wait_until(is_in_sync, limit_s=120, what="the slave is in sync")
        [tail] = document()["tails"]
        assert (tail["broker"], tail["reason"]) == ("broker-a:1", "planted")
        [planned] = document("--all", "--dry-run")
        assert (planned["held_count"], planned["stored_count"]) == (0, _MESSAGES)
        assert "message T-0 of topic orders" in planned["unreadable"][0]["reason"]
        assert "the rest of it is missing" in planned["unreadable"][1]["reason"]

        begun = _end_offset(master)
        first = threading.Thread(target=run, args=("--all", "--yes"))
        first.start()
        wait_until(lambda: _end_offset(master) > begun, limit_s=120, what="some were stored")
        master.kill()
        first.join(PATIENCE_S)
        assert not first.is_alive()
        master.start()
        wait_until(is_in_sync, limit_s=120, what="the slave is in sync again")

        [again] = document("--all", "--yes")
        assert (again["held_count"] + again["stored_count"], again["messages"][:0]) == (_MESSAGES, [])
        [third] = document("--all", "--yes")
        assert (third["held_count"], third["stored_count"]) == (_MESSAGES, 0)
        wait_until(lambda: _end_offset(master) == _end_offset(slave), limit_s=120, what="the slave holds it too")
        assert master.stop() == 0
        assert slave.stop() == 0
        expected = Counter(dict.fromkeys((f"T-{number}" for number in range(1, _MESSAGES + 1)), 1))
        assert _ids(cluster.store_folder("broker-a-0")) == expected
        assert _ids(cluster.store_folder("broker-a-1")) == expected
