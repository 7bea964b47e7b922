"""Replays a transcript against a session and writes down what really happened, to be compared as a text.

A line `@<ms> <command>` is something done to the session at a time; an indented line is what it answered; others are
comments. A master's commands: `log min= end= segment=`, `options name=value ...`, `connect [peer]`, `slave <link>
<hex>`, `gone <link>`, `verified broker= end= [peer]`, `put <bytes> [flush]`, `flush <offset>`, `trim <offset>`, `tick`;
all connections come from "peer" if none is named. A slave's: `connect min= end=`, `master <hex> [+<body bytes>]`,
`tick`. Every command but the first two ends with what is to be sent, then with the events, then with the next deadline
if `deadline` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from tandemmq.core.replication.frames import AppendBytes, MasterOptions, RemoteProtocolError, SlaveOptions
from tandemmq.core.replication.master_replica import MasterReplica
from tandemmq.core.replication.put_gate import WaitingPut
from tandemmq.core.replication.sessions import SlaveSession

from .memory_log import MemoryLog


class Stage(Protocol):
    """One side of the wire, played by commands."""

    def do(self, now_ms: int, command: str, words: list[str]) -> Iterator[str]:
        """Carries a command out; yields what the session answered."""


def replay(script: str, stage: Stage) -> str:
    """The script with its answers replaced by the real ones."""
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line.startswith("@"):
            time, command, *words = line.split()
            lines += [f"  {answer}" for answer in stage.do(int(time[1:]), command, words)]
    return "\n".join(lines) + "\n"


class MasterStage:
    """A master; its slaves are the script."""

    def __init__(self) -> None:
        self._log = MemoryLog()
        self._options = MasterOptions(needed_slaves=1)
        self._replica = MasterReplica(self._log, self._options)
        self._links: list[int] = []
        self._puts: list[WaitingPut] = []

    def do(self, now_ms: int, command: str, words: list[str]) -> Iterator[str]:
        match command, words:
            case "log", _:
                given = numbers(words)
                self._log = MemoryLog(
                    min_offset=given["min"], end_offset=given["end"], segment_bytes=given.get("segment", 1 << 30)
                )
                self._replica = MasterReplica(self._log, self._options)
                return
            case "options", _:
                defaults = MasterOptions()
                # A compiled class takes no 1 for True.
                options: dict[str, Any] = {
                    name: type(getattr(defaults, name))(value) for name, value in numbers(words).items()
                }
                self._options = replace(defaults, **options)
                self._replica = MasterReplica(self._log, self._options)
                return
            case "connect", [*peer]:
                self._links.append(self._replica.slave_connected(*peer or ["peer"], now_ms=now_ms))
            case "slave", [link, data]:
                self._replica.receive_data(int(link), bytes.fromhex(data), now_ms=now_ms)
            case "gone", [link]:
                self._replica.slave_disconnected(int(link), now_ms=now_ms)
            case "verified", [broker, end, *peer]:
                given = numbers([broker, end])
                self._replica.verified(given["broker"], given["end"], peer=(peer or ["peer"])[0], now_ms=now_ms)
            case "put", [length, *waits]:
                yield from self._put(int(length), flush="flush" in waits, now_ms=now_ms)
            case "flush", [offset]:
                self._replica.flushed(int(offset), now_ms=now_ms)
            case "trim", [offset]:
                self._log.min_offset = int(offset)
            case "tick", []:
                self._replica.deadline_reached(now_ms=now_ms)
            case "deadline", []:
                yield f"deadline {self._replica.next_deadline_ms()}"
                return
            case _:
                raise AssertionError(f"no such command: {command} {words}")
        for connected in self._links:
            for transfer in self._replica.take_transfers(connected, budget_bytes=1 << 20, now_ms=now_ms):
                offset, size = transfer.header[:8].hex(), transfer.header[8:].hex()
                yield f"send {connected} {offset} {size}" + (f" +{transfer.length}" if transfer.length else "")
        for event in self._replica.take_events():
            if isinstance(event, WaitingPut):
                yield f"put {self._puts.index(event) + 1} {event.status.name}"
            else:
                yield str(event)

    def _put(self, length: int, *, flush: bool, now_ms: int) -> Iterator[str]:
        start_offset, end_offset = self._log.grow(length)
        put = WaitingPut(start_offset, end_offset, needs_flush=flush, needs_slaves=True)
        self._puts.append(put)
        status = self._replica.submit(put, now_ms)
        yield f"put {len(self._puts)} {'waits' if status is None else status.name} [{start_offset}, {end_offset})"


class SlaveStage:
    """A slave; its master is the script. Frame bodies are zeros."""

    def __init__(self) -> None:
        self._session: SlaveSession | None = None

    def do(self, now_ms: int, command: str, words: list[str]) -> Iterator[str]:
        if command == "connect":
            given = numbers(words)
            self._session = SlaveSession(
                min_offset=given["min"], end_offset=given["end"], options=SlaveOptions(), now_ms=now_ms
            )
        session = self._session
        assert session is not None
        try:
            match command, words:
                case "connect", _:
                    pass
                case "master", [*parts]:
                    data = b"".join(bytes(int(part[1:])) if part[0] == "+" else bytes.fromhex(part) for part in parts)
                    yield from self._receive(session, data, now_ms=now_ms)
                case "tick", []:
                    session.deadline_reached(now_ms=now_ms)
                case "deadline", []:
                    yield f"deadline {session.next_deadline_ms()}"
                    return
                case _:
                    raise AssertionError(f"no such command: {command} {words}")
        except RemoteProtocolError as error:
            yield f"close {error.counter}: {error}"
            return
        report = session.data_to_send()
        if report:
            yield f"send {report.hex()}"

    def _receive(self, session: SlaveSession, data: bytes, *, now_ms: int) -> Iterator[str]:
        for event in session.receive_data(data, now_ms=now_ms):
            if isinstance(event, AppendBytes):
                yield f"append {event.start_offset} +{len(event.data)}"
                session.appended(event.start_offset + len(event.data))
            else:
                yield f"heartbeat {event.offset}"


def numbers(words: list[str]) -> dict[str, int]:
    """`name=value` words as a mapping."""
    return {name: int(value) for name, _, value in (word.partition("=") for word in words)}
