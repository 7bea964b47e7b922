"""`mqnamesrv`: runs one NameServer until SIGTERM or SIGINT."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # While modules are imported, and wherever no event loop runs, Ctrl-C ends the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import os
import sys
from pathlib import Path

from tandemmq.core.access.identity import Role
from tandemmq.nameserver.route_registry import StoreFolderError
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.service.event_loop import LoopMeter, SystemClock
from tandemmq.service.logging import configure_logging
from tandemmq.service.rpc import ListenError
from tandemmq.service.service_tls import check_service_tls
from tandemmq.service.settings import (
    Passing,
    check_folder_writable,
    check_ports_free,
    refuse,
    settings_of_command_line,
    signals_end,
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
        from tandemmq.nameserver.name_server import serve

    problems: list[str] = []
    try:
        with asyncio.Runner(loop_factory=meter.new_loop) as runner:
            runner.run(serve(settings, meter))
    except* (ListenError, StoreFolderError) as group:
        # Somebody took the port between the check and now, metrics have an address that is not ours, or another
        # NameServer still has the folder.
        problems = [Passing(error) for error in group.exceptions]
    if problems:
        refuse(problems)


def _folder_problems(settings: NameServerSettings) -> list[str]:
    folder = settings.store_path_root_dir
    return check_folder_writable("storePathRootDir", Path(folder)) if folder else []


if __name__ == "__main__":
    main()
