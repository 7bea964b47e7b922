"""Brings RocketMQ's jars here by Maven and names the JVM options they need."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from processes import MeasurementFailed

VERSION: Final = "5.5.0"
POM: Final = Path(__file__).with_name("pom.xml")
COPY_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
INSTALL_LIMIT_S: Final = 900.0
# RocketMQ frees mapped buffers by hand, which Java 17 allows only when these are opened.
OPENED_MODULES: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
# As in RocketMQ's bin/runbroker.sh, the heap aside: its 8 GiB do not fit the machines this runs on.
COLLECTOR: Final = (
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
)


@dataclass(frozen=True, slots=True)
class Installation:
    """Jars in one folder."""

    folder: Path

    def java(self, main_class: str, *arguments: str, heap: str, home: Path, pretouch: bool = False) -> list[str]:
        """Command line of one JVM; `home` takes its logs. `heap` as in -Xmx, the same for -Xms."""
        return [
            *("java", "-server", f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=2g"),
            *(("-XX:+AlwaysPreTouch",) if pretouch else ()),
            *COLLECTOR,
            *OPENED_MODULES,
            *(f"-Duser.home={home}", f"-Drocketmq.home.dir={self.folder}"),
            *("-cp", f"{self.folder / 'lib'}/*", main_class, *arguments),
        ]


def _require_tools() -> None:
    for tool, what in (("java", "a JDK 17 or newer"), ("mvn", "Maven 3")):
        if shutil.which(tool) is None:
            raise MeasurementFailed(f"'{tool}' is missing: the comparison with RocketMQ needs {what}")
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < 17:
        raise MeasurementFailed(f"RocketMQ needs Java 17 or newer here; java -version says: {said.strip()}")


def install(folder: Path) -> Installation:
    """Jars below `folder`/lib; does nothing when this version is there already."""
    _require_tools()
    stamp = folder / f".rocketmq-{VERSION}"
    if not stamp.exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / "lib", ignore_errors=True)
        # A pom of its own folder: Maven puts a target folder beside it.
        shutil.copy(POM, folder / "pom.xml")
        done = subprocess.run(
            ["mvn", "-q", "-B", COPY_GOAL, f"-DoutputDirectory={folder / 'lib'}", "-DincludeScope=runtime"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise MeasurementFailed(f"Maven could not fetch RocketMQ {VERSION}:\n{(done.stdout + done.stderr)[-3000:]}")
        stamp.touch()
    return Installation(folder)
