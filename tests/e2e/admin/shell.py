"""A terminal as the document means it: in the folder with the cluster's `data`, variables kept from line to line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_LIMIT_S: Final = 240.0
_STOP_LIMIT_S: Final = 20.0
# Which the script's own commands set.
_KEPT: Final = ("ID", "PLACE")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a line of the script came to."""

    code: int
    output: str


class Shell:
    """Runs lines with bash. A context manager: what runs in the background ends with it."""

    def __init__(self, folder: Path) -> None:
        self.variables: dict[str, str] = {}
        self._folder = folder
        self._background: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_background()

    def stop_background(self) -> None:
        """Ends what lines ending with `&` started, with all its children."""
        for process in self._background:
            os.killpg(process.pid, 15)
        while self._background:
            process = self._background.pop()
            try:
                process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()

    def run(self, line: str) -> Answer:
        """Runs a line to its end; one that ends with `&` goes on in the background."""
        if line.endswith("&"):
            command = ["bash", "-c", line.removesuffix("&").strip()]
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._environment(), stdin=subprocess.DEVNULL, start_new_session=True
            )
            self._background.append(process)
            return Answer(0, "")
        told = "".join(f'printf "%s\\n" "{name}=${name}" >&3;' for name in _KEPT)
        read, write = os.pipe()
        with open(read, encoding="utf-8") as variables:
            done = subprocess.run(
                ["bash", "-c", f"{line}\ncode=$?; exec 3>&{write}; {told} exit $code"],
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
                check=False,
                pass_fds=(write,),
            )
            os.close(write)
            self._keep(variables.read())
        return Answer(done.returncode, done.stdout)

    def _keep(self, text: str) -> None:
        found = dict(line.split("=", 1) for line in text.splitlines())
        self.variables |= {name: value for name, value in found.items() if value}

    def _environment(self) -> Mapping[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # A pipe is 80 columns wide otherwise; contexts of whoever runs the tests are not meant.
        mine = {"PATH": path, "COLUMNS": "160", "XDG_CONFIG_HOME": str(self._folder / "config")}
        meant = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEMMQ_", "NAMESRV_"))}
        return meant | mine | self.variables
