"""Every setting of a NameServer, by RocketMQ's key where it has one."""

from __future__ import annotations

from pydantic import Field

from mqservice.settings import ServiceSettings

__all__ = ["NameServerSettings"]


class NameServerSettings(ServiceSettings):
    """Settings of one NameServer. It has few: brokers state their own liveness timeouts, and nothing is stored."""

    listen_port: int = Field(
        9_876,
        ge=0,
        le=65_535,
        alias="listenPort",
        description="Port of all planes (gRPC). 0: any free port, for tests.",
    )
    bind_address: str = Field(
        "0.0.0.0", alias="bindAddress", min_length=1, description="Local address that is listened on."
    )
    scan_not_active_broker_interval: int = Field(
        1_000,
        ge=10,
        alias="scanNotActiveBrokerInterval",
        description="Pause between looks for silent brokers, in ms. RocketMQ has 5000; a look here costs microseconds, "
        "and a larger value leaves a vanished broker in the routes for that much longer.",
    )
    warm_up_time: int = Field(
        5_000,
        ge=0,
        alias="warmUpTime",
        description="How long after its start tandemmq.probe.ready answers NOT_SERVING, in ms: brokers come back "
        "within that time. It serves from the start all the same.",
    )
    shutdown_timeout: int = Field(
        1_000, ge=0, alias="shutdownTimeout", description="What calls in progress are given at the end, in ms."
    )
