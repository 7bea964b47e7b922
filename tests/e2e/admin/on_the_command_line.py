"""What the document's commands have to print, and what the brokers have to say after them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from e2e.admin.brokers import MASTERS
from e2e.admin.shell import Answer
from e2e.admin.stage import Stage

# Runs the task's commands; each has to end with code 0.
Run = Callable[[], Answer]
Doing = Callable[[Sequence[Run], Stage], None]
COMMAND_TASKS: Final[dict[int, Doing]] = {}


def task(number: int) -> Callable[[Doing], Doing]:
    """Says which task a function judges."""

    def added(doing: Doing) -> Doing:
        COMMAND_TASKS[number] = doing
        return doing

    return added


@task(1)
def see_health(commands: Sequence[Run], stage: Stage) -> None:
    status, health, nameservers = (run().output for run in commands)
    assert "healthy" in status
    assert health.startswith("TANDEMMQ HEALTH OK")
    assert " OK " in nameservers


@task(2)
def see_slaves(commands: Sequence[Run], stage: Stage) -> None:
    (told,) = (run().output for run in commands)
    for group in MASTERS:
        assert f"{group}:1" in told
    assert stage.brokers.status("broker-a").slave_departures
    assert "closed by the slave" in told


@task(3)
def create_topic(commands: Sequence[Run], stage: Stage) -> None:
    for run in commands:
        run()
    assert {
        master: topic.write_queue_count for master, topic in stage.brokers.topic("parcels").items()
    } == dict.fromkeys(MASTERS, 4)


@task(4)
def send_message(commands: Sequence[Run], stage: Stage) -> None:
    (told,) = (run().output for run in commands)
    message = stage.brokers.newest("parcels", "parcel-17")
    assert message.message_id in told
    assert json.loads(message.body) == {"parcel": 17, "weight_kg": 2.5}


@task(5)
def find_message(commands: Sequence[Run], stage: Stage) -> None:
    *_, told = (run().output for run in commands)
    message = stage.brokers.newest("parcels", "parcel-17")
    assert stage.shell.variables["ID"] == message.message_id
    assert message.message_id in told


@task(6)
def read_body(commands: Sequence[Run], stage: Stage) -> None:
    text, pretty, hexadecimal = (run().output for run in commands)
    assert '{"parcel": 17, "weight_kg": 2.5}' in text
    assert '"weight_kg": 2.5\n' in pretty
    assert "7b 22 70 61 72 63 65 6c" in hexadecimal


@task(7)
def compare_copies(commands: Sequence[Run], stage: Stage) -> None:
    (told,) = (run().output for run in commands)
    message = stage.brokers.newest("parcels", "parcel-17")
    group = stage.brokers.holder("parcels", "parcel-17")
    (digest,) = stage.brokers.digests(group, message.physical_offset, message.record_bytes)
    assert told.count(digest.hex()) == len(MASTERS)


@task(8)
def see_trace(commands: Sequence[Run], stage: Stage) -> None:
    (told,) = (run().output for run in commands)
    assert "replica append" in told
    assert stage.brokers.traces(stage.shell.variables["ID"])


@task(9)
def list_newest(commands: Sequence[Run], stage: Stage) -> None:
    (told,) = (run().output for run in commands)
    lines = [line for line in told.splitlines() if '"order"' in line]
    assert len(lines) == 20


@task(10)
def watch_messages(commands: Sequence[Run], stage: Stage) -> None:
    (told,) = (run().output for run in commands)
    assert told.count('"order"') == 3


@task(11)
def create_group(commands: Sequence[Run], stage: Stage) -> None:
    for run in commands:
        run()
    assert {master: group.retry_max_times for master, group in stage.brokers.group("drivers").items()} == dict.fromkeys(
        MASTERS, 3
    )


@task(12)
def see_lag_and_members(commands: Sequence[Run], stage: Stage) -> None:
    described, clients = (run().output for run in commands)
    (member,) = {client.client_id for client in stage.brokers.clients("billing")}
    assert "orders" in described
    assert member in clients


@task(13)
def reset_group(commands: Sequence[Run], stage: Stage) -> None:
    stage.move_archive_away()
    before = stage.brokers.committed("archive", "orders")
    assert before > 0
    try_out, do_it = commands
    try_out()
    assert stage.brokers.committed("archive", "orders") == before
    do_it()
    assert stage.brokers.committed("archive", "orders") == 0


@task(14)
def resend_dead_letter(commands: Sequence[Run], stage: Stage) -> None:
    look, choose, try_out, do_it = commands
    assert "fraud-check" in look().output
    choose()
    before = stage.shell.run("tandemmq dlq show fraud-check --limit 1 -o json").output
    key = json.loads(before)["messages"][0]["keys"][0]
    stored = len(stage.brokers.messages("payments", key))
    try_out()
    assert len(stage.brokers.messages("payments", key)) == stored
    do_it()
    assert len(stage.brokers.messages("payments", key)) == stored + 1


@task(15)
def change_queues(commands: Sequence[Run], stage: Stage) -> None:
    try_out, do_it = commands
    try_out()
    assert {topic.write_queue_count for topic in stage.brokers.topic("parcels").values()} == {4}
    do_it()
    assert {topic.write_queue_count for topic in stage.brokers.topic("parcels").values()} == {6}


@task(16)
def change_setting(commands: Sequence[Run], stage: Stage) -> None:
    stage.put_setting_back()
    look, try_out, do_it = commands
    assert "brokerRole" in look().output
    try_out()
    assert stage.brokers.setting("broker-a", "fileReservedTime").value != "24"
    do_it()
    setting = stage.brokers.setting("broker-a", "fileReservedTime")
    assert (setting.value, setting.origin) == ("24", "changed")


@task(17)
def stop_writes(commands: Sequence[Run], stage: Stage) -> None:
    try_out, take, give = commands
    try_out()
    assert stage.brokers.writable("broker-b", "orders") == {True}
    take()
    assert stage.brokers.writable("broker-b", "orders") == {False}
    give()
    assert stage.brokers.writable("broker-b", "orders") == {True}


@task(18)
def see_events(commands: Sequence[Run], stage: Stage) -> None:
    (told,) = (run().output for run in commands)
    assert "topic_changed" in told or "topic_updated" in told or "topic_created" in told
    assert "operator" in told


@task(19)
def see_consistency(commands: Sequence[Run], stage: Stage) -> None:
    verify, check = commands
    verify()
    assert check().output.startswith("TANDEMMQ CONSISTENCY OK")


@task(20)
def delete_both(commands: Sequence[Run], stage: Stage) -> None:
    try_group, do_group, try_topic, do_topic = commands
    try_group()
    try_topic()
    assert stage.brokers.group("drivers")
    assert stage.brokers.topic("parcels")
    do_group()
    assert stage.brokers.group("drivers") == {}
    do_topic()
    assert stage.brokers.topic("parcels") == {}
