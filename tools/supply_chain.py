"""What others' packages bring along: a bill of materials for each image, and known weaknesses of what uv.lock names.

    python tools/supply_chain.py                     # make advisories: exit code 1 if one applies
    python tools/supply_chain.py --lock FILE         # of another lock
    python tools/supply_chain.py --renew FOLDER      # takes tools/advisories.json anew from an advisory database
    python tools/supply_chain.py --sbom broker       # CycloneDX of an image's packages, to standard output

Checking needs no network: tools/advisories.json holds the OSV records of the packages in uv.lock, cut to what is
needed, with their date and source. FOLDER is a copy of the PyPA advisory database, or of any folder of OSV records in
YAML or JSON. A record says which versions are affected by ranges of events, or by naming them
(https://ossf.github.io/osv-schema).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker
from packaging.version import Version

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "uv.lock"
ADVISORIES: Final = ROOT / "tools" / "advisories.json"
DOCKERFILE: Final = ROOT / "services" / "Dockerfile"
IMAGES: Final = ("nameserver", "broker", "admin", "consistency")
# By PEP 508's names: the base image's.
_IN_IMAGES: Final = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "python_version": "3.11",
    "python_full_version": "3.11.0",
}
OLD_DAYS: Final = 90
_SUMMARY_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """A package with a known weakness."""

    package: str
    version: str
    advisory: str
    aliases: Sequence[str]
    summary: str
    # Versions without it, as far as the record knows.
    fixed: Sequence[str]

    def __str__(self) -> str:
        names = ", ".join([self.advisory, *self.aliases])
        remedy = f"use {' or '.join(self.fixed)}" if self.fixed else "no version without it is known"
        return f"{self.package} {self.version}: {names}: {self.summary} ({remedy})"


def main() -> int:
    """0; 1 if an advisory applies; 2 if there is nothing to check against."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", type=Path, default=LOCK)
    parser.add_argument("--advisories", type=Path, default=ADVISORIES)
    parser.add_argument("--renew", type=Path, metavar="FOLDER")
    parser.add_argument("--sbom", choices=IMAGES, metavar="IMAGE")
    arguments = parser.parse_args()
    if arguments.sbom:
        print(json.dumps(sbom(arguments.sbom), indent=2))
        return 0
    packages = locked(arguments.lock)
    if arguments.renew is not None:
        renewed = taken_from(arguments.renew, names=[name for name, _ in packages])
        arguments.advisories.write_text(json.dumps(renewed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    try:
        known = json.loads(arguments.advisories.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"advisories: {arguments.advisories} cannot be read: {error}; take it anew with --renew", file=sys.stderr)
        return 2
    found = list(findings(packages, known["advisories"]))
    age_days = (datetime.now(UTC).date() - date.fromisoformat(known["date"])).days
    checked = f"{len(packages)} packages checked against {len(known['advisories'])} advisories of {known['date']}"
    print(f"advisories: {checked}: {f'{len(found)} apply' if found else 'none applies'}")
    for each in found:
        print(f"  {each}")
    if age_days > OLD_DAYS:
        print(f"advisories: they are {age_days} days old; see docs/operations/releasing.md for how to renew them")
    return 1 if found else 0


# Advisories


def locked(lock: Path) -> list[tuple[str, str]]:
    """Names, as uv.lock spells them, and versions: several where Pythons differ. Ours is not among them."""
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    return [(each["name"], each["version"]) for each in packages if "registry" in each["source"]]


def findings(packages: Iterable[tuple[str, str]], advisories: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Whatever applies to one of the packages, in the order of the advisories."""
    versions: dict[str, list[str]] = {}
    for name, version in packages:
        versions.setdefault(name, []).append(version)
    for record in advisories:
        if record.get("withdrawn"):
            continue
        # A record may speak of one package in several places.
        hit: dict[tuple[str, str], list[str]] = {}
        for affected in record.get("affected", ()):
            name = _name_of(affected)
            for version in versions.get(name, ()):
                if is_affected(version, affected):
                    fixed = [event["fixed"] for events in _ranges(affected) for event in events if "fixed" in event]
                    hit.setdefault((name, version), []).extend(
                        each for each in fixed if Version(each) > Version(version)
                    )
        for (name, version), later in hit.items():
            yield Finding(name, version, record["id"], record.get("aliases", ()), record.get("summary", ""), later)


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """By OSV's rules: it is named, or the last event at or below it is no end. ValueError for an event it has not."""
    if version in affected.get("versions", ()):
        return True
    return any(_is_within(Version(version), events) for events in _ranges(affected))


def _is_within(version: Version, events: Sequence[Mapping[str, str]]) -> bool:
    within = False
    for event in sorted(events, key=_place):
        match next(iter(event.items())):
            case "introduced", since:
                within = within or since == "0" or version >= Version(since)
            case "fixed", until:
                within = within and version < Version(until)
            case "last_affected", until:
                within = within and version <= Version(until)
            case "limit", _:
                pass
            case other:
                raise ValueError(f"an event of OSV's that is not known: {other}")
    return within


def _place(event: Mapping[str, str]) -> tuple[Version, bool]:
    kind, version = next(iter(event.items()))
    return Version("0") if version in ("0", "*") else Version(version), kind != "introduced"


def _ranges(affected: Mapping[str, Any]) -> list[Sequence[Mapping[str, str]]]:
    return [each["events"] for each in affected.get("ranges", ()) if each["type"] in ("ECOSYSTEM", "SEMVER")]


def _name_of(affected: Mapping[str, Any]) -> str:
    """As uv.lock spells it; "" for another ecosystem's."""
    package = affected.get("package", {})
    if package.get("ecosystem") != "PyPI":
        return ""
    return re.sub(r"[-_.]+", "-", str(package["name"])).lower()


def taken_from(folder: Path, *, names: Iterable[str]) -> dict[str, Any]:
    """What tools/advisories.json holds: the records of these packages, and how far the folder's reach."""
    import yaml

    wanted, records, newest = set(names), [], ""
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".yaml", ".yml", ".json") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        # Times stay text; the safe loader would make them something that JSON has not.
        record = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=yaml.BaseLoader)
        if not isinstance(record, dict) or "id" not in record:
            continue
        newest = max(newest, str(record.get("modified", "")))
        affected = [_cut(each) for each in record.get("affected", ()) if _name_of(each) in wanted]
        if affected:
            records.append(_record(record, affected))
    if not newest:
        raise SystemExit(f"advisories: {folder} holds no OSV record; name a copy of the PyPA advisory database")
    return {
        "date": newest[:10],
        "source": "PyPA advisory database (CC-BY 4.0), the packages of uv.lock, cut to what the check needs",
        "advisories": sorted(records, key=lambda each: str(each["id"])),
    }


def _record(record: Mapping[str, Any], affected: list[dict[str, Any]]) -> dict[str, Any]:
    text = " ".join(str(record.get("summary") or record.get("details", "")).split())
    kept: dict[str, Any] = {"id": record["id"], "aliases": record.get("aliases", [])}
    if record.get("withdrawn"):
        kept["withdrawn"] = record["withdrawn"]
    return kept | {"summary": text[:_SUMMARY_CHARACTERS], "affected": affected}


def _cut(affected: Mapping[str, Any]) -> dict[str, Any]:
    ranges = [{"type": "ECOSYSTEM", "events": list(events)} for events in _ranges(affected)]
    cut = {"package": {"ecosystem": "PyPI", "name": affected["package"]["name"]}, "ranges": ranges}
    # Versions beside ranges say the same again.
    return cut if ranges else cut | {"versions": list(affected.get("versions", ()))}


# Bills of materials


def sbom(image: str) -> dict[str, Any]:
    """CycloneDX 1.5 of the packages that an image holds, with the hashes that uv.lock has of their sources.

    The base image's own packages are its distributor's to list.
    """
    bill = _exported(_export_options("common"))
    if image != "nameserver":
        _add(bill, _exported(_export_options(image)))
    absent = {each["bom-ref"] for each in bill["components"] if not _is_installed(each)}
    bill["components"] = [each for each in bill["components"] if each["bom-ref"] not in absent]
    bill["dependencies"] = [each for each in bill["dependencies"] if each["ref"] not in absent]
    for entry in bill["dependencies"]:
        entry["dependsOn"] = [each for each in entry["dependsOn"] if each not in absent]
    sources = tomllib.loads(LOCK.read_text(encoding="utf-8"))["package"]
    hashes = {(each["name"], each.get("version")): _hashes(each) for each in sources}
    for component in bill["components"]:
        if (known := hashes.get((component["name"], component["version"]))) is not None:
            component["hashes"] = known
    # Two bills of one lock are the same text.
    bill["components"].sort(key=lambda each: str(each["name"]))
    bill["dependencies"].sort(key=lambda each: str(each["ref"]))
    bill["metadata"]["component"] |= {"type": "application", "name": f"tandemmq-{image}"}
    del bill["serialNumber"], bill["metadata"]["timestamp"]
    return bill


def _export_options(name: str) -> list[str]:
    """With which options the Dockerfile lists what an image installs, or what all of them do (`common`)."""
    for line in DOCKERFILE.read_text(encoding="utf-8").splitlines():
        if found := re.search(rf"\$export (.*?)(?:\$common )?-o {name}\.txt", line):
            return found[1].split()
    raise RuntimeError(f"{DOCKERFILE} does not say what {name} installs; name it in tools/supply_chain.py as it does")


def _exported(options: Sequence[str]) -> dict[str, Any]:
    uv = ROOT / ".tools" / "bin" / "uv"
    export = [str(uv) if uv.exists() else "uv", "export", "--frozen", "--quiet", "--format", "cyclonedx1.5"]
    try:
        done = subprocess.run([*export, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RuntimeError("uv, which lists what an image holds, is not here; run tools/bootstrap.sh uv") from error
    if done.returncode:
        raise RuntimeError(f"uv cannot export a bill of materials: {done.stderr.strip()[-500:]}")
    bill: dict[str, Any] = json.loads(done.stdout)
    _name_by_package(bill)
    return bill


def _name_by_package(bill: dict[str, Any]) -> None:
    """References without the numbers that uv counts in one bill, so that two can be put together."""
    refs = {each["bom-ref"]: f"{each['name']}@{each['version']}" for each in bill["components"]}
    root = bill["metadata"]["component"]
    refs[root["bom-ref"]] = root["bom-ref"] = f"{root['name']}@{root['version']}"
    for component in bill["components"]:
        component["bom-ref"] = refs[component["bom-ref"]]
    for entry in bill["dependencies"]:
        entry["ref"] = refs[entry["ref"]]
        entry["dependsOn"] = sorted(refs[each] for each in entry.get("dependsOn", ()))


def _add(bill: dict[str, Any], more: Mapping[str, Any]) -> None:
    known = {each["bom-ref"] for each in bill["components"]}
    bill["components"] += [each for each in more["components"] if each["bom-ref"] not in known]
    needs = {each["ref"]: each for each in bill["dependencies"]}
    for entry in more["dependencies"]:
        if entry["ref"] in needs:
            needs[entry["ref"]]["dependsOn"] = sorted({*needs[entry["ref"]]["dependsOn"], *entry["dependsOn"]})
        else:
            bill["dependencies"].append(entry)


def _is_installed(component: Mapping[str, Any]) -> bool:
    """False for what other systems than an image's need."""
    markers = [each["value"] for each in component.get("properties", ()) if each["name"] == "uv:package:marker"]
    return all(Marker(text).evaluate(_IN_IMAGES) for text in markers)


def _hashes(package: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """Of the source; wheels differ by platform."""
    source = package.get("sdist")
    if source is None:
        return None
    return [{"alg": "SHA-256", "content": str(source["hash"]).removeprefix("sha256:")}]


if __name__ == "__main__":
    sys.exit(main())
