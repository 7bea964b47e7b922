"""Every setting of the admin service, by RocketMQ's key where it has one."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from tandemmq.service.service_tls import ServiceTlsSettings
from tandemmq.service.settings import Addresses, Port, parts_of

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_OBJECT_NAME: Final = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
_HEADER_NAME: Final = re.compile(r"^[A-Za-z0-9-]{1,64}$")
_LOOPBACK: Final = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
# Guessing a shorter one is a matter of patience.
_TOKEN_LENGTH_MIN: Final = 16


class AdminSettings(ServiceTlsSettings):
    """Settings of the admin service. It stores nothing; all it shows and changes is the cluster's."""

    namesrv_addr: Addresses = Field(
        "127.0.0.1:9876",
        description="NameServers of the cluster as host:port, separated by ';'. Names are preferred to addresses.",
    )
    bind_address: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Local address that is listened on. Outside loopback everybody who reaches it may read the "
        "cluster's state and metrics, unless a token is set; for the rest they need one.",
    )
    http_port: Port = Field(
        8_080,
        description="Port of everything: console, REST, metrics and gRPC. 0: any free port, for tests.",
    )
    tls_cert_path: str = Field(
        "",
        description="Certificate chain of the port, PEM: with it the console, REST, metrics and gRPC are served by TLS "
        "alone. Read again when it changes. Empty: without TLS, for loopback, or behind a proxy that has it.",
    )
    tls_key_path: str = Field("", description="Its private key, PEM, without a password.")
    refresh_interval: int = Field(
        2_000,
        ge=200,
        description="Pause between two readings of the cluster, in ms. A reading asks each NameServer and broker once, "
        "however many people look at it; a larger value shows changes later.",
    )
    forget_brokers_after: int = Field(
        3_600_000,
        ge=0,
        description="How long a broker that no NameServer knows any more is still asked and shown, in ms. A lost "
        "broker group stays visible that long; so does one that was removed on purpose.",
    )
    admin_token: SecretStr = Field(
        SecretStr(""),
        description="What operators on other hosts send as 'Authorization: Bearer <token>' or log in with. Empty: a "
        "token makes nobody an operator.",
    )
    viewer_token: SecretStr = Field(
        SecretStr(""),
        description="The same for those who may look, message bodies included, and change nothing. Empty: none.",
    )
    access_key: str = Field(
        "",
        description="User as whom test messages are sent where brokers ask for credentials; `tandemmq user create`.",
    )
    secret_key: SecretStr = Field(SecretStr(""), description="Its secret key.")
    local_role: Literal["viewer", "operator"] = Field(
        "operator",
        description="What callers from the same host may do without a token: those who come through kubectl "
        "port-forward, whom Kubernetes has checked. viewer: to change something they log in with adminToken.",
    )
    anonymous_role: Literal["none", "viewer"] = Field(
        "none",
        description="What callers from other hosts may do without any proof: nothing but reading health, and without a "
        "token set the cluster's state and metrics; or look at everything, message bodies included.",
    )
    trusted_proxies: str = Field(
        "",
        description="Networks of proxies that have checked their users, separated by ';', for example 10.1.2.3/32. "
        "What they say in proxyUserHeader and proxyGroupsHeader is believed. With 127.0.0.1/32, a proxy in the same "
        "pod, callers from this host are no longer trusted by themselves. Empty: none.",
    )
    proxy_user_header: str = Field(
        "X-Forwarded-User",
        description="Header in which a trusted proxy names the user; the proxy must replace what the user sent.",
    )
    proxy_groups_header: str = Field(
        "X-Forwarded-Groups",
        description="Header in which a trusted proxy names the user's groups, separated by ','.",
    )
    operator_groups: str = Field(
        "",
        description="Users of trusted proxies in one of these groups are operators, others viewers; separated by ';'.",
    )
    max_connections: int = Field(500, ge=1, description="Open connections; more are closed at once.")
    kubernetes_role_labels: bool = Field(
        False,
        description="Keep the label tandemmq.io/role (master or slave) on the brokers' pods as the brokers say it. "
        "Needs to run in a pod whose ServiceAccount may get, list and patch pods of its namespace.",
    )
    kubernetes_instance: str = Field(
        "",
        max_length=63,
        description="Value of app.kubernetes.io/instance on the brokers' pods. Empty: that of this pod.",
    )
    kubernetes_namespace: str = Field(
        "",
        max_length=63,
        description="Namespace of the brokers' pods. Empty: that of this pod.",
    )
    consistency_results: str = Field(
        "",
        description="Where the consistency job leaves its runs: its results folder, or configmap:NAME in the namespace "
        "of the pods, which this pod's ServiceAccount may get. Empty: nothing is shown of that job.",
    )
    consistency_cron_jobs: str = Field(
        "",
        max_length=63,
        description="The consistency job's CronJobs are called this, a hyphen and the tier: an operator may start them "
        "from here, if this pod's ServiceAccount may get them and create, get and list Jobs. Empty: with a folder in "
        "consistencyResults runs are processes beside this one, else none is started from here.",
    )
    consistency_overdue_after: int = Field(
        7_200_000,
        ge=0,
        description="When no run of the consistency job has ended for so long, in ms, that is a finding: two of its "
        "schedule's intervals. 0: never.",
    )
    shutdown_timeout: int = Field(5_000, ge=0, description="What calls in progress are given at the end, in ms.")

    @field_validator("namesrv_addr")
    @classmethod
    def _are_some(cls, value: str) -> str:
        if not parts_of(value):
            raise ValueError("name at least one NameServer as host:port")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for part in parts_of(value):
            try:
                ipaddress.ip_network(part)
            except ValueError as error:
                raise ValueError(f"{error}; write networks as 10.1.0.0/16 or 10.1.2.3/32, separated by ';'") from error
        return value

    @field_validator("proxy_user_header", "proxy_groups_header")
    @classmethod
    def _is_a_header(cls, value: str) -> str:
        if not _HEADER_NAME.match(value):
            raise ValueError("a header's name has letters, digits and hyphens")
        return value

    @field_validator("admin_token", "viewer_token")
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

    @model_validator(mode="after")
    def _roles_agree(self) -> Self:
        problems = []
        admin, viewer = (token.get_secret_value() for token in (self.admin_token, self.viewer_token))
        if admin and admin == viewer:
            problems.append("viewerToken: it is adminToken too, so whoever may look could change everything")
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            problems.append("tlsCertPath, tlsKeyPath: one needs the other; name both PEM files, or neither")
        if self.operator_groups and not self.trusted_proxies:
            problems.append("operatorGroups: nobody is believed about groups; set trustedProxies, or remove it")
        if self.local_role == "viewer" and any(
            network.overlaps(loopback)
            for network in self.proxy_networks
            for loopback in _LOOPBACK
            if network.version == loopback.version
        ):
            problems.append(
                "localRole: with a loopback address in trustedProxies whoever may port-forward can pose as any user of "
                "the proxy, so viewer would promise too much; remove one of them"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def proxy_networks(self) -> tuple[IPNetwork, ...]:
        """Networks of trusted proxies."""
        return tuple(ipaddress.ip_network(part) for part in parts_of(self.trusted_proxies))

    @property
    def operator_group_names(self) -> frozenset[str]:
        """Groups whose members are operators."""
        return frozenset(parts_of(self.operator_groups))

    @property
    def name_servers(self) -> tuple[str, ...]:
        """NameServers as host:port."""
        return parts_of(self.namesrv_addr)
