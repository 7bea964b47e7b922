"""The command lines that Spark's pods are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.consistency.executor_entry import EntryRefused, driver_command, executor_command, main

# As Spark 4 fills them in, without what the command line does not need.
VARIABLES = {
    "JAVA_HOME": "/opt/java",
    "SPARK_HOME": "/opt/spark",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "2",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-42",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "consistency-exec-2",
}


def test_an_executor_gets_what_spark_left_in_the_environment() -> None:
    assert executor_command(VARIABLES) == [
        "/opt/java/bin/java",
        "-Xmx512m",
        "-cp",
        "/opt/spark/conf/:/opt/spark/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@10.0.0.7:7078"),
        *("--executor-id", "2"),
        *("--cores", "1"),
        *("--app-id", "spark-42"),
        *("--hostname", "10.0.0.9"),
        *("--resourceProfileId", "0"),
        *("--podName", "consistency-exec-2"),
    ]


def test_options_of_java_keep_their_order_and_their_spaces() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} x" for number in (10, 2, 0, 9)}
    command = executor_command(VARIABLES | options | {"SPARK_JAVA_OPT_LATE": "no"})
    assert command[1:6] == ["-Dn=0 x", "-Dn=2 x", "-Dn=9 x", "-Dn=10 x", "-Xmx512m"]


def test_settings_come_before_jars_on_the_class_path() -> None:
    more = {"SPARK_CONF_DIR": "/conf", "SPARK_CLASSPATH": "/mine.jar", "SPARK_EXTRA_CLASSPATH": "/more.jar"}
    command = executor_command(VARIABLES | more)
    assert command[command.index("-cp") + 1] == "/conf:/mine.jar:/opt/spark/jars/*:/more.jar"


def test_jars_have_the_order_that_spark_submit_gives_them(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "slf4j-api-2.0.jar").touch()
    command = executor_command(VARIABLES | {"SPARK_HOME": str(tmp_path)})
    assert command[command.index("-cp") + 1] == f"{tmp_path}/conf/:{tmp_path}/jars/slf4j-api-2.0.jar:{tmp_path}/jars/*"


def test_a_pod_that_spark_did_not_make_is_refused_with_all_that_is_missing() -> None:
    with pytest.raises(EntryRefused, match="SPARK_DRIVER_URL, SPARK_EXECUTOR_POD_NAME"):
        executor_command(VARIABLES | {"SPARK_DRIVER_URL": "", "SPARK_EXECUTOR_POD_NAME": ""})


def test_a_submitted_driver_is_a_client_on_its_pods_address() -> None:
    variables = VARIABLES | {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}
    assert driver_command(variables, ["--class", "org.apache.spark.deploy.PythonRunner", "local:///job.py"]) == [
        "/opt/spark/bin/spark-submit",
        *("--conf", "spark.driver.bindAddress=10.0.0.7"),
        *("--deploy-mode", "client"),
        *("--class", "org.apache.spark.deploy.PythonRunner", "local:///job.py"),
    ]
    with pytest.raises(EntryRefused, match="SPARK_DRIVER_BIND_ADDRESS"):
        driver_command(VARIABLES, [])


@pytest.mark.parametrize("arguments", [[], ["--config", "x"], ["executor", "now"]])
def test_anything_else_is_told_what_to_run(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mqconsistency-executor", *arguments])
    assert main() == 1
    assert "mqconsistency" in capsys.readouterr().err
