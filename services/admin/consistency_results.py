"""Where the consistency job leaves its runs for this service: a folder, or a ConfigMap of the release.

The job and this service share no code but the summary's format and no connection: a run is written once and read here
within seconds. What is unchanged is not parsed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from mqcore.audit.run_summary import RunSummary

__all__ = [
    "CONFIG_MAP_PREFIX",
    "RUNS_MAX",
    "ConfigMapResults",
    "FolderResults",
    "ResultsPlace",
    "ResultsUnavailable",
    "results_place",
]

RUNS_MAX: Final = 30
"""Newest runs that are read and kept in memory; of a thousand groups each takes some 3 MB."""
CONFIG_MAP_PREFIX: Final = "configmap:"
"""Before the name of a ConfigMap, where a folder could be meant as well."""
_SUMMARY_BYTES_MAX: Final = 32 << 20
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Connect and read, in seconds.
_API_TIMEOUT_S: Final = (3.0, 10.0)
_NOT_FOUND: Final = 404


class ResultsUnavailable(Exception):
    """The place does not answer, or refuses. Worth trying again; nothing is known of the runs meanwhile."""


class ResultsPlace(Protocol):
    """Runs of the consistency job. Calls block, so they are made on a thread."""

    def read(self) -> list[RunSummary]:
        """The newest RUNS_MAX runs, newest first; what is no summary is left out. Raises ResultsUnavailable."""


def results_place(setting: str, *, namespace: str) -> ResultsPlace | None:
    """By the setting consistencyResults; None when it is empty."""
    if not setting:
        return None
    if setting.startswith(CONFIG_MAP_PREFIX):
        return ConfigMapResults(setting.removeprefix(CONFIG_MAP_PREFIX), namespace=namespace)
    return FolderResults(Path(setting))


class FolderResults:
    """`runs/<run id>/summary.json` in the job's results folder. One thread."""

    def __init__(self, folder: Path) -> None:
        self._runs_folder = folder / "runs"
        self._parsed: dict[str, RunSummary] = {}

    def read(self) -> list[RunSummary]:
        """See `ResultsPlace`. A folder that is not there yet has no runs."""
        try:
            names = sorted((entry.name for entry in self._runs_folder.iterdir()), reverse=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ResultsUnavailable(f"{self._runs_folder}: {error.strerror or error}") from error
        found: dict[str, RunSummary] = {}
        for name in names:
            summary = self._parsed.get(name) or self._parse(name)
            if summary is not None:
                found[name] = summary
            if len(found) == RUNS_MAX:
                break
        self._parsed = found
        return list(found.values())

    def _parse(self, name: str) -> RunSummary | None:
        path = self._runs_folder / name / "summary.json"
        try:
            if path.stat().st_size > _SUMMARY_BYTES_MAX:
                return None
            return _summary(path.read_bytes())
        except OSError:
            # A run that has begun writes its summary last; one that is removed now is gone.
            return None


class ConfigMapResults:
    """Keys of a ConfigMap, each a run's summary in JSON. Needs the right to get that ConfigMap. One thread."""

    def __init__(self, name: str, *, namespace: str, read_data: Callable[[], dict[str, str]] | None = None) -> None:
        """`namespace` empty: this pod's own. `read_data` reads it another way than a pod does."""
        self._name = name
        self._namespace = namespace
        self._read_data = read_data or self._data
        self._parsed: dict[str, tuple[str, RunSummary | None]] = {}
        self._api: Any = None

    def read(self) -> list[RunSummary]:
        """See `ResultsPlace`. A ConfigMap that is not there yet has no runs."""
        data = self._read_data()
        parsed = {}
        for key, text in data.items():
            known = self._parsed.get(key)
            parsed[key] = known if known is not None and known[0] == text else (text, _summary(text))
        self._parsed = parsed
        return _newest_first(summary for _, summary in parsed.values() if summary is not None)

    def _data(self) -> dict[str, str]:
        # Here and not above: the client takes seconds and 90 MB to load, which only pods should pay.
        from kubernetes.client import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        try:
            found = self._connected().read_namespaced_config_map(
                self._name, self._namespace, _request_timeout=_API_TIMEOUT_S, _preload_content=False
            )
            return dict(json.loads(found.data).get("data") or {})
        except ApiException as error:
            if error.status == _NOT_FOUND:
                return {}
            hint = "; the ServiceAccount needs get on it" if error.status in (401, 403) else ""
            raise ResultsUnavailable(f"ConfigMap {self._name}: {error.status} {error.reason}{hint}") from error
        except (HTTPError, ConfigException, OSError, ValueError) as error:
            raise ResultsUnavailable(f"ConfigMap {self._name}: {error}") from error

    def _connected(self) -> Any:
        if self._api is None:
            from kubernetes import client, config

            load_configuration: Any = config.load_incluster_config
            load_configuration()
            if not self._namespace:
                self._namespace = (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
            self._api = client.CoreV1Api()
        return self._api


def _summary(text: str | bytes) -> RunSummary | None:
    """None for what is no summary, or one of a version that this one does not read."""
    try:
        return RunSummary.from_json(json.loads(text))
    except (ValueError, AttributeError):
        return None


def _newest_first(runs: Iterable[RunSummary]) -> list[RunSummary]:
    return sorted(runs, key=lambda run: run.run_id, reverse=True)[:RUNS_MAX]
