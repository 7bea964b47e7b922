"""Every setting of the consistency job. RocketMQ has no such job: only the NameServers' key is RocketMQ's."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tandemmq.consistency.source_files.posix_files import ReadMode, SourceSpec, parse_source
from tandemmq.core.audit.replica_store import DIGEST_ALGORITHMS
from tandemmq.core.audit.run_summary import Tier
from tandemmq.service.service_tls import ServiceTlsSettings
from tandemmq.service.settings import Addresses, parts_of

_SECONDS: Final = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_BYTES: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_QUANTITY: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*([A-Za-z]*)$")
_SMALLEST_EXTENT: Final = 64 << 10
_LARGEST_EXTENT: Final = 64 << 20


def parse_seconds(value: object) -> object:
    """`90`, `90s`, `15m`, `12h`, `7d` or `250ms` as seconds; anything else as it came, for pydantic to judge."""
    return _quantity(value, _SECONDS)


def parse_bytes(value: object) -> object:
    """`4194304`, `4MiB`, `1GiB` as bytes; anything else as it came."""
    number = _quantity(value, _BYTES)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _quantity(value: object, units: dict[str, int] | dict[str, float]) -> object:
    match = _QUANTITY.match(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        return value
    return float(match[1]) * units[match[2]]


Seconds = Annotated[float, BeforeValidator(parse_seconds)]
ByteCount = Annotated[int, BeforeValidator(parse_bytes)]


class EngineKind(StrEnum):
    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


class ProgressKind(StrEnum):
    """For whom a run tells how far it is."""

    LOG = "log"
    PERSON = "person"
    PROGRAM = "program"


class ConsistencySettings(ServiceTlsSettings):
    """Settings of one run. Durations take a unit (90s, 15m, 12h, 7d), sizes too (4MiB, 1GiB)."""

    cluster_name: str = Field(
        "", description="Name of the cluster in the report; with namesrvAddr only its brokers are read. Empty: all."
    )
    tier: Tier = Field(
        Tier.QUICK,
        description="quick: digests of what is new and of a part of the old, and metadata. deep: every byte and every "
        "record, ConsumeQueue and index entry; costs a pass over all replicas.",
    )

    namesrv_addr: Addresses = Field(
        "",
        description="NameServers as host:port, separated by ';': all brokers they know are read through the brokers.",
    )
    sources: str = Field(
        "",
        description="Replicas as group/brokerId=place, separated by ';'. A place is a folder, a URI of pyarrow.fs "
        "(s3://, gs://, abfs://, hdfs://, file://) or broker://host:port (the metadata port).",
    )
    path: str = Field(
        "",
        description="Folders, separated by ';': the data folder of `tandemmq up`, or one with <group>/<brokerId>/ "
        "below, or two and more stores of one group, its master first.",
    )
    groups: str = Field("", description="Only these broker groups, separated by ','. Empty: all.")

    results: str = Field("consistency", min_length=1, description="Folder or URI of reports, tables and memory.")
    keep_runs: int = Field(200, ge=1, description="Reports that are kept; what is verified is remembered without them.")

    extent_bytes: ByteCount = Field(
        4 << 20,
        ge=_SMALLEST_EXTENT,
        le=_LARGEST_EXTENT,
        description="A digest is made of so many bytes of CommitLog. Smaller: more to remember, less to read again "
        "where replicas differ. After a change the next run reads everything.",
    )
    digest_algorithm: str = Field(
        "xxh3_128", description="xxh3_128, or blake3 where somebody may have reason to forge a log: four times the CPU."
    )
    chunk_bytes: ByteCount = Field(
        1 << 30, ge=_SMALLEST_EXTENT, description="CommitLog a task reads; a task costs some 20 ms besides."
    )
    scrub_window: Seconds = Field(
        7 * 86_400.0,
        ge=0,
        description="What was verified is verified again within this time, a share in each run. 0: never again.",
    )
    scrub_budget_bytes: ByteCount = Field(
        64 << 30, ge=0, description="Bytes of a group's log that a run verifies again at most; wins over scrubWindow."
    )
    rate_limit: ByteCount = Field(
        0,
        ge=0,
        description="Bytes a second read of one replica's files at most; 0: no limit. Brokers have auditReadRate.",
    )
    read_mode: ReadMode = Field(
        ReadMode.DIRECT,
        description="direct: folders are read past the page cache (O_DIRECT), which tells what the disk holds and "
        "spends no memory of the broker beside it. cached: through the page cache, leaving it as it was.",
    )
    max_lag_bytes: ByteCount = Field(
        1 << 30, ge=0, description="A group is left out while one of its slaves is further behind than this."
    )
    file_reserved_time: int = Field(
        72,
        ge=0,
        description="Hours, as the brokers have it: CommitLog files that an earlier run saw on a stopped replica and "
        "that are younger than this did not expire but were lost. 0: nobody knows.",
    )
    second_look_pause: Seconds = Field(
        20.0,
        ge=0,
        le=600,
        description="What seems to differ on running brokers is read again after this pause before it is reported. "
        "At least the slaves' pause between two copies of their master's metadata, and 5 s.",
    )
    deadline: Seconds = Field(
        0.0,
        ge=0,
        description="After this time a run starts nothing new, reports what it has and ends incomplete; the next one "
        "goes on from there. 0: none.",
    )
    forget_replicas_after: Seconds = Field(
        7 * 86_400.0,
        ge=0,
        description="A replica, or a whole broker group, that took part in earlier runs and cannot be found makes a "
        "run incomplete, for so long.",
    )
    groups_at_once: int = Field(4, ge=1, le=64, description="Groups that are worked on side by side.")

    engine: EngineKind = Field(
        EngineKind.AUTO,
        description="local: threads and processes of this machine. spark: Spark, with sparkMaster. auto: local up to "
        "localMaxBytes and Spark beyond; Spark at once if sparkMaster is a cluster.",
    )
    local_max_bytes: ByteCount = Field(
        64 << 30, ge=0, description="Bytes of all replicas that a run reads without Spark, if engine is auto."
    )
    progress: ProgressKind = Field(
        ProgressKind.LOG,
        description="log: how far a run is, in its log. person: in a line on standard error, and only warnings in the "
        "log. program: in its log each second.",
    )
    spark_master: str = Field(
        "local[*]",
        description="local[N], spark://HOST:PORT of a Spark cluster, or k8s://https://kubernetes.default.svc in a pod.",
    )
    driver_memory: str = Field("512m", description="Java heap of the driver.")
    class_archive: str = Field(
        "",
        description="Archive of the classes Java loads for a run, made by `python -m "
        "tandemmq.consistency.spark_session` with the same Java and the same Spark: a start costs 2 s of CPU less. At "
        "the same place in executors. Empty: none.",
    )
    driver_host: str = Field("127.0.0.1", description="Where executors reach the driver: in a pod, its IP.")
    driver_port: int = Field(0, ge=0, le=65_535, description="Of the driver; 0: any.")
    block_manager_port: int = Field(0, ge=0, le=65_535, description="Of all; 0: any.")
    executor_instances: int = Field(2, ge=1, description="Executor pods.")
    executor_cores: int = Field(1, ge=1, description="Tasks an executor runs at once.")
    executor_memory: str = Field("512m", description="Java heap of an executor.")
    executor_memory_overhead: str = Field("512m", description="Memory of an executor's Python processes.")
    executor_image: str = Field("", description="Image of the executor pods: the driver's.")
    executor_pod_template: str = Field("", description="File with the pod template of the executors.")
    kubernetes_namespace: str = Field("", description="Of the executor pods.")
    driver_pod_name: str = Field("", description="The driver's own pod: its end removes the executors.")
    executor_service_account: str = Field(
        "", description="ServiceAccount of the executor pods. Empty: the default one."
    )
    spark_conf: str = Field("", description="Further Spark settings as key=value, separated by ';'; they win.")

    kubernetes_results: str = Field(
        "", description="ConfigMap that the last summaries are put into, for the admin service. Empty: none."
    )
    kubernetes_events: bool = Field(
        False, description="Tell the outcome as an Event on each group's StatefulSet; needs a ServiceAccount that may."
    )
    stateful_set_prefix: str = Field("", description="A group's StatefulSet is called this and the group's name.")
    pushgateway_url: str = Field("", description="Prometheus Pushgateway that is told the outcome. Empty: none.")

    @field_validator("sources")
    @classmethod
    def _are_sources(cls, value: str) -> str:
        for part in parts_of(value):
            parse_source(part)
        return value

    @field_validator("digest_algorithm")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in DIGEST_ALGORITHMS:
            raise ValueError(f"choose one of {', '.join(DIGEST_ALGORITHMS)}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> ConsistencySettings:
        given = [key for key, value in (("namesrvAddr", self.namesrv_addr), ("path", self.path)) if value]
        given += ["sources"] if self.sources else []
        if len(given) != 1:
            found = f"{' and '.join(given)} are set" if given else "none is set"
            raise ValueError(f"{found}: say what to read by one of namesrvAddr, path and sources")
        if self.chunk_bytes % self.extent_bytes:
            raise ValueError(f"chunkBytes={self.chunk_bytes}: make it a multiple of extentBytes={self.extent_bytes}")
        return self

    @property
    def name_servers(self) -> tuple[str, ...]:
        """NameServers as host:port."""
        return parts_of(self.namesrv_addr)

    @property
    def source_specs(self) -> tuple[SourceSpec, ...]:
        return tuple(parse_source(part) for part in parts_of(self.sources))

    @property
    def paths(self) -> tuple[str, ...]:
        return parts_of(self.path)

    @property
    def results_folder(self) -> Path | None:
        """The folder of the results; None if they are somewhere else."""
        return None if "://" in self.results else Path(self.results)

    @property
    def group_names(self) -> frozenset[str]:
        """Groups to work on; empty for all."""
        return frozenset(parts_of(self.groups, ","))

    @property
    def spark_properties(self) -> dict[str, str]:
        """What `sparkConf` holds."""
        pairs = (part.partition("=") for part in parts_of(self.spark_conf))
        return {key.strip(): value.strip() for key, _, value in pairs}

    @property
    def runs_locally(self) -> bool:
        """Whether all of Spark is in this process and its children."""
        return self.spark_master.startswith("local")


# Why a run cannot be done at all. What is the matter with a replica is no error: it is a part of the report.


class ConsistencyError(Exception):
    """Root of this package's errors. The text is for the operator."""


class NothingFound(ConsistencyError):
    """There is nothing to compare: the operator named the wrong place, or nothing runs there."""


class ResultsUnusable(ConsistencyError):
    """The place of the results cannot be read or written: without it a run would neither be seen nor remembered."""


class SparkUnusable(ConsistencyError):
    """There is no Java or no PySpark, or Spark does not start; the text says what to install or set."""


class TasksFailed(ConsistencyError):
    """Tasks broke, not because of a replica: a bug, or no executor is left. What they would have told is unknown."""


class TooLarge(ConsistencyError):
    """There is more to read than this machine should read alone, and no Spark to help; the text says what to do."""
