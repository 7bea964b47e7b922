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
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import fs
from pyarrow import parquet as pq

from tandemmq.consistency.planning import GroupMemory
from tandemmq.consistency.settings import ResultsUnusable
from tandemmq.consistency.tasks import TaskAnswer
from tandemmq.core.replication.log_history import LogRange
from tandemmq.service.logging import get_logger
from tandemmq.service.settings import folder_remedy

_COMPRESSION: Final = "zstd"


def _unusable(place: str, error: OSError | ValueError) -> ResultsUnusable:
    if "://" in place or not isinstance(error, OSError):
        return ResultsUnusable(f"results: {place} cannot be used: {error}; name another place, or mend this one")
    # Arrow's own words name its functions.
    cause = os.strerror(error.errno) if error.errno else str(error)
    return ResultsUnusable(f"results: {place} cannot be read or written: {cause}; {folder_remedy(error)}")


class ResultsStore:
    """Files below one place. Calls block and raise ResultsUnusable. For any thread, on different files."""

    def __init__(self, place: str) -> None:
        self.place = place if "://" in place else os.path.abspath(place)
        try:
            self._file_system, self._root = fs.FileSystem.from_uri(self.place)
            self._file_system.create_dir(self._root, recursive=True)
        except (OSError, ValueError) as error:
            raise _unusable(place, error) from error

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
            raise _unusable(self.path_of(name), error) from error

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON object; None if there is none, or half of one that a crash left."""
        content = self.read(name)
        if content is None:
            return None
        try:
            values = json.loads(content)
        except (ValueError, RecursionError):
            return None
        return values if isinstance(values, dict) else None

    def write(self, name: str, content: bytes) -> None:
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
        """The rows of some Parquet files that pass the filters; None if there is no file. What is damaged is left out:
        to read all again is better than a job that never ends well."""
        tables = []
        for name in names:
            try:
                tables.append(pq.read_table(f"{self._root}/{name}", filesystem=self._file_system, filters=filters))
            except FileNotFoundError:
                continue
            except pa.ArrowInvalid as error:
                get_logger().warning("results_damaged", file=self.path_of(name), error=str(error))
            except OSError as error:
                raise _unusable(self.path_of(name), error) from error
        return pa.concat_tables(tables) if tables else None

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, by name; [] without one."""
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        try:
            return sorted(info.base_name for info in self._file_system.get_file_info(selector))
        except OSError as error:
            raise _unusable(self.path_of(folder), error) from error

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
            raise _unusable(self.path_of(name), error) from error

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
            # Half a table would keep the room that a full disk lacks.
            with suppress(OSError):
                self._file_system.delete_file(temporary)
            raise _unusable(self.path_of(name), error) from error


# What is remembered of one group between runs, and within one that may be cut off.

_FILES_MAX: Final = 16
"""Tables of digests of a group; more are made into one."""
_ANSWER_AGE_MAX_S: Final = 86_400.0
"""Answers of a run that was cut off longer ago are asked for again: they say how the bytes were then."""
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


class GroupStore:
    """One group's part of the results. For one thread."""

    def __init__(self, results: ResultsStore, group: str, *, run_id: str) -> None:
        self._results = results
        self._run_id = run_id
        # Names of brokers are almost always fit for a file; two that differ stay different.
        self._name = group if not _NAME.search(group) else quote(group, safe="")
        self._memory_name = f"state/{self._name}.json"
        self._answer_files: set[str] = set()
        """Of runs that were cut off, and of this one; not of another one that is running."""
        self.is_memory_damaged = False
        """Earlier runs left something, and nobody can read it."""

    @property
    def memory_path(self) -> str:
        """Where people find what is remembered. Whoever deletes it has the group forgotten."""
        return self._results.path_of(self._memory_name)

    def load_memory(self, *, algorithm: str, extent_bytes: int) -> GroupMemory:
        """What earlier runs left behind. Digests of another kind are of no use: the group counts as never verified, and
        what its replicas held is known all the same."""
        fresh = GroupMemory(algorithm=algorithm, extent_bytes=extent_bytes)
        values = self._results.read_json(self._memory_name)
        self.is_memory_damaged = values is None and self._results.read(self._memory_name) is not None
        if values is None:
            return fresh
        try:
            memory = GroupMemory.from_json(values)
        except (TypeError, ValueError, AttributeError):
            # Of a version that remembered otherwise: verified again is better than a job that never ends well.
            self.is_memory_damaged = True
            return fresh
        if (memory.algorithm, memory.extent_bytes) == (algorithm, extent_bytes):
            return memory
        return replace(fresh, seen=memory.seen, seen_at_s=memory.seen_at_s, run_id=memory.run_id)

    def save_memory(
        self, memory: GroupMemory, table: pa.Table | None, *, start: GroupMemory, keep_answers: bool
    ) -> None:
        """Remembers a run, its digests first: without them the memory would name a file that is not there.

        `start` is what the run began with: a quick and a deep run may overlap, and neither takes from the other.
        `keep_answers`: it did not get through, and the next one need not ask again for what this one knows.
        """
        meanwhile = self.load_memory(algorithm=memory.algorithm, extent_bytes=memory.extent_bytes)
        if meanwhile.run_id != start.run_id:
            memory = memory.joined(start, meanwhile)
        files = memory.extent_files
        replaced = [name for name, _, _ in files] if len(files) >= _FILES_MAX else []
        if table is not None and table.num_rows:
            if replaced:
                table = self._compacted(replaced, table, memory.min_offset)
                files = ()
            name = f"{self._run_id}.parquet"
            self._results.write_table(f"extents/{self._name}/{name}", table)
            bounds = pc.min(table["start_offset"]).as_py(), pc.max(table["end_offset"]).as_py()
            files = (*files, (name, *bounds))
        self._results.write_json(self._memory_name, replace(memory, extent_files=files).to_json())
        if files != memory.extent_files:
            for name in replaced:
                self._results.remove(f"extents/{self._name}/{name}")
        if not keep_answers:
            for name in self._answer_files:
                self._results.remove(f"{self._progress_folder}/{name}")

    def earlier_digests(self, memory: GroupMemory, ranges: Sequence[LogRange]) -> dict[tuple[int, int], bytes]:
        """By start and end: what all replicas had, when they were last verified, in extents of these ranges."""
        if not ranges:
            return {}
        start, end = ranges[0].start_offset, ranges[-1].end_offset
        names = [
            f"extents/{self._name}/{name}" for name, first, last in memory.extent_files if first < end and start < last
        ]
        filters = [("agreed", "==", True), ("start_offset", ">=", start), ("end_offset", "<=", end)]
        table = self._results.read_tables(names, filters=filters)
        if table is None:
            return {}
        # Files are oldest first, so that what was verified last wins.
        starts, ends, digests = (table[name].to_pylist() for name in ("start_offset", "end_offset", "digest"))
        return {(first, last): digest for first, last, digest in zip(starts, ends, digests)}

    # A run that is not through

    def load_answers(self, *, now_s: float) -> dict[str, TaskAnswer]:
        """Answers that runs which were cut off had, by the tasks' keys."""
        answers: dict[str, TaskAnswer] = {}
        for name in self._results.names(self._progress_folder):
            document = self._results.read_json(f"{self._progress_folder}/{name}")
            self._answer_files.add(name)
            try:
                if document is not None and 0 <= now_s - document["at_s"] <= _ANSWER_AGE_MAX_S:
                    answers |= {values["key"]: TaskAnswer(**values) for values in document["answers"]}
            except (KeyError, TypeError):
                continue  # Of another version: it is asked again.
        return answers

    def save_answers(self, answers: Iterable[TaskAnswer], *, now_s: float) -> None:
        """Remembers answers until `save_memory`."""
        document: dict[str, Any] = {"at_s": now_s, "answers": [answer.to_json() for answer in answers]}
        name = f"{self._run_id}-{len(self._answer_files)}.json"
        self._results.write(f"{self._progress_folder}/{name}", json.dumps(document, separators=(",", ":")).encode())
        self._answer_files.add(name)

    @property
    def _progress_folder(self) -> str:
        return f"state/{self._name}.progress"

    def _compacted(self, names: Iterable[str], newest: pa.Table, min_offset: int) -> pa.Table:
        """One table of all: of each extent the newest row, of those that retention has not removed."""
        older = self._results.read_tables(f"extents/{self._name}/{name}" for name in names)
        table = newest if older is None else pa.concat_tables([older, newest])
        table = table.filter(pc.greater(table["end_offset"], min_offset))
        numbered = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
        key = ["start_offset", "end_offset", "broker_id"]
        newest_rows = numbered.group_by(key).aggregate([("row", "max")])["row_max"]
        return table.take(newest_rows.combine_chunks().sort())
