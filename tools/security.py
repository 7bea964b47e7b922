"""Shows who gets in: strangers, wrong certificates, the table of methods, and certificates that change under load.

python tools/security.py            # runs the tests that show it, and writes build/security.json
python tools/security.py --table    # writes the table into docs/operations/security.md; --check: is it today's?
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "operations" / "security.md"
RESULT: Final = ROOT / "build" / "security.json"
_BEGIN, _END = "<!-- table of methods: make security-table -->", "<!-- end of the table -->"

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "services"), str(ROOT / "build" / "proto")]

from support.certificates import CALLERS, CLUSTER, GROUP
from tandemmq.core.access.identity import METHODS, refusal

# What is shown, by the tests that show it.
SHOWN: Final = {
    "identities": ["tests/unit/core/access/test_identity.py"],
    "method table": [
        "tests/unit/core/access/test_identity.py",
        "tests/integration/service/test_service_tls.py",
    ],
    "wrong certificates": ["tests/unit/service/test_certificates.py"],
    "users and policies": [
        "tests/unit/broker/client_api/test_access.py",
        "tests/unit/broker/client_api/test_access_histories.py",
    ],
    "open to closed": ["tests/integration/test_open_to_closed.py"],
    "strangers and rotation": [
        "tests/integration/test_secure_group.py",
        "tests/unit/core/replication/test_proof_needed.py",
        "tests/unit/broker/master/test_ha_listener.py",
    ],
}


def table() -> str:
    """Who may call what, as Markdown: judged by the same function as a call."""
    names = ["no certificate", *CALLERS]
    lines = ["| method | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for path in METHODS:
        _, service, method = path.split("/")
        may = [refusal(path, identity, cluster=CLUSTER, group=GROUP) is None for identity in (None, *CALLERS.values())]
        lines.append(
            f"| `{service.rpartition('.')[2]}/{method}` | " + " | ".join("yes" if each else "-" for each in may) + " |"
        )
    return "\n".join(lines)


def document_with_table() -> str:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{after}"


def run() -> int:
    """Runs the tests; what each part came to is in build/security.json."""
    found: dict[str, dict[str, object]] = {}
    RESULT.parent.mkdir(exist_ok=True)
    for name, files in SHOWN.items():
        report = RESULT.parent / "security.xml"
        started_s = time.monotonic()
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *files],
            cwd=ROOT,
            check=False,
        ).returncode
        cases = list(ElementTree.parse(report).iter("testcase"))
        bad = [
            f"{case.get('classname')}.{case.get('name')}"
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        ]
        found[name] = {
            "passed": code == 0 and not bad and bool(cases),
            "cases": len(cases),
            "failed": bad,
            "seconds": round(time.monotonic() - started_s, 1),
        }
    found["table"] = {
        "passed": document_with_table() == DOCUMENT.read_text(encoding="utf-8"),
        "methods": len(METHODS),
        "identities": len(CALLERS) + 1,
    }
    RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 0 if all(part["passed"] for part in found.values()) else 1


def main() -> int:
    """As the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="write the table into the document")
    parser.add_argument("--check", action="store_true", help="is the table in the document today's?")
    options = parser.parse_args()
    if not (options.table or options.check):
        return run()
    fresh = document_with_table()
    if options.check:
        if DOCUMENT.read_text(encoding="utf-8") != fresh:
            print(f"{DOCUMENT.relative_to(ROOT)} has not today's table; run python tools/security.py --table")
            return 1
        return 0
    DOCUMENT.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
