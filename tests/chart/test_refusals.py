"""Values that cannot be meant are refused before anything reaches a cluster: the words name the key and the way out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network
from random import Random
from typing import Any

import pytest
import yaml

from chart.rendering import CHART, refusal, render


def _set(**values: object) -> tuple[str, ...]:
    """Arguments of helm; `__` in a name stands for a dot."""
    return tuple(
        word
        for key, value in values.items()
        for word in ("--set-json", f"{key.replace('__', '.')}={json.dumps(value)}")
    )


def _groups(*groups: dict[str, object]) -> tuple[str, ...]:
    return _set(brokerGroups=list(groups))


_MI = 1 << 20
# Values that end in a file of settings, the environment or an object's field: a line break would begin another line.
LINES = {
    "brokers.settings.deleteWhen": "/brokers/settings/deleteWhen",
    "brokers.settings.messageDelayLevel": "/brokers/settings/messageDelayLevel",
    "admin.settings.operatorGroups": "/admin/settings/operatorGroups",
    "consistency.settings.groups": "/consistency/settings/groups",
    "consistency.deep.settings.digestAlgorithm": "/consistency/deep/settings/digestAlgorithm",
    "clusterDomain": "/clusterDomain",
    "clusterName": "/clusterName",
    "global.storageClass": "/global/storageClass",
    "image.registry": "/image/registry",
    "brokers.image.repository": "/brokers/image/repository",
    "brokers.persistence.storageClass": "/brokers/persistence/storageClass",
    "brokers.serviceAccount.name": "/brokers/serviceAccount/name",
    "externalAccess.advertisedHost": "/externalAccess/advertisedHost",
    "monitoring.otlp.endpoint": "/monitoring/otlp/endpoint",
    "tls.existingSecret": "/tls/existingSecret",
    "tracing.endpoint": "/tracing/endpoint",
    "consistency.timeZone": "/consistency/timeZone",
    "consistency.results.uri": "/consistency/results/uri",
}
_BREAKS = ("04\nbrokerRole=SLAVE", "04\rbrokerRole=SLAVE", "04\u2028brokerRole=SLAVE")

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
    # What Kubernetes, or a registry, takes for none
    (_set(networkPolicy__client__from=[{"ipBlock": {"cidr": "10.0.0.0/33"}}]), ("/from/0/ipBlock/cidr", "a network:")),
    (_set(networkPolicy__metrics__from=[{"ipBlock": {"cidr": "10.0.0.1"}}]), ("/from/0/ipBlock/cidr", "10.0.0.0/8")),
    (_set(networkPolicy__admin__from=[{"ipBlock": {"cdir": "10.0.0.0/8"}}]), ("/from/0/ipBlock", "cidr")),
    (_set(networkPolicy__nameserver__from=[{}]), ("/networkPolicy/nameserver/from/0", "minProperties")),
    (
        _set(networkPolicy__client__from=[{"ipBlock": {"cidr": "::/0"}, "podSelector": {}}]),
        ("/networkPolicy/client/from/0", "ipBlock alone"),
    ),
    (_set(networkPolicy__client__from=[{"podSelector": {"matchLabel": {"a": "b"}}}]), ("/podSelector", "matchLabel")),
    (_set(networkPolicy__client__from=[{"podSelector": {"matchLabels": {"a": 1}}}]), ("/matchLabels/a", "string")),
    (_set(externalAccess__loadBalancerSourceRanges=["300.0.0.0/8"]), ("/loadBalancerSourceRanges/0", "a network:")),
    (_set(consistency__quick__schedule="61 * * * *"), ("/consistency/quick/schedule", "minute (0-59)")),
    (_set(consistency__deep__schedule="0 0 * * 7"), ("/consistency/deep/schedule", "0 is Sunday")),
    (_set(security__certificates__schedule="*/0 * * * *"), ("/security/certificates/schedule", "of cron")),
    (
        _set(
            networkPolicy__client__from=[
                {"podSelector": {}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}},
            ]
        ),
        ("networkPolicy.client.from[1].ipBlock.except: 11.0.0.0/16 is no part of 10.0.0.0/8",),
    ),
    (_set(consistency__quick__schedule="0 22-5 * * *"), ("consistency.quick.schedule: the range 22-5 runs backwards",)),
    (_set(consistency__deep__schedule="0 4 * * Sat-Mon"), ("consistency.deep.schedule: the range Sat-Mon runs",)),
    (_set(security__certificates__schedule="0 4 * * 6-0/2"), ("security.certificates.schedule: the range 6-0",)),
    (_set(image__registry="https://registry.example.org"), ("/image/registry", "without a scheme")),
    (_set(image__tag=".1"), ("/image/tag", "letters, digits and . _ -")),
    (_set(brokers__image__repository="Team/Broker"), ("/brokers/image/repository", "in lower case")),
    (_set(image__pullSecrets=["My_Secret"]), ("/image/pullSecrets/0", "a name of Kubernetes")),
    (_set(commonLabels={"cost centre": "7"}), ("/commonLabels/cost centre", "a key of Kubernetes")),
    (_set(commonLabels={"owner": "x" * 64}), ("/commonLabels/owner", "at most 63")),
    (
        _set(brokers__pod__labels={"app.kubernetes.io/name": "mq"}),
        ("/brokers/pod/labels/app.kubernetes.io~1name", "selectors go by it"),
    ),
    (_set(commonAnnotations={"a b": "c"}), ("/commonAnnotations/a b", "a key of")),
    (_set(pod__extraEnv=[{"name": "A", "value": 1}]), ("/pod/extraEnv/0/value", "string")),
    (_set(pod__tolerations=[{"key": "a", "operator": "Exist"}]), ("/pod/tolerations/0/operator", "Exists")),
    (_set(admin__resources={"requests": {"memroy": "1Gi"}}), ("/admin/resources/requests/memroy", "nvidia.com/gpu")),
    (_set(consistency__results__persistence__size="0"), ("/persistence/size", "'0'")),
    (_set(brokers__persistence__selector={"matchLabel": {}}), ("/brokers/persistence/selector", "matchLabel")),
    # Settings of the services
    (
        _set(brokers__settings__flushDiskTyp="SYNC_FLUSH"),
        ("brokers.settings.flushDiskTyp: there is no such setting of the broker; did you mean flushDiskType?",),
    ),
    (_set(brokers__settings__diskMaxUsedRatio=0.7), ("did you mean diskMaxUsedSpaceRatio?",)),
    (_set(brokers__settings__brokerID=1), ("brokers.settings.brokerID", "did you mean brokerId?")),
    (_set(brokers__settings__fsync=True), ("brokers.settings.fsync: there is no such setting", "remove it")),
    (_groups({"name": "a", "settings": {"deletewhen": "04"}}), ("brokerGroups a: settings", "mean deleteWhen?")),
    (_set(nameserver__settings__warmupTime=1), ("nameserver.settings.warmupTime", "did you mean warmUpTime?")),
    (_set(admin__settings__refresh=1), ("admin.settings.refresh:", "did you mean refreshInterval?")),
    (_set(consistency__settings__scrubWindows="1d"), ("consistency.settings.scrubWindows", "mean scrubWindow?")),
    (_set(consistency__quick__settings__maxLag=1), ("consistency.quick.settings.maxLag", "mean maxLagBytes?")),
    (_set(consistency__deep__settings__keepRun=1), ("consistency.deep.settings.keepRun", "did you mean keepRuns?")),
    (_set(brokers__settings__deleteWhen="24"), ("/brokers/settings/deleteWhen", "hours of the day from 00 to 23")),
    (_set(brokers__settings__messageDelayLevel="1s 2x"), ("/messageDelayLevel", "delays like 1s 5s 10m 2h")),
    (_set(brokers__settings__flushDiskType="SOMETIMES"), ("/brokers/settings/flushDiskType", "SYNC_FLUSH")),
    (_set(brokers__settings__fileReservedTime="two days"), ("/brokers/settings/fileReservedTime", "integer")),
    (_set(brokers__settings__brokerId=7), ("/brokers/settings/brokerId", "left out", "ordinal")),
    (_set(brokers__settings__brokerRole="SLAVE"), ("/brokers/settings/brokerRole", "left out", "replication")),
    (_set(brokers__settings__haListenPort=1), ("/brokers/settings/haListenPort", "left out")),
    (_groups({"name": "a", "settings": {"inSyncReplicas": 1}}), ("/0/settings/inSyncReplicas", "replication")),
    (_set(nameserver__settings__listenPort=1), ("/nameserver/settings/listenPort", "left out")),
    (_set(nameserver__settings__storePathRootDir="x"), ("/nameserver/settings/storePathRootDir", "the volume")),
    (_set(admin__settings__adminToken="secret"), ("/admin/settings/adminToken", "admin.token.existingSecret")),
    (_set(admin__settings__secretKey="secret"), ("/admin/settings/secretKey", "TANDEMMQ_SECRET_KEY in pod.extraEnv")),
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
    # Evictions that would take all copies
    (
        _set(brokers__podDisruptionBudget__maxUnavailable=2),
        ("maxUnavailable: 2", "broker-a has 2 members", "at most 1"),
    ),
    (
        (*_groups({"name": "a", "slaves": 3}), *_set(brokers__podDisruptionBudget__maxUnavailable=3)),
        ("maxUnavailable: 3", "group a has 4 members", "at most 2"),
    ),
    (
        (
            *_groups({"name": "a", "slaves": 3}),
            *_set(brokers__podDisruptionBudget__maxUnavailable=2, failover__minInSyncReplicas=3),
        ),
        ("maxUnavailable: 2", "group a has 4 members", "at most 1"),
    ),
    (_set(nameserver__podDisruptionBudget__maxUnavailable=2), ("2 of 2 NameServers is all of them", "at most 1")),
    (
        _set(nameserver__replicas=3, nameserver__podDisruptionBudget__maxUnavailable="70%"),
        ("nameserver.podDisruptionBudget.maxUnavailable: 70% of 3", "at most 2"),
    ),
    # Volumes
    (
        _set(brokers__persistence__size="2Gi"),
        ("brokers.persistence.size: 2Gi", "mappedFileSizeCommitLog (1024Mi)", "index (401Mi)", "at least 2721Mi"),
    ),
    (
        _groups({"name": "a", "persistence": {"size": "1G"}}),
        ("brokerGroups a: persistence.size: 1G", "at least 2721Mi"),
    ),
    (
        _groups({"name": "a", "persistence": {"size": "8Gi"}, "settings": {"mappedFileSizeCommitLog": 4 << 30}}),
        ("brokerGroups a: persistence.size: 8Gi", "(4096Mi)"),
    ),
    (_set(brokers__persistence__accessModes=[]), ("/brokers/persistence/accessModes", "minItems")),
    (
        _set(consistency__enabled=True, consistency__results__persistence__size="1Mi"),
        ("consistency.results.persistence.size: 1Mi", "at least 64Mi"),
    ),
    # Memory and CPU
    *(
        (
            _set(**{f"{owner}__resources": {"requests": {"memory": "3Gi"}, "limits": {"memory": "1Gi"}}}),
            (f"{owner.replace('__', '.')}.resources.limits.memory: 1Gi is below what is requested, 3Gi",),
        )
        for owner in (
            *("brokers", "brokers__master", "brokers__slave", "brokers__rollout", "nameserver", "admin"),
            *("consistency__driver", "tracing__viewer"),
        )
    ),
    (
        _groups({"name": "a", "resources": {"requests": {"cpu": 2}, "limits": {"cpu": "500m"}}}),
        ("brokerGroups a: resources.limits.cpu: 500m is below what is requested, 2",),
    ),
    (_set(brokers__resources__requests__memory="3Gi"), ("brokers.resources.limits.memory: 2Gi is below",)),
    (
        _set(admin__resources={"limits": {"memory": "512m"}}),
        ("admin.resources.limits.memory: 512m are thousandths of a byte; write 512Mi",),
    ),
    (_set(nameserver__resources={"limits": {"memory": "10Mi"}}), ("in 10Mi no process", "set at least 64Mi")),
    *(
        (
            _set(**{"consistency__enabled": True, f"consistency__{part}__heap": "10Mi"}),
            (f"consistency.{part}.heap: Spark does not start in 10Mi; set at least 480Mi",),
        )
        for part in ("driver", "executors")
    ),
    (
        _set(consistency__enabled=True, consistency__driver__heap="2Gi"),
        ("consistency.driver.resources.limits.memory: 2Gi does not hold the heap, 2Gi",),
    ),
    (
        _set(consistency__enabled=True, consistency__executors={"cores": 10}),
        ("consistency.executors.pythonMemory: 768Mi, but 10 tasks", "at least 960Mi"),
    ),
    (
        _set(consistency__enabled=True, consistency__executors={"cpuRequest": 2, "cpuLimit": "500m"}),
        ("consistency.executors.cpuLimit: 500m is below cpuRequest, 2",),
    ),
    # Rules between settings that a broker would refuse at its start, and times that contain each other
    (
        _set(brokers__settings__diskMaxUsedSpaceRatio=0.95),
        ("brokers.settings.diskMaxUsedSpaceRatio: 0.95", "diskSpaceCleanForciblyRatio is 0.85"),
    ),
    (
        _groups({"name": "a", "settings": {"diskSpaceWarningLevelRatio": 0.8}}),
        ("brokerGroups a: settings.diskSpaceCleanForciblyRatio: 0.85", "diskSpaceWarningLevelRatio is 0.8"),
    ),
    (
        _set(brokers__settings__haSendHeartbeatInterval=20000),
        ("brokers.settings.haSendHeartbeatInterval: 20000", "haHousekeepingInterval is 20000"),
    ),
    (
        _set(brokers__settings__brokerNotActiveTimeoutMillis=500),
        ("brokers.settings.brokerHeartbeatInterval: 1000", "brokerNotActiveTimeoutMillis is 500"),
    ),
    (
        _set(brokers__settings={"maxMessageSize": 64 * _MI, "mappedFileSizeCommitLog": 64 * _MI}),
        ("brokers.settings.maxMessageSize: 67108864 bytes", "mappedFileSizeCommitLog, 67108864 bytes"),
    ),
    (
        _set(brokers__startupProbe__failureThreshold=10),
        ("brokers.startupProbe", "is 20 s", "masterRecoveryTimeout, 60000 ms", "raise failureThreshold"),
    ),
    (_set(brokers__rollout__timeout="30s"), ("brokers.rollout.timeout: 30s", "terminationGracePeriodSeconds, 60")),
    *(
        (
            _set(**{f"monitoring__{monitor}__scrapeTimeout": "1m30s", f"monitoring__{monitor}__interval": "1m"}),
            (f"monitoring.{monitor}.scrapeTimeout: 1m30s is longer than interval, 1m",),
        )
        for monitor in ("podMonitor", "serviceMonitor")
    ),
    (_set(tls__certManager__renewBefore="2160h"), ("tls.certManager.renewBefore: 2160h", "duration, 2160h")),
    (_set(nameserver__updateStrategy__type="Recreate"), ("/nameserver/updateStrategy/type", "'RollingUpdate'")),
    (_set(admin__updateStrategy__type="OnDelete"), ("/admin/updateStrategy/type", "'Recreate'")),
    # What would be somebody else's
    (_groups({"name": "broker"}), ("brokerGroups broker", "mq-broker", "the release itself")),
    (_groups({"name": "a"}, {"name": "a-master"}), ("brokerGroups a-master", "mq-a-master", "group a")),
    (_set(fullnameOverride="7mq"), ("fullnameOverride: 7mq", "a letter first")),
    (_set(fullnameOverride="m.q"), ("fullnameOverride: m.q", "a letter first")),
    (
        _set(brokers__pod__extraEnv=[{"name": "TANDEMMQ_BROKER_ROLE", "value": "SLAVE"}]),
        ("brokers.pod.extraEnv: TANDEMMQ_BROKER_ROLE would override what the chart sets (replication)",),
    ),
    (
        _groups({"name": "a", "pod": {"extraEnv": [{"name": "TANDEMMQ_LISTEN_PORT", "value": "1"}]}}),
        ("brokerGroups a: pod.extraEnv: TANDEMMQ_LISTEN_PORT",),
    ),
    (
        _set(pod__extraEnv=[{"name": "TANDEMMQ_NAMESRV_ADDR", "value": "x:1"}]),
        ("pod.extraEnv: TANDEMMQ_NAMESRV_ADDR",),
    ),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda value: " ".join(value) if value else "")
def test_is_refused_in_words_that_help(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    if "a-very-long" in " ".join(arguments):
        arguments = (*arguments, "--set", "fullnameOverride=a-release-with-a-long-name")
    message = refusal(*arguments)
    missing = [word for word in words if word not in message]
    assert not missing, message


@pytest.mark.parametrize("value", LINES)
def test_a_value_is_one_line(value: str) -> None:
    """The schema says so, and so does the template where somebody skips the schema."""
    for text in _BREAKS[:1] if value != "brokers.settings.deleteWhen" else _BREAKS:
        arguments = ("--set-json", f"{value}={json.dumps(text)}")
        assert LINES[value] in refusal(*arguments)
        message = refusal(*arguments, "--skip-schema-validation")
        assert f"{value}: it has a line break or another control character" in message


def _whole_numbers(schema: Any, definitions: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Keys below the values that take whole numbers alone; not in lists and maps of names that operators choose."""
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].rpartition("/")[2]], **schema}
    if schema.get("type") == "integer":
        yield path
    for key, value in schema.get("properties", {}).items():
        yield from _whole_numbers(value, definitions, (*path, key))


@pytest.mark.parametrize("huge", [10**30, (1 << 53) + 1, (1 << 63) - 1])
def test_a_number_that_helm_would_change_is_refused(huge: int) -> None:
    """Helm computes in 64-bit floats: 2**53 + 1 is 2**53, and a replica count of 10**30 below zero."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    keys = list(_whole_numbers(schema, schema["definitions"]))
    assert len(keys) > 100
    said = refusal(*(word for key in keys for word in ("--set-json", f"{'.'.join(key)}={huge}")))
    assert [key for key in keys if f"at '/{'/'.join(key)}'" not in said] == []


def _network(rng: Random, *, within: IPv4Network | IPv6Network | None = None) -> IPv4Network | IPv6Network:
    kind = rng.choice((IPv4Network, IPv6Network)) if within is None else type(within)
    longest = kind("::/0" if kind is IPv6Network else "0.0.0.0/0").max_prefixlen
    length = rng.randint(0 if within is None else within.prefixlen, longest)
    address = rng.getrandbits(longest)
    if within is not None:
        address = int(within.network_address) | address & int(within.hostmask)
    return kind((address, length), strict=False)


def test_an_exception_is_a_smaller_part_of_its_network() -> None:
    """As Kubernetes judges it, whose code compares addresses and lengths; by Python's of the same networks."""
    rng = Random(26)
    drawn = []
    for _ in range(300):
        cidr = _network(rng)
        # Near it, since what is drawn anywhere is nearly never within.
        near = cidr.supernet(min(cidr.prefixlen, rng.choice((0, 0, 1, 4))))
        drawn.append((cidr, _network(rng, within=near)))
    peers = [{"ipBlock": {"cidr": str(cidr), "except": [str(excepted)]}} for cidr, excepted in drawn]
    said = refusal(*_set(networkPolicy__client__from=peers))
    for number, (cidr, excepted) in enumerate(drawn):
        is_good = excepted.subnet_of(cidr) and excepted != cidr  # type: ignore[arg-type]
        assert (f"from[{number}].ipBlock.except: {excepted} is no part of {cidr}" not in said) == is_good


TAKEN = [
    _set(
        networkPolicy__client__from=[
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
            {"podSelector": {}},
        ]
    ),
    _set(
        networkPolicy__admin__from=[
            {"ipBlock": {"cidr": "2001:db8::/32"}},
            {"ipBlock": {"cidr": "::ffff:10.0.0.0/104", "except": ["::ffff:a01:0/112"]}},
        ]
    ),
    _set(
        networkPolicy__metrics__from=[
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["prometheus"]}]},
            }
        ]
    ),
    _set(consistency__quick__schedule="*/15 0-6,22 1,15 jan-MAR Mon-5/2"),
    _set(consistency__quick__schedule="@daily"),
    _set(consistency__quick__schedule="08-09 00-23 1-1 Jan-dec sun-6"),
    _set(image__registry="registry.example.org:5000/team", image__tag="v1.2.3_rc-1"),
    _set(brokers__image__repository="ghcr.io/team/tandemmq__broker"),
    _set(commonLabels={"example.org/team": "messaging", "empty": ""}),
    _set(consistency__results__persistence__size="0.5Gi"),
    _set(brokers__resources={"limits": {"example.org/disk": 1, "memory": "2Gi", "hugepages-2Mi": "64Mi"}}),
]


@pytest.mark.parametrize("arguments", TAKEN)
def test_what_kubernetes_takes_is_taken(arguments: tuple[str, ...]) -> None:
    assert render(*arguments).objects


def test_a_setting_of_one_group_is_one_line() -> None:
    arguments = _groups({"name": "a", "settings": {"deleteWhen": _BREAKS[0]}})
    assert "/brokerGroups/0/settings/deleteWhen" in refusal(*arguments)
    assert "brokerGroups[0].settings.deleteWhen: it has a" in refusal(*arguments, "--skip-schema-validation")


@pytest.mark.parametrize("component", ["brokers", "nameserver", "admin", "consistency"])
def test_the_name_of_a_setting_is_one_line(component: str) -> None:
    arguments = _set(**{f"{component}__settings": {"a\nbrokerRole": "SLAVE"}})
    assert "a setting's name has letters and digits only" in refusal(*arguments).replace("\\'", "'")
    message = refusal(*arguments, "--skip-schema-validation")
    assert f'{component}.settings: the key "a\\nbrokerRole" has a line break' in message


def test_text_of_the_operators_own_may_have_lines() -> None:
    render(*_set(commonAnnotations={"note": "a\nb"}, brokers__pod__annotations={"note": "a\nb"}))
    render(*_set(extraObjects=["kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: x"]))


def test_what_the_chart_sets_is_refused_without_the_schema_too() -> None:
    message = refusal(*_set(brokers__settings__brokerRole="SLAVE"), "--skip-schema-validation")
    assert "brokers.settings.brokerRole: leave it out: the chart sets it (replication)" in message


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
    render(*_set(brokers__persistence__size="2721Mi"))
    render(*_set(brokers__persistence__size="2318Mi", brokers__settings__messageIndexEnable=False))
    render(*_set(brokers__persistence__size="3G"))
    render(*_set(brokers__podDisruptionBudget__maxUnavailable=2), *_groups({"name": "a", "slaves": 3}))
    render(*_set(replication="none", brokers__podDisruptionBudget__maxUnavailable=1))
    render(*_set(nameserver__replicas=1, nameserver__podDisruptionBudget__maxUnavailable=1))
    render(*_set(nameserver__replicas=3, nameserver__podDisruptionBudget__maxUnavailable="50%"))
    render(
        *_set(brokers__resources={"requests": {"memory": "1Gi", "cpu": 1}, "limits": {"memory": "1024Mi", "cpu": "1"}})
    )
    render(*_set(consistency__enabled=True, consistency__executors__heap="480Mi"))
    render(*_set(monitoring__podMonitor__scrapeTimeout="60s", monitoring__podMonitor__interval="1m"))
    render(*_set(brokers__settings={"diskMaxUsedSpaceRatio": 0.9, "diskSpaceCleanForciblyRatio": 0.9}))
    render(*_set(brokers__settings={"deleteWhen": "04; 16", "messageDelayLevel": "1s 2m"}))
    render(*_set(brokers__pod__extraEnv=[{"name": "TZ", "value": "UTC"}]))


def _leaves(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value of values.yaml that has none below it."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


_LEAVES = list(_leaves(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))))
# Handed on to Kubernetes as they are, or of any length.
_FREE = re.compile(r"/pod/(securityContext|containerSecurityContext)/|/monitoring/(runbookUrl|dashboards/labels)")
_WHOLE = re.compile(r"/monitoring/prometheusRule/(lagSeconds|sendSeconds)Max")
# Refused where the values are judged together, and not by the schema, which comes first.
_TOGETHER = re.compile(r"/podDisruptionBudget/maxUnavailable|/minInSyncReplicas|/prometheusRule/")


@pytest.mark.parametrize(
    ("kind", "bad", "but"),
    [
        (int, -1, _FREE),
        (int, 10**18, re.compile(f"{_FREE.pattern}|{_TOGETHER.pattern}")),
        (int, 1.5, re.compile(f"{_FREE.pattern}|{_WHOLE.pattern}")),
        (int, "12", re.compile(f"{_FREE.pattern}|{_WHOLE.pattern}")),
        (str, "a\"b'c {{ .Values }}", _FREE),
        (str, "x\ny: z", re.compile("/pod/securityContext/")),
        (bool, "true", _FREE),
        (list, "x", _FREE),
        (dict, "x", _FREE),
    ],
    ids=str,
)
def test_every_value_of_a_wrong_kind_is_named(kind: type, bad: object, but: re.Pattern[str]) -> None:
    """All at once: what helm refuses it names, each."""
    wrong = [path for path, value in _LEAVES if type(value) is kind]
    said = refusal(*(word for path in wrong for word in ("--set-json", f"{'.'.join(path)}={json.dumps(bad)}")))
    named = {f"/{'/'.join(path)}" for path in wrong}
    told = set(re.findall(r"at '(/[^']*)'", said))
    assert {path for path in named if path not in told and not but.search(path)} == set()


def _required(schema: Any, definitions: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    yield from ((*path, key) for key in schema.get("required", ()))
    for key, value in schema.get("properties", {}).items():
        yield from _required(value, definitions, (*path, key))


def _nodes(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _nodes(value, (*above, key))


def _without_values(paths: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for path in paths:
        yield from ("--set-json", f"{'.'.join(path)}=null")


def _told(value: Any) -> Any:
    """Without what is as good as not there."""
    if isinstance(value, dict):
        return {key: _told(each) for key, each in value.items() if each is not None and each is not False}
    return [_told(each) for each in value] if isinstance(value, list) else value


# Of Kubernetes' own form: what is taken away there is not the default.
_KUBERNETES_OWN = re.compile(r"(resources|retention|updateStrategy|[a-z]+Probe|[a-zA-Z]*[sS]ecurityContext)\b")


def test_a_key_without_a_value_is_refused_by_its_name_or_is_the_default() -> None:
    """Helm takes the default away: `enabled:` below persistence was a store that is lost with its pod."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    paths = [path for path in _nodes(values) if not _KUBERNETES_OWN.search(".".join(path))]
    needed = set(_required(schema, schema["definitions"])) & set(paths)
    assert ("brokers", "persistence", "enabled") in needed
    for depth in range(1, 1 + max(map(len, needed))):
        wanted = {path for path in needed if len(path) == depth}
        said = refusal(*_without_values(sorted(wanted)))
        missing = re.findall(r"at '(/?[^']*)': missing propert(?:y|ies) (.*)", said)
        named = {f"{above}/{key}" for above, keys in missing for key in re.findall(r"'([^']+)'", keys)}
        assert {f"/{'/'.join(path)}" for path in wanted} - named == set()
    rest = [path for path in paths if path not in needed]
    assert len(rest) > 50
    # Of two, one above the other, the lower one would bring the upper one back.
    rest = [path for path in rest if not any(other[: len(path)] == path for other in rest if other != path)]
    assert _told(list(render(*_without_values(rest)).objects)) == _told(list(render().objects))
