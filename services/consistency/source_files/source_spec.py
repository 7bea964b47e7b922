"""Where one replica is read, in a form that travels to an executor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

__all__ = ["BROKER_SCHEME", "ReadMode", "SourceKind", "SourceSpec", "parse_source"]

BROKER_SCHEME: Final = "broker://"
_FILE_SCHEME: Final = "file://"


class SourceKind(StrEnum):
    """What answers for a replica's bytes."""

    FOLDER = "folder"
    URI = "uri"
    BROKER = "broker"


class ReadMode(StrEnum):
    """How files of a folder are read."""

    DIRECT = "direct"
    """Past the page cache: what the disk holds."""
    CACHED = "cached"
    """Through the page cache, which is left as it was found."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One replica's place."""

    group: str
    broker_id: int
    kind: SourceKind
    location: str
    """Absolute folder, URI, or host:port of the metadata plane."""
    read_mode: ReadMode = ReadMode.DIRECT
    rate_limit: int = 0
    """Bytes a second; 0: none. A broker limits itself."""

    @property
    def is_broker(self) -> bool:
        """Whether a running broker is asked."""
        return self.kind is SourceKind.BROKER

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(**(values | {"kind": SourceKind(values["kind"]), "read_mode": ReadMode(values["read_mode"])}))


def parse_source(text: str) -> SourceSpec:
    """`group/brokerId=place`. Raises ValueError that says what is missing."""
    name, equals, place = (part.strip() for part in text.partition("="))
    group, slash, broker_id = name.rpartition("/")
    if not (equals and slash and group and place and broker_id.isdecimal()):
        raise ValueError(f"'{text}' is no source; write group/brokerId=place, for example broker-a/0=/data/broker-a")
    kind, location = _kind_of(place)
    return SourceSpec(group=group, broker_id=int(broker_id), kind=kind, location=location)


def _kind_of(place: str) -> tuple[SourceKind, str]:
    if place.startswith(BROKER_SCHEME):
        return SourceKind.BROKER, place.removeprefix(BROKER_SCHEME)
    if place.startswith(_FILE_SCHEME):
        return SourceKind.FOLDER, place.removeprefix(_FILE_SCHEME)
    if "://" in place:
        return SourceKind.URI, place
    return SourceKind.FOLDER, place
