"""Advisories that apply are found, by OSV's rules; bills of materials name what images install."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from support.running_time import run_program

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "supply_chain.py"))
LOCKED: list[tuple[str, str]] = TOOL["locked"](ROOT / "uv.lock")


def advisory(name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": [*events]}]}
    return {"id": "PLANTED-1", "aliases": ["CVE-0"], "summary": "planted", "affected": [affected], **more}


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "supply_chain.py"), *arguments]
    return run_program(command)


def test_none_of_the_advisories_kept_here_applies_and_it_says_how_many_were_asked() -> None:
    done = check()
    known = json.loads((ROOT / "tools" / "advisories.json").read_text())
    said = (
        f"{len(LOCKED)} packages checked against {len(known['advisories'])} advisories of {known['date']}: none applies"
    )
    assert (done.returncode, said in done.stdout) == (0, True), done.stdout + done.stderr
    assert len(LOCKED) > 50
    assert len(known["advisories"]) > 50


@pytest.mark.parametrize("name", ["aiohttp", "AioHTTP", "typing_extensions"])
def test_a_planted_advisory_is_found_and_says_what_to_use(tmp_path: Path, name: str) -> None:
    planted = tmp_path / "advisories.json"
    records = [advisory(name, {"introduced": "0"}, {"fixed": "9999.1"})]
    planted.write_text(json.dumps({"date": "2026-11-01", "advisories": records}))
    done = check("--advisories", str(planted))
    assert done.returncode == 1
    assert "1 apply" in done.stdout
    assert "PLANTED-1, CVE-0: planted (use 9999.1)" in done.stdout


def test_a_lock_with_an_old_package_is_found_by_the_advisories_kept_here(tmp_path: Path) -> None:
    text = (ROOT / "uv.lock").read_text()
    now = f'name = "aiohttp"\nversion = "{dict(LOCKED)["aiohttp"]}"'
    assert now in text
    old = tmp_path / "uv.lock"
    old.write_text(text.replace(now, 'name = "aiohttp"\nversion = "3.9.1"'))
    done = check("--lock", str(old))
    assert done.returncode == 1
    assert "aiohttp 3.9.1: PYSEC-2024-24" in done.stdout


def test_advisories_that_are_not_there_are_no_clean_result(tmp_path: Path) -> None:
    done = check("--advisories", str(tmp_path / "gone.json"))
    assert done.returncode == 2
    assert "take it anew with --renew" in done.stderr


@pytest.mark.parametrize(
    "record",
    [
        advisory("aiohttp", {"introduced": "0"}, {"fixed": "1.0"}),
        advisory("aiohttp", {"introduced": "9999"}),
        advisory("aiohttp", {"introduced": "0"}, withdrawn="2026-01-01T00:00:00Z"),
        advisory("aiohttp-other", {"introduced": "0"}),
        {"id": "NPM-1", "affected": [{"package": {"ecosystem": "npm", "name": "aiohttp"}, "versions": ["3.0"]}]},
        {
            "id": "GIT-1",
            "affected": [
                {
                    "package": {"ecosystem": "PyPI", "name": "aiohttp"},
                    "ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}],
                }
            ],
        },
    ],
)
def test_what_does_not_apply_is_passed_over(record: dict[str, Any]) -> None:
    assert list(TOOL["findings"]([("aiohttp", "3.14.5")], [record])) == []


_VERSIONS = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda pair: f"{pair[0]}.{pair[1]}")


@given(st.lists(_VERSIONS, min_size=1, max_size=6, unique=True), _VERSIONS, st.booleans(), st.randoms())
def test_a_version_is_affected_between_an_introduction_and_the_next_end(
    bounds: list[str], version: str, ends_late: bool, random: Any
) -> None:
    bounds.sort(key=Version)
    end = "last_affected" if ends_late else "fixed"
    events = [{"introduced" if place % 2 == 0 else end: each} for place, each in enumerate(bounds)]
    expected = False
    for start, stop in zip(bounds[::2], [*bounds[1::2], None]):
        above = Version(version) >= Version(start)
        below = stop is None or Version(version) < Version(stop) or (ends_late and Version(version) == Version(stop))
        expected = expected or (above and below)
    random.shuffle(events)
    affected = {"ranges": [{"type": "ECOSYSTEM", "events": events}]}
    assert TOOL["is_affected"](version, affected) is expected


def test_records_are_taken_from_a_database_for_our_packages_only(tmp_path: Path) -> None:
    (tmp_path / "aiohttp").mkdir()
    (tmp_path / "aiohttp" / "PYSEC-1.yaml").write_text(
        "id: PYSEC-1\nmodified: 2026-10-01T00:00:00Z\naliases: [CVE-1]\ndetails: Two\n  lines.\n"
        "affected:\n- package: {ecosystem: PyPI, name: aiohttp}\n"
        "  ranges:\n  - {type: GIT, events: [{introduced: '0'}]}\n"
        "  - {type: ECOSYSTEM, events: [{introduced: '0'}, {fixed: 3.10}]}\n  versions: ['3.9']\n"
    )
    other = advisory("unheard-of", {"introduced": "0"}, modified="2026-10-09T00:00:00Z")
    (tmp_path / "other.json").write_text(json.dumps(other))
    taken = TOOL["taken_from"](tmp_path, names=["aiohttp"])
    assert taken["date"] == "2026-10-09"
    [record] = taken["advisories"]
    assert record["summary"] == "Two lines."
    # A version is text: YAML would make 3.1 of 3.10.
    [found] = TOOL["findings"]([("aiohttp", "3.9.5")], taken["advisories"])
    assert (found.advisory, found.fixed) == ("PYSEC-1", ["3.10"])


@pytest.mark.parametrize(
    ("image", "has", "lacks"),
    [
        ("nameserver", {"grpcio", "structlog"}, {"numpy", "typer", "aiohttp"}),
        ("broker", {"grpcio", "numpy", "lz4"}, {"typer", "rich", "aiohttp", "pytest"}),
        ("admin", {"grpcio", "aiohttp", "typer", "rich"}, {"pyspark", "pytest", "numpy"}),
        ("consistency", {"grpcio", "pyspark", "rich"}, {"typer", "aiohttp", "pytest"}),
    ],
)
def test_a_bill_of_materials_names_what_the_image_installs(image: str, has: set[str], lacks: set[str]) -> None:
    if shutil.which("uv") is None and not (ROOT / ".tools" / "bin" / "uv").exists():
        pytest.skip("uv makes the bills")
    bill = TOOL["sbom"](image)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    components = {each["name"]: each for each in bill["components"]}
    assert has <= components.keys()
    assert not lacks & components.keys()
    assert "colorama" not in components  # Windows' alone
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    sources = {(each["name"], each.get("version")): each for each in locked}
    for name, component in components.items():
        source = sources[name, component["version"]]
        assert component["purl"] == f"pkg:pypi/{name}@{component['version']}"
        if "sdist" in source:
            assert component["hashes"][0]["content"] == source["sdist"]["hash"].removeprefix("sha256:")
    refs = {each["bom-ref"] for each in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    for entry in bill["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= refs
    assert TOOL["sbom"](image) == bill
