"""The programs of docs/operations/clients.md: their syntax, and that they call what the tested programs call."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.running_time import run_program

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "operations" / "clients.md"
_E2E = _ROOT / "tests" / "e2e"
# Language of the block, and programs that run against a broker in our tests.
_PROGRAMS = {
    "python": [*(_ROOT / "demo").glob("official_*.py"), *(_E2E / "official_python").rglob("*.py")],
    "java": [_E2E / "official_java" / "OfficialScenarios.java"],
    "go": [*(_E2E / "official_go").glob("*.go")],
    "js": [_E2E / "official_node" / "scenarios.js"],
    "rust": [_E2E / "official_rust" / "src" / "main.rs"],
}
# Of the languages themselves, and our own names in the programs.
_OWN = {
    "python": set(),
    "java": {"getBytes", "println", "main", "decode", "ofSeconds", "singletonMap"},
    "go": {"Fatal", "Println", "Background"},
    "js": {"from", "log", "toString"},
    "rust": set(),
}


def _program(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    return str(found)


def _row_cells() -> list[tuple[str, str]]:
    """Of each tested client its endpoint and its keys, as code."""
    rows = re.findall(r"^\| (Python|Java|Go|Node|Rust) \| (.*?) \| (.*?) \|", _PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(_PROGRAMS)
    return [("js" if name == "Node" else name.lower(), cell) for name, *cells in rows for cell in cells]


@pytest.mark.parametrize("language", _PROGRAMS)
def test_program_calls_what_a_tested_program_calls(language: str) -> None:
    tested = "\n".join(path.read_text() for path in _PROGRAMS[language])
    calls = set(re.findall(r"\.(\w+)\(", _program(language))) - _OWN[language]
    assert len(calls) >= 5
    assert not {call for call in calls if not re.search(rf"\b{call}\(", tested)}


@pytest.mark.parametrize(
    ("language", "switch"),
    [("java", ".enableSsl(false)"), ("go", "rmq.EnableSsl = false"), ("rust", ".set_enable_tls(false)")],
    ids=["java", "go", "rust"],
)
def test_program_of_a_client_that_begins_with_tls_turns_it_off(language: str, switch: str) -> None:
    assert switch in _program(language)
    assert any(switch in path.read_text() for path in _PROGRAMS[language])


@pytest.mark.parametrize(("language", "cell"), _row_cells())
def test_endpoint_and_keys_are_what_a_tested_program_says(language: str, cell: str) -> None:
    tested = "\n".join(path.read_text() for path in _PROGRAMS[language])
    words = set(re.findall(r"\b[A-Za-z_]{3,}\b", re.sub(r"[\"'][^\"']*[\"']", "", cell))) - {"Config"}
    assert words
    assert not {word for word in words if not re.search(rf"\b{word}\b", tested)}


def test_programs_of_python_are_python() -> None:
    ast.parse(_program("python"))
    (readme,) = re.findall(r"```python\n(.*?)```", (_ROOT / "README.md").read_text(), re.DOTALL)
    ast.parse(readme)


def _gofmt() -> str | None:
    """Beside the Go that tests build their tools with."""
    go = subprocess.run([_ROOT / "tools" / "go.sh"], capture_output=True, text=True, timeout=300, check=True).stdout
    found = Path(go.strip()).parent / "gofmt"
    return str(found) if found.exists() else None


@pytest.mark.parametrize(
    ("language", "file", "command"),
    [("go", "main.go", ("gofmt", "-l")), ("js", "hello.js", ("node", "--check"))],
    ids=["go", "node"],
)
def test_program_has_the_syntax_of_its_language(
    language: str, file: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    found = _gofmt() if command[0] == "gofmt" else shutil.which(command[0])
    if found is None:
        pytest.skip(f"{command[0]} is not installed")
    (tmp_path / file).write_text(_program(language))
    checked = run_program([found, *command[1:], file], cwd=tmp_path)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_program_of_java_has_the_syntax_of_its_language(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("javac is not installed")
    (tmp_path / "Hello.java").write_text(_program("java"))
    # Without the client's jars it cannot find symbols; it looks for them only in what it could parse.
    command = ["javac", "-proc:none", "-Xmaxerrs", "1000", "Hello.java"]
    checked = run_program(command, cwd=tmp_path)
    errors = re.findall(r"error: (.*)", checked.stderr)
    assert errors
    assert all("does not exist" in error or "cannot find symbol" in error for error in errors), checked.stderr
