"""Writes the reference of every setting, docs/reference, from the settings classes of the services.

python tools/settings_reference.py           # rewrites docs/reference/<service>-settings.md
python tools/settings_reference.py --check   # exit code 1 if that would change one
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"

sys.path[:0] = [str(ROOT / "services"), str(ROOT / "build" / "proto")]

from tandemmq.service.settings import ENVIRONMENT_PREFIX, ServiceSettings, json_schema

CHART: Final = runpy.run_path(str(ROOT / "tools" / "chart_schema.py"))
# Title, program, and where the chart takes them from.
PAGES: Final = {
    "broker": ("Settings of a broker", "mqbroker", "`brokers.settings`, or `brokerGroups[].settings` for one group"),
    "nameserver": ("Settings of a NameServer", "mqnamesrv", "`nameserver.settings`"),
    "admin": ("Settings of the admin service", "mqadminservice", "`admin.settings`"),
    "consistency": (
        "Settings of the consistency job",
        "mqconsistency",
        "`consistency.settings`, or `consistency.quick.settings` and `consistency.deep.settings` for one tier",
    ),
}


def page(component: str) -> str:
    """The page of a service's settings."""
    title, program, values = PAGES[component]
    model: type[ServiceSettings] = CHART["MODELS"][component]
    schema = json_schema(model)
    derived: dict[str, str] = CHART["DERIVED"][component]
    lines = [
        f"# {title}",
        "",
        f"`{program}` reads them from the file of `--config` (`key=value` lines), then from the environment, then from",
        "`--set key=value`; the later one counts. In the environment a setting has the name in the last column. A key",
        "that there is not, or a value that does not fit, ends the start with a line that names it.",
        "",
        f"The chart takes them as {values};",
        "those that it sets from other values are refused there.",
        "",
    ]
    if component == "broker":
        running = "[Changing a running broker](../operations/changing-a-running-broker.md)"
        lines += [f"{running} names those that may change while it serves.", ""]
    lines += ["| setting | default | takes | meaning | in the environment |", "|---|---|---|---|---|"]
    for name, field in sorted(model.model_fields.items(), key=lambda item: str(item[1].alias).lower()):
        key = str(field.alias)
        meaning = _cell(field.description or "")
        if key in derived:
            meaning += f" *In the chart:* {_cell(derived[key])}."
        lines.append(
            f"| `{key}` | {_default(schema['properties'][key])} | {_cell(_takes(component, key, schema))} | {meaning} "
            f"| `{ENVIRONMENT_PREFIX}{name.upper()}` |"
        )
    return "\n".join(lines) + "\n"


def _default(field: dict[str, Any]) -> str:
    """What counts where nobody says anything."""
    value = field.get("default")
    if "default" not in field or value is None or value == "":
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`".replace("|", "\\|")


def _takes(component: str, key: str, schema: dict[str, Any]) -> str:
    """Type and range, in words."""
    field = CHART["_plain"](schema["properties"][key], schema.get("$defs", {}))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"] if value)
    properties = CHART["settings_schema"](component)["properties"][key]
    words = {"boolean": "`true` or `false`", "integer": "whole number", "number": "number", "string": "text"}
    taken = words.get(str(field.get("type")), "text")
    if isinstance(properties.get("type"), list):
        taken = "number, with a unit if you like"
    bounds = (
        ("minimum", "from"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to"),
        ("exclusiveMaximum", "below"),
        ("maxLength", "of at most"),
    )
    limits = [f"{word} {field[bound]:,}" for bound, word in bounds if bound in field]
    if "maxLength" in field:
        limits.append("characters")
    return " ".join([taken, *limits])


def _cell(text: str) -> str:
    """Text that ends no cell and is no tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    """Rewrites or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    code = 0
    for component in PAGES:
        path, fresh = REFERENCE / f"{component}-settings.md", page(component)
        if check and (not path.exists() or path.read_text(encoding="utf-8") != fresh):
            print(f"{path.relative_to(ROOT)} is not of today's settings; run python tools/settings_reference.py")
            code = 1
        elif not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fresh, encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
