"""What both tables are told: which replica, and by which parts it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from consistency.source_files.source_spec import ReadMode, SourceSpec, parse_source

__all__ = ["OptionsRefused", "StoreOptions"]

_DEFAULT_PARTITION_BYTES: Final = 256 << 20
_SMALLEST_PARTITION_BYTES: Final = 1 << 20
_BOOLEANS: Final = {"true": True, "false": False}


class OptionsRefused(ValueError):
    """An option of the table is missing or wrong; the text says which and what would be right."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of `spark.read`, judged."""

    spec: SourceSpec
    partition_bytes: int
    with_body: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From what was written; names count in any case. Raises OptionsRefused."""
        given = {name.lower(): value for name, value in options.items()}
        place = given.get("path", "")
        if not place:
            raise OptionsRefused("say which replica: .load('/data/broker-a'), a URI, or 'broker://host:port'")
        broker_id = _number(given, "brokerid", 0)
        if "://" not in place:
            # Executors on this machine may stand in another folder.
            place = os.path.abspath(place)
        group = given.get("group", "") or os.path.basename(place.rstrip("/")) or "store"
        mode = given.get("readmode", ReadMode.DIRECT)
        if mode not in set(ReadMode):
            raise OptionsRefused(f"readMode={mode}: choose one of {', '.join(ReadMode)}")
        spec = parse_source(f"{group}/{broker_id}={place}")
        return cls(
            spec=SourceSpec(spec.group, spec.broker_id, spec.kind, spec.location, ReadMode(mode)),
            partition_bytes=max(_SMALLEST_PARTITION_BYTES, _number(given, "partitionbytes", _DEFAULT_PARTITION_BYTES)),
            with_body=_boolean(given, "body", default=False),
        )


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not text.isdecimal():
        raise OptionsRefused(f"{name}={text}: write a number")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in _BOOLEANS:
        raise OptionsRefused(f"{name}={text}: write true or false")
    return _BOOLEANS[text]
