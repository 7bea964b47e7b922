"""The chart as helm renders it, as objects to look at."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from support.running_time import run_program

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "tandemmq"
# By name; deploy/helm has nothing else at its top.
PRESETS: Final = {path.stem: path for path in sorted((ROOT / "deploy" / "helm").glob("*.yaml"))}
CI_VALUES: Final = {path.stem: path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
_SCHEMAS: Final = ROOT / "tests" / "chart" / "schemas" / "objects"
# Programs that run for a fifth of a second need not look for garbage.
_ENVIRONMENT: Final = os.environ | {"GOGC": "400"}
# Building helm from its module on a slow machine.
_TOOL_LIMIT_S: Final = 1_500

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """All objects of one rendering of release `mq` in namespace `ns`, and the text they came from."""

    objects: tuple[Object, ...]
    text: str

    def kind(self, kind: str) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    def one(self, kind: str, name: str) -> Object:
        """One object; KeyError names what there is instead."""
        found = self.kind(kind)
        if name not in found:
            raise KeyError(f"no {kind} {name}, but {', '.join(found) or 'none'}")
        return found[name]

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such an object."""
        return name in self.kind(kind)

    def pod_templates(self) -> dict[str, Object]:
        """Whatever makes pods, by kind/name: metadata and spec. `Executor`: the pods that Spark makes for a CronJob."""
        found = {}
        for each in self.objects:
            name = f"{each['kind']}/{each['metadata']['name']}"
            if each["kind"] in ("StatefulSet", "Deployment", "Job"):
                found[name] = each["spec"]["template"]
            elif each["kind"] == "CronJob":
                found[name] = each["spec"]["jobTemplate"]["spec"]["template"]
                executor = found[name]["metadata"].get("annotations", {}).get("tandemmq.io/executor.yaml")
                if executor is not None:
                    found[f"Executor/{each['metadata']['name']}"] = yaml.safe_load(executor)
            elif each["kind"] == "Pod":
                found[name] = each
        return found

    def container(self, kind: str, name: str) -> Object:
        """Main container of a workload."""
        container: Object = self.pod_templates()[f"{kind}/{name}"]["spec"]["containers"][0]
        return container

    def settings(self, kind: str, name: str) -> dict[str, str]:
        """The key=value lines a pod's program reads."""
        template = self.pod_templates()[f"{kind}/{name}"]
        (text,) = (value for key, value in template["metadata"]["annotations"].items() if key.endswith(".conf"))
        return dict(line.split("=", 1) for line in text.splitlines())


@functools.cache
def helm() -> str:
    """Path of helm, built if this machine has none."""
    return _tool("helm")


def render(*arguments: str, preset: str | None = None) -> Rendered:
    """`helm template` with these arguments. AssertionError with helm's words when it refuses."""
    done = _template(*_preset(preset), *arguments)
    assert done.returncode == 0, done.stderr
    return _parsed(done.stdout)


def refusal(*arguments: str, preset: str | None = None) -> str:
    """What helm says when it refuses these values. AssertionError when it does not."""
    done = _template(*_preset(preset), *arguments)
    assert done.returncode != 0, "helm took the values"
    return done.stderr


def upgrade(api: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`helm template` as of an upgrade, which looks at what the Kubernetes at this address has. Never cached."""
    asking = ["--is-upgrade", "--dry-run=server", "--kube-apiserver", api, "--kubeconfig", os.devnull]
    command = [helm(), "template", "mq", str(CHART), "-n", "ns", "--kube-version", "1.33.0", *asking, *arguments]
    return run_program(command, env=_ENVIRONMENT)


def conform(*texts: str) -> str:
    """What kubeconform finds wrong with rendered texts, "" if nothing. An object without a schema counts as wrong.

    It takes in its schemas at each call, which costs more than many objects do.
    """
    location = f"{_SCHEMAS}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    done = run_program(
        [_kubeconform(), "-strict", "-schema-location", location, "-"], input="\n---\n".join(texts), env=_ENVIRONMENT
    )
    return done.stdout + done.stderr if done.returncode else ""


def environment(container: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """A container's variables as kubelet fills them in; `fields` has the values of its fieldRefs."""
    found: dict[str, str] = {}
    for variable in container["env"]:
        if "valueFrom" in variable:
            found[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            value = variable["value"]
            for name, known in found.items():
                value = value.replace(f"$({name})", known)
            found[variable["name"]] = value
    return found


def _preset(name: str | None) -> Iterator[str]:
    return iter(()) if name is None else iter(("-f", str(PRESETS[name])))


@functools.cache
def _template(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [helm(), "template", "mq", str(CHART), "-n", "ns", "--kube-version", "1.33.0", *arguments]
    return run_program(command, env=_ENVIRONMENT)


@functools.cache
def _parsed(text: str) -> Rendered:
    # libyaml's reader takes a tenth of the time of the one in Python, which took nearly as long as helm.
    return Rendered(tuple(each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each), text)


@functools.cache
def _kubeconform() -> str:
    return _tool("kubeconform")


def _tool(name: str) -> str:
    done = run_program([str(ROOT / "tools" / "helm.sh"), name], limit_s=_TOOL_LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]
