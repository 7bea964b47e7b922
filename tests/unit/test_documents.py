"""What the documents point at is there: files, headings, modules, and each line of the tour.

When lines have moved, `python tests/unit/test_documents.py --fix` writes the tour's line numbers anew.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGE: Final = _ROOT / "services" / "tandemmq"
_ADRS: Final = _ROOT / "docs" / "adr"
_TOUR: Final = _ROOT / "docs" / "tour.md"

_FOLDERS: Final = ("benchmarks", "charts", "demo", "deploy", "docs", "fuzz", "proto", "services", "tests", "tools")
_DOCUMENTS: Final = sorted(
    [
        *_ROOT.glob("*.md"),
        *(file for folder in _FOLDERS for file in (_ROOT / folder).rglob("*.md")),
    ]
)
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_QUOTED: Final = re.compile(r"`([^`\n]+)`")
_PATH: Final = re.compile(r"[\w.{},*/-]+")
_DOTTED: Final = re.compile(r"\btandemmq(?:\.\w+)+")

_SITE: Final = runpy.run_path(str(_ROOT / "tools" / "docs_site.py"))

_LINES_OFF_MAX: Final = 3
"""A link of the tour may be so far from what it names: a reader still sees it."""
# [`Class.method`](../services/tandemmq/room/module.py#L12)
_TOUR_LINK: Final = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w./-]+\.py)#L(\d+)\)")


def _prose(document: Path) -> str:
    """Its text without blocks of code."""
    return _FENCE.sub("", document.read_text(encoding="utf-8"))


def _anchors(document: Path) -> set[str]:
    """Its headings, as links call them."""
    headings = re.findall(r"^#+ (.+)$", _prose(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings}


def _is_missing(path: str) -> bool:
    """Whether no file is at `path`, which may have `{a,b}` and `*`."""
    if match := re.search(r"\{([^}]*)\}", path):
        return any(_is_missing(path.replace(match[0], each)) for each in match[1].split(","))
    return not any(_ROOT.glob(path.rstrip("/")))


def _is_unknown_module(name: str) -> bool:
    """Whether `name` begins with a room of ours, and what follows is neither a module nor a name in one."""
    _, room, *rest = name.split(".")
    place = _PACKAGE / room
    if not place.is_dir() or rest[:1] == ["v1"]:
        return False
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if not rest:
        return False
    module = place / f"{rest[0]}.py"
    if not module.exists():
        return True
    defined = rf"^(class |def |async def )?{rest[1]}\b" if len(rest) > 1 else ""
    return re.search(defined, module.read_text(encoding="utf-8"), re.MULTILINE) is None


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    dead = []
    for link in _LINK.findall(_prose(document)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_files_and_modules_that_are_named_are_there(document: Path) -> None:
    text = _prose(document)
    files = {file.name for folder in _FOLDERS for file in (_ROOT / folder).rglob("*.py")}
    gone = []
    for quoted in _QUOTED.findall(text):
        if not _PATH.fullmatch(quoted):
            continue
        if re.match(r"tandemmq/\w+/.", quoted):
            quoted = f"services/{quoted}"
        if quoted.partition("/")[0] in _FOLDERS and "/" in quoted:
            if _is_missing(quoted):
                gone.append(quoted)
        elif re.fullmatch(r"[a-z_0-9]+\.py", quoted) and quoted not in files:
            gone.append(quoted)
    gone += [name for name in _DOTTED.findall(text) if _is_unknown_module(name)]
    assert not gone


def test_every_decision_is_in_the_index() -> None:
    index = (_ADRS / "README.md").read_text(encoding="utf-8")
    decisions = sorted(file.name for file in _ADRS.glob("[0-9]*.md"))
    assert sorted(set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", index))) == decisions


def test_every_document_is_in_the_contents() -> None:
    text = _SITE["CONTENTS"].read_text(encoding="utf-8")
    assert _SITE["not_in_contents"](text) == []
    without = text.replace("- [The doctor]", "").replace("- [Ask the doctor](operations/doctor.md)", "")
    assert _SITE["not_in_contents"](without) == [Path("docs/operations/doctor.md")]
    sections = [next(iter(section)) for section in _SITE["navigation"](text)]
    assert sections == ["Tutorials", "How to", "Reference", "Explanations"]


def test_lists_of_the_repository_are_lists_of_the_site() -> None:
    written = "Words:\n- one\n  goes on\n- two\n\n  ```sh\n  - no item\n    deeper\n  ```\n- three\n\nEnd.\n- four"
    wanted = (
        "Words:\n\n- one\n    goes on\n- two\n\n    ```sh\n    - no item\n      deeper\n    ```\n\n- three\n\nEnd.\n\n"
    )
    assert _SITE["for_python_markdown"](written) == f"{wanted}- four\n"
    code = "```\n- one\n- two\nwords\n- three\n```\n"
    assert _SITE["for_python_markdown"](code) == code


def _places(file: Path) -> dict[str, list[int]]:
    """Where each class and function of a module begins, by its qualified name and by every end of that."""
    places: dict[str, list[int]] = {}

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (*names, child.name)
                for first in range(len(inner)):
                    places.setdefault(".".join(inner[first:]), []).append(child.lineno)
                visit(child, inner)
            else:
                visit(child, names)

    visit(ast.parse(file.read_text(encoding="utf-8")), ())
    return places


def _misled(text: str) -> Iterator[tuple[re.Match[str], int | None]]:
    """Links of the tour that are off, with the right line; None if the name is not in that file, or there twice."""
    for link in _TOUR_LINK.finditer(text):
        name, path, line = link[1], link[2], int(link[3])
        file = _ROOT / path
        found = _places(file).get(name, []) if file.exists() else []
        if len(found) != 1:
            yield link, None
        elif abs(found[0] - line) > _LINES_OFF_MAX:
            yield link, found[0]


def test_every_step_of_the_tour_is_at_its_line() -> None:
    text = _TOUR.read_text(encoding="utf-8")
    assert len(_TOUR_LINK.findall(text)) > 30
    assert len(_TOUR_LINK.findall(text)) == text.count(".py#L"), "a link of another form is not checked"
    wrong = [f"{link[1]} in {link[2]}: {line or 'not found'}" for link, line in _misled(text)]
    assert not wrong, "repair with: python tests/unit/test_documents.py --fix"


def _fix() -> int:
    """Writes the tour's line numbers anew; names that have left their file are for people."""
    text = _TOUR.read_text(encoding="utf-8")
    left = 0
    for link, line in reversed(list(_misled(text))):
        if line is None:
            print(f"not found, or twice: {link[1]} in {link[2]}")  # noqa: T201
            left += 1
        else:
            text = text[: link.start(3)] + str(line) + text[link.end(3) :]
    _TOUR.write_text(text, encoding="utf-8")
    return min(left, 1)


if __name__ == "__main__":
    sys.exit(_fix() if sys.argv[1:] == ["--fix"] else "usage: python tests/unit/test_documents.py --fix")
