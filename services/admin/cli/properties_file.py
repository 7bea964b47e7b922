"""RocketMQ-style `key=value` files, read for what the CLI needs and changed without losing a comment.

Whether the values are right is not judged here: each service checks its own file (`--check`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["parse_properties", "with_values"]

_ASSIGNMENT = re.compile(r"^\s*([A-Za-z][A-Za-z0-9_.-]*)\s*=\s*(.*?)\s*$")


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values; of a key written twice the last one counts. Lines that are no assignment are left out."""
    return {match[1]: match[2] for line in text.splitlines() if (match := _ASSIGNMENT.match(line))}


def with_values(text: str, values: Mapping[str, str]) -> str:
    """`text` with these keys set: in their line where they have one, else in a new line at the end."""
    missing = dict(values)
    lines = []
    for line in text.splitlines():
        match = _ASSIGNMENT.match(line)
        if match and match[1] in values:
            missing.pop(match[1], None)
            lines.append(f"{match[1]}={values[match[1]]}")
        else:
            lines.append(line)
    lines += [f"{key}={value}" for key, value in missing.items()]
    return "\n".join(lines) + "\n"
