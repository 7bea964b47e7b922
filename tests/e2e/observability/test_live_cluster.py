"""What an operator sees of a live cluster: scraped by Prometheus, traced into a collector, judged by alerts.

The tests run in their order on one cluster: a slave is stopped in the middle, so that the dashboards have it to show.
"""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from e2e.observability.alert_rules import chart_rules
from e2e.observability.browser import picture
from e2e.observability.conftest import Note
from e2e.observability.dashboard_pictures import draw_dashboards
from e2e.observability.dashboards import metric_names, read_dashboard
from e2e.observability.send_trace import SendTrace, TraceIncomplete, send_trace
from e2e.observability.stage import DASHBOARDS, Stage
from support.cluster_processes import wait_until
from support.consistency_job import run_job
from tandemmq.broker.metrics_catalogue import BROKER_METRICS
from tandemmq.service.metrics import MetricKind

pytestmark = pytest.mark.timeout(900)

LIMIT_S = 240.0
STOPPED = "broker-a-s"
# Fire at once when the only slave of a SYNC_MASTER is dead.
EXPECTED_ALERTS = frozenset({"TandemMQBrokerDown", "TandemMQMasterWithoutSlave", "TandemMQTooFewSlavesInSync"})
# How long the dashboards show the cluster after the slave is back, so that there is an end of it to see.
AFTERMATH_S = 20.0
# Clocks are one here; what differs is that each process relates its monotonic clock to the wall clock for itself.
CLOCK_TOLERANCE_NS = 2_000_000


def test_prometheus_scrapes_every_member(stage: Stage, note: Note) -> None:
    wanted = stage.scrape_addresses()
    assert len(wanted) == 4 + 2 + 1

    def all_up() -> bool:
        targets = stage.prometheus.targets()
        return set(targets) == wanted and all(health == "up" for health, _ in targets.values())

    _wait(all_up, "all are scraped", stage.prometheus.targets)
    note("scraped_targets", len(wanted), "targets")


def test_run_of_the_consistency_job_is_seen(stage: Stage) -> None:
    run = run_job(
        stage.consistency_results,
        {"namesrvAddr": stage.cluster.namesrv_addr},
        log=stage.folder / "consistency.log",
        limit_s=300,
    )
    assert not run.findings
    seen = "sum(tandemmq_consistency_outcome) == 1 and on() (sum(tandemmq_consistency_findings) == 0)"
    wait_until(lambda: bool(stage.prometheus.query(seen)), limit_s=LIMIT_S, what="the run is in the metrics")


def test_every_metric_of_the_catalogue_arrives(stage: Stage, note: Note) -> None:
    _knock(stage)
    wanted = {name for info in BROKER_METRICS for name in _exposed_names(info.name, info.kind)}
    _wait_for_names(stage, wanted)
    note("broker_metrics", len(BROKER_METRICS), "metrics")
    note("series", stage.prometheus.query('count({job!=""})')[0].value, "series")


def test_every_series_that_dashboards_and_rules_name_exists(stage: Stage) -> None:
    wanted: set[str] = set()
    for path in DASHBOARDS:
        for panel in read_dashboard(path).panels:
            for target in panel.targets:
                wanted |= metric_names(target.expression)
    for group in chart_rules()["groups"]:
        for rule in group["rules"]:
            wanted |= metric_names(rule["expr"])
    assert wanted
    _wait_for_names(stage, wanted)


def test_metrics_arrive_by_otlp_too(stage: Stage) -> None:
    brokers = len(stage.cluster.members("broker"))
    wanted = {"rocketmq_storage_size", "rocketmq_broker_uptime_seconds", "rocketmq_store_flush_seconds"}

    def arrived() -> bool:
        names = stage.collector.metric_names()
        return len(names) == brokers and all(wanted <= each for each in names.values())

    _wait(arrived, f"{sorted(wanted)} of {brokers} brokers", stage.collector.metric_names)


def test_one_send_is_one_tree_over_both_replicas(stage: Stage, note: Note) -> None:
    trace = _whole_trace(stage)
    assert trace.client.resource["service.name"] == "shop"
    assert trace.server.resource["service.name"] == "tandemmq-broker"
    assert trace.server.parent_id == trace.client.span_id
    assert trace.replica_append.resource["service.name"] == "tandemmq-broker"
    assert trace.replica_append.instance != trace.server.instance
    assert trace.replicate_wait.attributes["tandemmq.ack.required"] == 1
    assert trace.replicate_wait.attributes["tandemmq.ack.received"] == 1
    for child in (trace.append, trace.replicate_wait, trace.reply):
        assert trace.server.start_ns <= child.start_ns <= child.end_ns <= trace.server.end_ns
    # In the order in which a send passes the master.
    assert trace.append.end_ns <= trace.replicate_wait.start_ns <= trace.replicate_wait.end_ns <= trace.reply.start_ns
    sent_ns, acknowledged_ns = trace.event_ns("sent"), trace.event_ns("acknowledged")
    assert trace.append.end_ns <= sent_ns <= acknowledged_ns <= trace.replicate_wait.end_ns
    # The slave's part lies between what the master saw of it.
    assert sent_ns - CLOCK_TOLERANCE_NS <= trace.replica_append.start_ns
    assert trace.replica_append.start_ns <= trace.replica_append.end_ns <= acknowledged_ns + CLOCK_TOLERANCE_NS
    note("spans_of_one_send", len(trace.all_spans), "spans")


def test_receives_and_settles_link_to_the_send(stage: Stage) -> None:
    trace = _whole_trace(stage)
    send = {(trace.client.trace_id, trace.client.span_id), (trace.server.trace_id, trace.server.span_id)}

    def linked() -> bool:
        names = {span.name.rsplit("/")[-1] for span in stage.collector.spans() if send & set(span.links)}
        return {"ReceiveMessage", "AckMessage"} <= names

    wait_until(linked, limit_s=LIMIT_S, what="a receive and an acknowledgement with a link to the send")


def test_exemplars_lead_from_a_latency_to_its_trace(stage: Stage) -> None:
    def found() -> bool:
        named = {labels["trace_id"] for labels in stage.prometheus.exemplars("rocketmq_send_to_ack_seconds_bucket")}
        return bool(named & {span.trace_id for span in stage.collector.spans()})

    wait_until(found, limit_s=LIMIT_S, what="an exemplar whose trace the collector has")


def test_the_terminal_and_the_page_show_the_tree(stage: Stage) -> None:
    trace = _whole_trace(stage)
    message_id = _message_id(stage, trace)
    printed = stage.cluster.run("trace", message_id)
    with urllib.request.urlopen(_page(stage, message_id), timeout=LIMIT_S) as answer:
        page = answer.read().decode()
    for text in ("SendMessage", "commitlog append", "replicate wait", "replica append", trace.server.trace_id):
        assert text in printed, printed
        assert text in page, page


def test_alerts_fire_while_a_slave_is_stopped_and_end_when_it_is_back(stage: Stage, note: Note) -> None:
    assert not stage.prometheus.broken_rules()
    quiet = EXPECTED_ALERTS | {"TandemMQSlaveNotFollowing", "TandemMQUnhealthy"}
    _wait(lambda: not quiet & set(stage.prometheus.firing()), "no alert before the fault", stage.prometheus.firing)
    stage.cluster.kill(STOPPED)
    stopped_at = time.monotonic()
    _wait(
        lambda: set(stage.prometheus.firing()) >= EXPECTED_ALERTS,
        f"{sorted(EXPECTED_ALERTS)} fire",
        stage.prometheus.firing,
    )
    note("alerts_fired_after", round(time.monotonic() - stopped_at, 1), "s")
    for alert in ("TandemMQMasterWithoutSlave", "TandemMQTooFewSlavesInSync"):
        assert {labels["node_id"] for labels in stage.prometheus.firing()[alert]} == {"broker-a"}
    # A send that is not acknowledged is traced for that alone.
    wait_until(
        lambda: any(span.is_error for span in stage.collector.spans()),
        limit_s=LIMIT_S,
        what="the trace of a failed send",
    )
    stage.cluster.start_again(STOPPED)
    back_at = time.monotonic()
    _wait(lambda: not quiet & set(stage.prometheus.firing()), "alerts end", stage.prometheus.firing)
    note("alerts_ended_after", round(time.monotonic() - back_at, 1), "s")
    stage.traffic.check_running()


def test_every_panel_of_every_dashboard_has_something_to_show(stage: Stage, pictures: Path | None, note: Note) -> None:
    assert DASHBOARDS
    _knock(stage)
    time.sleep(AFTERMATH_S)
    end_s = time.time()
    drawn = draw_dashboards(
        DASHBOARDS,
        stage.prometheus,
        start_s=stage.began_s,
        end_s=end_s,
        subtitle="a local cluster, one slave of which was stopped for a while",
        pages=stage.folder,
        pictures=pictures,
    )
    assert not drawn.problems, "\n".join(drawn.problems)
    note("panels", drawn.panel_count, "panels")


def test_pictures_of_a_trace(stage: Stage, pictures: Path | None) -> None:
    if pictures is None:
        pytest.skip("no pictures are wanted")
    trace = _whole_trace(stage)
    page = _page(stage, _message_id(stage, trace))
    picture(page, pictures / "trace-of-a-send.png", width=1280, height=818)
    assert stage.zipkin is not None
    url = f"{stage.zipkin.url}/zipkin/traces/{trace.server.trace_id}"
    picture(url, pictures / "trace-in-zipkin.png", width=1280, height=620)


def _message_id(stage: Stage, trace: SendTrace) -> str:
    (message_id,) = (line["message_id"] for line in stage.traffic.sent() if line["trace_id"] == trace.server.trace_id)
    return str(message_id)


def _page(stage: Stage, message_id: str) -> str:
    return f"{stage.cluster.admin_url}/traces?id={message_id}"


def _knock(stage: Stage) -> None:
    """A stranger speaks HTTP/1 to the ports of a master's slaves and clients, and is refused at both."""
    ports = stage.cluster.member("broker-a")["ports"]
    for key in ("haListenPort", "grpcServerPort"):
        with socket.create_connection(("127.0.0.1", ports[key]), timeout=LIMIT_S) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # Until it is shown the door.
            while stranger.recv(4_096):
                pass


def _whole_trace(stage: Stage) -> SendTrace:
    """The latest send of which everything has arrived."""
    found: list[SendTrace] = []
    missing: list[str] = []

    def arrived() -> bool:
        stage.traffic.check_running()
        spans = stage.collector.spans()
        # The newest are on their way still.
        for line in reversed(stage.traffic.sent()[-400:-1]):
            try:
                found.append(send_trace(spans, line["trace_id"]))
            except TraceIncomplete as error:
                missing[:] = [str(error)]
            else:
                return True
        return False

    _wait(arrived, "a whole trace", lambda: missing)
    return found[0]


def _wait_for_names(stage: Stage, wanted: Iterable[str]) -> None:
    names = set(wanted)

    def missing() -> set[str]:
        return names - set(stage.prometheus.label_values("__name__"))

    _wait(lambda: not missing(), "no name is missing", missing)


def _wait(condition: Callable[[], bool], what: str, instead: Callable[[], object]) -> None:
    """Until the condition holds; AssertionError that says what is there instead."""
    try:
        wait_until(condition, limit_s=LIMIT_S, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}; there is {instead()}") from None


def _exposed_names(name: str, kind: MetricKind) -> tuple[str, ...]:
    return (f"{name}_bucket", f"{name}_sum", f"{name}_count") if kind is MetricKind.HISTOGRAM else (name,)
