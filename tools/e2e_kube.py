"""TandemMQ on a real Kubernetes of three nodes: presets, operators, faults, lost disks, scaling, replicas, security.

    make e2e-kube                                         # everything: build/e2e-kube.json, build/e2e-kube.md
    python tools/e2e_kube.py --only preset:2m-2s-sync     # one part; repeatable: see --help
    python tools/e2e_kube.py --only faults --faults kill power
    python tools/e2e_kube.py --only failover --failovers power --rounds 10
    python tools/e2e_kube.py --only disks:2m-2s-sync --disk-faults claim copy
    python tools/e2e_kube.py --only security --presets 2m-2s-sync
    python tools/e2e_kube.py --only consistency --plain   # the Spark job; without C extensions of the busiest modules

Brings the cluster up with the scripts in KUBE_SCRIPTS (default: ../shared/kube beside the checkout), needs root, builds
the images and leaves the cluster running. `--docs` writes the tables into docs/operations/kubernetes-faults.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from e2e.kubernetes.chart_checks import check_chart
from e2e.kubernetes.client_pod import ClientPod
from e2e.kubernetes.cluster import Cluster, CommandFailed, NotInTime, say
from e2e.kubernetes.consistency import VALUES as CONSISTENCY_VALUES
from e2e.kubernetes.consistency import prove_equal
from e2e.kubernetes.disk_faults import DISK_FAULTS, lose_disks
from e2e.kubernetes.disk_faults import VALUES as DISK_VALUES
from e2e.kubernetes.external_access import VALUES as EXTERNAL_VALUES
from e2e.kubernetes.external_access import reach_from_outside
from e2e.kubernetes.failovers import FAILOVERS, change_masters
from e2e.kubernetes.faults import FAULT_KINDS, break_everything
from e2e.kubernetes.images import build_images
from e2e.kubernetes.installation import Installation
from e2e.kubernetes.preset_life import live_through
from e2e.kubernetes.report import Report
from e2e.kubernetes.scaling import grow
from e2e.kubernetes.security import OPEN, close_and_besiege

PRESETS: Final = ("2m-2s-sync", "2m-2s-async", "2m-noslave")
# What has a second copy to come back from.
REPLICATED: Final = ("2m-2s-sync", "2m-2s-async")
PARTS: Final = (
    *(
        "chart",
        *(f"preset:{preset}" for preset in PRESETS),
        "faults",
        "failover",
        *(f"disks:{preset}" for preset in REPLICATED),
    ),
    *("scaling", "external", "consistency", "security"),
)
WORKERS: Final = ("node1", "node2")
PAGE: Final = ROOT / "docs" / "operations" / "kubernetes-faults.md"
MARKS: Final = ("<!-- figures: begin -->", "<!-- figures: end -->")


class Run:
    """The parts, over one cluster and one report."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._cluster = Cluster()
        self._report = Report(ROOT / "build", keep=bool(arguments.only))
        self._image_values: dict[str, str] = {}
        self._client_image = ""

    def play(self) -> bool:
        """Everything asked for; a part that breaks off is a row of the report, and the next one begins."""
        wanted = self._arguments.only or list(PARTS)
        self._cluster.up(len(WORKERS))
        images = build_images(
            self._cluster, with_consistency="consistency" in wanted, compiled=not self._arguments.plain
        )
        self._image_values, self._client_image = images.values, images.client
        for part in PARTS:
            if part in wanted:
                self._attempt(part)
        say(f"written: {(ROOT / 'build' / 'e2e-kube.json').relative_to(ROOT)}")
        return self._report.holds(wanted)

    def write_docs(self) -> None:
        """Puts the tables between the marks of the page."""
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{self._report.page()}\n{MARKS[1]}{after}", encoding="utf-8")

    def _attempt(self, part: str) -> None:
        say(f"== {part}")
        self._report.begin(part)
        started = time.monotonic()
        steps: dict[str, Callable[[], None]] = {
            "chart": lambda: check_chart(self._cluster, self._report, images=self._image_values),
            "faults": self._faults,
            "failover": self._failover,
            "scaling": self._scaling,
            "external": self._external,
            "consistency": self._consistency,
            "security": self._security,
        }
        name, _, preset = part.partition(":")
        steps["preset"] = lambda: self._preset(preset)
        steps["disks"] = lambda: self._disks(preset)
        try:
            steps[name]()
        except (CommandFailed, NotInTime, subprocess.TimeoutExpired, KeyError, ValueError, OSError) as error:
            self._report.failure(f"{part}: broke off", f"{error}\n{traceback.format_exc(limit=-6)}")
        say(f"== {part}: {time.monotonic() - started:.0f} s")

    def _preset(self, preset: str) -> None:
        live_through(self._installation(preset, f"e2e-{preset}"), self._report, self._client_image)

    def _faults(self) -> None:
        installation = self._installation("2m-2s-sync", "e2e-faults")
        client = self._begun(installation)
        break_everything(
            installation, self._report, client, kinds=self._arguments.faults or FAULT_KINDS, workers=WORKERS
        )
        installation.remove_namespace()

    def _failover(self) -> None:
        installation = self._installation("2m-2s-sync", "e2e-failover")
        client = self._begun(installation)
        change_masters(
            installation,
            self._report,
            client,
            kinds=self._arguments.failovers or FAILOVERS,
            rounds=self._arguments.rounds,
        )
        installation.remove_namespace()

    def _disks(self, preset: str) -> None:
        installation = self._installation(preset, f"e2e-disks-{preset}", *DISK_VALUES)
        client = self._begun(installation)
        lose_disks(installation, self._report, client, kinds=self._arguments.disk_faults or DISK_FAULTS)
        installation.remove_namespace()

    def _scaling(self) -> None:
        installation = self._installation("2m-2s-sync", "e2e-scaling")
        grow(installation, self._report, self._begun(installation))
        installation.remove_namespace()

    def _external(self) -> None:
        installation = self._installation("2m-2s-sync", "e2e-external", *EXTERNAL_VALUES)
        reach_from_outside(installation, self._report, self._client_image)

    def _consistency(self) -> None:
        installation = self._installation("2m-2s-sync", "e2e-consistency", *CONSISTENCY_VALUES)
        prove_equal(installation, self._report, self._begun(installation))
        installation.remove_namespace()

    def _security(self) -> None:
        for preset in self._arguments.presets or PRESETS:
            installation = self._installation(preset, f"e2e-security-{preset}", *OPEN)
            close_and_besiege(installation, self._report, self._client_image)

    def _begun(self, installation: Installation) -> ClientPod:
        """Installed and healthy, with a client beside it."""
        client = ClientPod(installation.cluster, installation.namespace, self._client_image, installation.access_point)
        installation.make_namespace()
        client.start()
        installation.install()
        installation.wait_healthy()
        return client

    def _installation(self, preset: str, namespace: str, *values: str) -> Installation:
        return Installation(self._cluster, preset, namespace, images=self._image_values, values=values)


def main() -> int:
    """Exit code 0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; repeatable; default: all")
    parser.add_argument("--faults", nargs="+", choices=FAULT_KINDS, help="kinds of faults; default: all")
    parser.add_argument("--failovers", nargs="+", choices=FAILOVERS, help="ways in which a master goes; default: all")
    parser.add_argument("--rounds", type=int, default=1, help="of each of them; default: %(default)s")
    parser.add_argument("--disk-faults", nargs="+", choices=DISK_FAULTS, help="kinds of disk faults; default: all")
    parser.add_argument("--presets", nargs="+", choices=PRESETS, help="that are closed by `security`; default: all")
    parser.add_argument("--plain", action="store_true", help="do not compile the modules every message passes through")
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    run = Run(arguments)
    holds = run.play()
    if arguments.docs:
        run.write_docs()
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
