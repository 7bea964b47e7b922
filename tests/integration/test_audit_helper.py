"""The broker's helper process by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.running_time import PATIENCE_S

_SOON_IDLE = """
import sys
import tandemmq.broker.audit.__main__ as helper
helper.IDLE_LIMIT_S = 0.2
sys.argv = ["helper", sys.argv[1], "1000000"]
helper.main()
"""


def test_helper_without_work_ends_in_peace_while_its_broker_is_still_there(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SOON_IDLE, str(tmp_path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        code = process.wait(timeout=PATIENCE_S)
        assert process.stderr is not None
        assert (code, process.stderr.read()) == (0, b"")
