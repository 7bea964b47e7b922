"""`mqadminservice`: shows one cluster over HTTP and gRPC until SIGTERM or SIGINT."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # While modules are imported, and wherever no event loop runs, Ctrl-C ends the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import ipaddress
import os
import sys

from structlog.typing import FilteringBoundLogger

from tandemmq.admin.settings import AdminSettings
from tandemmq.core.access.identity import Role
from tandemmq.service.certificates import tls_files_problems
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.extras import absence_problems
from tandemmq.service.logging import configure_logging, get_logger
from tandemmq.service.rpc import ListenError
from tandemmq.service.service_channels import use_service_tls
from tandemmq.service.service_tls import check_service_tls, service_tls_of
from tandemmq.service.settings import (
    VERSION,
    Passing,
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
        AdminSettings,
        program="mqadminservice",
        description="Admin service: the console of one cluster, REST, gRPC and metrics on one port.",
        arguments=sys.argv[1:],
        environ=os.environ,
        check=lambda loaded: [
            # They are imported when it serves.
            *absence_problems("admin"),
            *check_ports_free(loaded.bind_address, {"httpPort": loaded.http_port}),
            *check_service_tls(loaded, Role.ADMIN, clock=SystemClock()),
            *(tls_files_problems(loaded.tls_cert_path, loaded.tls_key_path) if loaded.tls_cert_path else ()),
        ],
    )
    configure_logging(os.environ, service="admin")
    use_all_files()
    # Most of what there is to import, and nothing that a check or a refusal needs; a loop would be held up by it.
    with signals_end():
        import tandemmq.admin.http_api  # noqa: F401

    try:
        asyncio.run(_serve(settings))
    except ListenError as error:
        # Somebody took the port between the check and now.
        refuse([Passing(error)])


async def _serve(settings: AdminSettings) -> None:
    log = get_logger()
    log.info("admin_starting", version=VERSION, pid=os.getpid(), settings=effective_settings(settings))
    _warn_if_open(settings, log)
    clock = SystemClock()
    with stop_requested() as stop, use_service_tls(service_tls_of(settings, clock=clock)):
        from tandemmq.admin.http_api import serving

        async with serving(settings, clock=clock, log=log) as port:
            log.info("admin_serving", bindAddress=settings.bind_address, httpPort=port)
            await stop.wait()
            log.info("admin_stopping")
    log.info("admin_stopped")


def _warn_if_open(settings: AdminSettings, log: FilteringBoundLogger) -> None:
    has_token = settings.admin_token.get_secret_value() or settings.viewer_token.get_secret_value()
    if has_token or _is_loopback(settings.bind_address):
        return
    log.warning(
        "admin_open_to_the_network",
        bindAddress=settings.bind_address,
        anonymousRole=settings.anonymous_role,
        remedy="set adminToken or viewerToken, or let a NetworkPolicy say who reaches this port",
    )


def _is_loopback(bind_address: str) -> bool:
    if bind_address == "localhost":
        return True
    try:
        return ipaddress.ip_address(bind_address).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    main()
