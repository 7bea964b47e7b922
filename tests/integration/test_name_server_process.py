"""`mqnamesrv` as a process of its own: settings, exit codes, signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from support.running_time import run_program

LIMIT_S = 120
COMMAND = [sys.executable, "-m", "tandemmq.nameserver", "--set", "bindAddress=127.0.0.1"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program([*COMMAND, *arguments], limit_s=LIMIT_S)


def test_serves_until_sigterm_and_logs_json() -> None:
    with subprocess.Popen([*COMMAND, "--set", "listenPort=0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        events = {}
        while "name_server_serving" not in events:
            event = json.loads(process.stdout.readline())
            events[event["event"]] = event
        socket.create_connection(("127.0.0.1", events["name_server_serving"]["listenPort"]), LIMIT_S).close()
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 0
    assert json.loads(rest.splitlines()[-1])["event"] == "name_server_stopped"
    assert events["name_server_starting"]["settings"]["scanNotActiveBrokerInterval"] == "1000"


def test_serves_metrics_beside_it() -> None:
    settings = ["--set", "listenPort=0", "--set", "metricsExporterType=PROM", "--set", "metricsPromExporterPort=0"]
    with subprocess.Popen([*COMMAND, *settings], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        event: dict[str, object] = {}
        while event.get("event") != "name_server_serving":
            event = json.loads(process.stdout.readline())
        address = f"http://127.0.0.1:{event['metricsPromExporterPort']}/metrics"
        with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "rocketmq_nameserver_topics 0\n" in text
    assert "process_resident_memory_bytes " in text


def test_an_address_for_metrics_that_cannot_be_had_is_told_in_one_line() -> None:
    # An address for documentation: no machine has it.
    settings = ["metricsExporterType=PROM", "metricsPromExporterPort=0", "metricsPromExporterHost=192.0.2.1"]
    failed = run("--set", "listenPort=0", *(word for setting in settings for word in ("--set", setting)))
    assert failed.returncode == 75
    assert "192.0.2.1" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_receiver_has_to_be_named() -> None:
    refused = run("--set", "metricsExporterType=OTLP_GRPC")
    assert refused.returncode == 2
    assert refused.stderr.startswith("metricsGrpcExporterTarget: metricsExporterType=OTLP_GRPC needs it")


def test_check_accepts_a_good_file_and_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("# NameServer 1 of 2\nlistenPort=0\n")
    checked = run("--config", str(file), "--check")
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_mistakes_are_told_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("listenPort=many\nlistenport=1\n")
    checked = run("--config", str(file), "--check")
    assert checked.returncode == 2
    assert [line.split(" ")[0] for line in checked.stderr.splitlines()] == ["listenport", "listenPort=many"]


def test_taken_port_is_told_before_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("--set", f"listenPort={port}")
    assert refused.returncode == 75
    assert refused.stderr.startswith(f"listenPort={port}: another process listens")


def test_schema_is_printed_for_tools() -> None:
    assert "listenPort" in json.loads(run("--schema").stdout)["properties"]
