"""Writes the table of values in charts/tandemmq/README.md from the comments in values.yaml, as helm-docs does.

    python tools/chart_readme.py           # rewrites what is between the markers
    python tools/chart_readme.py --check   # exit code 1 if that would change it

A comment that starts with `# --` describes the key below it. A described key is one row, whatever it holds; a key
without a description is a row if it holds no map, else only its keys are.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "charts" / "tandemmq"
_BEGIN: Final = "<!-- values: made by tools/chart_readme.py -->"
_END: Final = "<!-- end of values -->"
_KEY: Final = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):( .*)?$")


def descriptions(text: str) -> dict[str, str]:
    """Description by dotted key. ValueError for one with nothing below it."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    pending: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# --"):
            pending = [stripped[4:].strip()]
        elif stripped.startswith("#") and pending:
            pending.append(stripped[1:].strip())
        elif match := _KEY.match(line):
            indent = len(match[1])
            while path and path[-1][0] >= indent:
                path.pop()
            path.append((indent, match[2]))
            if pending:
                found[".".join(name for _, name in path)] = " ".join(pending)
                pending = []
        elif pending:
            raise ValueError(f"a description without a key: {' '.join(pending)}")
    return found


def rows(values: Any, described: dict[str, str], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Key, default, description."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and name not in described:
            yield from rows(value, described, f"{name}.")
        elif isinstance(value, dict) and any(other.startswith(f"{name}.") for other in described):
            if name in described:
                yield name, "", described[name]
            yield from rows(value, described, f"{name}.")
        else:
            yield name, json.dumps(value), described.get(name, "")


def table(text: str) -> str:
    """All values as a Markdown table."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for name, default, meaning in rows(yaml.safe_load(text), descriptions(text)):
        shown = f"`{default}`" if default else ""
        lines.append(f"| `{name}` | {shown.replace('|', chr(92) + '|')} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def renewed(readme: str, values: str) -> str:
    """The README's text with the table of today."""
    before, rest = readme.split(_BEGIN)
    after = rest.split(_END)[1]
    return f"{before}{_BEGIN}\n{table(values)}\n{_END}{after}"


def main() -> int:
    """Rewrites or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    path = CHART / "README.md"
    text = path.read_text(encoding="utf-8")
    fresh = renewed(text, (CHART / "values.yaml").read_text(encoding="utf-8"))
    if check and fresh != text:
        print(f"{path.relative_to(ROOT)} is not of today's values; run python tools/chart_readme.py")
        return 1
    if not check:
        path.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
