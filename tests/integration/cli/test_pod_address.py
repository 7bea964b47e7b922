"""Tunnels to pods: bytes go both ways, an unreachable pod looks like a closed connection."""

from __future__ import annotations

import asyncio
import socket

import pytest

from support.kubernetes_release import pod
from support.running_time import until
from tandemmq.cli.ending import CommandError
from tandemmq.cli.kube.release import PodAddresses, address_of
from tandemmq.service.kubernetes_api import KubernetesUnavailable, PodStream


class _Forward:
    """The part of the client's PortForward that is used."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()

    def socket(self, port: int) -> socket.socket:
        assert port == 10911
        return self.near

    def close(self) -> None:
        self.near.close()


class _Outside:
    """A cluster seen from outside, with one pod that can be reached."""

    is_inside = False

    def __init__(self) -> None:
        self.forwards: list[_Forward] = []

    async def open_stream(self, pod: str, port: int) -> PodStream:
        if pod != "mq-broker-a-master-0":
            raise KubernetesUnavailable("no such pod")
        self.forwards.append(_Forward())
        return PodStream(self.forwards[-1], port)


class _Inside(_Outside):
    is_inside = True


async def test_pod_is_dialled_directly_from_inside() -> None:
    async with PodAddresses(_Inside()) as addresses:
        assert await addresses.find(pod("mq-broker-a-master-0"), "grpc-metadata") == "10.0.0.1:10911"
    assert address_of(pod("x-0", ip="fd00::1"), "grpc-metadata") == "[fd00::1]:10911"


async def test_port_the_pod_does_not_have_is_an_error_with_those_it_has() -> None:
    with pytest.raises(CommandError) as failure:
        address_of(pod("x-0"), "ha")
    assert "grpc-metadata" in failure.value.cause


async def test_bytes_go_both_ways_through_the_tunnel() -> None:
    outside = _Outside()
    async with PodAddresses(outside) as addresses:
        address = await addresses.find(pod("mq-broker-a-master-0"), "grpc-metadata")
        assert await addresses.find(pod("mq-broker-a-master-0"), "grpc-metadata") == address
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"question")
        await writer.drain()
        await until(lambda: outside.forwards)
        far = outside.forwards[0].far
        far.setblocking(False)
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(far, 100) == b"question"
        await loop.sock_sendall(far, b"answer")
        assert await reader.readexactly(6) == b"answer"
        # The far end goes away: so does ours.
        far.close()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_pod_that_cannot_be_reached_closes_the_connection() -> None:
    async with PodAddresses(_Outside()) as addresses:
        host, port = (await addresses.find(pod("gone-0"), "grpc-metadata")).split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
