"""Traces as JSON for programs: `tandemmq trace --json` and the admin service say the same."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from admin.trace_findings import TraceFindings, TraceList
from admin.trace_tree import TraceNode, TraceTree, trace_trees
from admin.trace_words import advice, missing

__all__ = ["findings_document", "list_document"]


def findings_document(findings: TraceFindings) -> dict[str, Any]:
    """All that is known of a message or a trace. Times are in ns since the epoch; a slave's, by its master's clock."""
    trees = trace_trees(findings.spans)
    return {
        "message_id": findings.message_id,
        "trace_id": f"{findings.trace_id:032x}" if findings.trace_id else "",
        "brokers": [asdict(state) for state in findings.brokers],
        "stored": [asdict(copy) for copy in findings.copies],
        "operations": [_tree(tree) for tree in trees],
        "dropped_span_count": findings.dropped_span_count,
        "notes": [*missing(findings, trees), *advice(findings)],
    }


def list_document(found: TraceList) -> dict[str, Any]:
    """The newest traces."""
    return {
        "brokers": [asdict(state) for state in found.brokers],
        "traces": [{**asdict(line), "trace_id": f"{line.trace_id:032x}"} for line in found.lines],
    }


def _tree(tree: TraceTree) -> dict[str, Any]:
    return {
        "trace_id": f"{tree.root.span.context.trace_id:032x}",
        "clock_shifts": [asdict(shift) for shift in tree.shifts],
        "span": _node(tree.root),
    }


def _node(node: TraceNode) -> dict[str, Any]:
    span = node.span
    return {
        "span_id": f"{span.context.span_id:016x}",
        "trace_id": f"{span.context.trace_id:032x}",
        "parent_span_id": f"{span.parent_span_id:016x}" if span.parent_span_id else "",
        "broker": node.broker,
        "name": span.name,
        "kind": span.kind.value,
        "linked": node.is_linked,
        "start_ns": node.start_ns,
        "end_ns": node.end_ns,
        "failure": span.failure,
        "attributes": dict(span.attributes),
        "events": [
            {"name": event.name, "at_ns": event.at_ns, "attributes": dict(event.attributes)} for event in node.events
        ],
        "links": [
            {"trace_id": f"{link.context.trace_id:032x}", "span_id": f"{link.context.span_id:016x}"}
            for link in span.links
        ],
        "children": [_node(child) for child in node.children],
    }
