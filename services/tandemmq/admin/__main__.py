"""`mqadminservice`: shows one cluster over HTTP and gRPC until SIGTERM or SIGINT."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # While modules are imported, and wherever no event loop runs, Ctrl-C ends the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import os
import sys

from tandemmq.admin.settings import AdminSettings
from tandemmq.core.access.identity import Role
from tandemmq.service.certificates import tls_files_problems
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.extras import absence_problems
from tandemmq.service.logging import configure_logging
from tandemmq.service.rpc import ListenError
from tandemmq.service.service_tls import check_service_tls
from tandemmq.service.settings import (
    Passing,
    check_ports_free,
    refuse,
    settings_of_command_line,
    signals_end,
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
        from tandemmq.admin.http_api import serve

    try:
        asyncio.run(serve(settings))
    except ListenError as error:
        # Somebody took the port between the check and now.
        refuse([Passing(error)])


if __name__ == "__main__":
    main()
