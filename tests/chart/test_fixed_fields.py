"""What Kubernetes lets nobody change is as in the first chart: a release that it made can be upgraded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chart.rendering import PRESETS, Object, render

# Of each preset of the first chart, rendered as release `mq` in namespace `ns`: a line for each object, what of it is
# fixed. A line is never changed, and never removed for a preset that is still there.
FIRST = json.loads(Path(__file__).with_name("fixed_fields.json").read_text())
_CHANGEABLE = {
    *("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "minReadySeconds"),
    "persistentVolumeClaimRetentionPolicy",
}


def fixed(of: Object) -> dict[str, Any]:
    """The part of an object that the API server refuses to change; empty if there is none."""
    spec = of.get("spec", {})
    match of["kind"]:
        case "StatefulSet":
            return {key: value for key, value in spec.items() if key not in _CHANGEABLE}
        case "Deployment":
            return {"selector": spec["selector"]}
        case "PersistentVolumeClaim":
            return {key: value for key, value in spec.items() if key != "resources"}
        case "Service":
            return {"clusterIP": spec.get("clusterIP")}
        case "RoleBinding":
            return {"roleRef": of["roleRef"]}
        case "Secret":
            return {"type": of["type"]}
        case _:
            return {}


@pytest.mark.parametrize("preset", list(PRESETS))
def test_a_release_of_the_first_chart_can_be_upgraded(preset: str) -> None:
    now = {f"{each['kind']}/{each['metadata']['name']}": fixed(each) for each in render(preset=preset).objects}
    first = FIRST[preset]
    assert [name for name in first if name.startswith("StatefulSet/") and name not in now] == []
    # What is not there any more is removed, and what is new is made.
    kept = {name: fields for name, fields in first.items() if name in now}
    assert {name: now[name] for name in kept} == kept
    assert len(kept) > len(first) / 2
