"""Builds the documents' site: build/site, from the Markdown files as they lie in the repository.

    make docs        # or: build/docs-venv/bin/python tools/docs_site.py

docs/README.md is the table of contents: its sections and links are the site's navigation. Every document of docs has to
be in it (decisions by their own index). A link that leads nowhere, or to a heading that is not there, ends the build.

The documents are written for the repository's pages. In the copy that is built lists and what is in them get the blank
lines and the four spaces of indentation that Python's Markdown wants, and what they link to beside documents (sources,
pictures) lies where the links lead.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
STAGE: Final = ROOT / "build" / "docs-source"
SITE: Final = ROOT / "build" / "site"
CONTENTS: Final = ROOT / "docs" / "README.md"
# What the site has beside docs.
BESIDE: Final = (
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "benchmarks/RESULTS.md", "benchmarks/load/README.md"),
    *("charts/tandemmq/README.md", "charts/tandemmq/UPGRADING.md", "charts/tandemmq/CHECKLIST.md"),
)
LIMIT_S: Final = 300

_LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
_ITEM: Final = re.compile(r"^( *)([-*]|\d+\.) ")
_FENCE: Final = re.compile(r"^( *)(```+|~~~+)")
_ENTRY: Final = re.compile(r"^- \[([^\]]+)\]\(([^)\s#]+)\)")


class DocsError(Exception):
    """What keeps the site from being built; the text says what to do."""


def documents() -> list[Path]:
    """All that become pages, from the root of the repository."""
    inside = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    return [*(Path(name) for name in BESIDE), *inside]


def navigation(text: str) -> list[dict[str, list[dict[str, str]]]]:
    """Sections of the table of contents, each with its entries: title and path from the root."""
    found: list[dict[str, list[dict[str, str]]]] = []
    for line in text.splitlines():
        if line.startswith("## "):
            found.append({line[3:].strip(): []})
        elif (match := _ENTRY.match(line)) and found:
            path = (CONTENTS.parent / match[2]).resolve().relative_to(ROOT)
            next(iter(found[-1].values())).append({match[1]: path.as_posix()})
    return found


def not_in_contents(text: str) -> list[Path]:
    """Documents of docs that nobody would find: decisions are in an index of their own."""
    entries = [entry for part in navigation(text) for listed in part.values() for entry in listed]
    listed = {Path(path) for entry in entries for path in entry.values()}
    wanted = [path for path in documents() if path.parts[0] == "docs" and not re.match(r"\d{4}-", path.name)]
    return [path for path in wanted if path not in listed and ROOT / path != CONTENTS]


def for_python_markdown(text: str) -> str:
    """The same page with blank lines before lists, and what is in a list indented by fours."""
    lines: list[str] = []
    fence, shift, in_list, parted = "", 0, False, False
    for line in text.splitlines():
        opening = _FENCE.match(line)
        if fence:
            lines.append(" " * shift + line)
            if opening and opening[2].startswith(fence) and not line.strip().strip(fence[0]):
                fence, shift = "", 0
            continue
        indent = len(line) - len(line.lstrip(" "))
        item = _ITEM.match(line)
        # A list begins after a blank line, and so does an item behind one of several paragraphs.
        if item and (not in_list or parted) and lines and lines[-1].strip():
            lines.append("")
        parted = in_list and not item and (parted or not line.strip())
        if line.strip() and not indent:
            in_list = bool(item) or (in_list and bool(lines) and bool(lines[-1].strip()))
        wanted = 4 * -(-indent // 3) if in_list and 0 < indent <= 6 else indent
        if opening:
            fence, shift = opening[2], wanted - indent
        lines.append(" " * (wanted - indent) + line)
    return "\n".join(lines) + "\n"


def stage() -> None:
    """Copies documents, and what they link to, to where the builder reads them."""
    shutil.rmtree(STAGE, ignore_errors=True)
    pages = set(documents())
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in _targets(page, text):
            if target in pages:
                continue
            if (ROOT / target).is_dir():
                # A folder is no page; its documents are in the contents.
                text = _with_link(page, text, target, CONTENTS.relative_to(ROOT))
            elif (ROOT / target).exists():
                (STAGE / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / target, STAGE / target)
        (STAGE / page).parent.mkdir(parents=True, exist_ok=True)
        (STAGE / page).write_text(for_python_markdown(text), encoding="utf-8")


def _targets(page: Path, text: str) -> Iterator[Path]:
    """What a page links to in the repository."""
    for match in _LINK.finditer(text):
        path = match[2].partition("#")[0]
        if path and not re.match(r"[a-z]+:", path):
            target = (ROOT / page.parent / path).resolve()
            if target.is_relative_to(ROOT):
                yield target.relative_to(ROOT)


def _with_link(page: Path, text: str, target: Path, instead: Path) -> str:
    up = "../" * len(page.parent.parts)

    def changed(match: re.Match[str]) -> str:
        same = (ROOT / page.parent / match[2].partition("#")[0]).resolve() == ROOT / target
        return f"{match[1]}{up}{instead.as_posix()}{match[3]}" if same else match[0]

    return _LINK.sub(changed, text)


def configuration(text: str) -> str:
    """mkdocs.yml. Nothing is loaded from elsewhere: no fonts, no scripts, no search service."""
    nav = [{"Home": "README.md"}, {"Contents": CONTENTS.relative_to(ROOT).as_posix()}, *navigation(text)]
    return f"""site_name: TandemMQ
site_url: ""
docs_dir: {json.dumps(str(STAGE))}
site_dir: {json.dumps(str(SITE))}
use_directory_urls: false
strict: true
theme:
  name: material
  font: false
  features: [navigation.sections, navigation.top, toc.follow, content.code.copy, search.highlight]
  palette:
    - {{media: "(prefers-color-scheme: light)", scheme: default, toggle: {{icon: material/weather-night, name: dark}}}}
    - {{media: "(prefers-color-scheme: dark)", scheme: slate, toggle: {{icon: material/weather-sunny, name: light}}}}
plugins: [search]
validation:
  links: {{not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}}
  nav: {{not_found: warn, omitted_files: ignore, absolute_links: warn}}
markdown_extensions:
  - tables
  - pymdownx.highlight
  - pymdownx.superfences:
      custom_fences:
        - {{name: mermaid, class: mermaid, format: !!python/name:pymdownx.superfences.fence_code_format }}
  - toc:
      permalink: true
      slugify: !!python/object/apply:pymdownx.slugs.slugify {{kwds: {{case: lower}}}}
nav: {json.dumps(nav)}
"""


def build() -> None:
    """Raises DocsError with what the builder says."""
    text = CONTENTS.read_text(encoding="utf-8")
    if missing := not_in_contents(text):
        raise DocsError(f"docs/README.md does not list {', '.join(map(str, missing))}; give each a line and a sentence")
    stage()
    config = ROOT / "build" / "mkdocs.yml"
    config.write_text(configuration(text), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--clean", "--strict", "-f", str(config)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        raise DocsError("\n".join(line for line in said if not line.startswith("INFO")))


def main() -> int:
    """Returns 0, or 1 with the cause on stderr."""
    try:
        build()
    except DocsError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    print(f"docs: {len(list(SITE.rglob('*.html')))} pages, {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
