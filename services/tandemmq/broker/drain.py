"""`mqbroker-drain`: a pod's preStop. Asks the broker of this machine to drain, and says in one line how that went.

Ends with 0 whatever happened: a preStop that fails stops nothing but makes noise, and SIGTERM, which follows, stops a
broker in order even without a drain. It runs while the pod's time runs out, so of ours it imports the stubs only, and
where brokers are known by certificates what shows one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc

from tandemmq.proto.admin.v1 import broker_admin_service_pb2 as pb
from tandemmq.proto.admin.v1 import broker_admin_service_pb2_grpc

# As listenPort is set in a pod (see tandemmq.service.settings), and its default.
_PORT_VARIABLE: Final = "TANDEMMQ_LISTEN_PORT"
_PORT: Final = 10_911
_TLS_VARIABLE: Final = "TANDEMMQ_SERVICE_TLS_PATH"
_LIMIT_MS: Final = 30_000
# The answer comes when the limit is over; the broker may be busy for a moment.
_ANSWER_MARGIN_S: Final = 2.0
_FIRST_PROCESS: Final = Path("/proc/1")


def main() -> None:
    options = _options(sys.argv[1:])
    _tell(drain(options.target, limit_ms=options.limit))


def drain(target: str, *, limit_ms: int) -> dict[str, str | int | bool]:
    """Drains the broker at `target` and returns what is to be logged; a failure is part of it, never raised."""
    started = time.monotonic()
    fields: dict[str, str | int | bool] = {
        "level": "info",
        "event": "drain_finished",
        "target": target,
        "limit_ms": limit_ms,
    }
    channel = _channel(target)
    try:
        stub = broker_admin_service_pb2_grpc.BrokerAdminServiceStub(channel)
        answer = stub.Drain(pb.DrainRequest(time_limit_ms=limit_ms), timeout=limit_ms / 1_000 + _ANSWER_MARGIN_S)
        fields |= {"slaves_hold_everything": answer.slaves_hold_everything, "end_offset": answer.end_offset}
        if not answer.slaves_hold_everything:
            fields |= {"level": "warning", "remedy": "see what the slaves say; SIGTERM waits for them once more"}
    except grpc.RpcError as error:
        fields |= {"level": "warning", "event": "drain_failed", "error": f"{error.code().name}: {error.details()}"}
    finally:
        channel.close()
    return fields | {"waited_ms": round((time.monotonic() - started) * 1_000)}


def _channel(target: str) -> grpc.Channel:
    options = (("grpc.enable_http_proxy", 0),)
    if not os.environ.get(_TLS_VARIABLE):
        return grpc.insecure_channel(target, options=options)
    # With the broker's own certificate, as its settings in the pod's environment say.
    from tandemmq.service.service_channels import sync_channel

    return sync_channel(target, options)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mqbroker-drain",
        description="Takes the broker of this machine out of the routes and waits until its slaves hold everything.",
        epilog="Example: mqbroker-drain --limit 30000",
    )
    default_target = f"127.0.0.1:{os.environ.get(_PORT_VARIABLE, '').strip() or _PORT}"
    parser.add_argument(
        "--limit", type=_milliseconds, default=_LIMIT_MS, metavar="MS", help="wait at most so long (default: 30000)"
    )
    parser.add_argument(
        "--target", default=default_target, metavar="HOST:PORT", help=f"metadata plane (default: {default_target})"
    )
    return parser.parse_args(arguments)


def _milliseconds(text: str) -> int:
    value = int(text)
    if not 0 < value < 1 << 31:
        raise ValueError(text)
    return value


def _tell(fields: dict[str, str | int | bool]) -> None:
    """To standard output, and to the broker's own log if that is a container's first process: kubelet drops ours."""
    timestamp = datetime.now(tz=UTC).isoformat().replace("+00:00", "Z")
    line = json.dumps({"timestamp": timestamp, **fields}) + "\n"
    sys.stdout.write(line)
    try:
        if b"mqbroker" in (_FIRST_PROCESS / "cmdline").read_bytes():
            with (_FIRST_PROCESS / "fd" / "1").open("a") as log:
                log.write(line)
    except OSError:
        pass  # Not ours to write; standard output has it.


if __name__ == "__main__":
    main()
