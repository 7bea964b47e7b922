"""A trace viewer beside a local cluster: an OpenTelemetry Collector that takes OTLP/gRPC, and Zipkin to look at it.

    python tools/trace_viewer.py                                   # then, in another terminal:
    tandemmq up --tracing --trace-target 127.0.0.1:4317

Until Ctrl-C; traces are kept in memory. The collector is built from its Go modules and Zipkin fetched from its Maven
repository, both below build/tools. Zipkin knows no links between traces: what a slave did is a trace of its own there,
and joined with its master's by `tandemmq trace` and the admin service's page.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from e2e.observability.otel_collector import OtelCollector
from e2e.observability.zipkin import Zipkin


def main() -> int:
    """Runs both until a signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--otlp-port", type=int, default=4_317, help="where traces are sent to; 0: any free port")
    parser.add_argument("--http-port", type=int, default=9_411, help="where the pages are; 0: any free port")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "trace-viewer", metavar="DIR", help="logs")
    arguments = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    zipkin = Zipkin(arguments.data, http_port=arguments.http_port)
    collector = OtelCollector(arguments.data, zipkin_url=zipkin.url, otlp_port=arguments.otlp_port, keeps_files=False)
    with zipkin.program, collector.program:
        serving = {"event": "trace_viewer_serving", "otlp": collector.otlp_target, "url": f"{zipkin.url}/zipkin/"}
        print(json.dumps(serving), flush=True)
        stopped.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
