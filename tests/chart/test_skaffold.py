"""skaffold.yaml: as skaffold's schema wants it, and in step with the chart, the presets and the Dockerfile."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from chart.rendering import CHART, PRESETS, ROOT, render

CONFIG: Final[dict[str, Any]] = yaml.safe_load((ROOT / "skaffold.yaml").read_text(encoding="utf-8"))
PROFILES: Final = {profile["name"]: profile for profile in CONFIG["profiles"]}
DOCKERFILES: Final = (ROOT / "services" / "Dockerfile", ROOT / "tests" / "e2e" / "kubernetes" / "Dockerfile")
_SCHEMA: Final = Path(__file__).parent / "schemas" / "skaffold-v4beta13.json"
_SERVICES: Final[tuple[str, ...]] = ("nameserver", "broker", "admin", "consistency")
_USER: Final = re.compile(r"^USER (\S+)$", re.MULTILINE)
_NAMED: Final = re.compile(r"^\S+(?: AS )?(\S*)")
_TEMPLATE: Final = re.compile(r"\{\{\.IMAGE_(REPO|TAG)_(\w+)\}\}")


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(_SCHEMA.read_text(encoding="utf-8")))


def with_profiles(*names: str) -> dict[str, Any]:
    """The configuration with the profiles' patches applied, as skaffold does it."""
    config = copy.deepcopy(CONFIG)
    del config["profiles"]
    for name in names:
        for patch in PROFILES[name]["patches"]:
            _apply(config, patch)
    return config


@pytest.mark.parametrize("profiles", [(), *((name,) for name in PROFILES), ("2m-noslave", "local", "plain")])
def test_every_profile_makes_a_configuration_that_skaffold_accepts(
    validator: jsonschema.Draft7Validator, profiles: tuple[str, ...]
) -> None:
    assert [error.message for error in validator.iter_errors(with_profiles(*profiles))] == []


def test_the_file_itself_is_what_skaffold_accepts(validator: jsonschema.Draft7Validator) -> None:
    assert [error.message for error in validator.iter_errors(CONFIG)] == []


def test_the_schema_refuses_a_slip_of_the_pen(validator: jsonschema.Draft7Validator) -> None:
    config = with_profiles()
    config["deploy"]["helm"]["releases"][0]["valueFiles"] = []
    assert not validator.is_valid(config)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_has_a_profile_that_installs_it_and_no_other(preset: str) -> None:
    (release,) = with_profiles(preset)["deploy"]["helm"]["releases"]
    assert release["valuesFiles"] == [f"deploy/helm/{preset}.yaml"]


def test_a_profile_on_top_of_a_preset_adds_its_overlay_after_it() -> None:
    (release,) = with_profiles("2m-2s-async", "local")["deploy"]["helm"]["releases"]
    assert release["valuesFiles"] == ["deploy/helm/2m-2s-async.yaml", "deploy/helm/overlays/local.yaml"]
    assert all((ROOT / name).is_file() for name in release["valuesFiles"])


def test_each_image_the_chart_uses_is_built_from_a_target_of_its_name() -> None:
    targets = _stages(DOCKERFILES[0])
    built = {each["image"]: each for each in with_profiles("consistency")["build"]["artifacts"]}
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert {values[key]["image"]["repository"] for key in ("nameserver", "brokers", "admin", "consistency")} == set(
        built
    )
    for image, artifact in built.items():
        docker = artifact["docker"]
        assert f"tandemmq/{docker['target']}" == image
        assert docker["target"] in targets
        assert (ROOT / artifact["context"] / docker["dockerfile"]).samefile(DOCKERFILES[0])


@pytest.mark.parametrize(
    "profiles", [*((preset, "local") for preset in PRESETS), ("2m-2s-sync", "consistency")], ids="+".join
)
def test_the_pods_of_a_release_run_the_images_that_were_built(profiles: tuple[str, ...]) -> None:
    config = with_profiles(*profiles)
    (release,) = config["deploy"]["helm"]["releases"]
    names = {re.sub(r"\W", "_", each["image"]): each["image"] for each in config["build"]["artifacts"]}
    arguments = [argument for name in release["valuesFiles"] for argument in ("-f", str(ROOT / name))]
    for key, template in release["setValueTemplates"].items():
        found = _TEMPLATE.fullmatch(template)
        assert found is not None, template
        value = f"registry.example/{names[found[2]]}" if found[1] == "REPO" else "content-1"
        arguments += ["--set-string", f"{key}={value}"]
    for key, value in release["setValues"].items():
        arguments += ["--set", f"{key}={value}"]
    templates = render(*arguments).pod_templates()
    images = {container["image"] for each in templates.values() for container in each["spec"]["containers"]}
    assert images == {f"registry.example/{name}:content-1" for name in names.values()}


def test_ports_are_forwarded_on_loopback_only_to_services_the_chart_makes() -> None:
    (release,) = CONFIG["deploy"]["helm"]["releases"]
    services = render(preset="2m-2s-sync").kind("Service")
    for forward in CONFIG["portForward"]:
        assert forward["address"] == "127.0.0.1"
        assert forward["resourceName"].startswith(f"{release['name']}-")
        ports = services[forward["resourceName"]]["spec"]["ports"]
        assert forward["port"] in [each["port"] for each in ports]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_build_context_holds_what_the_dockerfile_copies(dockerfile: Path) -> None:
    for source in _copied(dockerfile):
        assert (ROOT / source).exists(), source
        assert _admitted(source), f"{source} is left out by .dockerignore"


def test_the_build_context_holds_no_more_than_it_must() -> None:
    held = sorted(path.name for path in ROOT.iterdir() if _admitted(path.name))
    assert held == ["LICENSE", "README.md", "proto", "pyproject.toml", "services", "uv.lock"]
    assert not _admitted("tests/e2e/kubernetes/cluster.py")
    assert not _admitted("services/tandemmq/core/__pycache__")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_images_stand_on_the_slim_base_and_run_as_a_fixed_number(dockerfile: Path) -> None:
    text = dockerfile.read_text(encoding="utf-8")
    stages = _stages(dockerfile)
    assert {parent for parent in stages.values() if parent not in stages} == {"${BASE}"}
    assert re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE) == ["docker.io/library/python:3.11-slim"]
    assert text.index("ARG BASE=") < text.index("FROM "), "an argument of FROM stands before the first"
    images = [name for name in _SERVICES if name in stages] or [list(stages)[-1]]
    for image in images:
        stood_on = {image, *_ancestors(stages, image)}
        users = {user for stage, block in _blocks(text) if stage in stood_on for user in _USER.findall(block)}
        assert users == {"10001:10001"}


def test_what_builds_is_in_no_image() -> None:
    stages = _stages(DOCKERFILES[0])
    blocks = dict(_blocks(DOCKERFILES[0].read_text(encoding="utf-8")))
    for target in _SERVICES:
        *above_runtime, runtime, base, python = [target, *_ancestors(stages, target)]
        assert (runtime, base, python) == ("runtime", "base", "${BASE}")
        for stage in above_runtime:
            assert "RUN " not in blocks[stage]


def test_every_package_of_an_image_has_a_hash() -> None:
    for name in ("tools/image_requirements.txt", "demo/requirements.txt"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for block in re.split(r"\n(?=[a-z])", text.partition("\n\n")[0]):
            if not block.startswith("#"):
                assert re.match(r"[a-z0-9._-]+==\S+", block), block
                assert "--hash=sha256:" in block, block


def _apply(config: Any, patch: dict[str, Any]) -> None:
    """RFC 6902 as far as the profiles use it: replace what is there, add a key or at a list's end."""
    *parents, last = patch["path"].strip("/").split("/")
    for part in parents:
        config = config[int(part)] if isinstance(config, list) else config[part]
    value = copy.deepcopy(patch["value"])
    if isinstance(config, list) and last == "-":
        config.append(value)
        return
    key: Any = int(last) if isinstance(config, list) else last
    if patch["op"] == "replace":
        assert config[key] is not None
    else:
        assert key not in config
    config[key] = value


def _stages(dockerfile: Path) -> dict[str, str]:
    """What each stage stands on; the last one may have no name."""
    found = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    return {name or "": parent for parent, name in found}


def _blocks(text: str) -> list[tuple[str, str]]:
    """Each stage's name and what it says."""
    blocks = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    return [(_NAMED.findall(block.partition("\n")[0])[0], block) for block in blocks]


def _ancestors(stages: dict[str, str], name: str) -> Iterable[str]:
    while name in stages:
        name = stages[name]
        yield name


def _copied(dockerfile: Path) -> list[str]:
    """Paths of the build context that COPY names."""
    text = dockerfile.read_text(encoding="utf-8")
    lines = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    return [source for line in lines if not line[0].startswith("--from") for source in line]


def _admitted(path: str) -> bool:
    """Whether .dockerignore lets a path of the context in. The last line that matches decides, as docker has it."""
    admitted = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        candidates = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
        anywhere = pattern.removeprefix("**/")
        if any(
            fnmatch(each, pattern) or (anywhere != pattern and fnmatch(each, f"*/{anywhere}")) for each in candidates
        ):
            admitted = line.startswith("!")
    return admitted
