"""`mqnamesrv`: runs one NameServer until SIGTERM or SIGINT."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # While modules are imported, and wherever no event loop runs, Ctrl-C ends the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tandemmq.core.access.identity import Role
from tandemmq.core.clock import Clock
from tandemmq.nameserver.route_registry import RouteRegistry, StoreFolderError
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.service.event_loop import LoopMeter, SystemClock
from tandemmq.service.logging import configure_logging, get_logger
from tandemmq.service.metrics import MetricExports
from tandemmq.service.rpc import ListenError
from tandemmq.service.service_tls import check_service_tls
from tandemmq.service.settings import (
    VERSION,
    Passing,
    check_folder_writable,
    check_ports_free,
    effective_settings,
    refuse,
    settings_of_command_line,
    signals_end,
    stop_requested,
    use_all_files,
)


def main() -> None:
    """Reads the settings, serves, stops."""
    settings = settings_of_command_line(
        NameServerSettings,
        program="mqnamesrv",
        description="NameServer: knows which brokers live and which of them serves which queue.",
        arguments=sys.argv[1:],
        environ=os.environ,
        check=lambda loaded: [
            *check_ports_free(loaded.bind_address, loaded.listen_ports),
            *_folder_problems(loaded),
            *check_service_tls(loaded, Role.NAME_SERVER, clock=SystemClock()),
        ],
    )
    configure_logging(os.environ, service="nameserver")
    use_all_files()
    meter = LoopMeter()
    # Nothing that a check or a refusal needs; a loop would be held up by it.
    with signals_end():
        import tandemmq.nameserver.name_server  # noqa: F401

    problems: list[str] = []
    try:
        with asyncio.Runner(loop_factory=meter.new_loop) as runner:
            runner.run(_serve(settings, meter))
    except* (ListenError, StoreFolderError) as group:
        # Somebody took the port between the check and now, metrics have an address that is not ours, or another
        # NameServer still has the folder.
        problems = [Passing(error) for error in group.exceptions]
    if problems:
        refuse(problems)


def _folder_problems(settings: NameServerSettings) -> list[str]:
    folder = settings.store_path_root_dir
    return check_folder_writable("storePathRootDir", Path(folder)) if folder else []


async def _serve(settings: NameServerSettings, meter: LoopMeter) -> None:
    log = get_logger()
    clock = SystemClock()
    log.info("name_server_starting", version=VERSION, pid=os.getpid(), settings=effective_settings(settings))
    with stop_requested() as stop:
        from tandemmq.nameserver.name_server import serving

        async with (
            serving(settings, clock=clock, log=log) as (registry, port),
            _metrics(settings, registry, clock=clock, meter=meter) as metrics_port,
        ):
            ports = {"listenPort": port, "metricsPromExporterPort": metrics_port}
            log.info("name_server_serving", bindAddress=settings.bind_address, **ports)
            await stop.wait()
            log.info("name_server_stopping")
    log.info("name_server_stopped")


@asynccontextmanager
async def _metrics(
    settings: NameServerSettings, registry: RouteRegistry, *, clock: Clock, meter: LoopMeter
) -> AsyncIterator[int]:
    """Gives metrics away while the block runs, as the settings say; gives the port of /metrics, 0 without one."""
    from tandemmq.nameserver.name_server import NameServerMetrics
    from tandemmq.service.telemetry.span_export import resource_attributes

    instance_id = f"{socket.gethostname()}:{settings.listen_port}"
    exports = MetricExports(
        settings.metrics_options(),
        collect=NameServerMetrics(registry, clock=clock, loop_meter=meter).collect,
        resource=resource_attributes(service="nameserver", instance_id=instance_id),
    )
    await exports.start()
    try:
        yield exports.port
    finally:
        await exports.close()


if __name__ == "__main__":
    main()
