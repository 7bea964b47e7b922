"""Names for clusters, and which cluster a command means."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandemmq.cli.app import app
from tandemmq.cli.cluster_address import (
    ClusterAddress,
    ClusterContext,
    ContextFile,
    Contexts,
    KubernetesPlace,
    find_address,
    find_place,
    find_target,
)
from tandemmq.cli.ending import EXIT_REFUSED, CommandError
from tandemmq.cli.kube.release import place_of

_STAGE = ClusterContext(namesrv="stage:9876;stage2:9876")
_PROD = ClusterContext(kubernetes=KubernetesPlace("prod-eu", "mq", "mq"))


@pytest.fixture(autouse=True)
def _folder_without_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def _refusal(*words: str) -> CommandError:
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, CommandError), error
    return error


def test_contexts_are_written_as_they_are_read_and_only_for_their_owner() -> None:
    file = ContextFile()
    contexts = Contexts("prod", {"here": ClusterContext(data="/data"), "prod": _PROD, "stage": _STAGE})
    file.write(contexts)
    assert file.read() == contexts
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == ["contexts.yaml"]


def test_missing_file_holds_no_contexts() -> None:
    assert ContextFile().read() == Contexts()


@pytest.mark.parametrize(
    "text",
    [
        "- list",
        "contexts: {x: {}}",
        "contexts: {x: {data: a, namesrv: b}}",
        "contexts: {x: {kubernetes: {secret: y}}}",
        "{",
        "contexts: {x: {data: 3}}",
    ],
)
def test_file_that_is_none_of_ours_is_refused_by_its_name(text: str) -> None:
    file = ContextFile()
    file.path.parent.mkdir(parents=True)
    file.path.write_text(text)
    with pytest.raises(CommandError) as refusal:
        file.read()
    assert str(file.path) in refusal.value.problem
    assert refusal.value.exit_code == EXIT_REFUSED


def test_context_is_added_used_shown_and_removed() -> None:
    _run("context", "add", "stage", "--namesrv", "stage:9876")
    _run("context", "add", "prod", "--kube-context", "prod-eu", "--namespace", "mq", "--use")
    lines = _run("context", "list").splitlines()
    assert lines[1].split() == ["*", "prod", "kubernetes", "context", "prod-eu,", "namespace", "mq"]
    assert json.loads(_run("context", "list", "-o", "json"))[1] == {
        "name": "stage",
        "kind": "namesrv",
        "place": "stage:9876",
        "current": False,
    }
    _run("context", "use", "stage")
    assert json.loads(_run("context", "show", "-o", "json"))["chosen_by"] == "tandemmq context use"
    _run("context", "remove", "stage")
    assert "127.0.0.1:9876" in _run("context", "show")


def test_context_is_one_thing() -> None:
    assert "one of" in _refusal("context", "add", "x", "--namesrv", "a:1", "--data", "d").remedy
    assert "one of" in _refusal("context", "add", "x").remedy
    assert "names no NameServer" in _refusal("context", "add", "x", "--namesrv", "a").problem
    assert "cannot be the name" in _refusal("context", "add", "a b", "--namesrv", "a:1").problem


def test_unknown_context_is_refused_with_those_there_are() -> None:
    _run("context", "add", "stage", "--namesrv", "stage:9876")
    assert _refusal("status", "--context", "prod").cause == "there are stage"
    assert _refusal("status", "--context", "").cause == "there are stage"


def test_first_of_the_ways_to_name_a_cluster_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    ContextFile().write(Contexts("stage", {"stage": _STAGE, "other": ClusterContext(namesrv="other:9876")}))
    assert find_target("a:1", None, "other").where == ClusterAddress(("a:1",))
    assert find_target(None, None, "other").where == ClusterAddress(("other:9876",))
    assert find_target(None, None, None).where == ClusterAddress(("stage:9876", "stage2:9876"))
    monkeypatch.setenv("NAMESRV_ADDR", "environment:9876")
    assert find_target(None, None, None).chosen_by == "$NAMESRV_ADDR"
    monkeypatch.setenv("TANDEMMQ_CONTEXT", "other")
    target = find_target(None, None, None)
    assert (target.where, target.title) == (ClusterAddress(("other:9876",)), "context other")


def test_context_in_kubernetes_gives_the_release_and_single_options_change_it() -> None:
    ContextFile().write(Contexts("prod", {"prod": _PROD, "stage": _STAGE}))
    assert find_target(None, None, None).where == _PROD.kubernetes
    assert find_place(None) == KubernetesPlace("prod-eu", "mq", "mq")
    changed = place_of(find_place("prod"), release="other", namespace=None, kube_context=None)
    assert changed == KubernetesPlace("prod-eu", "mq", "other")
    with pytest.raises(CommandError, match="not in Kubernetes"):
        find_place("stage")


def test_what_dials_addresses_itself_refuses_a_release_in_kubernetes() -> None:
    ContextFile().write(Contexts("", {"prod": _PROD}))
    with pytest.raises(CommandError, match="cannot go from here") as refusal:
        find_address(None, None, "prod")
    assert "kubectl exec" in refusal.value.remedy
