"""The OpenTelemetry Collector: takes OTLP/gRPC, writes what it took as JSON lines, hands traces to Zipkin if asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from e2e.programs import RunningProgram, free_port, tool


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """A span as it arrived. Ids are hexadecimal as OTLP's JSON has them, times in ns since the epoch."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    events: tuple[tuple[str, int, Mapping[str, Any]], ...]
    # (trace id, span id) of each.
    links: tuple[tuple[str, str], ...]
    is_error: bool

    @property
    def instance(self) -> str:
        """Which process made it."""
        return str(self.resource.get("service.instance.id", ""))


@dataclass
class OtelCollector:
    """One collector on free ports, its files in `folder`."""

    folder: Path
    zipkin_url: str = ""
    otlp_port: int = 0
    # Off for a collector that runs for hours.
    keeps_files: bool = True
    program: RunningProgram = field(init=False)

    def __post_init__(self) -> None:
        self.otlp_port = self.otlp_port or free_port()
        http_port = free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        exporters: dict[str, Any] = {}
        pipelines: dict[str, Any] = {}
        if self.keeps_files:
            for signal in ("traces", "metrics"):
                exporters[f"file/{signal}"] = {
                    "path": str(self.folder / f"{signal}.jsonl"),
                    "flush_interval": "200ms",
                }
                pipelines[signal] = {"receivers": ["otlp"], "exporters": [f"file/{signal}"]}
        if self.zipkin_url:
            exporters["zipkin"] = {"endpoint": f"{self.zipkin_url}/api/v2/spans"}
            pipelines.setdefault("traces", {"receivers": ["otlp"], "exporters": []})["exporters"].append("zipkin")
        protocols = {
            "grpc": {"endpoint": f"127.0.0.1:{self.otlp_port}"},
            "http": {"endpoint": f"127.0.0.1:{http_port}"},
        }
        configuration = {
            "receivers": {"otlp": {"protocols": protocols}},
            "exporters": exporters,
            "service": {
                # Its own metrics would want a port.
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": pipelines,
            },
        }
        path = self.folder / "collector.yaml"
        path.write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
        self.program = RunningProgram(
            "otel-collector",
            [tool("otel_collector.sh"), "--config", f"file:{path}"],
            folder=self.folder,
            ready_url=f"http://127.0.0.1:{http_port}/",
        )

    @property
    def otlp_target(self) -> str:
        """host:port for OTLP/gRPC."""
        return f"127.0.0.1:{self.otlp_port}"

    def spans(self) -> list[CollectedSpan]:
        """Every span that arrived so far."""
        return [
            _span(span, resource)
            for line in _lines(self.folder / "traces.jsonl")
            for of_resource in line.get("resourceSpans", ())
            for resource in (_attributes(of_resource.get("resource", {})),)
            for of_scope in of_resource.get("scopeSpans", ())
            for span in of_scope.get("spans", ())
        ]

    def metric_names(self) -> dict[str, set[str]]:
        """Names of the metrics that arrived so far, by service.instance.id."""
        found: dict[str, set[str]] = {}
        for line in _lines(self.folder / "metrics.jsonl"):
            for of_resource in line.get("resourceMetrics", ()):
                names = found.setdefault(
                    str(_attributes(of_resource["resource"]).get("service.instance.id", "")), set()
                )
                for of_scope in of_resource.get("scopeMetrics", ()):
                    names.update(metric["name"] for metric in of_scope.get("metrics", ()))
        return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        # The last one may be under way.
        if line.endswith("\n"):
            yield json.loads(line)


def _span(span: Mapping[str, Any], resource: Mapping[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        name=span["name"],
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        attributes=_attributes(span),
        resource=resource,
        events=tuple(
            (event["name"], int(event["timeUnixNano"]), _attributes(event)) for event in span.get("events", ())
        ),
        links=tuple((link["traceId"], link["spanId"]) for link in span.get("links", ())),
        is_error=span.get("status", {}).get("code") in (2, "STATUS_CODE_ERROR"),
    )


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: _value(each.get("value", {})) for each in holder.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    for kind, plain in value.items():
        if kind == "intValue":
            return int(plain)
        if kind == "arrayValue":
            return [_value(each) for each in plain.get("values", ())]
        return plain
    return None
