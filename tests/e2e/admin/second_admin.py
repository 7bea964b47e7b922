"""Another admin service beside the stage's cluster, with settings of its own."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from e2e.admin.stage import Stage
from e2e.programs import free_port
from support.cluster_processes import wait_until
from support.running_time import PATIENCE_S

_START_LIMIT_S: Final = 60.0
_STOP_LIMIT_S: Final = 20.0


@contextmanager
def second_admin(stage: Stage, settings: dict[str, str], *, name: str, ready_status: int = 200) -> Iterator[str]:
    """Gives its address once its first page has the status that a caller without a token is to see."""
    port = free_port()
    given = {
        "namesrvAddr": stage.cluster.namesrv_addr,
        "bindAddress": "127.0.0.1",
        "httpPort": str(port),
        "refreshInterval": "1000",
        **settings,
    }
    command = [sys.executable, "-m", "tandemmq.admin"]
    for key, value in given.items():
        command += ["--set", f"{key}={value}"]
    with (stage.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(
            lambda: _status(port) == ready_status, limit_s=_START_LIMIT_S, what=f"the admin service {name} answers"
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(_STOP_LIMIT_S)


def _status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()
