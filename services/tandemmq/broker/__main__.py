"""`mqbroker`, or `python -m tandemmq.broker`: one member of one broker group, master or slave by brokerRole."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # While modules are imported, and wherever no event loop runs, Ctrl-C ends the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from tandemmq.broker.access_changes import read_keys, read_seeds
from tandemmq.broker.advertised_address import AddressUnusable, loopback_problems, resolve_advertised
from tandemmq.broker.replica_identity import ForeignStore
from tandemmq.broker.settings import BrokerSettings
from tandemmq.core.access.identity import Role
from tandemmq.core.message.record import Host
from tandemmq.core.metadata.metadata_store import MetadataCorrupt
from tandemmq.core.storage.disk import DiskError, StorageError, StoreLocked
from tandemmq.http2.errors import TlsMode
from tandemmq.service.certificates import tls_files_problems
from tandemmq.service.event_loop import LoopMeter, SystemClock
from tandemmq.service.extras import absence_problems
from tandemmq.service.logging import EventMemory, LevelSwitch, configure_logging
from tandemmq.service.rpc import ListenError
from tandemmq.service.service_channels import use_service_tls
from tandemmq.service.service_tls import check_service_tls, service_tls_of
from tandemmq.service.settings import (
    EXIT_REFUSED,
    EXIT_TRY_AGAIN,
    Passing,
    check_folder_writable,
    check_ports_free,
    effective_settings,
    settings_of_command_line,
    signals_end,
    stop_requested,
    use_all_files,
)

if TYPE_CHECKING:
    from tandemmq.broker.broker import Broker

_DESCRIPTION: Final = "A TandemMQ broker: one member of a broker group. Settings have RocketMQ's names."


_ACCEPT_LOSS_HELP: Final = (
    "serve without replicas that cannot be reached, whatever they hold, and without metadata that cannot be read; for "
    "one start of a master, never in a unit or a pod: `tandemmq broker accept-loss` says first what is given up"
)


def main() -> None:
    sys.exit(run_broker(sys.argv[1:]))


def run_broker(arguments: Sequence[str]) -> int:
    """Starts a broker and returns its exit code: 0 stopped in order, 1 its disk failed, 2 it needs a hand first,
    75 it may go the next time."""
    switches = argparse.ArgumentParser(add_help=False)
    switches.add_argument("--accept-loss", action="store_true", help=_ACCEPT_LOSS_HELP)
    settings = settings_of_command_line(
        BrokerSettings,
        program="mqbroker",
        description=_DESCRIPTION,
        arguments=arguments,
        environ=os.environ,
        check=check_machine,
        parents=[switches],
    )
    accepts_loss: bool = switches.parse_known_args(arguments)[0].accept_loss
    if accepts_loss and not settings.is_master:
        sys.stderr.write("--accept-loss: this broker is a slave, which has nothing to accept; leave it out\n")
        return EXIT_REFUSED
    events = EventMemory()
    log_level = configure_logging(
        os.environ,
        memory=events,
        service="broker",
        cluster=settings.broker_cluster_name,
        broker_name=settings.broker_name,
        broker_id=settings.broker_id,
        role=str(settings.broker_role),
    )
    log_level.set(settings.log_level)
    log = structlog.get_logger(__name__)
    use_all_files()
    log.info("broker_starting", settings=effective_settings(settings), process_id=os.getpid())
    if accepts_loss:
        log.warning("loss_accepted_beforehand", remedy="start it without --accept-loss the next time")
    # The store's arrays are added up and sorted, never multiplied as matrices: threads for that would only take memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Half of what there is to import, and nothing that a check or a refusal needs; a loop would be held up by it.
    with signals_end():
        from tandemmq.broker.broker import Broker

    exit_code = EXIT_TRY_AGAIN
    try:
        meter = LoopMeter()
        with asyncio.Runner(loop_factory=meter.new_loop) as runner:
            exit_code = runner.run(_serve(Broker, settings, meter, events, log_level, accepts_loss))
    except* (StorageError, ForeignStore, MetadataCorrupt, ListenError, AddressUnusable, OSError) as group:
        for error in _leaves(group):
            log.critical("broker_not_started", error=str(error), kind=type(error).__name__)
            if _stays(error):
                exit_code = EXIT_REFUSED
    return exit_code


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _stays(error: Exception) -> bool:
    """It needs a hand first: a setting that does not fit the store, or a store that is damaged. Nobody starts a broker
    in a folder that is being mended. Ports, names and disks come back."""
    if isinstance(error, AddressUnusable):
        return not error.may_pass
    if isinstance(error, StorageError):
        return not isinstance(error, DiskError | StoreLocked)
    return isinstance(error, ForeignStore | MetadataCorrupt)


def check_machine(settings: BrokerSettings) -> list[str]:
    """What on this machine keeps the broker from starting: absent packages, taken ports, an unwritable store."""
    return [
        # They are imported when it serves.
        *absence_problems("broker"),
        *loopback_problems(settings),
        *check_ports_free(settings.bind_address, settings.listen_ports),
        *check_folder_writable("storePathRootDir", Path(settings.store_path_root_dir)),
        *_tls_problems(settings),
        *check_service_tls(
            settings,
            Role.BROKER,
            clock=SystemClock(),
            cluster=settings.broker_cluster_name,
            group=settings.broker_name,
            broker_id=settings.broker_id,
        ),
        *_access_problems(settings),
    ]


def _tls_problems(settings: BrokerSettings) -> list[str]:
    """What is wrong with the clients' certificate or its key."""
    if settings.tls_mode is TlsMode.DISABLED:
        return []
    return tls_files_problems(settings.tls_cert_path, settings.tls_key_path)


def _access_problems(settings: BrokerSettings) -> list[str]:
    """What is wrong with the key of users' secrets, or the file of the first users."""
    problems: list[str] = []
    for key, path, read in (
        ("authKeyPath", settings.auth_key_path, read_keys),
        ("authSeedPath", settings.auth_seed_path, read_seeds),
    ):
        try:
            read(path)
        except OSError as error:
            problems.append(Passing(f"{key}={path}: {error.strerror or error}; name a file that this process may read"))
        except ValueError as error:
            problems.append(f"{key}={path}: {error}")
    return problems


async def _serve(
    broker_class: type[Broker],
    settings: BrokerSettings,
    meter: LoopMeter,
    events: EventMemory,
    log_level: LevelSwitch,
    accepts_loss: bool,
) -> int:
    clock = SystemClock()
    with stop_requested() as stop, use_service_tls(service_tls_of(settings, clock=clock)):
        store_host = await _unless(stop, resolve_advertised(settings, clock=clock))
        if store_host is None:
            return 0
        broker = broker_class(
            settings,
            clock=clock,
            store_host=store_host,
            loop_meter=meter,
            events=events,
            log_level=log_level,
            accepts_loss=accepts_loss,
        )
        return await _run(broker, stop)


async def _run(broker: Broker, stop: asyncio.Event) -> int:
    # What was made so far lives as long as the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    # A message in flight is some ten objects, none of them in a cycle: a look at every 700th would be for nothing.
    gc.set_threshold(20_000, 20, 20)
    return await broker.run(stop)


async def _unless(stop: asyncio.Event, wanted: Coroutine[Any, Any, Host]) -> Host | None:
    """The result, or None if the process is to stop before there is one."""
    async with asyncio.TaskGroup() as tasks:
        result = tasks.create_task(wanted)
        stopped = tasks.create_task(stop.wait())
        await asyncio.wait((result, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not result.done():
            result.cancel()
    return None if result.cancelled() else result.result()


if __name__ == "__main__":
    main()
