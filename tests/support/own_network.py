"""Machines of their own, as far as the network goes: namespaces on one bridge, whose links can be cut."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_CLONE_NEWNET: Final = 0x4000_0000


class NetworkUnavailable(Exception):
    """This machine makes no network for us; the text says why."""


def can_make_networks() -> bool:
    """Root, and the programs are there."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "iptables")))


@dataclass(frozen=True)
class Node:
    name: str
    address: str

    @property
    def command(self) -> tuple[str, ...]:
        """What a command line begins with, to run there."""
        return "ip", "netns", "exec", self.name

    def run(self, *command: str) -> None:
        _run(*self.command, *command)

    def cut(self) -> None:
        """From now on nothing arrives and nothing leaves, and nobody is told."""
        for chain in ("INPUT", "OUTPUT"):
            self.run("iptables", "-A", chain, "-j", "DROP")

    def hear_no_more(self, other: Node) -> None:
        """What `other` sends is lost. What we send arrives."""
        self.run("iptables", "-A", "INPUT", "-s", other.address, "-j", "DROP")

    def mend(self) -> None:
        self.run("iptables", "-F")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile belong there."""
        libc = ctypes.CDLL(None, use_errno=True)
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            assert libc.setns(there, _CLONE_NEWNET) == 0
            try:
                yield
            finally:
                assert libc.setns(here, _CLONE_NEWNET) == 0
        finally:
            os.close(here)
            os.close(there)


@dataclass(frozen=True)
class Network:
    """`address` is where the nodes reach this process."""

    address: str
    nodes: tuple[Node, ...]


@contextmanager
def own_network(count: int) -> Iterator[Network]:
    """`count` nodes, while the context lasts. NetworkUnavailable."""
    pid = os.getpid()
    bridge, prefix = f"tq{pid % 1_000_000}", f"10.213.{pid % 250 + 1}"
    nodes = tuple(Node(f"tandemmq-{pid}-{number}", f"{prefix}.{number + 2}") for number in range(count))
    network = Network(f"{prefix}.1", nodes)
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{network.address}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, node in enumerate(nodes):
            here, there = f"{bridge}-{number}", f"{bridge}+{number}"
            _run("ip", "netns", "add", node.name)
            _run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", node.name)
            _run("ip", "link", "set", here, "master", bridge, "up")
            node.run("ip", "addr", "add", f"{node.address}/24", "dev", there)
            node.run("ip", "link", "set", there, "up")
            node.run("ip", "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        _remove(bridge, nodes)
        raise NetworkUnavailable(f"{' '.join(error.cmd)}: {error.stderr.decode().strip()}") from error
    try:
        yield network
    finally:
        _remove(bridge, nodes)


def _remove(bridge: str, nodes: tuple[Node, ...]) -> None:
    for number, node in enumerate(nodes):
        # A namespace lives as long as a socket in it, and its end of the cable with it.
        subprocess.run(["ip", "link", "del", f"{bridge}-{number}"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", node.name], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
