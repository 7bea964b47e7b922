"""`mqnamesrv`: runs one NameServer until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import sys

from mqservice.clock import SystemClock
from mqservice.command_line import settings_of_command_line
from mqservice.grpc_server import ListenError
from mqservice.logging import configure_logging, get_logger
from mqservice.settings import check_ports_free, effective_settings
from mqservice.shutdown import stop_requested
from mqservice.version import VERSION
from nameserver.name_server import serving
from nameserver.settings import NameServerSettings

__all__ = ["main"]


def main() -> None:
    """Reads the settings, serves, stops."""
    settings = settings_of_command_line(
        NameServerSettings,
        program="mqnamesrv",
        description="NameServer: knows which brokers live and which of them serves which queue.",
        arguments=sys.argv[1:],
        environ=os.environ,
        check=lambda loaded: check_ports_free(loaded.bind_address, {"listenPort": loaded.listen_port}),
    )
    configure_logging(os.environ, service="nameserver")
    try:
        asyncio.run(_serve(settings))
    except ListenError as error:
        # Somebody took the port between the check and now.
        sys.exit(str(error))


async def _serve(settings: NameServerSettings) -> None:
    log = get_logger()
    log.info("name_server_starting", version=VERSION, pid=os.getpid(), settings=effective_settings(settings))
    with stop_requested() as stop:
        async with serving(settings, clock=SystemClock(), log=log) as (_, port):
            log.info("name_server_serving", bindAddress=settings.bind_address, listenPort=port)
            await stop.wait()
            log.info("name_server_stopping")
    log.info("name_server_stopped")


if __name__ == "__main__":
    main()
