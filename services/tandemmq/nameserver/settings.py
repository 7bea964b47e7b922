"""Every setting of a NameServer, by RocketMQ's key where it has one."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tandemmq.service.metrics import ExporterType
from tandemmq.service.service_tls import ServicePortSettings
from tandemmq.service.settings import Port


class NameServerSettings(ServicePortSettings):
    """Settings of one NameServer. It has few: brokers state their own liveness timeouts, and little is stored."""

    listen_port: Port = Field(
        9_876,
        description="Port of all planes (gRPC). 0: any free port, for tests.",
    )
    bind_address: str = Field("0.0.0.0", min_length=1, description="Local address that is listened on.")
    store_path_root_dir: str = Field(
        "",
        description="Folder of groupMemory.json: which replicas each broker group ever had, and how far they were. "
        "Empty: it is kept in memory only, and a restart forgets it. Each NameServer needs a folder of its own.",
    )
    scan_not_active_broker_interval: int = Field(
        1_000,
        ge=10,
        description="Pause between looks for silent brokers, in ms. RocketMQ has 5000; a look here costs microseconds, "
        "and a larger value leaves a vanished broker in the routes for that much longer.",
    )
    warm_up_time: int = Field(
        5_000,
        ge=0,
        description="How long after its start tandemmq.probe.ready answers NOT_SERVING, in ms: brokers come back "
        "within that time. It serves from the start all the same.",
    )
    shutdown_timeout: int = Field(1_000, ge=0, description="What calls in progress are given at the end, in ms.")

    @model_validator(mode="after")
    def _exporters_know_where_to(self) -> Self:
        if ExporterType.OTLP_GRPC in self.metrics_options().types and not self.metrics_grpc_exporter_target:
            raise ValueError("metricsGrpcExporterTarget: metricsExporterType=OTLP_GRPC needs it; name the receiver")
        return self

    @property
    def listen_ports(self) -> dict[str, int]:
        return {"listenPort": self.listen_port} | self.common_ports
