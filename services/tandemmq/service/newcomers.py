"""Who has connected to a port that asks for certificates, and has not shown one yet, keeps nobody else out.

The gRPC library takes so many connections at a time and closes what comes beyond; each has twenty seconds for its
handshake, and no address has a share. So whoever opens as many and says nothing would keep out members of the cluster
for as long as he likes. Therefore the process looks at its own sockets. While half of a port's connections are taken,
a connection of which no call with a certificate has come ends

- after two seconds, wherever it is from;
- at once, if newer ones of its address are an equal share of that half.

The library sees that as the caller's end. What has shown a certificate once stays.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from contextlib import suppress
from errno import EMFILE, ENFILE
from pathlib import Path
from stat import S_ISSOCK
from typing import Final

import structlog

from tandemmq.core.clock import Clock
from tandemmq.core.quotas import counted_host
from tandemmq.core.routing.values import connection_end, host_of, peer_host

log = structlog.get_logger(__name__)

_OWN_FILES: Final = Path("/proc/self/fd")
_LOOK_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.2
"""While there are many."""
_LIMIT_MS: Final = 2_000
_TELL_EVERY_MS: Final = 10_000


class Newcomers:
    """Of one port. `came_in` from any thread."""

    def __init__(self, port: int, connections_max: int, *, clock: Clock) -> None:
        self._port = port
        self._many = max(1, connections_max // 2)
        self._clock = clock
        # Ends of connections, `host:port`, of which a call with a certificate has come.
        self._known: set[str] = set()
        # Since when the others have been seen.
        self._since_ms: dict[str, int] = {}
        # By the number of a socket's inode: the other end, if it is a connection to the port.
        self._ends: dict[int, str | None] = {}
        self._ended_count = 0
        self._tell_at_ms = 0

    def came_in(self, peer: str) -> None:
        """A call with a certificate that counts has come from there, as gRPC writes it."""
        host = peer_host(peer)
        self._known.add(connection_end(host, int(peer.rpartition(":")[2])) if host else peer)

    async def watch(self) -> None:
        """Until it is cancelled. On systems without such a folder of a process's own files nothing is done."""
        while _OWN_FILES.is_dir():
            has_many = True
            with suppress(OSError):
                has_many = await asyncio.to_thread(self.look)
            await asyncio.sleep(_LOOK_AGAIN_S if has_many else _LOOK_S)

    def look(self) -> bool:
        """Ends whom there is no room for; whether there are many. One thread at a time; it reads the kernel alone.
        OSError: this process has no file left to look with; nothing is done."""
        # Before the files: whoever comes in meanwhile may not be among those.
        known = set(self._known)
        names = os.listdir(_OWN_FILES)
        if len(names) < self._many and len(known) < self._many:
            return False
        files = self._connections(names)
        self._known -= known - files.keys()
        now_ms = self._clock.monotonic_ms()
        newcomers = [end for end in files if end not in self._known]
        self._since_ms = {end: self._since_ms.get(end, now_ms) for end in newcomers}
        if len(files) < self._many:
            return False
        for end in self._without_room(files, now_ms):
            self._ended_count += _shut_down(*files[end])
        self._tell(len(files), now_ms)
        return True

    def _connections(self, names: list[str]) -> dict[str, tuple[int, int]]:
        """Descriptor and inode of each connection to the port, by its other end."""
        found: dict[str, tuple[int, int]] = {}
        before, self._ends = self._ends, {}
        for name in names:
            # A file may be closed, and its number be another's, at any moment: what is asked is always its inode.
            try:
                descriptor = int(name)
                status = os.fstat(descriptor)
                if not S_ISSOCK(status.st_mode):
                    continue
                inode = status.st_ino
                end = before[inode] if inode in before else self._end_of(descriptor)
                self._ends[inode] = end
                if end is not None:
                    found[end] = descriptor, inode
            except OSError as error:
                if error.errno in (EMFILE, ENFILE):
                    raise  # Nobody is gone because he cannot be looked at.
        return found

    def _end_of(self, descriptor: int) -> str | None:
        with _own_socket(descriptor) as own:
            if own.family not in (socket.AF_INET, socket.AF_INET6) or own.getsockname()[1] != self._port:
                return None
            try:
                host, port = own.getpeername()[:2]
            except OSError:
                return None  # The listener.
            return connection_end(host, port)

    def _without_room(self, files: dict[str, tuple[int, int]], now_ms: int) -> list[str]:
        by_address: defaultdict[str, list[str]] = defaultdict(list)
        for end in self._since_ms:
            by_address[counted_host(host_of(end))].append(end)
        share = max(1, self._many // (len(by_address) + 1))
        ending: list[str] = []
        for ends in by_address.values():
            # Linux numbers inodes as they are made, more or less: the newest stay, which may be about to show theirs.
            ends.sort(key=lambda end: files[end][1])
            over = len(ends) - share
            ending += ends[: max(0, over)]
            ending += [end for end in ends[max(0, over) :] if now_ms - self._since_ms[end] >= _LIMIT_MS]
        return ending

    def _tell(self, count: int, now_ms: int) -> None:
        if self._ended_count and now_ms >= self._tell_at_ms:
            self._tell_at_ms = now_ms + _TELL_EVERY_MS
            log.warning("newcomers_ended", port=self._port, connections=count, ended=self._ended_count)
            self._ended_count = 0


def _own_socket(descriptor: int) -> socket.socket:
    """The same connection under a descriptor of ours. OSError: it is none any more."""
    own = os.dup(descriptor)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _shut_down(descriptor: int, inode: int) -> bool:
    """Ends the connection, if the descriptor is still its own."""
    with suppress(OSError), _own_socket(descriptor) as own:
        if os.fstat(own.fileno()).st_ino == inode:
            own.shutdown(socket.SHUT_RDWR)
            return True
    return False
