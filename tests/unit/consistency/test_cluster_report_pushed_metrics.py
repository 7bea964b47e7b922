"""What a Pushgateway is sent."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from support.audit_summaries import diverged_run, equal_group, equal_run, finding, run_of
from tandemmq.consistency.cluster_report import push, run_registry
from tandemmq.core.audit.run_summary import RunSummary


def _samples(summary: RunSummary) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = generate_latest(run_registry(summary)).decode()
    return {
        (sample.name.removeprefix("tandemmq_consistency_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_sound_group_has_no_findings_and_says_so() -> None:
    samples = _samples(equal_run())
    assert samples[_key("outcome", outcome="equal")] == 1
    assert samples[_key("outcome", outcome="diverged")] == 0
    assert samples[_key("findings", broker_group="broker-a", kind="")] == 0
    assert samples[_key("watermark_offset", broker_group="broker-b")] == 3 << 30
    assert samples[_key("last_success_timestamp_seconds")] == samples[_key("last_run_timestamp_seconds")]


def test_bad_run_leaves_the_time_of_the_last_good_one() -> None:
    samples = _samples(diverged_run())
    assert _key("last_success_timestamp_seconds") not in samples
    assert samples[_key("findings", broker_group="broker-a", kind="body-crc")] == 1


def test_findings_beyond_the_listed_ones_are_counted_without_a_kind() -> None:
    samples = _samples(run_of([equal_group(findings=900)], [finding()]))
    assert samples[_key("findings", broker_group="broker-a", kind="body-crc")] == 1
    assert samples[_key("findings", broker_group="broker-a", kind="")] == 899


def test_push_keeps_the_other_tier_apart() -> None:
    sent: list[tuple[str, str, bytes]] = []

    def handler(
        url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
    ) -> Callable[[], None]:
        assert timeout is not None
        return lambda: sent.append((method, url, data))

    push(equal_run(), "http://gateway:9091", handler=handler)
    ((method, url, body),) = sent
    assert method == "POST"
    assert url == "http://gateway:9091/metrics/job/tandemmq-consistency/cluster/DefaultCluster/tier/quick"
    assert b"tandemmq_consistency_last_run_timestamp_seconds" in body
