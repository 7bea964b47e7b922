"""Finds the masters of a cluster and does one thing on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc.aio

from admin.cli.cluster_address import ClusterAddress
from admin.cli.failure import CommandError
from admin.cluster_reader import ClusterReader
from admin.cluster_state import BrokerState
from admin.rpc import BrokerAdminCalls, Channels, error_text

__all__ = ["find_masters", "on_each"]

ResultT = TypeVar("ResultT")


async def find_masters(channels: Channels, cluster: ClusterAddress) -> list[BrokerState]:
    """Every master, ordered by name. CommandError when there is none, or when one that is known does not answer.

    A change that reaches only some masters would leave a topic on part of the cluster, so it is not begun.
    """
    state = await ClusterReader(channels, cluster.name_servers, cluster.expected).read()
    if all(server.error is not None for server in state.name_servers):
        raise CommandError(
            "no NameServer answers",
            cause="\n".join(f"{server.address}: {server.error}" for server in state.name_servers),
            remedy="start a cluster with `tandemmq up`, or name one with --namesrv host:port",
        )
    masters = [broker for broker in state.brokers if broker.is_master]
    if not masters:
        raise CommandError("the cluster has no master", remedy="start one; `tandemmq status` shows what is there")
    silent = [broker for broker in masters if broker.status is None]
    if silent:
        raise CommandError(
            f"{', '.join(broker.key for broker in silent)} does not answer; nothing was changed",
            cause="\n".join(f"{broker.key} at {broker.metadata_endpoint}: {broker.error}" for broker in silent),
            remedy="wait until it is back; `tandemmq status` shows when",
        )
    return masters


async def on_each(
    channels: Channels,
    masters: Sequence[BrokerState],
    action: Callable[[BrokerAdminCalls], Awaitable[ResultT]],
) -> list[ResultT]:
    """Does `action` on all masters at once, results in their order. CommandError names every master that refused."""

    async def attempt(master: BrokerState) -> ResultT | grpc.aio.AioRpcError:
        try:
            return await action(BrokerAdminCalls(channels, master.metadata_endpoint))
        except grpc.aio.AioRpcError as error:
            return error

    answers = await asyncio.gather(*(attempt(master) for master in masters))
    results: list[ResultT] = []
    refused: list[str] = []
    for master, answer in zip(masters, answers, strict=True):
        if isinstance(answer, grpc.aio.AioRpcError):
            refused.append(f"{master.key}: {error_text(answer)}")
        else:
            results.append(answer)
    if refused:
        raise CommandError(
            f"{len(refused)} of {len(masters)} masters refused",
            cause="\n".join(refused),
            remedy="remove the cause and repeat the command; masters that already have the change do not mind",
        )
    return results
