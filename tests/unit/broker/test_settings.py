"""A broker's settings: what is refused, with which words, and what the core gets."""

from __future__ import annotations

import pytest

from tandemmq.broker.settings import BrokerSettings
from tandemmq.core.storage.options import FlushDiskType
from tandemmq.service.metrics import ExporterType
from tandemmq.service.settings import SettingsError, load_settings

WRONG = {
    "slave with the master's id": (
        ["brokerRole=SLAVE", "namesrvAddr=ns:9876"],
        ["brokerId: a SLAVE needs an id above 0; 0 is the master's"],
    ),
    "master with a slave's id": (
        ["brokerId=3"],
        ["brokerId: a master's id is 0, not 3; a slave says brokerRole=SLAVE"],
    ),
    "misspelt key": (
        ["flushDiskTyp=SYNC_FLUSH"],
        ["flushDiskTyp (--set): unknown key; did you mean flushDiskType?"],
    ),
    "more copies than members": (
        ["brokerRole=SYNC_MASTER", "inSyncReplicas=3"],
        ["inSyncReplicas: 3 copies cannot be had from totalReplicas=2"],
    ),
    "copies nobody waits for": (
        ["inSyncReplicas=2"],
        ["inSyncReplicas: an ASYNC_MASTER waits for no slave; set brokerRole=SYNC_MASTER or remove it"],
    ),
    "one port twice": (
        ["listenPort=10912"],
        ["haListenPort: port 10912 is listenPort already; every plane needs a port of its own"],
    ),
    "external listener nobody can be told of": (
        ["externalListenPort=8082"],
        ["externalAdvertisedHost: externalListenPort needs it; name what outside clients connect to"],
    ),
    "external address nothing listens on": (
        ["externalAdvertisedHost=mq.example.org"],
        ["externalListenPort: an external address is advertised that nothing listens on; set it"],
    ),
    "external listener on the client port": (
        ["externalListenPort=8081", "externalAdvertisedHost=mq.example.org"],
        ["externalListenPort: port 8081 is grpcServerPort already; every plane needs a port of its own"],
    ),
    "heartbeat slower than housekeeping": (
        ["haSendHeartbeatInterval=30000"],
        ["haSendHeartbeatInterval: must be below haHousekeepingInterval, or idle links are closed"],
    ),
    "heartbeat slower than liveness": (
        ["brokerHeartbeatInterval=20000"],
        ["brokerHeartbeatInterval: must be below brokerNotActiveTimeoutMillis, or we seem dead"],
    ),
    "metrics sent to nobody": (
        ["metricsExporterType=PROM;OTLP_GRPC"],
        ["metricsGrpcExporterTarget: metricsExporterType=OTLP_GRPC needs it; name a host:port"],
    ),
    "traces for a receiver, and none made": (
        ["traceExporterTarget=collector:4317"],
        ["traceEnable: traceExporterTarget is named but nothing is traced; set it to true"],
    ),
    "metrics on the client port": (
        ["metricsExporterType=PROM", "metricsPromExporterPort=8081"],
        ["metricsPromExporterPort: port 8081 is grpcServerPort already; every plane needs a port of its own"],
    ),
    "slave without NameServers": (
        ["brokerRole=SLAVE", "brokerId=1"],
        ["namesrvAddr: a SLAVE finds its master through the NameServers; name at least one"],
    ),
    "TLS without its files": (
        ["tlsMode=enforcing"],
        [
            "tlsCertPath: tlsMode=enforcing needs it; name a PEM file",
            "tlsKeyPath: tlsMode=enforcing needs it; name a PEM file",
        ],
    ),
    "clients served by the gRPC library": (
        ["clientFront=grpcio"],
        ["clientFront (--set): there is no such setting any more; brokers' own front alone serves clients: remove it"],
    ),
    "clients served by the gRPC library, in Python's spelling": (
        ["client_front=grpcio"],
        ["client_front (--set): there is no such setting any more; brokers' own front alone serves clients: remove it"],
    ),
    "certificate that nobody uses": (
        ["tlsCertPath=c"],
        ["tlsMode: a certificate is named but not used; set permissive or enforcing"],
    ),
    "certificate for etcd without its key": (
        [
            "brokerRole=SYNC_MASTER",
            "namesrvAddr=ns:9876",
            "failoverAuthority=etcd:etcd:2379",
            "failoverAuthorityCaPath=ca",
            "failoverAuthorityCertPath=c",
        ],
        [
            (
                "failoverAuthorityCertPath and failoverAuthorityKeyPath belong together, and to "
                "failoverAuthorityCaPath; name all three, or the last alone"
            )
        ],
    ),
    "certificates of an etcd that is not asked": (
        [
            "brokerRole=SYNC_MASTER",
            "namesrvAddr=ns:9876",
            "failoverAuthority=file:/groups",
            "failoverAuthorityCaPath=ca",
        ],
        ["failoverAuthorityCaPath: calls to etcd use it; set failoverAuthority=etcd:…, or remove it"],
    ),
    "no folder": (
        ["storePathRootDir= "],
        ["storePathRootDir: is empty, which is the current folder; name one, or remove the key"],
    ),
    "disk levels out of order": (
        ["diskMaxUsedSpaceRatio=0.95"],
        ["diskMaxUsedSpaceRatio <= diskSpaceCleanForciblyRatio <= diskSpaceWarningLevelRatio must hold"],
    ),
}


def settings(*overrides: str) -> BrokerSettings:
    return load_settings(BrokerSettings, environ={}, overrides=overrides)


@pytest.mark.parametrize(("overrides", "problems"), WRONG.values(), ids=WRONG.keys())
def test_contradiction_is_named_with_its_remedy(overrides: list[str], problems: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(*overrides)
    assert refused.value.problems == problems


@pytest.mark.parametrize("value", ["mqgrpc", "grpcio"])
def test_of_a_setting_that_is_gone_the_value_that_all_had_is_passed_over(value: str) -> None:
    environ = {"TANDEMMQ_CLIENT_FRONT": value}
    if value == "mqgrpc":
        load_settings(BrokerSettings, environ=environ, overrides=["clientFront=mqgrpc"])
        return
    with pytest.raises(SettingsError) as refused:
        load_settings(BrokerSettings, environ=environ)
    [problem] = refused.value.problems
    assert problem.startswith("TANDEMMQ_CLIENT_FRONT (environment): there is no such setting any more")


def test_all_problems_come_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        settings("slaveTimeout=soon", "haListenPort=99999", "deleteWhen=25", "messageDelayLevel=1s 5x")
    assert [line.partition("=")[0] for line in sorted(refused.value.problems)] == [
        "deleteWhen",
        "haListenPort",
        "messageDelayLevel",
        "slaveTimeout",
    ]


@pytest.mark.parametrize("wrong", ["metricsExporterType=LOG", "traceEnable=true traceExporterTarget=http://collector"])
def test_where_traces_and_metrics_go_is_checked(wrong: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(*wrong.split())
    assert [line.partition("=")[0] for line in refused.value.problems] == [wrong.split()[-1].partition("=")[0]]


def test_metrics_go_nowhere_unless_told_so() -> None:
    assert not settings().metrics_options().types
    both = settings("metricsExporterType=PROM; OTLP_GRPC", "metricsGrpcExporterTarget=collector:4317")
    assert set(both.metrics_options().types) == set(ExporterType)
    assert both.listen_ports["metricsPromExporterPort"] == 5_557


def test_sync_master_waits_for_a_slave_unless_told_otherwise() -> None:
    assert settings("brokerRole=SYNC_MASTER").master_options().needed_slaves == 1
    assert settings("brokerRole=SYNC_MASTER", "inSyncReplicas=1").master_options().needed_slaves == 0
    assert settings("brokerRole=ASYNC_MASTER").master_options().needed_slaves == 0


def test_rocketmqs_texts_become_numbers() -> None:
    options = settings("messageDelayLevel=1s 2m 3h 1d", "deleteWhen=04;16", "flushDiskType=SYNC_FLUSH").store_options()
    assert options.delay_levels_ms == (1_000, 120_000, 10_800_000, 86_400_000)
    assert options.delete_when_hours == (4, 16)
    assert options.flush_disk_type is FlushDiskType.SYNC_FLUSH


def test_consume_queue_file_holds_whole_entries() -> None:
    assert settings("mappedFileSizeConsumeQueue=1001").store_options().consume_queue_file_bytes == 1020


def test_every_setting_has_rocketmqs_key_and_a_sentence() -> None:
    for name, field in BrokerSettings.model_fields.items():
        assert field.alias, name
        assert field.description, name
        assert field.description.endswith("."), name
