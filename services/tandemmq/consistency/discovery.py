"""Finds the replicas: in folders as people lay them out, as the settings list them, or as NameServers know them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tandemmq.consistency.settings import ConsistencySettings, NothingFound, ProgressKind
from tandemmq.consistency.source_files.posix_files import SourceKind, SourceSpec
from tandemmq.core.audit.metadata_comparison import SYNC_TOPIC_PREFIX
from tandemmq.core.audit.replica_store import STORE_MARKS, is_broker_id, is_of_others
from tandemmq.core.metadata.metadata_store import MetadataCorrupt, MetadataFile
from tandemmq.core.metadata.topic_table import TopicTable
from tandemmq.core.replication.log_history import REPLICA_FILE, RecordDamaged, ReplicaRecord

_STORE_MARK: Final = "commitlog"
_UNNAMED_GROUP: Final = "store"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What there is to compare."""

    cluster: str
    replicas: tuple[SourceSpec, ...]
    notes: tuple[str, ...] = ()

    def by_group(self) -> dict[str, tuple[SourceSpec, ...]]:
        """Groups by name; of each its replicas by broker id."""
        ordered = sorted(self.replicas, key=lambda spec: (spec.group, spec.broker_id))
        groups: dict[str, tuple[SourceSpec, ...]] = {}
        for spec in ordered:
            groups[spec.group] = (*groups.get(spec.group, ()), spec)
        return groups


def discover(settings: ConsistencySettings) -> Discovery:
    """The replicas of this run. Raises NothingFound with what to do about it."""
    if settings.name_servers:
        # Here, so that a run over folders loads no gRPC.
        from tandemmq.consistency.source_files.broker_files import registered_brokers

        found = registered_brokers(
            settings.name_servers,
            cluster=settings.cluster_name,
            is_watched=settings.progress is ProgressKind.PERSON,
        )
    elif settings.paths:
        given = settings.group_names
        found = replicas_in_folders([Path(path) for path in settings.paths], name=min(given) if len(given) == 1 else "")
    else:
        found = Discovery(cluster="", replicas=settings.source_specs)
    wanted = settings.group_names
    replicas = [
        replace(spec, read_mode=settings.read_mode, rate_limit=0 if spec.is_broker else settings.rate_limit)
        for spec in found.replicas
        if not wanted or spec.group in wanted
    ]
    if not replicas:
        known = ", ".join(sorted({spec.group for spec in found.replicas})) or "none"
        raise NothingFound(f"no replica of {', '.join(sorted(wanted)) or 'any group'} was found; groups there: {known}")
    _refuse_doubles(replicas)
    return Discovery(settings.cluster_name or found.cluster, tuple(replicas), found.notes)


def replicas_in_folders(folders: Sequence[Path], *, name: str = "") -> Discovery:
    """The stores below some folders; see the setting `path` for how they may lie. `name`: of a group that nothing else
    names. Raises NothingFound."""
    specs: list[SourceSpec] = []
    clusters: set[str] = set()
    single: list[Path] = []
    for folder in (folder.absolute() for folder in folders):
        configured = [config for path in sorted(folder.glob("conf/*.properties")) if (config := _broker_config(path))]
        if is_store(folder):
            single.append(folder)
        elif configured:
            clusters |= {config.cluster for config in configured}
            specs += [_folder_spec(config.group, config.broker_id, folder / config.store) for config in configured]
        elif found := _stores_by_group(folder):
            specs += found
        elif len(folders) > 1 and folder.is_dir() and not any(folder.iterdir()):
            single.append(folder)  # An empty disk: the others say what should be on it.
        else:
            raise NothingFound(
                f"{folder} holds no store (a folder with {_STORE_MARK}/), no <group>/<brokerId>/ with one, and no "
                "conf/*.properties of a local cluster"
            )
    specs += _named_alike(single, name=name)
    return Discovery(cluster=", ".join(sorted(clusters)), replicas=tuple(specs))


@dataclass(frozen=True, slots=True)
class _BrokerConfig:
    cluster: str
    group: str
    broker_id: int
    store: str


def _broker_config(path: Path) -> _BrokerConfig | None:
    """What a broker's properties file says of its store; None for a NameServer's."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise NothingFound(f"{path} cannot be read ({error}), and it may name a store") from error
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    values = {key.strip(): value.strip() for key, _, value in pairs}
    if "brokerName" not in values:
        return None
    broker_id = values.get("brokerId", "0")
    return _BrokerConfig(
        cluster=values.get("brokerClusterName", "DefaultCluster"),
        group=values["brokerName"],
        broker_id=int(broker_id) if is_broker_id(broker_id) else 0,
        store=values.get("storePathRootDir", "store"),
    )


def _listed(folder: Path) -> list[Path]:
    """What lies in it, by name. Raises NothingFound: of what cannot be seen nobody would know that it was left out."""
    try:
        return sorted(folder.iterdir())
    except PermissionError as error:
        raise NothingFound(f"{folder} may not be read ({error.strerror}), and there may be stores in it") from error
    except OSError:
        return []


def _stores_by_group(folder: Path) -> list[SourceSpec]:
    """Where one replica of a group has a store, its neighbours are replicas too, whatever is left of them."""
    groups_there = [path for path in _listed(folder) if os.path.isdir(path) and not is_of_others(path.name)]
    found = [path for group in groups_there for path in _listed(group) if is_broker_id(path.name)]
    groups = {path.parent for path in found if is_store(path)}
    for path in found:
        if path.parent not in groups:
            _listed(path)  # Where nothing may be seen there may be all that the group has.
    return [_folder_spec(path.parent.name, int(path.name), path) for path in found if path.parent in groups]


def is_store(folder: Path) -> bool:
    """Whether it is a replica's folder, or what is left of one."""
    # What may not be looked into is no error here, whoever reads it says so. Names may be seen where files may not.
    try:
        marks = set(STORE_MARKS).intersection(os.listdir(folder))
    except OSError:
        marks = {mark for mark in STORE_MARKS if os.path.exists(folder / mark)}
    return os.path.isdir(folder / _STORE_MARK) or len(marks) > 1


def _named_alike(stores: Sequence[Path], *, name: str = "") -> list[SourceSpec]:
    """Stores that were named one by one: by their folders if those are <group>/<brokerId>, else as one group. As one as
    well if each were a group of its own: nothing would be compared. What a store says of itself is its name, where all
    say the same; `name` is for a group of which nothing says it."""
    if not stores:
        return []
    told = [_told_by(path) for path in stores]
    names = {group for group, _ in told if group}
    groups = {path.parent.name for path in stores}
    if all(is_broker_id(path.name) for path in stores) and (len(stores) == 1 or len(groups) < len(stores)):
        own = next(iter(names)) if len(names) == len(groups) == 1 else ""
        return [_folder_spec(own or path.parent.name, int(path.name), path) for path in stores]
    group = next(iter(names)) if len(names) == 1 else name or _UNNAMED_GROUP
    known = [broker_id for _, broker_id in told]
    ids = [own for own in known if own is not None]
    # Two with one id, and two whose ids are of two groups, are numbered as they were named.
    is_known = len(names) == 1 and len(set(ids)) == len(ids)
    free = (number for number in range(len(stores) + len(ids)) if not is_known or number not in ids)
    numbers = [own if is_known and own is not None else next(free) for own in known]
    return [_folder_spec(group, number, path) for number, path in zip(numbers, stores)]


def _told_by(store: Path) -> tuple[str, int | None]:
    """The broker group, and the broker id, that a store's own files name: `replica.json`, or the topic that is named
    after the group; empty, None: they do not."""
    try:
        record = ReplicaRecord.from_json((store / REPLICA_FILE).read_text(encoding="utf-8"))
        if record.broker_name:
            return record.broker_name, record.broker_id if record.broker_id >= 0 else None
    except (OSError, UnicodeDecodeError, RecordDamaged):
        pass
    table = TopicTable()
    try:
        table.load_json((store / "config" / MetadataFile.TOPICS.value).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, MetadataCorrupt):
        return "", None
    names = (topic.topic_name for topic in table)
    own = {name.removeprefix(SYNC_TOPIC_PREFIX) for name in names if name.startswith(SYNC_TOPIC_PREFIX)}
    return (own.pop(), None) if len(own) == 1 else ("", None)


def _folder_spec(group: str, broker_id: int, folder: Path) -> SourceSpec:
    return SourceSpec(group=group, broker_id=broker_id, kind=SourceKind.FOLDER, location=str(folder))


def _refuse_doubles(specs: Iterable[SourceSpec]) -> None:
    places: dict[tuple[str, int], str] = {}
    folders: dict[str, str] = {}
    owners: dict[tuple[int, int], str] = {}
    for spec in specs:
        name = f"{spec.group}:{spec.broker_id}"
        known = places.setdefault((spec.group, spec.broker_id), spec.location)
        if known != spec.location:
            raise NothingFound(f"{name} is both {known} and {spec.location}; name each once")
        if spec.kind is SourceKind.URI:
            owner = folders.setdefault(spec.location.rstrip("/"), name)
            if owner != name:
                raise NothingFound(f"{owner} and {name} are one store, {spec.location}; name each once")
        if spec.kind is SourceKind.FOLDER:
            # Also by another way to it: a store is always equal to itself.
            folder = os.path.realpath(spec.location)
            if folder in folders:
                who = (
                    f"{name} is named twice:"
                    if folders[folder] == name
                    else f"{folders[folder]} and {name} are one store,"
                )
                raise NothingFound(f"{who} {folder}; name each once")
            folders[folder] = name
            for file in _log_files(Path(folder)):
                owner = owners.setdefault(file, name)
                if owner != name and owner.rpartition(":")[0] == spec.group:
                    raise NothingFound(
                        f"{owner} and {name} have a CommitLog file in common, by a mount or a hard link: they are one "
                        f"store, or parts of one, {folder}; name each once"
                    )


def _log_files(store: Path) -> Iterator[tuple[int, int]]:
    """Device and inode of the files of its CommitLog: two replicas on one are one."""
    try:
        found = [path.stat() for path in (store / _STORE_MARK).iterdir()]
    except OSError:
        return  # Whoever reads it says why it cannot be read.
    yield from ((own.st_dev, own.st_ino) for own in found if stat.S_ISREG(own.st_mode))
