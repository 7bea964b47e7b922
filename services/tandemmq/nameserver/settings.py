"""Every setting of a NameServer, by RocketMQ's key where it has one."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from tandemmq.service.metrics import ExporterType, MetricsOptions, parse_exporter_types
from tandemmq.service.service_tls import ServicePortSettings


class NameServerSettings(ServicePortSettings):
    """Settings of one NameServer. It has few: brokers state their own liveness timeouts, and little is stored."""

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
    store_path_root_dir: str = Field(
        "",
        alias="storePathRootDir",
        description="Folder of groupMemory.json: which replicas each broker group ever had, and how far they were. "
        "Empty: it is kept in memory only, and a restart forgets it. Each NameServer needs a folder of its own.",
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

    # Metrics
    metrics_exporter_type: str = Field(
        "DISABLE",
        alias="metricsExporterType",
        description="DISABLE, or PROM and OTLP_GRPC separated by ';'.",
    )
    metrics_prom_exporter_port: int = Field(
        5_557,
        ge=0,
        le=65_535,
        alias="metricsPromExporterPort",
        description="HTTP port of /metrics for Prometheus. 0: any free port, for tests.",
    )
    metrics_prom_exporter_host: str = Field(
        "", alias="metricsPromExporterHost", description="Local address of that port; bindAddress if empty."
    )
    metrics_grpc_exporter_target: str = Field(
        "", alias="metricsGrpcExporterTarget", description="OTLP/gRPC receiver of metrics, host:port."
    )
    metrics_grpc_exporter_interval: int = Field(
        60_000, ge=1, alias="metricsGrpcExporterIntervalInMills", description="Pause between exports to it, in ms."
    )

    @field_validator("metrics_exporter_type")
    @classmethod
    def _are_exporters(cls, value: str) -> str:
        parse_exporter_types(value)
        return value

    @model_validator(mode="after")
    def _exporters_know_where_to(self) -> Self:
        if ExporterType.OTLP_GRPC in self.metrics_options().types and not self.metrics_grpc_exporter_target:
            raise ValueError("metricsGrpcExporterTarget: metricsExporterType=OTLP_GRPC needs it; name the receiver")
        return self

    @property
    def listen_ports(self) -> dict[str, int]:
        """Ports that are listened on, by key."""
        ports = {"listenPort": self.listen_port}
        if self.open_listen_port:
            ports["openListenPort"] = self.open_listen_port
        if ExporterType.PROM in self.metrics_options().types:
            ports["metricsPromExporterPort"] = self.metrics_prom_exporter_port
        return ports

    def metrics_options(self) -> MetricsOptions:
        return MetricsOptions(
            types=parse_exporter_types(self.metrics_exporter_type),
            host=self.metrics_prom_exporter_host or self.bind_address,
            port=self.metrics_prom_exporter_port,
            target=self.metrics_grpc_exporter_target,
            interval_ms=self.metrics_grpc_exporter_interval,
        )
