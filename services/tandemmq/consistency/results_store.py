"""Where a run leaves what it found, and what the next one needs to know of it: a folder, or a place of pyarrow.fs.

    latest.json                              summary of the last run
    runs/<run_id>/summary.json               what RunSummary holds
    runs/<run_id>/report.html                the same for people
    runs/<run_id>/repair-plan.json           what would make the replicas equal again
    runs/<run_id>/findings.parquet           all findings, a row each
    runs/<run_id>/run.parquet                the run, one row: runs/*/run.parquet is the table of all
    extents/<group>/<run_id>.parquet         digests of what was verified, a row an extent
    state/<group>.json                       how far the group is verified (GroupMemory)
    state/<group>.progress/<run_id>-<n>.json answers of a run that is not through yet

A file appears whole or not at all where the file system can rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from tandemmq.consistency.settings import ResultsUnusable

__all__ = ["ResultsStore"]

_COMPRESSION: Final = "zstd"


class ResultsStore:
    """Files below one place. Calls block and raise ResultsUnusable. For any thread, on different files."""

    def __init__(self, place: str) -> None:
        self.place = place if "://" in place else os.path.abspath(place)
        try:
            self._file_system, self._root = fs.FileSystem.from_uri(self.place)
            self._file_system.create_dir(self._root, recursive=True)
        except (OSError, ValueError) as error:
            raise ResultsUnusable(f"{place}: {error}") from error

    def path_of(self, name: str) -> str:
        """Where people find a file."""
        return f"{self.place}/{name}"

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is none."""
        try:
            with self._file_system.open_input_file(f"{self._root}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ResultsUnusable(f"{self.path_of(name)}: {error}") from error

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON object; None if there is none, or half of one that a crash left."""
        content = self.read(name)
        if content is None:
            return None
        try:
            values = json.loads(content)
        except ValueError:
            return None
        return values if isinstance(values, dict) else None

    def write(self, name: str, content: bytes) -> None:
        """Replaces a file."""

        def fill(path: str) -> None:
            with self._file_system.open_output_stream(path) as stream:
                stream.write(content)

        self._replace(name, fill)

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        """Replaces a file by a JSON object, for people to read as well."""
        self.write(name, (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())

    def write_table(self, name: str, table: pa.Table) -> None:
        """Replaces a Parquet file."""
        self._replace(
            name, lambda path: pq.write_table(table, path, filesystem=self._file_system, compression=_COMPRESSION)
        )

    def read_tables(self, names: Iterable[str], *, filters: Any = None) -> pa.Table | None:
        """The rows of some Parquet files that pass the filters; None if there is no file."""
        tables = []
        for name in names:
            try:
                tables.append(pq.read_table(f"{self._root}/{name}", filesystem=self._file_system, filters=filters))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ResultsUnusable(f"{self.path_of(name)}: {error}") from error
        return pa.concat_tables(tables) if tables else None

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, by name; [] without one."""
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        try:
            return sorted(info.base_name for info in self._file_system.get_file_info(selector))
        except OSError as error:
            raise ResultsUnusable(f"{self.path_of(folder)}: {error}") from error

    def remove(self, name: str) -> None:
        """A file, or a folder with all in it. Fine if there is none."""
        path = f"{self._root}/{name}"
        try:
            kind = self._file_system.get_file_info(path).type
            if kind == fs.FileType.Directory:
                self._file_system.delete_dir(path)
            elif kind == fs.FileType.File:
                self._file_system.delete_file(path)
        except OSError as error:
            raise ResultsUnusable(f"{self.path_of(name)}: {error}") from error

    def _replace(self, name: str, fill: Callable[[str], None]) -> None:
        path = f"{self._root}/{name}"
        temporary = f"{path}.new"
        try:
            self._file_system.create_dir(path.rpartition("/")[0], recursive=True)
            if isinstance(self._file_system, fs.LocalFileSystem):
                fill(temporary)
                self._file_system.move(temporary, path)
            else:
                # An object store shows an object only when it is whole.
                fill(path)
        except OSError as error:
            raise ResultsUnusable(f"{self.path_of(name)}: {error}") from error
