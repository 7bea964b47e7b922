"""Every example, in help or in the documentation, is one that its command takes; every command is documented."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from support.cli_cluster import FakeCluster
from tandemmq.cli.app import app
from tandemmq.cli.ending import EXIT_REFUSED, CommandError, command_error_in
from tandemmq.cli.mqadmin import MQADMIN_COMMANDS

_ROOT = get_command(app)
_PROJECT = Path(__file__).parents[3]
_DOCUMENT = _PROJECT / "docs" / "operations" / "cli.md"
_PAGES = (
    _PROJECT / "README.md",
    *(page for folder in ("docs", "charts") for page in sorted((_PROJECT / folder).rglob("*.md"))),
)
_HIDDEN = {("help",)}


def _commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


assert isinstance(_ROOT, TyperGroup)
_ALL = dict(_commands(_ROOT))
_OURS = [path for path in _ALL if path[0] not in MQADMIN_COMMANDS and path not in _HIDDEN]


def _calls(text: str) -> Iterator[list[str]]:
    """Words of each call of ours in lines of shell, without what the shell itself makes of them."""
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*_words(lexer), "|"]:
            if set(word) <= set("|<>;&"):
                starts = [place for place, each in enumerate(words) if each in ("tandemmq", "mqadmin")]
                if starts:
                    yield words[starts[-1] + 1 :]
                # What follows < and > is a file.
                words = ["a-file"] if word in ("<", ">") else []
            else:
                words.append(word)


def _words(lexer: shlex.shlex) -> Iterator[str]:
    try:
        yield from lexer
    except ValueError as error:
        raise AssertionError(f"{lexer.instream}: {error}") from error


def _take(words: list[str]) -> None:
    """Has the command parse its arguments, and does not run it."""
    command: Any = _ROOT
    context = type(_ROOT).context_class(_ROOT, info_name="tandemmq")
    rest = list(words)
    while isinstance(command, TyperGroup):
        if not rest or rest[0].startswith("--"):
            return
        name = rest.pop(0)
        assert name in command.commands, f"there is no command {' '.join(words)}"
        command = command.commands[name]
        if isinstance(command, TyperGroup):
            context = type(context)(command, info_name=name, parent=context)
    command.make_context(words[0], rest, parent=context)


@pytest.mark.parametrize("path", _ALL, ids=" ".join)
def test_examples_in_help_are_taken(path: tuple[str, ...]) -> None:
    documentation = inspect.cleandoc(_ALL[path].callback.__doc__ or "")
    _, found, examples = re.split(r"(Examples?:)", documentation, maxsplit=1)
    assert found
    calls = list(_calls(examples.replace("\\[", "[")))
    assert calls
    for words in calls:
        _take(words)
    assert any(tuple(words[: len(path)]) == path for words in calls)


@pytest.mark.parametrize("path", _ALL, ids=" ".join)
def test_every_option_says_what_it_is_where_one_looks(path: tuple[str, ...]) -> None:
    told = {param.name: param.help or "" for param in _ALL[path].params if hasattr(param, "help")}
    assert [name for name, help_ in told.items() if not help_ or "see --help" in help_] == []


def _positions(path: tuple[str, ...], words: list[str]) -> Iterator[int]:
    """Where a call has a value: behind an option that takes one, or where an argument stands."""
    flags = {
        spelling for option in _ALL[path].params if getattr(option, "is_flag", False) for spelling in _spellings(option)
    }
    for place in range(len(path), len(words)):
        if not words[place].startswith("-") and words[place] not in flags:
            yield place


def _spellings(option: Any) -> tuple[str, ...]:
    return (*option.opts, *option.secondary_opts)


@pytest.mark.parametrize("path", _ALL, ids=" ".join)
def test_a_word_that_is_no_text_is_refused_before_anything_is_done(path: tuple[str, ...]) -> None:
    documentation = inspect.cleandoc(_ALL[path].callback.__doc__ or "")
    _, _, examples = re.split(r"(Examples?:)", documentation, maxsplit=1)
    for words in _calls(examples.replace("\\[", "[")):
        if tuple(words[: len(path)]) != path:
            continue
        for place in _positions(path, words):
            cluster = FakeCluster()
            # What Python makes of a byte that is no UTF-8.
            failure = cluster.failure(*words[:place], "a\udcff", *words[place + 1 :])
            assert failure.exit_code == EXIT_REFUSED
            assert failure.remedy
            "\n".join(failure.lines()).encode()
            assert not cluster.targets


# They go on until they are ended, start processes, or connect by themselves: tests of their own do this.
_ACTS = {
    "tail",
    "ha",
    "haStatus",
    "brokerStatus",
    "up",
    "down",
    "smoke",
    "verify",
    "rollout",
    "produce",
    "consume",
    "repair",
    "certs",
}
_STRANGE = (
    "",
    " ",
    "-",
    "%",
    "a|b",
    "x" * 300,
    "-1",
    "9" * 20,
    "nan",
    "1e400",
    "/",
    "/dev/full",
    "::",
    "a=b",
    "{}",
    "\u202e\n",
)


@pytest.mark.parametrize("path", [path for path in _ALL if path[0] not in _ACTS], ids=" ".join)
def test_a_strange_word_is_taken_or_refused(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never with Python's own words. Each place of a call gets some of them, other ones in other commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    draw = Random(" ".join(path))
    _, _, examples = re.split(r"(Examples?:)", inspect.cleandoc(_ALL[path].callback.__doc__ or ""), maxsplit=1)
    for words in _calls(examples.replace("\\[", "[")):
        for place in _positions(path, words) if tuple(words[: len(path)]) == path else ():
            for strange in draw.sample(_STRANGE, 3):
                given = [*words[:place], strange, *words[place + 1 :]]
                error = FakeCluster().invoke(*given, stdin="a line\n").exception
                if isinstance(error, ExceptionGroup):
                    error = command_error_in(error)
                    assert error is not None, given
                told = isinstance(error, SystemExit | CommandError) or getattr(error, "filename", None)
                assert error is None or told, (given, error)


def _typed_in(document: Path) -> list[list[str]]:
    """Calls in a page's blocks of shell."""
    blocks = re.findall(r"^```sh\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    calls = [words for block in blocks for words in _calls(block.replace("\\\n", " "))]
    # Options that the page has put into a variable.
    return [[word for word in words if word != "$PLACE"] for words in calls]


_TYPED = {str(page.relative_to(_PROJECT)): calls for page in _PAGES if (calls := _typed_in(page))}


@pytest.mark.parametrize("page", _TYPED)
def test_what_a_page_has_one_type_is_taken(page: str) -> None:
    for words in _TYPED[page]:
        _take(words)


@pytest.mark.parametrize("page", [str(page.relative_to(_PROJECT)) for page in _PAGES])
def test_a_call_within_a_sentence_is_whole(page: str) -> None:
    """One that has more than the command's name can be typed as it stands, once its capitals are filled in."""
    prose = re.sub(r"^```.*?^```", "", (_PROJECT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for call in re.findall(r"`((?:tandemmq|mqadmin)\s[^`]+)`", prose):
        filled = re.sub(r"\b(N|<[a-z]+>)(?=\s|$)", "1", " ".join(call.split()))
        for words in _calls(filled):
            command, rest = _ROOT, list(words)
            while isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
                command = command.commands[rest.pop(0)]
            # An option alone is talked about.
            if rest and not rest[0].startswith("-") and not isinstance(command, TyperGroup):
                _take(words)


@pytest.mark.parametrize("page", [str(page.relative_to(_PROJECT)) for page in _PAGES])
def test_what_is_to_be_filled_in_is_no_redirection(page: str) -> None:
    """Typed as it stands, `<name>` has the shell look for a file."""
    text = (_PROJECT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        assert not re.search(r"^[^#\n]*<[a-z][a-z -]*>", block, re.MULTILINE), block


def test_pages_are_read() -> None:
    assert sum(map(len, _TYPED.values())) > 80
    assert {"README.md", "docs/operations/cli.md", "docs/operations/users-and-policies.md"} <= set(_TYPED)


@pytest.mark.parametrize("path", _OURS, ids=" ".join)
def test_command_is_in_the_document(path: tuple[str, ...]) -> None:
    assert f"`tandemmq {' '.join(path)}`" in _DOCUMENT.read_text(encoding="utf-8")


def test_commands_the_document_names_are_there() -> None:
    for words in re.findall(r"`tandemmq ([a-z][^`]*)`", _DOCUMENT.read_text(encoding="utf-8")):
        path = []
        command: Any = _ROOT
        for word in words.split():
            below = getattr(command, "commands", {}).get(word)
            if below is None:
                break
            command = below
            path.append(word)
        assert path, words


def test_table_of_rocketmqs_commands_is_whole() -> None:
    table = re.findall(r"^\| `([a-zA-Z]+)` \| ", _DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in table if name in MQADMIN_COMMANDS] == list(MQADMIN_COMMANDS)


_REPOSITORY = Path(__file__).parents[3]
_SPAN = re.compile(r"`(?:tandemmq|mqadmin) ([^`]+)`")


def _unknown_in(span: str) -> list[str]:
    """What no command knows of a call as prose writes it: a command's name, or an option."""
    command: Any = _ROOT
    words = span.split()
    while isinstance(command, TyperGroup) and words and re.match(r"[a-z]", words[0]):
        name = words.pop(0)
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = [word.partition("=")[0].rstrip(".,;") for word in words if word.startswith("--")]
    return [option for option in options if option not in known | {"--help"}]


def test_commands_that_documents_name_in_passing_are_there() -> None:
    unknown = {
        f"{document.relative_to(_REPOSITORY)}: {span}": missing
        for document in (_REPOSITORY / "README.md", *(_REPOSITORY / "docs").rglob("*.md"))
        for span in _SPAN.findall(document.read_text(encoding="utf-8"))
        if (missing := _unknown_in(span))
    }
    assert not unknown
