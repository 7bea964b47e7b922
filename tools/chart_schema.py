"""Keeps values.schema.json in step with the services: which settings exist, their types and ranges.

    python tools/chart_schema.py           # rewrites the settings in charts/tandemmq/values.schema.json
    python tools/chart_schema.py --check   # exit code 1 if that would change it

The rest of the schema is written by hand. A setting that the chart derives from another value, or fixes, is refused
with a message that says so. JSON Schema has no messages of its own; but of a constant helm prints what the value must
be, so the constant is the sentence. The rules between values in the schema's `allOf` do the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMA: Final = ROOT / "charts" / "tandemmq" / "values.schema.json"

sys.path[:0] = [str(ROOT / "services"), str(ROOT / "build" / "proto")]

from tandemmq.admin.settings import AdminSettings
from tandemmq.broker.settings import BrokerSettings
from tandemmq.consistency.settings import ConsistencySettings, parse_bytes, parse_seconds
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.service.settings import ServiceSettings, json_schema

METRICS: Final = {
    "metricsExporterType": "monitoring.metrics, monitoring.otlp",
    "metricsPromExporterPort": "always the same",
    "metricsPromExporterHost": "the pod's network",
    "metricsGrpcExporterTarget": "monitoring.otlp.endpoint",
    "metricsGrpcExporterIntervalInMills": "monitoring.otlp.intervalSeconds",
}
# Settings by component that the chart sets, and by what.
DERIVED: Final = {
    "broker": {
        "brokerClusterName": "clusterName",
        "brokerName": "brokerGroups[].name",
        "brokerId": "the pod's ordinal",
        "brokerRole": "replication",
        "inSyncReplicas": "replication, failover.minInSyncReplicas",
        "failoverAuthority": "failover.enabled",
        "failoverLease": "failover.leaseMilliseconds",
        "totalReplicas": "brokerGroups[].slaves",
        "namesrvAddr": "nameserver.replicas",
        "bindAddress": "the pod's network",
        "brokerIP1": "the pod's name",
        "brokerIP2": "the pod's name",
        "listenPort": "always the same",
        "haListenPort": "always the same",
        "grpcServerPort": "always the same",
        "advertisedGrpcPort": "always the same",
        "haMasterAddress": "the NameServers",
        "storePathRootDir": "the volume",
        "shutdownTimeout": "brokers.shutdownTimeoutSeconds",
        "tlsMode": "tls.mode",
        "tlsCertPath": "tls.existingSecret",
        "tlsKeyPath": "tls.existingSecret",
        "externalListenPort": "externalAccess.enabled",
        "externalAdvertisedHost": "externalAccess.advertisedHost",
        "externalAdvertisedPort": "externalAccess",
        "traceEnable": "tracing.enabled",
        "traceSampleRate": "tracing.sampleRate",
        "traceSlowThreshold": "tracing.slowThresholdMs",
        "traceExporterTarget": "tracing.endpoint",
        **METRICS,
    },
    "nameserver": {
        "listenPort": "always the same",
        "bindAddress": "the pod's network",
        "storePathRootDir": "the volume",
        **METRICS,
    },
    "admin": {
        "namesrvAddr": "nameserver.replicas",
        "bindAddress": "the pod's network",
        "httpPort": "always the same",
        "adminToken": "admin.token.existingSecret",
        "viewerToken": "admin.viewerToken.existingSecret",
        "kubernetesRoleLabels": "admin.kubernetes.access",
        "kubernetesInstance": "the release's name",
        "kubernetesNamespace": "the namespace",
        "consistencyResults": "consistency.enabled",
    },
    "consistency": {
        "clusterName": "clusterName",
        "tier": "consistency.quick, consistency.deep",
        "namesrvAddr": "nameserver.replicas",
        "sources": "consistency.<tier>.volumes",
        "path": "consistency.<tier>.volumes",
        "results": "consistency.results",
        "deadline": "consistency.<tier>.deadlineSeconds",
        "sparkMaster": "consistency.executors.count",
        "driverMemory": "consistency.driver.heap",
        "driverHost": "the pod's address",
        "driverPort": "always the same",
        "driverPodName": "the pod's name",
        "blockManagerPort": "always the same",
        "executorInstances": "consistency.executors.count",
        "executorCores": "consistency.executors.cores",
        "executorMemory": "consistency.executors.heap",
        "executorMemoryOverhead": "consistency.executors.pythonMemory",
        "executorImage": "consistency.image",
        "executorPodTemplate": "consistency.executors.pod",
        "executorServiceAccount": "consistency.serviceAccount",
        "sparkConf": "consistency.sparkConf",
        "kubernetesNamespace": "the namespace",
        "kubernetesResults": "the release's name",
        "kubernetesEvents": "always true",
        "statefulSetPrefix": "the release's name",
    },
}
MODELS: Final[dict[str, type[ServiceSettings]]] = {
    "broker": BrokerSettings,
    "nameserver": NameServerSettings,
    "admin": AdminSettings,
    "consistency": ConsistencySettings,
}
# What the job reads with a unit, by the function that reads it: a schema of its settings only knows the number.
WITH_UNITS: Final[dict[object, str]] = {
    parse_bytes: r"^[0-9]+(\.[0-9]+)? *(B|KiB|MiB|GiB|TiB)?$",
    parse_seconds: r"^[0-9]+(\.[0-9]+)? *(ms|s|m|h|d)?$",
}


def settings_schema(component: str) -> dict[str, Any]:
    """Schema of `settings` of a component: those of the service that an operator may set."""
    schema = json_schema(MODELS[component])
    definitions = schema.get("$defs", {})
    derived = DERIVED[component]
    unknown = derived.keys() - schema["properties"].keys()
    if unknown:
        raise SystemExit(f"DERIVED names settings that {component} does not have: {', '.join(sorted(unknown))}")
    units = {field.alias: found for field in MODELS[component].model_fields.values() if (found := _with_unit(field))}
    properties = {
        key: {"const": f"left out: the chart sets it ({derived[key]})"}
        if key in derived
        else _plain(value, definitions) | units.get(key, {})
        for key, value in sorted(schema["properties"].items())
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """One setting without titles, defaults and references."""
    if "$ref" in field:
        field = {**definitions[field["$ref"].rpartition("/")[2]], **{k: v for k, v in field.items() if k != "$ref"}}
    if "anyOf" in field:
        (only,) = (option for option in field["anyOf"] if option.get("type") != "null")
        field = {**only, **{k: v for k, v in field.items() if k != "anyOf"}}
    kept = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength")
    return {key: field[key] for key in (*kept, "description") if key in field}


def _with_unit(field: FieldInfo) -> dict[str, Any]:
    """What a setting that may be written with a unit is instead of a number."""
    readers = (each.func for each in field.metadata if isinstance(each, BeforeValidator))
    return next(
        ({"type": ["number", "string"], "pattern": WITH_UNITS[each]} for each in readers if each in WITH_UNITS), {}
    )


def renewed(text: str) -> str:
    """The schema's text with the settings of today."""
    schema = json.loads(text)
    for component in MODELS:
        schema["definitions"][f"{component}Settings"] = settings_schema(component)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Rewrites or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    text = SCHEMA.read_text(encoding="utf-8")
    fresh = renewed(text)
    if check and fresh != text:
        print(f"{SCHEMA.relative_to(ROOT)} is not of today's settings; run python tools/chart_schema.py")
        return 1
    if not check:
        SCHEMA.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
