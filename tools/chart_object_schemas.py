"""Makes tests/chart/schemas/objects: strict JSON schemas of the Kubernetes objects that the chart renders.

    python tools/chart_object_schemas.py      # needs Go; the result is committed, so that tests need no network

Kubernetes' own come from the OpenAPI document in its Go module, those of the Prometheus operator, cert-manager and the
Spark operator from the CRDs in theirs; all are Apache-2.0. Descriptions are left out, unknown fields are refused.
kubeconform reads them with -schema-location 'tests/chart/schemas/objects/{{.ResourceKind}}{{.KindSuffix}}.json'.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "tests" / "chart" / "schemas" / "objects"
KUBERNETES: Final = "k8s.io/kubernetes@v1.33.13"
KINDS: Final = (
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.batch.v1.CronJob",
    "io.k8s.api.batch.v1.Job",
    "io.k8s.api.coordination.v1.Lease",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.PersistentVolumeClaim",
    "io.k8s.api.core.v1.Pod",
    "io.k8s.api.core.v1.Secret",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.core.v1.ServiceAccount",
    "io.k8s.api.discovery.v1.EndpointSlice",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
    "io.k8s.api.rbac.v1.Role",
    "io.k8s.api.rbac.v1.RoleBinding",
)
CRDS: Final = {
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "github.com/cert-manager/cert-manager@v1.21.2": ("deploy/crds/cert-manager.io_certificates.yaml",),
    "github.com/kubeflow/spark-operator/v2@v2.3.0": (
        "config/crd/bases/sparkoperator.k8s.io_scheduledsparkapplications.yaml",
    ),
}
_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"


def module_folder(module: str) -> Path:
    """Where Go keeps the module; it is downloaded if it is not there."""
    answer = subprocess.run(["go", "mod", "download", "-json", module], check=True, capture_output=True, text=True)
    return Path(json.loads(answer.stdout)["Dir"])


def strict(schema: Any) -> Any:
    """Without descriptions and extensions, and closed wherever fields are listed."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace("#/definitions/", "definitions.json#/definitions/")}
    dropped = ("description", "properties", "default", "example", "externalDocs")
    result = {key: value for key, value in schema.items() if not key.startswith("x-") and key not in dropped}
    for key in ("items", "additionalProperties"):
        if key in result:
            result[key] = strict(result[key])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in result:
            result[key] = [strict(each) for each in result[key]]
    if "properties" in schema:
        result["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result.setdefault("additionalProperties", False)
    return result


def references(schema: Any) -> set[str]:
    """Names of the definitions a schema refers to."""
    if isinstance(schema, dict):
        here = {schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set()
        return here.union(*(references(value) for value in schema.values()))
    if isinstance(schema, list):
        return set().union(*(references(value) for value in schema))
    return set()


def write(name: str, document: Any) -> None:
    """One line for each top-level entry keeps a diff readable and the file small."""
    (FOLDER / name).write_text(json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n")


def kubernetes() -> None:
    """definitions.json, and a file for each kind that refers to it."""
    document = json.loads((module_folder(KUBERNETES) / "api" / "openapi-spec" / "swagger.json").read_text())
    definitions = document["definitions"]
    needed: dict[str, Any] = {}
    waiting = set(KINDS)
    while waiting:
        name = waiting.pop()
        needed[name] = strict(definitions[name])
        waiting |= references(needed[name]) - needed.keys()
    needed[_QUANTITY] = {"type": ["string", "number"]}
    needed[_INT_OR_STRING] = {"type": ["string", "integer"]}
    write("definitions.json", {"definitions": needed})
    for name in KINDS:
        (kind,) = definitions[name]["x-kubernetes-group-version-kind"]
        suffix = "-".join(filter(None, (kind["kind"].lower(), kind["group"].split(".")[0], kind["version"])))
        write(f"{suffix}.json", {"$ref": f"definitions.json#/definitions/{name}"})


def custom() -> None:
    """A file for each kind of the operators'."""
    for module, paths in CRDS.items():
        folder = module_folder(module)
        for path in paths:
            crd = yaml.safe_load((folder / path).read_text())["spec"]
            version = next(each for each in crd["versions"] if each["storage"])
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            name = f"{crd['names']['kind'].lower()}-{crd['group'].split('.')[0]}-{version['name']}.json"
            write(name, schema)


def main() -> None:
    """Writes all files anew."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    kubernetes()
    custom()


if __name__ == "__main__":
    main()
