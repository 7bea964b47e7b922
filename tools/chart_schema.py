"""Keeps values.schema.json in step with the services: which settings exist, their types and ranges.

    python tools/chart_schema.py           # rewrites its settings, and charts/tandemmq/templates/_settings.tpl
    python tools/chart_schema.py --check   # exit code 1 if that would change it

The template has names and defaults for the checks of templates/validation.yaml. What the schema requires is what has a
default in values.yaml; the rest of it is written by hand. A setting that the chart derives from another value, or
fixes, is refused with a message that says so. JSON Schema has no messages of its own; but of a constant helm prints
what the value must be, so the constant is the sentence. The rules between values in the schema's `allOf` do the same.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMA: Final = ROOT / "charts" / "tandemmq" / "values.schema.json"
VALUES: Final = SCHEMA.with_name("values.yaml")
TEMPLATE: Final = ROOT / "charts" / "tandemmq" / "templates" / "_settings.tpl"

sys.path[:0] = [str(ROOT / "services"), str(ROOT / "build" / "proto")]

from tandemmq.admin.settings import AdminSettings
from tandemmq.broker.settings import BrokerSettings
from tandemmq.consistency.settings import ConsistencySettings, parse_bytes, parse_seconds
from tandemmq.nameserver.settings import NameServerSettings
from tandemmq.service.settings import ENVIRONMENT_PREFIX, ServiceSettings, json_schema

METRICS: Final = {
    "metricsExporterType": "monitoring.metrics, monitoring.otlp",
    "metricsPromExporterPort": "always the same",
    "metricsPromExporterHost": "the pod's network",
    "metricsGrpcExporterTarget": "monitoring.otlp.endpoint",
    "metricsGrpcExporterIntervalInMills": "monitoring.otlp.intervalSeconds",
}
SERVICE_TLS: Final = {
    "serviceTlsMode": "security.serviceTlsMode",
    "serviceTlsPath": "security.existingSecretPrefix, security.certManager",
    "serviceTlsCall": "security.serviceTlsCall",
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
        "groupEndpoint": "failover.enabled",
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
        "openListenPort": "always the same",
        **SERVICE_TLS,
        **METRICS,
    },
    "nameserver": {
        "listenPort": "always the same",
        "bindAddress": "the pod's network",
        "storePathRootDir": "the volume",
        "openListenPort": "always the same",
        **SERVICE_TLS,
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
        **SERVICE_TLS,
    },
    "consistency": {
        **SERVICE_TLS,
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


# What a text has to be, and the words for one that is not. Brokers refuse the same; here it is said before any pod.
# Helm computes in 64-bit floats: a larger whole number becomes another one, and from 2**63 on a negative one.
SETTING_MAX: Final = (1 << 53) - 1
# What Kubernetes' own fields hold.
FIELD_MAX: Final = (1 << 31) - 1
# Of Kubernetes' own form: an operator may take a part of it away by null.
KUBERNETES_OWN: Final = ("resources", "retention", "updateStrategy", "startupProbe", "livenessProbe", "readinessProbe")
LINE: Final = "^[^\\x00-\\x1f\\x7f\u0085\u2028\u2029]*$"
ONE_LINE: Final = "one line: a line break would begin another setting"
FORMS: Final = {
    "deleteWhen": (
        r"^ *([01]?[0-9]|2[0-3]) *(; *([01]?[0-9]|2[0-3]) *)*$",
        'hours of the day from 00 to 23, separated by \';\', for example "04" or "04;16"',
    ),
    "messageDelayLevel": (r"^ *[0-9]+[smhd]( +[0-9]+[smhd])* *$", "delays like 1s 5s 10m 2h, separated by spaces"),
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
    variables = {
        field.alias: f"{ENVIRONMENT_PREFIX}{name.upper()}" for name, field in MODELS[component].model_fields.items()
    }

    def judged(key: str, value: dict[str, Any]) -> dict[str, Any]:
        if key in derived:
            return {"const": f"left out: the chart sets it ({derived[key]})"}
        if value.get("format") == "password":
            # Settings lie in a ConfigMap, and in what helm keeps of a release.
            return {"const": f"left out: it is a secret; name {variables[key]} in pod.extraEnv, from a Secret"}
        return _in_form(key, _plain(value, definitions) | units.get(key, {}))

    properties = {key: judged(key, value) for key, value in sorted(schema["properties"].items())}
    # Another key is refused by templates/validation.yaml, which can say which one was meant.
    return {
        "type": "object",
        "patternProperties": {"[^A-Za-z0-9]": {"const": "left out: a setting's name has letters and digits only"}},
        "additionalProperties": {"type": ["string", "number", "boolean"]},
        "properties": properties,
    }


def known_settings() -> dict[str, dict[str, dict[str, Any]]]:
    """By component: defaults of the settings that an operator may set, and of the others what sets them.

    `variables` are those by which the environment would set the others.
    """
    return {
        component: {
            "defaults": {
                key: value.get("default")
                for key, value in sorted(json_schema(model)["properties"].items())
                if key not in DERIVED[component]
            },
            "derived": dict(sorted(DERIVED[component].items())),
            "variables": {
                ENVIRONMENT_PREFIX + name.upper(): DERIVED[component][field.alias]
                for name, field in sorted(model.model_fields.items())
                if field.alias in DERIVED[component]
            },
        }
        for component, model in MODELS.items()
    }


def _in_form(key: str, field: dict[str, Any]) -> dict[str, Any]:
    """A text is one line, and some have a form."""
    if field.get("type") != "string" or "enum" in field:
        return field
    form = FORMS.get(key)
    if form is None:
        return field | _or_else(LINE, ONE_LINE)
    return field | {"allOf": [_or_else(LINE, ONE_LINE), _or_else(*form)]}


def _or_else(pattern: str, words: str) -> dict[str, Any]:
    """Schema of a text of this pattern; helm prints the words for another."""
    return {"if": {"type": "string", "not": {"pattern": pattern}}, "then": {"const": words}}


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


def _bound(schema: Any, maximum: int) -> None:
    """Gives whole numbers without a maximum one: the chart would take another number for a larger one."""
    if isinstance(schema, list):
        for each in schema:
            _bound(each, maximum)
    if not isinstance(schema, dict):
        return
    stated = schema.get("type", ())
    types = {stated} if isinstance(stated, str) else set(stated)
    # Quantities of Kubernetes are numbers, too, of any size.
    numbers = {"integer", "number"} if maximum == SETTING_MAX else {"integer"}
    if types & numbers and "boolean" not in types and not {"maximum", "exclusiveMaximum"} & schema.keys():
        schema["maximum"] = maximum
    for each in schema.values():
        _bound(each, maximum)


def _require(schema: dict[str, Any], values: dict[str, Any]) -> None:
    """Requires what has a default that says something. A key without a value (`enabled:`, null) takes its default away
    in helm, and a template would read nothing where it means something: no volume, no NameServer."""
    stated = [key for key, value in values.items() if value not in ("", []) and value is not False]
    schema["required"] = [key for key in stated if key != "resources"]
    for key, value in values.items():
        if isinstance(value, dict) and key not in KUBERNETES_OWN and "properties" in schema["properties"][key]:
            _require(schema["properties"][key], value)
    if not schema["required"]:
        del schema["required"]


def renewed(text: str) -> str:
    """The schema's text with the settings and the defaults of today."""
    schema = json.loads(text)
    _require(schema, yaml.safe_load(VALUES.read_text(encoding="utf-8")))
    for component in MODELS:
        schema["definitions"][f"{component}Settings"] = settings_schema(component)
    for name, definition in schema["definitions"].items():
        _bound(definition, SETTING_MAX if name.endswith("Settings") else FIELD_MAX)
    _bound(schema["properties"], FIELD_MAX)
    # Go's patterns know no escapes for separators of lines, and in the file they would not be seen.
    written = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return re.sub("[\u0085\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", written)


def template() -> str:
    """The template with what validation.yaml knows of settings."""
    known = json.dumps(known_settings(), indent=1, ensure_ascii=False)
    assert "{{" not in known, "it would be a template's action"
    return f"""{{{{- /* Made by tools/chart_schema.py of the services' settings, for the checks. */ -}}}}
{{{{- define "tandemmq.knownSettings" -}}}}
{known}
{{{{- end }}}}
"""


def main() -> int:
    """Rewrites or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    code = 0
    for path, fresh in ((SCHEMA, renewed(SCHEMA.read_text(encoding="utf-8"))), (TEMPLATE, template())):
        if check and (not path.exists() or path.read_text(encoding="utf-8") != fresh):
            print(f"{path.relative_to(ROOT)} is not of today's settings; run python tools/chart_schema.py")
            code = 1
        elif not check:
            path.write_text(fresh, encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
