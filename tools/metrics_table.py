"""Writes the tables of docs/operations/metrics.md from the catalogues in the code.

python tools/metrics_table.py           # rewrites what is between the markers
python tools/metrics_table.py --check   # exit code 1 if that would change it
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tandemmq.admin.metrics import METRICS as ADMIN_METRICS
from tandemmq.broker.metrics_catalogue import BASE_LABELS, BROKER_METRICS
from tandemmq.nameserver.name_server import NAME_SERVER_METRICS
from tandemmq.service.metrics import PROCESS_METRICS, MetricInfo

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "operations" / "metrics.md"
TABLES: Final = {
    "broker": BROKER_METRICS,
    "nameserver": NAME_SERVER_METRICS,
    "admin": ADMIN_METRICS,
    "process": PROCESS_METRICS,
}
_END: Final = "<!-- end of table -->"


def table(metrics: Iterable[MetricInfo]) -> str:
    """Metrics as a Markdown table, without the labels that all metrics of brokers have."""
    lines = ["| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels if not _is_base(metric, label))
        unit = f"`{metric.unit}`"
        lines.append(
            f"| `{metric.name}` | {metric.kind} | {unit} | {labels} | {metric.meaning.replace('|', chr(92) + '|')} |"
        )
    return "\n".join(lines)


def renewed(document: str) -> str:
    for name, metrics in TABLES.items():
        begin = f"<!-- table of {name}: made by tools/metrics_table.py -->"
        before, rest = document.split(begin)
        after = rest.split(_END, 1)[1]
        document = f"{before}{begin}\n\n{table(metrics)}\n\n{_END}{after}"
    return document


def _is_base(metric: MetricInfo, label: str) -> bool:
    return label in BASE_LABELS and tuple(metric.labels[: len(BASE_LABELS)]) == BASE_LABELS


def main() -> int:
    """Rewrites or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    text = DOCUMENT.read_text(encoding="utf-8")
    fresh = renewed(text)
    if check and fresh != text:
        print(f"{DOCUMENT.relative_to(ROOT)} is not of today's metrics; run python tools/metrics_table.py")
        return 1
    if not check:
        DOCUMENT.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
