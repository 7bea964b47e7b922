"""Every setting of the admin service, by RocketMQ's key where it has one."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field, SecretStr, field_validator

from mqservice.settings import ServiceSettings

__all__ = ["AdminSettings"]

_HOST_PORT: Final = re.compile(r"^\[?[^\s;,]+\]?:\d{1,5}$")
_OBJECT_NAME: Final = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
# Guessing a shorter one is a matter of patience.
_TOKEN_LENGTH_MIN: Final = 16


class AdminSettings(ServiceSettings):
    """Settings of the admin service. It stores nothing; everything it shows is read from the cluster."""

    namesrv_addr: str = Field(
        "127.0.0.1:9876",
        alias="namesrvAddr",
        description="NameServers of the cluster as host:port, separated by ';'. Names are preferred to addresses.",
    )
    bind_address: str = Field(
        "127.0.0.1",
        alias="bindAddress",
        min_length=1,
        description="Local address that is listened on. Outside loopback everybody who reaches it may read the "
        "cluster's state, unless adminToken is set.",
    )
    http_port: int = Field(
        8_080,
        ge=0,
        le=65_535,
        alias="httpPort",
        description="Port of everything: status page, JSON, metrics and gRPC. 0: any free port, for tests.",
    )
    refresh_interval: int = Field(
        2_000,
        ge=200,
        alias="refreshInterval",
        description="Pause between two readings of the cluster, in ms. A reading asks each NameServer and broker once, "
        "however many people look at it; a larger value shows changes later.",
    )
    forget_brokers_after: int = Field(
        3_600_000,
        ge=0,
        alias="forgetBrokersAfter",
        description="How long a broker that no NameServer knows any more is still asked and shown, in ms. A lost "
        "broker group stays visible that long; so does one that was removed on purpose.",
    )
    admin_token: SecretStr = Field(
        SecretStr(""),
        alias="adminToken",
        description="What callers from other hosts must send as 'Authorization: Bearer <token>'; health is open "
        "to all. Empty: no token is asked for.",
    )
    max_connections: int = Field(
        500, ge=1, alias="maxConnections", description="Open connections; more are closed at once."
    )
    kubernetes_role_labels: bool = Field(
        False,
        alias="kubernetesRoleLabels",
        description="Keep the label tandemmq.io/role (master or slave) on the brokers' pods as the brokers say it. "
        "Needs to run in a pod whose ServiceAccount may get, list and patch pods of its namespace.",
    )
    kubernetes_instance: str = Field(
        "",
        alias="kubernetesInstance",
        max_length=63,
        description="Value of app.kubernetes.io/instance on the brokers' pods. Empty: that of this pod.",
    )
    kubernetes_namespace: str = Field(
        "",
        alias="kubernetesNamespace",
        max_length=63,
        description="Namespace of the brokers' pods. Empty: that of this pod.",
    )
    consistency_results: str = Field(
        "",
        alias="consistencyResults",
        description="Where the consistency job leaves its runs: its results folder, or configmap:NAME in the namespace "
        "of the pods, which this pod's ServiceAccount may get. Empty: nothing is shown of that job.",
    )
    consistency_overdue_after: int = Field(
        7_200_000,
        ge=0,
        alias="consistencyOverdueAfter",
        description="When no run of the consistency job has ended for so long, in ms, that is a finding: two of its "
        "schedule's intervals. 0: never.",
    )
    shutdown_timeout: int = Field(
        5_000, ge=0, alias="shutdownTimeout", description="What calls in progress are given at the end, in ms."
    )

    @field_validator("namesrv_addr")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        parts = [part.strip() for part in value.split(";") if part.strip()]
        if not parts:
            raise ValueError("name at least one NameServer as host:port")
        for part in parts:
            if not _HOST_PORT.match(part):
                raise ValueError(f"'{part}' is no host:port; separate several by ';'")
        return value

    @field_validator("admin_token")
    @classmethod
    def _is_long_enough(cls, value: SecretStr) -> SecretStr:
        token = value.get_secret_value()
        if token and (len(token) < _TOKEN_LENGTH_MIN or not token.isascii() or not token.isprintable() or " " in token):
            raise ValueError(f"use at least {_TOKEN_LENGTH_MIN} printable ASCII characters without spaces")
        return value

    @field_validator("consistency_results")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        if "://" in value:
            raise ValueError("use a folder, or configmap:NAME; an object store is not read from here")
        if value.startswith("configmap:") and not _OBJECT_NAME.match(value.removeprefix("configmap:")):
            raise ValueError("write configmap: and the ConfigMap's name")
        return value

    @property
    def name_servers(self) -> tuple[str, ...]:
        """NameServers as host:port."""
        return tuple(part.strip() for part in self.namesrv_addr.split(";") if part.strip())
