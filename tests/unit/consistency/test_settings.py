"""Settings are judged at once, in words; units are understood."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.consistency.discovery import discover, replicas_in_folders
from tandemmq.consistency.settings import ConsistencySettings, NothingFound
from tandemmq.consistency.source_files.posix_files import SourceKind
from tandemmq.consistency.spark_session import prepared_environment, spark_properties
from tandemmq.core.replication.log_history import REPLICA_FILE, ReplicaRecord
from tandemmq.service.settings import SettingsError, load_settings


def _settings(*overrides: str) -> ConsistencySettings:
    return load_settings(ConsistencySettings, environ={}, overrides=overrides)


def test_durations_and_sizes_take_units() -> None:
    settings = _settings("path=/x", "scrubWindow=12h", "deadline=90", "extentBytes=1MiB", "chunkBytes=2GiB")

    assert (settings.scrub_window, settings.deadline) == (43_200.0, 90.0)
    assert (settings.extent_bytes, settings.chunk_bytes) == (1 << 20, 2 << 30)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), "say what to read"),
        (("path=/x", "namesrvAddr=a:1"), "namesrvAddr and path are set"),
        (("namesrvAddr=a",), "no host:port"),
        (("sources=/data",), "is no source"),
        (("path=/x", "digestAlgorithm=md5"), "xxh3_128"),
        (("path=/x", "extentBytes=3MiB", "chunkBytes=4MiB"), "a multiple of extentBytes"),
        (("path=/x", "tier=thorough"), "tier=thorough"),
        (("path=/x", "scrubWindow=soon"), "scrubWindow=soon"),
    ],
)
def test_what_cannot_be_used_is_said(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        _settings(*overrides)


def test_wrong_settings_end_with_1_since_2_says_that_replicas_differ() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandemmq.consistency", "--set", "tier=thorough"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "tier=thorough" in done.stderr


def test_spark_stays_on_loopback_unless_it_is_told_a_cluster() -> None:
    local = spark_properties(_settings("path=/x"))
    cluster = spark_properties(
        _settings(
            "path=/x", "sparkMaster=k8s://https://kubernetes.default.svc", "driverHost=10.0.0.9", "driverPort=7078"
        )
    )

    assert local["spark.driver.bindAddress"] == local["spark.driver.host"] == "127.0.0.1"
    assert local["spark.ui.enabled"] == "false"
    assert (cluster["spark.driver.host"], cluster["spark.driver.port"]) == ("10.0.0.9", "7078")


def test_own_spark_settings_win() -> None:
    properties = spark_properties(_settings("path=/x", "sparkConf=spark.scheduler.mode=FIFO; spark.executor.cores = 4"))

    assert properties["spark.scheduler.mode"] == "FIFO"
    assert properties["spark.executor.cores"] == "4"


def test_an_archive_of_classes_is_for_driver_and_executors_if_it_is_there(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    settings = _settings("path=/x", f"classArchive={archive}", "sparkMaster=k8s://https://kubernetes.default.svc")
    without = spark_properties(settings)
    archive.touch()
    with_archive = spark_properties(settings)

    for key in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        assert "SharedArchiveFile" not in without[key]
        assert f"-XX:SharedArchiveFile={archive} -Xshare:auto" in with_archive[key]


@pytest.mark.parametrize("content", [b"", bytes(100_000), b"not of this Java" * 1000])
def test_java_starts_with_an_archive_that_does_not_fit(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "classes.jsa"
    archive.write_bytes(content)
    options = spark_properties(_settings("path=/x", f"classArchive={archive}"))["spark.driver.extraJavaOptions"]
    environ = dict(os.environ)

    with prepared_environment(environ, runs_locally=True):
        java = Path(environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in environ else Path("java")
        done = subprocess.run(
            [str(java), *shlex.split(options), "-version"], capture_output=True, text=True, check=False
        )

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def _store(folder: Path) -> Path:
    (folder / "commitlog").mkdir(parents=True)
    return folder


def test_stores_are_found_by_group_and_broker_id(tmp_path: Path) -> None:
    for name in ("broker-a/0", "broker-a/1", "broker-b/0", "broker-b/notes"):
        _store(tmp_path / name)

    found = replicas_in_folders([tmp_path])

    assert [(spec.group, spec.broker_id) for spec in found.replicas] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
    ]


def test_stores_of_a_local_cluster_are_found_by_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    for member, broker_id in (("broker-a", 0), ("broker-a-s", 1)):
        _store(tmp_path / "store" / member)
        (tmp_path / "conf" / f"{member}.properties").write_text(
            f"# a comment\nbrokerClusterName=Test\nbrokerName=broker-a\nbrokerId={broker_id}\n"
            f"storePathRootDir=store/{member}\n"
        )
    (tmp_path / "conf" / "namesrv-0.properties").write_text("listenPort=9876\n")

    found = replicas_in_folders([tmp_path])

    assert found.cluster == "Test"
    assert {(spec.group, spec.broker_id, Path(spec.location).name) for spec in found.replicas} == {
        ("broker-a", 0, "broker-a"),
        ("broker-a", 1, "broker-a-s"),
    }


def test_stores_named_one_by_one_are_one_group_master_first(tmp_path: Path) -> None:
    found = replicas_in_folders([_store(tmp_path / "master"), _store(tmp_path / "copy")])

    assert [(spec.group, spec.broker_id, Path(spec.location).name) for spec in found.replicas] == [
        ("store", 0, "master"),
        ("store", 1, "copy"),
    ]


def _says(store: Path, group: str, broker_id: int) -> Path:
    (store / REPLICA_FILE).write_text(ReplicaRecord(f"{broker_id:032x}", 3, "test", group, broker_id).to_json())
    return store


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([("broker-z", 2), ("broker-z", 0)], [("broker-z", 2), ("broker-z", 0)]),
        ([("broker-z", 1), None], [("broker-z", 1), ("broker-z", 0)]),
        ([("broker-z", 1), ("broker-z", 1)], [("broker-z", 0), ("broker-z", 1)]),
        ([("broker-z", 1), ("broker-y", 0)], [("store", 0), ("store", 1)]),
        ([None, None], [("store", 0), ("store", 1)]),
    ],
)
def test_stores_have_the_name_that_they_say_of_themselves(
    tmp_path: Path, said: list[tuple[str, int] | None], expected: list[tuple[str, int]]
) -> None:
    stores = [_store(tmp_path / name) for name in ("left", "right")]
    for store, own in zip(stores, said):
        if own is not None:
            _says(store, *own)
    assert [(spec.group, spec.broker_id) for spec in replicas_in_folders(stores).replicas] == expected


@pytest.mark.parametrize("place", ["copy", "monday/0"])
def test_a_lone_store_is_named_by_itself_or_by_who_asks_for_it(tmp_path: Path, place: str) -> None:
    store = _store(tmp_path / place)
    if place == "copy":
        (found,) = discover(_settings(f"path={store}", "groups=orders")).replicas
        assert found.group == "orders"
    _says(store, "broker-z", 0)
    for asked in ("", "broker-z"):
        (found,) = discover(_settings(f"path={store}", f"groups={asked}")).replicas
        assert (found.group, found.broker_id) == ("broker-z", 0)
    with pytest.raises(NothingFound, match="groups there: broker-z"):
        discover(_settings(f"path={store}", "groups=orders"))


def test_a_store_of_rocketmq_is_named_by_its_topics(tmp_path: Path) -> None:
    store = _store(tmp_path / "copy")
    (store / "config").mkdir()
    name = "rmq_sys_SYNC_BROKER_MEMBER_broker-j"
    topic = {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {name: topic}}))
    assert [(own.group, own.broker_id) for own in replicas_in_folders([store]).replicas] == [("broker-j", 0)]


def test_folder_without_a_store_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NothingFound, match="commitlog"):
        replicas_in_folders([tmp_path])


def test_only_the_groups_that_are_asked_for(tmp_path: Path) -> None:
    for name in ("broker-a/0", "broker-b/0"):
        _store(tmp_path / name)

    found = discover(_settings(f"path={tmp_path}", "groups=broker-b"))

    assert [(spec.group, spec.kind) for spec in found.replicas] == [("broker-b", SourceKind.FOLDER)]
    with pytest.raises(NothingFound, match="broker-a, broker-b"):
        discover(_settings(f"path={tmp_path}", "groups=broker-c"))


def test_one_replica_in_two_places_is_refused() -> None:
    with pytest.raises(NothingFound, match="name each once"):
        discover(_settings("sources=broker-a/0=/one;broker-a/0=/two"))


def test_two_replicas_at_one_address_are_one() -> None:
    with pytest.raises(NothingFound, match="broker-a:0 and broker-a:1 are one store"):
        discover(_settings("sources=broker-a/0=s3://backups/a;broker-a/1=s3://backups/a/"))


def test_machine_without_java_gets_one_that_starts(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}

    with prepared_environment(environ, runs_locally=True):
        java = Path(environ["JAVA_HOME"]) / "bin" / "java"
        of_spark = ["--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"]
        command = [str(java), "-Xmx64m", *of_spark, "-version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert not java.exists()
    assert "JAVA_HOME" not in environ


def test_stores_of_one_group_whose_folders_have_the_same_name_are_compared(tmp_path: Path) -> None:
    """Two snapshots, each with a replica below: as two groups of one they would be equal to themselves."""
    found = replicas_in_folders([_store(tmp_path / "left" / "0"), _store(tmp_path / "right" / "0")])
    assert [(spec.group, spec.broker_id) for spec in found.replicas] == [("store", 0), ("store", 1)]
    named = [_store(tmp_path / name) for name in ("left/broker-a/0", "right/broker-a/1", "left/broker-b/0")]
    found = replicas_in_folders(named)
    assert [(spec.group, spec.broker_id) for spec in found.replicas] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
    ]


@pytest.mark.parametrize("second", ["store/0", "store/../store/0", "link", "store/1"])
def test_one_store_is_no_two_replicas(tmp_path: Path, second: str) -> None:
    store = _store(tmp_path / "store" / "0")
    for link in ("link", "store/1"):
        (tmp_path / link).symlink_to(store)
    with pytest.raises(NothingFound, match="name each once"):
        discover(_settings(f"path={store};{tmp_path / second}"))


def test_what_may_not_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is a replica whoever may look into it; of a folder nobody knows what is in it."""
    for store in ("broker-a/0", "broker-a/1", "broker-b/0"):
        _store(tmp_path / store)
    closed = str(tmp_path / "broker-a" / "1")
    stat, iterdir = os.stat, Path.iterdir

    def refusing_stat(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    def refusing_iterdir(folder: Path) -> Iterator[Path]:
        if str(folder) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", closed)
        return iterdir(folder)

    monkeypatch.setattr(os, "stat", refusing_stat)
    monkeypatch.setattr(Path, "iterdir", refusing_iterdir)
    found = replicas_in_folders([tmp_path])
    assert [(spec.group, spec.broker_id) for spec in found.replicas] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
    ]
    closed = str(tmp_path / "broker-b")
    with pytest.raises(NothingFound, match="broker-b may not be read"):
        replicas_in_folders([tmp_path])
    closed = str(tmp_path / "broker-b" / "0")
    with pytest.raises(NothingFound, match="broker-b/0 may not be read"):
        replicas_in_folders([tmp_path])
