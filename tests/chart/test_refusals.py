"""Values that cannot be meant are refused before anything reaches a cluster: the words name the key and the way out."""

from __future__ import annotations

import json

import pytest

from chart.rendering import refusal, render


def _set(**values: object) -> tuple[str, ...]:
    """Arguments of helm; `__` in a name stands for a dot."""
    return tuple(
        word
        for key, value in values.items()
        for word in ("--set-json", f"{key.replace('__', '.')}={json.dumps(value)}")
    )


def _groups(*groups: dict[str, object]) -> tuple[str, ...]:
    return _set(brokerGroups=list(groups))


# Arguments, and what the message has to say.
REFUSED = [
    # Single values
    (_set(replication="semi"), ("/replication", "'sync', 'async', 'none'")),
    (_set(failover__enabled="yes"), ("/failover/enabled", "'auto'")),
    (_set(failover__leaseMilliseconds=100), ("/failover/leaseMilliseconds", "1,000")),
    (_set(replication="async", failover__enabled=True), ("/failover/enabled", "auto or false", "replication: sync")),
    (_set(replication="none", failover__enabled=True), ("/failover/enabled", "auto or false", "replication: sync")),
    (_set(failover__minInSyncReplicas=3), ("failover.minInSyncReplicas: 3", "broker-a has 2 members")),
    (_set(brokers__settings={"failoverAuthority": "file:/x"}), ("left out: the chart sets it (failover.enabled)",)),
    (_set(nameserver__replicas=0), ("/nameserver/replicas", "want 1")),
    (_set(tls__mode="sometimes"), ("/tls/mode", "'permissive'")),
    (_set(noSuchKey=1), ("noSuchKey",)),
    (_set(brokers__persistence__sizes="1Gi"), ("/brokers/persistence", "sizes")),
    (_set(brokers__persistence__size="lots"), ("/brokers/persistence/size", "lots")),
    (_set(brokers__persistence__accessModes=["ReadWriteMany"]), ("/accessModes/0", "ReadWriteOnce")),
    (_set(brokerGroups=[]), ("/brokerGroups", "want 1")),
    (_groups({"name": "Broker_A"}), ("/brokerGroups/0/name", "Broker_A")),
    (_groups({"name": "broker-a", "slave": 1}), ("/brokerGroups/0", "slave")),
    (_set(brokers__image__digest="latest"), ("/brokers/image/digest", "sha256:")),
    (_set(externalAccess__nodePortBase=8081), ("/externalAccess/nodePortBase", "30,000")),
    (_set(externalAccess__advertisedHost="mq.example.com:8081"), ("/externalAccess/advertisedHost",)),
    (_set(brokers__rollout__timeout="half an hour"), ("/brokers/rollout/timeout",)),
    # Settings of the services
    (_set(brokers__settings__flushDiskTyp="SYNC_FLUSH"), ("/brokers/settings", "flushDiskTyp")),
    (_set(brokers__settings__flushDiskType="SOMETIMES"), ("/brokers/settings/flushDiskType", "SYNC_FLUSH")),
    (_set(brokers__settings__fileReservedTime="two days"), ("/brokers/settings/fileReservedTime", "integer")),
    (_set(brokers__settings__brokerId=7), ("/brokers/settings/brokerId", "left out", "ordinal")),
    (_set(brokers__settings__brokerRole="SLAVE"), ("/brokers/settings/brokerRole", "left out", "replication")),
    (_set(brokers__settings__haListenPort=1), ("/brokers/settings/haListenPort", "left out")),
    (_groups({"name": "a", "settings": {"inSyncReplicas": 1}}), ("/0/settings/inSyncReplicas", "replication")),
    (_set(nameserver__settings__listenPort=1), ("/nameserver/settings/listenPort", "left out")),
    (_set(nameserver__settings__storePathRootDir="x"), ("/nameserver/settings/storePathRootDir", "the volume")),
    (_set(admin__settings__adminToken="secret"), ("/admin/settings/adminToken", "admin.token.existingSecret")),
    # Contradictions
    (_groups({"name": "broker-a", "slaves": 0}), ("/brokerGroups/0/slaves", "1 or more", "replication: none")),
    (
        (*_set(replication="none"), *_groups({"name": "broker-a", "slaves": 1})),
        ("/brokerGroups/0/slaves", "left out", "replication: sync"),
    ),
    (_set(brokers__persistence__enabled=False), ("/brokers/persistence/enabled", "replication: async")),
    (
        _groups({"name": "broker-a", "persistence": {"enabled": False}}),
        ("/brokerGroups/0/persistence/enabled", "replication: async"),
    ),
    (_set(tls__mode="enforcing"), ("/tls/existingSecret", "tls.certManager.issuerRef.name")),
    (_set(tls__existingSecret="tls"), ("/tls/existingSecret", "enforcing")),
    (
        _set(tls__mode="enforcing", tls__existingSecret="tls", tls__certManager__issuerRef__name="ca"),
        ("/tls/certManager/issuerRef/name", "keep one"),
    ),
    (
        _set(externalAccess__enabled=True, externalAccess__type="LoadBalancer"),
        ("/externalAccess/advertisedHost", "$(POD_NAME)"),
    ),
    (
        _set(admin__enabled=False, monitoring__serviceMonitor__enabled=True),
        ("/monitoring/serviceMonitor/enabled", "admin.enabled: true"),
    ),
    (_set(tracing__sampleRate=2), ("/tracing/sampleRate", "want 1")),
    (_set(tracing__endpoint="http://collector:4317"), ("/tracing/endpoint",)),
    (_set(brokers__settings__traceEnable=True), ("/brokers/settings/traceEnable", "left out", "tracing.enabled")),
    (_set(nameserver__settings__metricsPromExporterPort=1), ("/metricsPromExporterPort", "left out", "always")),
    (_set(tracing__viewer__enabled=True), ("/tracing/enabled", "true: the viewer shows traces")),
    (
        _set(tracing__enabled=True, tracing__viewer__enabled=True, tracing__endpoint="collector:4317"),
        ("/tracing/endpoint", "keep one of them"),
    ),
    *(
        (
            _set(monitoring__metrics__enabled=False, **{f"monitoring__{what}__enabled": True}),
            ("/monitoring/metrics/enabled", f"monitoring.{what}"),
        )
        for what in ("podMonitor", "prometheusRule", "dashboards")
    ),
    (_groups({"name": "broker-a"}, {"name": "broker-a"}), ("brokerGroups", "broker-a", "twice")),
    (_groups({"name": "a-group-with-a-very-long-name-indeed"}), ("fullnameOverride", "52")),
    (
        _set(brokers__terminationGracePeriodSeconds=30),
        ("brokers.terminationGracePeriodSeconds", "at least 50", "drain.timeLimitSeconds"),
    ),
    (
        (*_set(externalAccess__enabled=True), *_groups({"name": "broker-a", "slaves": 10})),
        ("slaves: 10", "at most 9"),
    ),
    (
        _set(
            externalAccess__enabled=True,
            externalAccess__type="LoadBalancer",
            externalAccess__advertisedHost="mq.example.com",
        ),
        ("externalAccess.advertisedHost", "put $(POD_NAME) into it"),
    ),
    (
        _set(externalAccess__enabled=True, externalAccess__nodePortBase=32750),
        ("externalAccess.nodePortBase", "32767"),
    ),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda value: " ".join(value) if value else "")
def test_is_refused_in_words_that_help(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    if "a-very-long" in " ".join(arguments):
        arguments = (*arguments, "--set", "fullnameOverride=a-release-with-a-long-name")
    message = refusal(*arguments)
    missing = [word for word in words if word not in message]
    assert not missing, message


def test_all_contradictions_are_told_at_once() -> None:
    message = refusal(
        *_set(brokers__terminationGracePeriodSeconds=30), *_groups({"name": "broker-a"}, {"name": "broker-a"})
    )
    assert "twice" in message
    assert "at least 50" in message


def test_what_differs_by_nothing_but_its_spelling_is_taken() -> None:
    render(*_set(replication="none"), *_groups({"name": "broker-a", "slaves": 0}))
    render(*_set(brokers__terminationGracePeriodSeconds=50))
    render(*_set(externalAccess__enabled=True, externalAccess__nodePortBase=32740))
