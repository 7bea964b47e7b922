"""What `tandemmq --help` imports, and that what it lists is what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from support.running_time import PATIENCE_S
from tandemmq.cli.app import app
from tandemmq.cli.ending import EXIT_FAILED, EXIT_REFUSED, Refused
from tandemmq.cli.lazy_group import LazyGroup

# Each takes a good part of what the whole may take.
_HEAVY = (
    "asyncio",
    "fastapi",
    "google.protobuf",
    "grpc",
    "kubernetes",
    "numpy",
    "opentelemetry",
    "pydantic",
    "rich",
    "structlog",
    "tandemmq.admin",
    "tandemmq.client",
    "tandemmq.core",
    "tandemmq.proto",
    "uvloop",
    "yaml",
)


@pytest.mark.parametrize("words", ["", "--help", "--version"])
def test_list_of_commands_imports_nothing_heavy(words: str) -> None:
    script = f"""
import sys
from tandemmq.cli.__main__ import main
sys.argv = ["tandemmq", *{words.split()}]
try:
    main()
except SystemExit:
    pass
print(*sys.modules, sep="\\n", file=sys.stderr)
"""
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    imported = set(shown.stderr.split())
    assert "tandemmq.cli.app" in imported
    assert not [name for name in _HEAVY if name in imported]
    assert "tandemmq" in shown.stdout


# Besides what its module holds ready, a page of help may have Python's own event loop and the values of the core.
_LIGHT_ENOUGH = ("asyncio", "tandemmq.admin", "tandemmq.core")
_HEAVY_FOR_A_PAGE = (
    *(name for name in _HEAVY if name not in _LIGHT_ENOUGH),
    "importlib.metadata",
    "tandemmq.admin.cluster_reader",
    "tandemmq.admin.operations.operations",
    "tandemmq.admin.operations.values",
    "tandemmq.admin.rpc",
)


def test_no_page_of_help_imports_what_only_runs_need() -> None:
    script = """
import sys
from typer.main import get_command
from tandemmq.cli.app import app

def pages(command, words):
    yield words
    for name in getattr(command, "commands", {}):
        yield from pages(command.commands[name], [*words, name])

root = get_command(app)
for words in pages(root, []):
    try:
        root.main([*words, "--help"], prog_name="tandemmq")
    except SystemExit as end:
        assert end.code == 0, (words, end.code)
print(*sys.modules, sep="\\n", file=sys.stderr)
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    imported = set(shown.stderr.split())
    assert not [name for name in _HEAVY_FOR_A_PAGE if name in imported]
    assert shown.stdout.count("Usage: tandemmq") > 60


_EMPTY = [
    ("up", "--data"),
    ("down", "--data"),
    ("status", "--data"),
    ("clusterList", "--data"),
    ("verify", "--path"),
    ("verify", "--results"),
    ("certs make", "--data"),
    ("certs make nameserver", "--out"),
    ("certs show", ""),
    ("context add here", "--data"),
    ("restore-kept-tail", "--store"),
    ("produce greetings", "--unacknowledged"),
    ("user create me", "--password-file"),
]


@pytest.mark.parametrize(("command", "option"), _EMPTY)
@pytest.mark.parametrize("given", ["", "  "])
def test_a_folder_or_file_that_is_empty_is_refused_by_name(command: str, option: str, given: str) -> None:
    words = [*command.split(), *([option] if option else []), given]
    with pytest.raises(Refused) as refused:
        get_command(app).main(words, standalone_mode=False)
    assert refused.value.problem.endswith(" is empty")
    assert option in refused.value.problem
    assert refused.value.exit_code == (EXIT_FAILED if command == "verify" else EXIT_REFUSED)


def test_every_option_of_a_path_is_known_as_one() -> None:
    """By what it is called in its help."""
    found: list[tuple[list[str], str, str]] = []

    def look(command: Any, words: list[str]) -> None:
        places = ("data", "path", "out", "store", "folders", "unacknowledged")
        found.extend((words, one.name, str(one.metavar)) for one in command.params if one.name in places)
        for name in getattr(command, "commands", {}):
            look(command.commands[name], [*words, name])

    look(get_command(app), [])
    assert len(found) > 40
    assert [one for one in found if not re.search(r"\b(DIR|FILE|FOLDER|PATH)\b", one[2])] == []


def test_up_imports_nothing_of_the_cluster_before_it_says_what_it_does() -> None:
    script = "import sys, tandemmq.cli.commands.local_cluster; print(*sys.modules)"
    imported = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert not {"grpc", "pydantic", "structlog", "tandemmq.proto"} & set(imported.stdout.split())


def test_help_of_what_clients_use_does_not_wait_for_kubernetes() -> None:
    script = "import sys, tandemmq.cli.commands.transfer; print(*sys.modules)"
    imported = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "tandemmq.cli.kube.release" not in imported.stdout.split()


def _root() -> LazyGroup:
    root = get_command(app)
    assert isinstance(root, LazyGroup)
    return root


def test_summaries_are_what_the_commands_say_of_themselves() -> None:
    root = _root()
    told = {name: command.summary for name, command in root.commands.unloaded.items() if command.summary}
    assert told == {name: root.commands[name].get_short_help_str(1_000) for name in told}
    assert [name for name, command in root.commands.items() if command.hidden is True] == ["help"]


def test_list_shows_panels_in_order_and_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    panels = ["Run a cluster", "Look at it", "Operate it", "Messages", "RocketMQ's own commands"]
    assert sorted(panels, key=shown.index) == panels
    for name, command in _root().commands.unloaded.items():
        assert (f"\n  {name} " in shown) == bool(command.summary), name


def test_unknown_command_is_told_what_it_may_have_meant() -> None:
    shown = CliRunner().invoke(app, ["topics"])
    assert shown.exit_code == 2
    assert "'topic'" in shown.output


def test_names_of_commands_complete() -> None:
    root = _root()
    context = type(root).context_class(root, info_name="tandemmq")
    consumers = ["consumerProgress", "consumerStatus", "consumerConnection"]
    assert [item.value for item in root.shell_complete(context, "con")] == ["context", "consume", *consumers]
    assert "--version" in [item.value for item in root.shell_complete(context, "--")]
