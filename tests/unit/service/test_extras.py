"""How the programs of the services begin, before there are settings, a log or an event loop."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from support.running_time import PATIENCE_S
from tandemmq.admin import __main__ as admin_program
from tandemmq.broker import __main__ as broker_program
from tandemmq.service import extras
from tandemmq.service.settings import EXIT_REFUSED

_ROOT: Final = Path(__file__).parents[3]
_SERVICES: Final = ("nameserver", "broker", "admin", "consistency")
_SCRIPTS: Final = {
    name: place.split(":")
    for name, place in tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ].items()
    if place.startswith("tandemmq.service.extras:")
}
_STARTS: Final = {
    **{f"python -m tandemmq.{name}": f"run_module('tandemmq.{name}', run_name='__main__')" for name in _SERVICES},
    **{name: f"__import__('{module}', fromlist='x').{main}()" for name, (module, main) in _SCRIPTS.items()},
}
_OWN: Final = {
    *("tandemmq", "tandemmq.service", "tandemmq.service.extras"),
    *(f"tandemmq.{name}{part}" for name in _SERVICES for part in ("", ".__main__")),
}


@pytest.mark.parametrize("start", _STARTS)
def test_ctrl_c_is_silent_before_what_takes_long_is_imported(start: str) -> None:
    """Else whoever starts a service by hand and stops it at once reads a traceback of KeyboardInterrupt."""
    script = f"""
import sys, signal
from runpy import run_module
class Watch:
    def find_spec(self, name, path=None, target=None):
        if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
            print(name, file=sys.stderr)
sys.meta_path.insert(0, Watch())
sys.argv = ["x", "--help"]
{_STARTS[start]}
"""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    early = set(ended.stderr.split())
    assert {name for name in early if name.partition(".")[0] not in sys.stdlib_module_names} <= _OWN
    assert early.isdisjoint({"argparse", "asyncio", "importlib.metadata", "json", "pathlib"})


@pytest.mark.parametrize("service", ["broker.broker", "nameserver.name_server", "admin.http_api"])
def test_a_service_that_is_refused_has_imported_nothing_that_only_one_that_serves_needs(service: str) -> None:
    script = f"""
import sys
sys.argv = ["x", "--check", "--set", "namesrvAdr=127.0.0.1:9876"]
from tandemmq.{service.partition(".")[0]}.__main__ import main
try:
    main()
finally:
    print(*sys.modules)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == EXIT_REFUSED, ended.stderr
    assert {"numpy", "fastapi", f"tandemmq.{service}"}.isdisjoint(ended.stdout.split())


def test_a_broker_that_serves_has_imported_all_of_it_before_its_loop_runs(tmp_path: Path) -> None:
    """Its first turn would be a stall of a second: a warning of each start, and the longest one told from then on."""
    script = f"""
import asyncio, sys
import tandemmq.broker.__main__ as program
program.check_machine = lambda settings: []
async def first_turn(*_):
    print(*sys.modules, file=sys.stderr)
    return 0
program._serve = first_turn
sys.exit(program.run_broker(["--set", "namesrvAddr=127.0.0.1:1", "--set", "storePathRootDir={tmp_path}"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert {"numpy", "tandemmq.broker.broker"} <= {*ended.stderr.split()}


@pytest.mark.parametrize("program", [broker_program, admin_program])
def test_a_check_names_what_only_a_service_that_serves_would_miss(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "absent_packages", lambda extra: [extra, "numpy"])
    settings = ["namesrvAddr=127.0.0.1:1", "bindAddress=127.0.0.1"]
    if program is broker_program:
        settings += ["listenPort=0", "haListenPort=0", "grpcServerPort=0", "brokerIP1=127.0.0.1"]
        settings.append(f"storePathRootDir={tmp_path}")
    else:
        settings.append("httpPort=0")
    monkeypatch.setattr(sys, "argv", ["x", "--check", *(word for one in settings for word in ("--set", one))])
    with pytest.raises(SystemExit) as refused:
        program.main()
    extra = program.__name__.split(".")[1]
    assert capsys.readouterr().err.splitlines() == [
        f"{package} is not installed, which this program needs; pip install 'tandemmq[{extra}]'"
        for package in (extra, "numpy")
    ]
    # Nobody brings it by waiting.
    assert refused.value.code == EXIT_REFUSED
