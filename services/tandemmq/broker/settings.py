"""Every setting of a broker, by RocketMQ's key, checked together before anything starts.

Values come from the file given with --config (`key=value` lines), then `TANDEMMQ_...` environment variables, then
`--set key=value`; the later one wins. The core never sees this object: `store_options()` and its siblings below hand it
the small frozen values it needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_network
from types import MappingProxyType
from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from tandemmq.broker.failover.authority import EtcdTls, check_authority
from tandemmq.core.access.signature import zone_offset
from tandemmq.core.delivery.lease_terms import DeliveryOptions
from tandemmq.core.quotas import QuotaRules, parse_quotas
from tandemmq.core.replication.frames import MasterOptions, SlaveOptions
from tandemmq.core.replication.mastership import FailoverOptions
from tandemmq.core.routing.values import parse_address
from tandemmq.core.storage.options import FlushDiskType, StoreOptions
from tandemmq.core.tracing.span_data import TraceOptions
from tandemmq.http2.errors import Limits, TlsMode
from tandemmq.service.metrics import ExporterType
from tandemmq.service.rpc import MESSAGE_BYTES_MAX
from tandemmq.service.service_tls import ServicePortSettings
from tandemmq.service.settings import Addresses, FormerSetting, Port, is_host_port, parts_of

_DELAY_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NAME = re.compile(r"^[%|a-zA-Z0-9_-]{1,127}$")


class LogLevel(StrEnum):
    """Below which level lines of the log are dropped."""

    FROM_ENVIRONMENT = ""
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class BrokerRole(StrEnum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


Milliseconds = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(gt=0.0, lt=1.0)]


class BrokerSettings(ServicePortSettings):
    """Settings of one broker. Port 0 means any free port and is for tests; every port is explicit, none is derived."""

    # Identity
    former: ClassVar[Mapping[str, FormerSetting]] = MappingProxyType(
        {"client_front": FormerSetting("mqgrpc", "brokers' own front alone serves clients: remove it")}
    )

    broker_cluster_name: str = Field("DefaultCluster", description="Name of the cluster.")
    broker_name: str = Field("broker-a", description="Name of the broker group.")
    broker_id: int = Field(0, ge=0, description="0 for the master, above 0 for a slave.")
    broker_role: BrokerRole = Field(BrokerRole.ASYNC_MASTER, description="ASYNC_MASTER, SYNC_MASTER or SLAVE.")

    # Addresses
    namesrv_addr: Addresses = Field("", description="NameServers, host:port separated by ';'.")
    broker_ip1: str = Field("127.0.0.1", alias="brokerIP1", description="Host name or IP advertised to clients.")
    broker_ip2: str = Field(
        "", alias="brokerIP2", description="Host advertised for HA and metadata; brokerIP1 if empty."
    )
    listen_port: Port = Field(10_911, description="Metadata and admin plane (gRPC).")
    ha_listen_port: Port = Field(10_912, description="Raw replication; used by masters.")
    grpc_server_port: Port = Field(8_081, description="RocketMQ client API (gRPC).")
    advertised_grpc_port: Port = Field(0, description="Client port as clients see it, behind a NAT; 0: grpcServerPort.")
    address_resolve_timeout: Milliseconds = Field(
        60_000,
        description="How long the start waits for brokerIP1 and brokerIP2 to resolve, in ms: a pod may run before its "
        "DNS entry does.",
    )
    external_listen_port: Port = Field(
        0,
        description="Second client port, for clients outside the cluster's network; they are told external addresses "
        "only. 0: none.",
    )
    external_advertised_host: str = Field("", description="Host name or IP under which such clients reach that port.")
    external_advertised_port: Port = Field(
        0,
        description="Port under which they reach it, for example a node port; 0: externalListenPort.",
    )

    # Client plane
    tls_mode: TlsMode = Field(
        TlsMode.DISABLED,
        description="disabled, permissive (plain and TLS clients on one port) or enforcing; the client port only.",
    )
    tls_cert_path: str = Field("", description="Certificate chain for clients, PEM.")
    tls_key_path: str = Field("", description="Its private key, PEM.")
    authentication_enabled: bool = Field(
        False,
        description="Clients sign in with access key and secret key; the client port only. Raising a cluster from open "
        "to closed: first give the clients their keys, which an open broker ignores.",
    )
    authorization_enabled: bool = Field(
        False,
        description="And may do what policies allow their users, nothing else. Needs authenticationEnabled.",
    )
    auth_key_path: str = Field(
        "",
        description="File with the key that seals users' secrets in the store: 32 bytes in base64, the same on all "
        "brokers of the cluster. Several, one a line: the first seals, all of them open.",
    )
    auth_seed_path: str = Field(
        "",
        description="File (YAML or JSON) of users and policies that a starting master makes if there never were any of "
        "their names.",
    )
    signature_time_zones: str = Field(
        "UTC,local",
        description="Zones in which clients may write the date they sign, separated by commas: UTC, local (this "
        "machine's) or an offset such as +08:00. Java's, Go's and Python's clients write their local time without "
        "saying so. A date counts for 15 minutes in each; naming many lets an overheard signature count for longer.",
    )
    client_connections_max: int = Field(20_000, ge=1, description="Client connections; more are closed at once.")
    client_streams_max: int = Field(4_000, ge=1, description="Open calls of one client connection.")

    unacknowledged_sends_max: int = Field(
        64,
        ge=1,
        description="Messages that may stand in the log before a slave or the disk has confirmed them, each counting "
        "its bytes and 16 KiB; more wait for their turn, address by address, so that one client's many do not stand "
        "before another's one. In a round trip to the slaves no more are confirmed: raise it where slaves are many "
        "milliseconds away.",
    )
    client_quotas: str = Field(
        "",
        description="What one user, client address or topic may have here, as entries separated by ';' such as "
        "'topic:orders sentMessages=500 sentBytes=1000000; address:* connections=100'. Limits: sentMessages, "
        "sentBytes, receivedMessages, receivedBytes (a second), connections (of an address), polls, leases. * is "
        "each name by itself. Empty: none.",
    )

    # Store
    store_path_root_dir: str = Field("store", description="Folder of everything stored.")
    mapped_file_size_commit_log: int = Field(
        1 << 30,
        ge=64 << 10,
        le=1 << 32,
        description="CommitLog file size in bytes; the same in the whole group, fixed once the store exists.",
    )
    mapped_file_size_consume_queue: int = Field(6_000_000, ge=20, description="ConsumeQueue file size in bytes.")
    max_hash_slot_num: int = Field(5_000_000, ge=1, description="Hash slots of an IndexFile.")
    max_index_num: int = Field(20_000_000, ge=2, description="Entries of an IndexFile.")
    message_index_enable: bool = Field(True, description="Build the key index.")
    max_message_size: int = Field(4 << 20, ge=1, le=128 << 20, description="Largest body in bytes.")
    max_delay_time_mills: int = Field(
        86_400_000,
        ge=0,
        description="Farthest delivery time of a DELAY message in ms from now; a send beyond it is refused.",
    )
    timer_max_delay_sec: int = Field(
        259_200,
        ge=0,
        le=10 * 366 * 86_400,
        description="The same in seconds, as the store has it: the lower of the two counts. A timer whose record is "
        "older than fileReservedTime is stored again, so what waits for long is written anew as often.",
    )
    flush_disk_type: FlushDiskType = Field(
        FlushDiskType.ASYNC_FLUSH, description="SYNC_FLUSH acknowledges after fdatasync."
    )
    flush_interval_commit_log: Milliseconds = Field(500, description="Pause between timed flushes in ms (ASYNC_FLUSH).")
    flush_interval_consume_queue: Milliseconds = Field(
        1_000,
        description="Least pause between ConsumeQueue writes in ms; many queues wait longer.",
    )
    flush_consumer_offset_interval: Milliseconds = Field(
        5_000, description="Pause between writes of consumerOffset.json in ms."
    )
    sync_flush_timeout: Milliseconds = Field(
        5_000, description="A send waits this long for the disk, in ms (SYNC_FLUSH)."
    )
    file_reserved_time: int = Field(72, ge=1, description="Hours a CommitLog file is kept.")
    unread_reserved_time: int = Field(
        720,
        ge=0,
        description="Hours it is kept for a consumer group that has not read all of it, if longer; 0: until it has. "
        "Raising it lets a group that is gone fill the disk; RocketMQ's is fileReservedTime.",
    )
    unreplicated_reserved_time: int = Field(
        0,
        ge=0,
        description="Hours a master keeps it for a known slave that does not have all of it, if longer; 0: until it "
        "has. Anything else leaves messages on one disk, and then deletes them.",
    )
    delete_unread_when_full: bool = Field(
        False,
        description="Above diskSpaceCleanForciblyRatio a master deletes messages before they expire although no group "
        "has read them, as RocketMQ does; false: only what every group has read.",
    )
    clock_jump_max: int = Field(
        0,
        ge=0,
        description="Hours the wall clock may jump, or be ahead after a restart of the machine, and still make files "
        "older; 0: a third of fileReservedTime.",
    )
    delete_when: str = Field("04", description="Hours of the day (UTC) for deletion, ';'-separated.")
    disk_max_used_space_ratio: Ratio = Field(0.75, description="Disk use above which expired files go at any hour.")
    disk_space_clean_forcibly_ratio: Ratio = Field(
        0.85,
        description="Disk use above which files go before they expire, if nobody needs them.",
    )
    disk_space_warning_level_ratio: Ratio = Field(0.90, description="Disk use above which sends are refused.")
    message_delay_level: str = Field(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        description="Delay of each level; the same in the whole group.",
    )

    # Replication
    in_sync_replicas: int | None = Field(
        None,
        ge=1,
        description="Copies, the master's included, before a send is acknowledged. Default: 2 for a SYNC_MASTER, "
        "which therefore really waits (RocketMQ 5 defaults to 1 and does not), else 1. With failoverAuthority a send "
        "waits for the whole in-sync set, which is never smaller than this by a slave's absence; default 1.",
    )
    failover_authority: str = Field(
        "",
        description="Who keeps the record of the group's master: file:FOLDER, etcd:HOST:PORT,HOST:PORT/PREFIX or "
        "kubernetes:LEASE; the same for all members. Empty: the master is who brokerRole says, and nobody takes over.",
    )
    failover_authority_ca_path: str = Field(
        "",
        description="Who signs etcd's certificates, PEM: calls to etcd are encrypted. Empty: they are plain.",
    )
    failover_authority_cert_path: str = Field(
        "",
        description="Our certificate for an etcd that asks for one (--client-cert-auth), PEM. A renewed file is used "
        "at once.",
    )
    failover_authority_key_path: str = Field("", description="The private key of failoverAuthorityCertPath, PEM.")
    failover_lease: int = Field(
        6_000,
        ge=1_000,
        le=600_000,
        description="A master that did not renew for so long may be replaced, in ms; it renews four times as often.",
    )
    group_endpoint: str = Field(
        "",
        description="HOST:PORT by which clients reach whoever is the group's master, told to them in place of the "
        "master's own; the same for all members. With failoverAuthority=kubernetes:… the first label of HOST is a "
        "Service without a selector, and the master keeps the EndpointSlice of its name. Empty: there is none.",
    )
    ha_max_time_slave_not_catchup: Milliseconds = Field(
        1_500,
        description="A slave that lacks the end of the log for so long leaves the in-sync set, in ms.",
    )
    slave_read_enable: bool = Field(
        False,
        description="A master gets what consumers read far behind the log's end from a slave, and spares its own disk. "
        "Which slave: whichBrokerWhenConsumeSlowly of the consumer group.",
    )
    access_message_in_memory_max_ratio: int = Field(
        40,
        ge=0,
        le=100,
        description="Percent of the memory that the newest messages are expected in; what lies before is far behind.",
    )
    total_replicas: int = Field(
        2,
        ge=1,
        description="Members of the group that a new one waits for. Members that were ever heard of count in any case.",
    )
    slave_timeout: Milliseconds = Field(3_000, description="A send waits this long for slaves, in ms.")
    ha_tls_mode: TlsMode = Field(
        TlsMode.DISABLED,
        description="TLS of replication (haListenPort) between members of the group, by the certificate of "
        "serviceTlsPath: disabled, permissive (taken, and used where the master takes it) or enforcing (nothing else, "
        "but for haPlaintextPeers).",
    )
    ha_plaintext_peers: str = Field(
        "",
        description="Addresses or networks of slaves that have no certificate, such as RocketMQ's own, separated by "
        "';'. With serviceTlsMode=enforcing reports from elsewhere count only after a proof under a certificate, with "
        "haTlsMode=enforcing only by TLS.",
    )
    ha_send_heartbeat_interval: Milliseconds = Field(5_000, description="Idle time before an HA heartbeat, in ms.")
    ha_housekeeping_interval: Milliseconds = Field(
        20_000, description="Silence before an HA connection is closed, in ms."
    )
    ha_transfer_batch_size: int = Field(32_768, ge=1, le=(4 << 20) - 12, description="Largest HA frame body in bytes.")
    ha_max_gap_not_in_sync: int = Field(
        256 << 20, ge=1, description="Bytes a slave may lag and still count as in sync."
    )
    ha_master_address: str = Field("", description="host:port of the master's HA plane; empty: from the NameServers.")
    sync_from_last_file: bool = Field(False, description="Give a fresh slave the last CommitLog file only.")
    master_recovery_timeout: Milliseconds = Field(
        60_000,
        description="How long a starting master looks for NameServers that do not answer and, up to 10 s, for members "
        "that nobody ever heard of, in ms. For a replica that may hold more it waits without a limit.",
    )

    # Proof and repair of replicas
    audit_read_rate: int = Field(
        24 << 20,
        ge=0,
        description="Bytes a second that the consistency job may have digested or checked here, and as many that it "
        "may read. Raising it shortens a run and takes disk and CPU from clients; 0 refuses the job.",
    )
    enable_repair: bool = Field(
        True,
        description="Carry out steps of a repair plan when `tandemmq repair` asks; false leaves that to an operator "
        "with the files.",
    )

    # Log, traces and metrics
    log_level: LogLevel = Field(
        LogLevel.FROM_ENVIRONMENT,
        description="DEBUG, INFO, WARNING or ERROR; empty: LOG_LEVEL of the environment, INFO without it.",
    )
    trace_enable: bool = Field(
        False, description="Keep traces of sends, receives and replication; see docs/operations."
    )
    trace_sample_rate: float = Field(
        0.01,
        ge=0.0,
        le=1.0,
        description="Share of calls without a traceparent of their own that are traced, 0 to 1.",
    )
    trace_slow_threshold: int = Field(
        200,
        ge=0,
        description="A send that takes longer, in ms, or fails is always traced. 0: only those that fail.",
    )
    trace_exporter_target: str = Field(
        "",
        description="OTLP/gRPC receiver of traces, host:port; empty: kept in memory for `tandemmq trace` only.",
    )
    metrics_series_max: int = Field(
        2_000,
        ge=1,
        description="Topics, and pairs of topic and consumer group, that get series of their own; the rest is summed "
        "up as `_other`.",
    )

    # Topics, groups, delivery
    default_topic_queue_nums: int = Field(8, ge=1, le=1_024, description="Queues of a new topic.")
    auto_create_topic_enable: bool = Field(
        False,
        description="Create a topic when a client first asks for its route, with defaultTopicQueueNums queues, and "
        "TBW102 at first boot, as RocketMQ does.",
    )
    auto_create_subscription_group: bool = Field(True, description="Create a consumer group at its first receive.")
    new_groups_per_second: int = Field(
        50,
        ge=1,
        description="Consumer groups that clients' first receives may create in a second; more are told to wait. "
        "Each is a part of a file that is written whole. If one user, or address where nobody signs in, uses them up, "
        "the others have as many besides.",
    )
    new_groups_per_client_per_second: int = Field(10, ge=1, description="The same for one client.")
    subscription_groups_max: int = Field(
        10_000,
        ge=1,
        description="Consumer groups up to which clients may create more by naming them; operators may go beyond. One "
        "user, or address where nobody signs in, may make three times what it leaves free since the broker's start.",
    )
    consume_from_earliest: bool = Field(
        False, description="A new group starts at the oldest message, not at the newest."
    )
    max_inflight_per_queue: int = Field(
        100_000,
        ge=32,
        description="Delivered, unacknowledged messages per group and queue.",
    )

    # Transactions
    transaction_time_out: Milliseconds = Field(
        6_000,
        description="An undecided half message so old, in ms, has its producer asked; a topic's attribute "
        "transaction.timeout goes before it.",
    )
    transaction_check_interval: Milliseconds = Field(
        30_000,
        description="Pause before it is asked again, in ms; attribute transaction.check.interval.",
    )
    transaction_check_max: int = Field(
        15,
        ge=1,
        description="Questions after which the message goes to TRANS_CHECK_MAX_TIME_TOPIC; attribute "
        "transaction.check.max. Rounds without a connected producer do not count.",
    )
    transactions_max: int = Field(
        100_000,
        ge=1,
        description="Undecided half messages beyond which new ones are refused; each needs about 500 bytes of memory.",
    )

    # Lite topics
    max_lmq_consume_queue_num: int = Field(
        1_000_000,
        ge=1,
        description="Lite topics of this broker beyond which a message for a new one is refused with "
        "LITE_TOPIC_QUOTA_EXCEEDED; each needs about 300 bytes of memory, and 1 KiB for each group that consumes it.",
    )
    max_lite_subscription_count: int = Field(
        100_000,
        ge=1,
        description="Subscriptions of clients to lite topics beyond which new ones are refused with "
        "LITE_SUBSCRIPTION_QUOTA_EXCEEDED.",
    )

    # Deduplication
    deduplication_ids_max: int = Field(
        1_000_000,
        ge=1,
        description="Message ids that the deduplication windows of all topics remember (topic attribute "
        "deduplication.window); beyond it the oldest go first. Each needs about 200 bytes of memory.",
    )

    # NameServer registration
    broker_heartbeat_interval: Milliseconds = Field(1_000, description="Sign of life to each NameServer, in ms.")
    broker_not_active_timeout_millis: Milliseconds = Field(
        10_000, description="Silence after which NameServers drop us, in ms."
    )
    shutdown_timeout: Milliseconds = Field(
        15_000, description="Limit of an orderly stop, in ms; below the pod's grace period."
    )
    drain_grace_period: int = Field(
        3_000,
        ge=0,
        description="After Drain has taken the broker out of the routes it serves for so long, in ms, that clients "
        "notice. Raising it lengthens every planned stop of a master.",
    )

    @field_validator("broker_cluster_name", "broker_name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError("use 1 to 127 of the characters a-z A-Z 0-9 _ - % |")
        return value

    @field_validator("ha_master_address")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value and not is_host_port(value):
            raise ValueError("write it as host:port, or leave it empty")
        return value

    @field_validator("trace_exporter_target", "metrics_grpc_exporter_target")
    @classmethod
    def _is_a_receiver(cls, value: str) -> str:
        if value and not is_host_port(value):
            raise ValueError("write it as host:port, for example collector:4317, or for TLS as https://collector:4317")
        return value

    @field_validator("signature_time_zones")
    @classmethod
    def _are_zones(cls, value: str) -> str:
        for part in value.split(","):
            if part.strip() not in ("UTC", "local") and zone_offset(part.strip()) is None:
                raise ValueError(f"'{part.strip()}' is no zone; write UTC, local, or an offset such as +08:00")
        return value

    @field_validator("ha_plaintext_peers")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for part in parts_of(value):
            try:
                ip_network(part)
            except ValueError as error:
                raise ValueError(f"{error}; write addresses or networks, for example 10.0.0.7;10.1.0.0/24") from error
        return value

    @field_validator("delete_when")
    @classmethod
    def _are_hours(cls, value: str) -> str:
        for part in value.split(";"):
            if not part.strip().isdigit() or int(part) > 23:
                raise ValueError(f"'{part}' is no hour of the day; write hours from 00 to 23 separated by ';'")
        return value

    @field_validator("client_quotas")
    @classmethod
    def _are_quotas(cls, value: str) -> str:
        parse_quotas(value)
        return value

    @field_validator("message_delay_level")
    @classmethod
    def _are_delays(cls, value: str) -> str:
        for part in value.split():
            if part[-1] not in _DELAY_UNITS_MS or not part[:-1].isdigit():
                raise ValueError(f"'{part}' is no delay; write a number and one of s m h d, for example 30s")
        if not value.split():
            raise ValueError("name at least one delay, for example 1s")
        return value

    @model_validator(mode="after")
    def _roles_and_limits_agree(self) -> Self:
        problems = []
        if not self.store_path_root_dir.strip():
            problems.append("storePathRootDir: is empty, which is the current folder; name one, or remove the key")
        is_slave = self.broker_role is BrokerRole.SLAVE
        if is_slave and self.broker_id == 0:
            problems.append("brokerId: a SLAVE needs an id above 0; 0 is the master's")
        if not is_slave and self.broker_id != 0:
            problems.append(f"brokerId: a master's id is 0, not {self.broker_id}; a slave says brokerRole=SLAVE")
        if self.ha_tls_mode is not TlsMode.DISABLED and self.service_tls_mode is TlsMode.DISABLED:
            problems.append(
                f"haTlsMode: {self.ha_tls_mode} needs the certificate of serviceTlsPath; set serviceTlsMode, too"
            )
        if self.needed_replicas > self.total_replicas:
            problems.append(
                f"inSyncReplicas: {self.needed_replicas} copies cannot be had from totalReplicas={self.total_replicas}"
            )
        if self.broker_role is BrokerRole.ASYNC_MASTER and (self.in_sync_replicas or 1) > 1:
            problems.append(
                "inSyncReplicas: an ASYNC_MASTER waits for no slave; set brokerRole=SYNC_MASTER or remove it"
            )
        if self.failover_authority:
            if self.broker_role is BrokerRole.ASYNC_MASTER:
                problems.append(
                    "failoverAuthority: an ASYNC_MASTER acknowledges what no slave has, and a change of master would "
                    "lose it; set brokerRole=SYNC_MASTER, or remove failoverAuthority"
                )
            if not self.name_servers:
                problems.append("failoverAuthority: members find their master through the NameServers; set namesrvAddr")
            if problem := check_authority(self.failover_authority):
                problems.append(problem)
        authority_files = (self.failover_authority_cert_path, self.failover_authority_key_path)
        if any(authority_files) and not (all(authority_files) and self.failover_authority_ca_path):
            problems.append(
                "failoverAuthorityCertPath and failoverAuthorityKeyPath belong together, and to "
                "failoverAuthorityCaPath; name all three, or the last alone"
            )
        if self.failover_authority_ca_path and not self.failover_authority.startswith("etcd:"):
            problems.append("failoverAuthorityCaPath: calls to etcd use it; set failoverAuthority=etcd:…, or remove it")
        if self.group_endpoint and parse_address(self.group_endpoint) is None:
            problems.append(f"groupEndpoint: '{self.group_endpoint}' is no host:port; correct it, or leave it out")
        if self.ha_send_heartbeat_interval >= self.ha_housekeeping_interval:
            problems.append("haSendHeartbeatInterval: must be below haHousekeepingInterval, or idle links are closed")
        if self.broker_heartbeat_interval >= self.broker_not_active_timeout_millis:
            problems.append("brokerHeartbeatInterval: must be below brokerNotActiveTimeoutMillis, or we seem dead")
        if self.max_message_size + (64 << 10) + 8 > self.mapped_file_size_commit_log:
            problems.append(
                f"maxMessageSize: a message of {self.max_message_size} bytes and its 64 KiB of head-room does not fit "
                f"a file of mappedFileSizeCommitLog={self.mapped_file_size_commit_log}; change one of them"
            )
        if not (
            self.disk_max_used_space_ratio
            <= self.disk_space_clean_forcibly_ratio
            <= self.disk_space_warning_level_ratio
        ):
            problems.append(
                "diskMaxUsedSpaceRatio <= diskSpaceCleanForciblyRatio <= diskSpaceWarningLevelRatio must hold"
            )
        if is_slave and not self.name_servers and not self.ha_master_address:
            problems.append("namesrvAddr: a SLAVE finds its master through the NameServers; name at least one")
        if self.tls_mode is not TlsMode.DISABLED:
            for key, value in (("tlsCertPath", self.tls_cert_path), ("tlsKeyPath", self.tls_key_path)):
                if not value:
                    problems.append(f"{key}: tlsMode={self.tls_mode} needs it; name a PEM file")
        if self.authorization_enabled and not self.authentication_enabled:
            problems.append(
                "authorizationEnabled: nobody signs in, so nobody would be let in; set authenticationEnabled"
            )
        if self.authentication_enabled and not self.auth_key_path:
            problems.append(
                "authKeyPath: authenticationEnabled needs it; make a key (openssl rand -base64 32 > FILE) and name it"
            )
        if self.auth_seed_path and not self.auth_key_path:
            problems.append("authKeyPath: users of authSeedPath have secrets, which it seals; name a file")
        if self.tls_mode is TlsMode.DISABLED and (self.tls_cert_path or self.tls_key_path):
            problems.append("tlsMode: a certificate is named but not used; set permissive or enforcing")
        if ExporterType.OTLP_GRPC in self.metrics_options().types and not self.metrics_grpc_exporter_target:
            problems.append("metricsGrpcExporterTarget: metricsExporterType=OTLP_GRPC needs it; name a host:port")
        if self.trace_exporter_target and not self.trace_enable:
            problems.append("traceEnable: traceExporterTarget is named but nothing is traced; set it to true")
        if self.external_listen_port and not self.external_advertised_host:
            problems.append("externalAdvertisedHost: externalListenPort needs it; name what outside clients connect to")
        if not self.external_listen_port and (self.external_advertised_host or self.external_advertised_port):
            problems.append("externalListenPort: an external address is advertised that nothing listens on; set it")
        ports = self.listen_ports
        taken: dict[int, str] = {}
        for key, port in ports.items():
            if port and port in taken:
                problems.append(f"{key}: port {port} is {taken[port]} already; every plane needs a port of its own")
            taken[port] = key
        if problems:
            raise ValueError("\n".join(problems))
        return self

    # What is made of them

    @property
    def is_master(self) -> bool:
        """True for SYNC_MASTER and ASYNC_MASTER."""
        return self.broker_role is not BrokerRole.SLAVE

    @property
    def may_be_master(self) -> bool:
        """True for a slave, too, in a group that fails over."""
        return self.is_master or bool(self.failover_authority)

    @property
    def waits_for_slaves(self) -> bool:
        """As a master it acknowledges what slaves hold as well: a SYNC_MASTER, and whoever a group elects."""
        return self.broker_role is BrokerRole.SYNC_MASTER or bool(self.failover_authority)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """NameServers as host:port."""
        return tuple(parts_of(self.namesrv_addr))

    def failover_options(self) -> FailoverOptions:
        """How long a master that is silent stays the master, and how small the in-sync set may be."""
        return FailoverOptions(
            lease_ms=self.failover_lease,
            renew_ms=self.failover_lease // 4,
            margin_ms=self.failover_lease // 6,
            behind_ms=self.ha_max_time_slave_not_catchup,
            min_in_sync=self.in_sync_replicas or 1,
        )

    def failover_authority_tls(self) -> EtcdTls | None:
        """None: calls to etcd are plain."""
        if not self.failover_authority_ca_path:
            return None
        return EtcdTls(
            self.failover_authority_ca_path, self.failover_authority_cert_path, self.failover_authority_key_path
        )

    @property
    def listen_ports(self) -> dict[str, int]:
        """Ports this role listens on, by key."""
        ports = {"listenPort": self.listen_port, "grpcServerPort": self.grpc_server_port}
        if self.may_be_master:
            ports["haListenPort"] = self.ha_listen_port
        if self.external_listen_port:
            ports["externalListenPort"] = self.external_listen_port
        return ports | self.common_ports

    @property
    def needed_replicas(self) -> int:
        """Copies before a send is acknowledged, the master's included."""
        if self.in_sync_replicas is not None:
            return self.in_sync_replicas
        if self.failover_authority:
            return 1  # And all of the in-sync set.
        return 2 if self.broker_role is BrokerRole.SYNC_MASTER else 1

    @property
    def ha_host(self) -> str:
        """Host advertised for the HA and metadata planes."""
        return self.broker_ip2 or self.broker_ip1

    def client_limits(self) -> Limits:
        """Bounds of the client plane. A request holds at most 32 messages with their heads."""
        return Limits(
            message_bytes=MESSAGE_BYTES_MAX,
            connections=self.client_connections_max,
            concurrent_streams=self.client_streams_max,
        )

    def quota_rules(self) -> QuotaRules:
        """Who may have how much of the client plane."""
        return parse_quotas(self.client_quotas)

    def signature_zones(self) -> tuple[tuple[int, ...], bool]:
        """Zones that are named, in minutes east of UTC; and whether this machine's own is."""
        parts = {part.strip() for part in self.signature_time_zones.split(",")}
        minutes = {0 if part == "UTC" else zone_offset(part) for part in parts - {"local"}}
        return tuple(sorted(one for one in minutes if one is not None)), "local" in parts

    @property
    def max_delay_ms(self) -> int:
        """Farthest delivery time of a DELAY message."""
        return min(self.max_delay_time_mills, self.timer_max_delay_sec * 1_000)

    def store_options(self) -> StoreOptions:
        return StoreOptions(
            commit_log_file_bytes=self.mapped_file_size_commit_log,
            consume_queue_file_bytes=-(-self.mapped_file_size_consume_queue // 20) * 20,
            index_slot_count=self.max_hash_slot_num,
            index_entry_count=self.max_index_num,
            index_enabled=self.message_index_enable,
            max_message_bytes=self.max_message_size,
            flush_disk_type=self.flush_disk_type,
            delay_levels_ms=tuple(
                int(part[:-1]) * _DELAY_UNITS_MS[part[-1]] for part in self.message_delay_level.split()
            ),
            file_reserved_hours=self.file_reserved_time,
            unread_reserved_hours=self.unread_reserved_time,
            unreplicated_reserved_hours=self.unreplicated_reserved_time,
            delete_unread_when_full=self.delete_unread_when_full,
            clock_jump_max_hours=self.clock_jump_max,
            delete_when_hours=tuple(int(part) for part in self.delete_when.split(";")),
            disk_max_used_ratio=self.disk_max_used_space_ratio,
            disk_clean_forcibly_ratio=self.disk_space_clean_forcibly_ratio,
            disk_warning_ratio=self.disk_space_warning_level_ratio,
        )

    def master_options(self) -> MasterOptions:
        """The master's part of replication."""
        return MasterOptions(
            needed_slaves=self.needed_replicas - 1,
            slave_timeout_ms=self.slave_timeout,
            sync_flush_timeout_ms=self.sync_flush_timeout,
            heartbeat_interval_ms=self.ha_send_heartbeat_interval,
            housekeeping_interval_ms=self.ha_housekeeping_interval,
            transfer_batch_bytes=self.ha_transfer_batch_size,
            max_gap_not_in_sync_bytes=self.ha_max_gap_not_in_sync,
            sync_from_last_file=self.sync_from_last_file,
            proof_needed=self.service_tls_mode is TlsMode.ENFORCING,
            unproven_peers=tuple(ip_network(text) for text in parts_of(self.ha_plaintext_peers)),
        )

    def slave_options(self) -> SlaveOptions:
        """The slave's part of replication."""
        return SlaveOptions(
            heartbeat_interval_ms=self.ha_send_heartbeat_interval,
            housekeeping_interval_ms=self.ha_housekeeping_interval,
        )

    def delivery_options(self) -> DeliveryOptions:
        return DeliveryOptions(
            consume_from_earliest=self.consume_from_earliest, max_inflight_per_queue=self.max_inflight_per_queue
        )

    def trace_options(self) -> TraceOptions:
        return TraceOptions(sample_rate=self.trace_sample_rate, slow_ms=self.trace_slow_threshold)
