"""Services that are told to stop while they start."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from support.running_time import run_program

_SERVICES = {
    "tandemmq.broker.broker": ("listenPort=0", "haListenPort=0", "grpcServerPort=0", "brokerIP1=127.0.0.1"),
    "tandemmq.nameserver.name_server": ("listenPort=0",),
    "tandemmq.admin.http_api": ("httpPort=0",),
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("serving", _SERVICES)
def test_a_service_that_is_stopped_while_it_imports_ends_in_order(
    serving: str, number: signal.Signals, tmp_path: Path
) -> None:
    """In a container it is process 1, for which signals do nothing by default: it heeds them before it imports."""
    settings = [*_SERVICES[serving], "bindAddress=127.0.0.1"]
    if serving == "tandemmq.broker.broker":
        settings += [f"storePathRootDir={tmp_path}", "namesrvAddr=127.0.0.1:1"]
    script = f"""
import os, sys
from runpy import run_module
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "{serving}":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Stop())
run_module("{serving.rpartition(".")[0]}", run_name="__main__", alter_sys=True)
"""
    done = run_program([sys.executable, "-c", script, *(word for one in settings for word in ("--set", one))])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
