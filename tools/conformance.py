"""The client API's conformance list against what the tests cover, and against what a run of them showed.

    python tools/conformance.py --docs      # writes the tables of client-conformance.md and clients.md anew
    python tools/conformance.py --results   # build/conformance.json, from the reports of the last `make conformance`
    python tools/conformance.py --again     # runs anew what failed, for a machine that was busy; then --results
    python tools/conformance.py --readme    # README.md's table, from build/conformance.json

Which test covers what shows in names: `test_45_...` of tests/contract/client_api is number 45 by raw stubs, of
tests/e2e/official_go by the Go client; `test_23_24_...` is both. Each row of tests/e2e/scenarios.py with numbers is run
by each client whose module has a subclass of ClientConformance. So new scenarios and tests appear by themselves. What
nothing covers is told as not covered and never holds.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = ROOT / "build"
PAGE: Final = ROOT / "docs" / "protocol" / "client-conformance.md"
README: Final = ROOT / "README.md"
FEATURE_PAGE: Final = ROOT / "docs" / "operations" / "clients.md"
E2E: Final = ROOT / "tests" / "e2e"
CONTRACT: Final = ROOT / "tests" / "contract" / "client_api"
RAW: Final = "raw"
CLIENTS: Final = (RAW, "python", "java", "go", "rust", "cpp", "node")

# Number: clients that the list names (S raw stubs, P J G R C N), and what is shown.
_LETTERS: Final = dict(zip("SPJGRCN", CLIENTS, strict=True))
LIST: Final[dict[int, tuple[str, str]]] = {
    1: ("S", "a call without a client id"),
    2: ("S", "the route of a topic that is unknown, or no name"),
    3: ("S", "a row for each queue"),
    4: ("S", "the route stays the same"),
    5: ("S", "settings of a producer"),
    6: ("S", "settings of a push consumer"),
    7: ("S", "settings without a role"),
    8: ("S", "each settings message has a reply"),
    9: ("PJGRCN", "clients start, stop and are forgotten"),
    10: ("PJGRCN", "what is sent is what is received"),
    11: ("S", "digest and encoding"),
    12: ("JPS", "bodies at the limit"),
    13: ("S", "properties at the limit"),
    14: ("S", "reserved names and control characters"),
    15: ("S", "tags, keys and message groups that are none"),
    16: ("S", "the type of a message fits its topic"),
    17: ("S", "message ids, and one topic a request"),
    18: ("S", "delivery times too far away, and past ones"),
    19: ("PJGR", "a delayed message comes in its time"),
    20: ("PJGR", "a delayed message is recalled"),
    21: ("JP", "a recall at another broker"),
    22: ("PJGRC", "transactions end"),
    23: ("JPG", "a transaction without decision is checked"),
    24: ("P", "a check that stays undecided"),
    25: ("R", "a transaction ends at another broker"),
    26: ("S", "a transaction ends twice"),
    27: ("PJGRN", "message groups keep their order"),
    28: ("JP", "a message group of two languages has one queue"),
    29: ("JP", "what fails holds back what follows it"),
    30: ("J", "what always fails is a dead letter"),
    31: ("S", "an ordered receive again"),
    32: ("PJGRCN", "what is acknowledged does not come again"),
    33: ("S", "a lease ends"),
    34: ("S", "an acknowledgement after the lease"),
    35: ("S", "leases out of range"),
    36: ("JPG", "a changed lease has a new handle"),
    37: ("S", "a lease given up"),
    38: ("S", "a good and a bad handle"),
    39: ("S", "the order of a receive's answer"),
    40: ("S", "an empty poll"),
    41: ("S", "a message during a poll"),
    42: ("G", "a receive without a time to wait"),
    43: ("S", "deadlines, and receives that are cancelled"),
    44: ("S", "the largest batch"),
    45: ("JP", "filters by tag and by SQL92"),
    46: ("JPG", "a group shares, another gets all"),
    47: ("PJGRCN", "push consumers get each message"),
    48: ("JP", "a handler that takes long"),
    49: ("JP", "a handler that fails"),
    50: ("JP", "a push consumer is killed"),
    51: ("S", "assignments"),
    52: ("JGPC", "a master is killed during sends"),
    53: ("JG", "a start while a master is dead"),
    54: ("JPG", "push goes on after a change of master"),
    55: ("PG", "a broker restarts"),
    56: ("J", "no slave is in sync"),
    57: ("C", "an idle client"),
    58: ("PJGRCN", "credentials"),
    59: ("J", "stack traces and trial messages"),
    60: ("S", "reading and progress by offset"),
}

# What a user looks for, and the scenarios that show it.
FEATURES: Final[dict[str, tuple[int, ...]]] = {
    "send and receive": (10, 32),
    "push consumers": (47,),
    "leases, changed and given up": (36, 37),
    "filters by tag": (45,),
    "ordered by message group (FIFO)": (27, 29),
    "delayed (DELAY)": (19,),
    "delayed, and recalled": (20,),
    "transactions (TRANSACTION)": (22,),
    "retries and dead letters": (30,),
    "a broker restarts under a running client": (55,),
}

_NUMBERED: Final = re.compile(r"test_((?:\d\d_)+)")
_BEGIN: Final = "<!-- made by tools/conformance.py -->\n"
_END: Final = "<!-- end -->\n"


class Case(NamedTuple):
    """One test that covers a number with a client."""

    number: int
    client: str
    test: str
    """As a report of pytest has it, without parameters of fixtures."""


def cases() -> list[Case]:
    """All that cover something."""
    found = [Case(number, RAW, name) for number, name in _numbered(CONTRACT)]
    numbered, lacking = _numbers_of_scenarios(), _lacking()
    shared = list(_numbered(E2E, "client_conformance.py"))
    for folder in sorted(E2E.glob("official_*/")):
        client = folder.name.removeprefix("official_")
        found += [Case(number, client, name) for number, name in _numbered(folder)]
        if any("(ClientConformance)" in module.read_text() for module in folder.glob("test_*.py")):
            found += [Case(number, client, f"test[{name}]") for name, number in numbered if name not in lacking[client]]
            found += [Case(number, client, name) for number, name in shared]
    return found


def _numbered(folder: Path, pattern: str = "test_*.py") -> Iterator[tuple[int, str]]:
    for module in sorted(folder.glob(pattern)):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (match := _NUMBERED.match(node.name)):
                yield from ((int(number), node.name) for number in match[1].split("_") if number)


def _numbers_of_scenarios() -> list[tuple[str, int]]:
    """Those that run side by side; the others have tests of their own."""
    sys.path.insert(0, str(ROOT / "tests"))
    from e2e.scenarios import SIDE_BY_SIDE  # it lies among the tests

    return [(scenario.name, number) for scenario in SIDE_BY_SIDE for number in scenario.numbers]


def _lacking() -> defaultdict[str, frozenset[str]]:
    """Scenarios that a client has no means for, by client."""
    from e2e.scenarios import LACKING

    return defaultdict(frozenset, LACKING)


def cannot() -> set[tuple[int, str]]:
    """Numbers that the list names for a client whose newest release has no means for them."""
    numbers = defaultdict(set)
    for name, number in _numbers_of_scenarios():
        numbers[number].add(name)
    covered = {(case.number, case.client) for case in cases()}
    lacks = {(number, client) for client, names in _lacking().items() for number in numbers if numbers[number] <= names}
    return lacks - covered


def table() -> str:
    """Number by client: what tests cover."""
    covered, unable = {(case.number, case.client) for case in cases()}, cannot()
    lines = [
        f"| | scenario | {' | '.join(CLIENTS)} |\n",
        f"|---|---|{'---|' * len(CLIENTS)}\n",
    ]
    for number, (letters, title) in LIST.items():
        asked = {_LETTERS[letter] for letter in letters}
        cells = [
            "yes"
            if (number, client) in covered
            else "the client cannot"
            if (number, client) in unable
            else "**not covered**"
            if client in asked
            else ""
            for client in CLIENTS
        ]
        lines.append(f"| {number} | {title} | {' | '.join(cells)} |\n")
    return "".join(lines)


def feature_table() -> str:
    """Feature by official client: whether tests use it."""
    covered = {(case.number, case.client) for case in cases()}
    clients = [client for client in CLIENTS if client != RAW and any(client == each for _, each in covered)]
    lines = [f"| | {' | '.join(clients)} |\n", f"|---|{'---|' * len(clients)}\n"]
    for feature, numbers in FEATURES.items():
        cells = ["yes" if all((number, client) in covered for number in numbers) else "" for client in clients]
        lines.append(f"| {feature} | {' | '.join(cells)} |\n")
    return "".join(lines)


def page_with(text: str, new_table: str) -> str:
    head, rest = text.split(_BEGIN)
    return head + _BEGIN + new_table + _END + rest.split(_END)[1]


def rows(outcomes: dict[tuple[str, str], list[bool]]) -> list[dict[str, object]]:
    """One for each number and client that the list asks for or a test covers. `outcomes`: by client and test."""
    unable = cannot()
    asked = ((number, _LETTERS[letter]) for number, (letters, _) in LIST.items() for letter in letters)
    tests: dict[tuple[int, str], list[str]] = {each: [] for each in asked if each not in unable}
    for case in cases():
        tests.setdefault((case.number, case.client), []).append(case.test)
    made: list[dict[str, object]] = []
    for (number, client), names in sorted(tests.items()):
        results = [outcomes.get((client, name), []) for name in names]
        # Each of its tests has run, and none of them failed.
        holds = bool(results) and all(result and all(result) for result in results)
        if not names:
            state = "not covered"
        elif holds:
            state = "holds"
        else:
            state = "failed" if any(False in result for result in results) else "not run"
        title = LIST[number][1] if number in LIST else ""
        made.append(
            {
                "name": f"{number} {client} {title}".rstrip(),
                "number": number,
                "client": client,
                "tests": names,
                "value": state,
                "unit": None,
                "target": "holds",
                "holds": holds,
            }
        )
    return made


def result_table(found: Iterable[Mapping[str, object]]) -> str:
    """A line for each client: how many of the scenarios that are asked of it hold, and which do not."""
    lines = ["| client | scenarios | hold | do not |\n", "|---|---|---|---|\n"]
    by_client = defaultdict(list)
    for row in found:
        by_client[row["client"]].append(row)
    for client in CLIENTS:
        mine = by_client[client]
        wrong = [f"{row['number']} ({row['value']})" for row in mine if not row["holds"]]
        lines.append(f"| {client} | {len(mine)} | {len(mine) - len(wrong)} | {', '.join(wrong)} |\n")
    return "".join(lines)


def _with_section(text: str) -> str:
    """The README with a section for the table, which it has not before the first whole run."""
    if _BEGIN in text:
        return text
    intro = "Of each client, how many of the API's scenarios `make conformance` showed, and which it did not.\n\n"
    section = f"## What was shown with which client\n\n{intro}{_BEGIN}{_END}\n"
    head, mark, rest = text.partition("## Read on\n")
    return head + section + mark + rest


_FOLDERS: Final = {client: f"e2e-official_{client}" for client in CLIENTS[1:]} | {RAW: "contract-client_api"}


def _cases_of(report: Path) -> dict[tuple[str, str], bool]:
    """Whether each passed, by its class and name; a skipped test is left out."""
    if not report.exists():
        return {}
    return {
        (case.get("classname", ""), case.get("name", "")): case.find("failure") is None and case.find("error") is None
        for case in ElementTree.parse(report).getroot().iter("testcase")
        if case.find("skipped") is None
    }


def run_again() -> None:
    """Runs what failed in the last run of each folder once more, beside nothing else."""
    for folder in _FOLDERS.values():
        failed = [case for case, passed in _cases_of(BUILD / f"test-{folder}.xml").items() if not passed]
        again = BUILD / f"test-{folder}-again.xml"
        again.unlink(missing_ok=True)
        if failed:
            tests = [_node_id(classname, name) for classname, name in failed]
            subprocess.run([sys.executable, "-m", "pytest", "-q", f"--junitxml={again}", *tests], cwd=ROOT, check=False)


def _node_id(classname: str, name: str) -> str:
    """`tests/e2e/…/test_x.py::TestX::test[y]` of what a report calls `tests.e2e.….test_x.TestX` and `test[y]`."""
    module, _, class_name = classname.rpartition(".")
    if not class_name.startswith("Test"):
        module, class_name = classname, ""
    return "::".join(filter(None, (f"{module.replace('.', '/')}.py", class_name, name)))


def read_outcomes() -> dict[tuple[str, str], list[bool]]:
    """Of the last run of each folder, and of what was run again since; a skipped test has none."""
    outcomes: dict[tuple[str, str], list[bool]] = {}
    for client, folder in _FOLDERS.items():
        report, again = BUILD / f"test-{folder}.xml", BUILD / f"test-{folder}-again.xml"
        found = _cases_of(report)
        if again.exists() and again.stat().st_mtime > report.stat().st_mtime:
            found |= _cases_of(again)
        for (_, name), passed in found.items():
            # A scenario is told by its parameter; elsewhere a parameter is a front or a value.
            outcomes.setdefault((client, name), []).append(passed)
            if "[" in name and not name.startswith("test["):
                outcomes.setdefault((client, name.split("[")[0]), []).append(passed)
    return outcomes


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--results", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--readme", action="store_true")
    arguments = parser.parse_args()
    if arguments.docs:
        PAGE.write_text(page_with(PAGE.read_text(), table()))
        FEATURE_PAGE.write_text(page_with(FEATURE_PAGE.read_text(), feature_table()))
    if arguments.again:
        run_again()
    if arguments.results:
        found = rows(read_outcomes())
        BUILD.mkdir(exist_ok=True)
        (BUILD / "conformance.json").write_text(json.dumps(found, indent=2) + "\n")
        states = [row["value"] for row in found]
        print(", ".join(f"{states.count(state)} {state}" for state in ("holds", "failed", "not run", "not covered")))
    if arguments.readme:
        told = json.loads((BUILD / "conformance.json").read_text())
        README.write_text(page_with(_with_section(README.read_text()), result_table(told)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
