"""One Spark for all tests of a module, as small as the job's own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.audit_stores import make_group
from tandemmq.consistency.settings import ConsistencySettings
from tandemmq.consistency.spark_session import running_spark
from tandemmq.service.settings import load_settings


@pytest.fixture(scope="session")
def equal_group(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three equal replicas, ended in order; not to be written to."""
    return make_group(tmp_path_factory.mktemp("equal"), messages=300)


@pytest.fixture(scope="module")
def spark(equal_group: list[Path]) -> Iterator[SparkSession]:
    """A session on two threads."""
    # Queries of a few rows: to compile them takes longer than to run them.
    quick = (
        "spark.sql.codegen.wholeStage=false;spark.sql.codegen.factoryMode=NO_CODEGEN;spark.sql.adaptive.enabled=false"
    )
    conf = f"{quick};spark.sql.shuffle.partitions=1"
    overrides = [f"path={equal_group[0]}", "sparkMaster=local[2]", f"sparkConf={conf}"]
    settings = load_settings(ConsistencySettings, environ={}, overrides=overrides)
    with warnings.catch_warnings():
        # Spark's own code, and that of what it calls.
        warnings.simplefilter("ignore")
        with running_spark(settings, os.environ) as context:
            yield SparkSession(context)
