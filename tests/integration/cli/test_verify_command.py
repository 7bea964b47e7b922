"""`tandemmq verify`: what the job is told to read, what is printed of its run, and the exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from support.audit_stores import make_group
from support.audit_summaries import diverged_run
from support.certificates import ADMIN, CONSISTENCY, TestCertificates
from support.cluster_processes import ProcessCluster
from support.running_time import PATIENCE_S, run_program
from tandemmq.cli.app import app
from tandemmq.cli.commands import verify as verify_command
from tandemmq.cli.ending import EXIT_FAILED, CommandError
from tandemmq.core.access.identity import AdminLevel
from tandemmq.core.audit.run_summary import RunSummary

Run = Callable[..., tuple[Result, list[str]]]

_JOB = """
import json, os, pathlib, sys
settings = dict(each.split("=", 1) for flag, each in zip(sys.argv[1::2], sys.argv[2::2]))
assert not {"TANDEMMQ_NAMESRV_ADDR", "TANDEMMQ_PATH"} & set(os.environ)
pathlib.Path(os.environ["SEEN"]).write_text(json.dumps(settings))
summary = os.environ.get("SUMMARY")
if summary:
    folder = pathlib.Path(settings["results"])
    run = folder / "runs" / json.loads(summary)["run_id"]
    run.mkdir(parents=True)
    (folder / "latest.json").write_text(summary)
    (run / "repair-plan.json").write_text("{}")
sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with a job of our own; gives its result and the settings the job was given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job" / "tandemmq").mkdir(parents=True)
    (tmp_path / "job" / "tandemmq" / "consistency.py").write_text(_JOB, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "job"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    monkeypatch.setattr(verify_command, "_NEEDED", ())

    def run(*arguments: str, code: int = 0, summary: RunSummary | None = None) -> tuple[Result, list[str]]:
        monkeypatch.setenv("CODE", str(code))
        monkeypatch.setenv("SUMMARY", json.dumps(summary.to_json()) if summary is not None else "")
        result = CliRunner().invoke(app, ["verify", *arguments])
        seen: dict[str, Any] = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
        return result, [f"{key}={value}" for key, value in seen.items()]

    return run


_STOPPED = """
import os, signal, sys, time
asked = []
if "deaf" not in os.environ["KIND"]:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.append(1))
print("began", file=sys.stderr, flush=True)
while not asked:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(10 + len(asked))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("to_all", [True, False])
@pytest.mark.parametrize("has_begun", [True, False])
def test_what_ends_the_command_reaches_the_job_once(
    number: signal.Signals, to_all: bool, has_begun: bool, tmp_path: Path
) -> None:
    """A Ctrl-C goes to the whole group of processes, `kill` to one. A job that imports yet has nothing to tell."""
    (tmp_path / "tandemmq").mkdir()
    (tmp_path / "tandemmq" / "consistency.py").write_text(_STOPPED, encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), *sys.path))
    command = subprocess.Popen(
        (sys.executable, "-m", "tandemmq.cli", "verify", "--path", tmp_path, "--results", tmp_path / "out"),
        env={**os.environ, "PYTHONPATH": path, "KIND": "hears" if has_begun else "deaf"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Whoever runs the tests by `nohup` ignores one of them, and so would the command.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert command.stderr is not None
    assert command.stderr.readline() == b"began\n"
    (os.killpg if to_all else os.kill)(command.pid, number)
    # The job holds them, too: it has ended.
    output, errors = command.communicate(timeout=PATIENCE_S)
    assert (output, errors) == (b"", b"")
    assert command.returncode == (11 if has_begun else -number)


def test_name_servers_are_asked_whatever_the_environment_says(verify: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMMQ_NAMESRV_ADDR", "elsewhere:9876")
    monkeypatch.setenv("TANDEMMQ_PATH", "/elsewhere")
    _, settings = verify("--namesrv", "a:9876;b:9876", "--tier", "deep", "--group", "broker-a", "--group", "broker-b")
    assert settings[:2] == ["namesrvAddr=a:9876;b:9876", "tier=deep"]
    assert settings[4] == "groups=broker-a,broker-b"


def test_folders_are_read_instead_of_brokers(verify: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    _, settings = verify("--path", "one", "--path", "two", "--results", "out", "--set", "rateLimit=1MiB")
    assert settings == [
        f"path={tmp_path}/one;{tmp_path}/two",
        "tier=quick",
        "results=out",
        "progress=person",
        "rateLimit=1MiB",
    ]


def test_stopped_cluster_is_read_from_its_files(verify: Run, tmp_path: Path) -> None:
    (tmp_path / "stopped" / "store").mkdir(parents=True)
    _, settings = verify("--data", "stopped")
    assert settings == [
        f"path={tmp_path}/stopped",
        "tier=quick",
        f"results={tmp_path}/stopped/consistency",
        "progress=person",
    ]


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_exit_code_is_the_jobs(verify: Run, code: int) -> None:
    assert verify("--namesrv", "a:9876", code=code)[0].exit_code == code


def test_killed_job_has_failed(verify: Run, tmp_path: Path) -> None:
    (tmp_path / "job" / "tandemmq" / "consistency.py").write_text(
        "import os; os.kill(os.getpid(), 9)", encoding="utf-8"
    )
    (tmp_path / "seen.json").write_text("{}", encoding="utf-8")
    assert verify("--namesrv", "a:9876")[0].exit_code == EXIT_FAILED


def test_differences_are_printed_with_where_the_report_and_the_plan_are(verify: Run) -> None:
    result, _ = verify("--namesrv", "a:9876", "--results", "out", code=2, summary=diverged_run())
    assert result.exit_code == 2
    for fact in ("broker-a:1", "orders queue 3 offset 12345", "7F00000100002A9F0000018C3B2F0001", "replicas differ"):
        assert fact in result.output
    run = f"out/runs/{diverged_run().run_id}"
    assert f"report: {run}/report.html" in result.output
    assert f"tandemmq repair --plan {run}/repair-plan.json" in result.output


def test_old_run_is_not_shown_for_a_job_that_broke(verify: Run) -> None:
    verify("--namesrv", "a:9876", "--results", "out", summary=diverged_run())
    result, _ = verify("--namesrv", "a:9876", "--results", "out", code=1)
    assert "report" not in result.output


def _refusal(*arguments: str) -> CommandError:
    error = CliRunner().invoke(app, ["verify", *arguments]).exception
    assert isinstance(error, CommandError)
    # Not the code that says that replicas differ.
    assert error.exit_code == EXIT_FAILED
    return error


def test_missing_spark_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_command, "_NEEDED", ("tandemmq.consistency", "no_such_spark"))
    error = _refusal()
    assert "no_such_spark" in error.cause
    assert "tandemmq[consistency]" in error.remedy


def test_what_cannot_be_is_refused_before_the_job_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_command, "_NEEDED", ())
    assert "leave one of them out" in _refusal("--path", str(tmp_path), "--namesrv", "a:1").remedy
    assert "there is no folder" in _refusal("--path", str(tmp_path / "absent")).problem
    assert "names no NameServer" in _refusal("--namesrv", "nowhere").problem
    assert "tandemmq up" in _refusal("--data", str(tmp_path)).remedy


def test_real_run_needs_no_java_and_tells_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = make_group(tmp_path / "store", replicas=2, messages=200)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    command = [sys.executable, "-m", "tandemmq.cli", "verify", "--results", str(tmp_path / "results"), "--tier", "deep"]
    for folder in folders:
        command += ["--path", str(folder)]
    done = run_program(command, limit_s=120)
    assert done.returncode == 0, done.stderr
    assert "all replicas hold the same" in done.stdout
    assert "{" not in done.stdout
    assert done.stderr == ""
    assert RunSummary.from_json(json.loads((tmp_path / "results" / "latest.json").read_text())).records_checked == 400


def test_a_run_that_found_nobody_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["verify", "--namesrv", "127.0.0.1:1"])
    assert result.exit_code == EXIT_FAILED
    assert list(tmp_path.iterdir()) == []


def test_engine_is_the_jobs_setting(verify: Run, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    _, settings = verify("--path", "one", "--engine", "spark")
    assert settings[-1] == "engine=spark"


def test_a_cluster_with_certificates_is_asked_with_that_of_the_environment(tmp_path: Path) -> None:
    certificates = TestCertificates(tmp_path / "certificates")
    command = [sys.executable, "-m", "tandemmq.cli", "verify", "--results", str(tmp_path / "results")]
    with ProcessCluster(tmp_path, certificates=certificates) as cluster:
        cluster.add_name_server()
        command += ["--namesrv", cluster.namesrv_addr]

        def told(place: Path | None) -> str:
            environment = {} if place is None else {"TANDEMMQ_SERVICE_TLS_PATH": str(place)}
            done = run_program(command, limit_s=120, env=os.environ | environment)
            assert done.returncode == EXIT_FAILED
            return done.stderr

        assert "hangs up: where services know each other by certificates" in told(None)
        assert "is for admin" in told(certificates.issue(ADMIN[AdminLevel.REPAIR]))
        assert "hangs up" not in told(certificates.issue(CONSISTENCY))
