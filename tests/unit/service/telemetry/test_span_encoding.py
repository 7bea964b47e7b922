"""The bytes that spans leave in, beside those that the OpenTelemetry SDK makes of the same spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from opentelemetry.sdk import resources
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope as SdkScope

from support.span_samples import delivery_spans, send_spans, slave_spans
from tandemmq.core.tracing.span_data import SpanData, SpanEvent, SpanKind, SpanLink, TraceContext
from tandemmq.service.telemetry.span_encoding import encoded_request, encoded_span

_SDK_KINDS = {kind: otel.SpanKind[kind.value] for kind in SpanKind}
_RESOURCE = resources.Resource({"service.name": "tandemmq-broker", "tandemmq.broker_id": 0})

_TIMES = st.integers(min_value=1, max_value=(1 << 64) - 1)
_TEXTS = st.text(max_size=300)
_ATTRIBUTES = st.dictionaries(
    st.text(min_size=1, max_size=40),
    st.one_of(
        _TEXTS,
        st.booleans(),
        st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1),
        st.floats(allow_nan=False),
        st.lists(_TEXTS, max_size=4).map(tuple),
    ),
    max_size=6,
)
_CONTEXTS = st.builds(
    TraceContext,
    st.integers(min_value=1, max_value=(1 << 128) - 1),
    st.integers(min_value=1, max_value=(1 << 64) - 1),
    st.booleans(),
)
_SPANS = st.builds(
    SpanData,
    name=_TEXTS.filter(bool),
    context=_CONTEXTS.map(lambda context: context._replace(is_sampled=True)),
    parent_span_id=st.integers(min_value=0, max_value=(1 << 64) - 1),
    kind=st.sampled_from(SpanKind),
    start_ns=_TIMES,
    end_ns=_TIMES,
    attributes=_ATTRIBUTES,
    links=st.lists(st.builds(SpanLink, _CONTEXTS, _ATTRIBUTES), max_size=3).map(tuple),
    events=st.lists(st.builds(SpanEvent, _TEXTS.filter(bool), _TIMES, _ATTRIBUTES), max_size=3).map(tuple),
    failure=_TEXTS,
    parent_is_remote=st.booleans(),
)


def _sdk_context(context: TraceContext, *, is_remote: bool) -> otel.SpanContext:
    return otel.SpanContext(context.trace_id, context.span_id, is_remote, otel.TraceFlags(int(context.is_sampled)))


def _of_the_sdk(span: SpanData) -> ReadableSpan:
    parent = span.context._replace(span_id=span.parent_span_id)
    return ReadableSpan(
        name=span.name,
        context=_sdk_context(span.context, is_remote=False),
        parent=_sdk_context(parent, is_remote=span.parent_is_remote) if span.parent_span_id else None,
        resource=_RESOURCE,
        attributes=span.attributes,
        events=[Event(event.name, event.attributes, event.at_ns) for event in span.events],
        links=[otel.Link(_sdk_context(link.context, is_remote=True), link.attributes) for link in span.links],
        kind=_SDK_KINDS[span.kind],
        status=otel.Status(otel.StatusCode.ERROR, span.failure) if span.failure else otel.Status(),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=SdkScope("tandemmq", "1.0"),
    )


def _expected(spans: list[SpanData]) -> ExportTraceServiceRequest:
    """What the SDK sends, but for two things: it leaves out who is sampled, and writes a status that says nothing."""
    request = encode_spans([_of_the_sdk(span) for span in spans])
    for span, encoded in zip(spans, request.resource_spans[0].scope_spans[0].spans, strict=True):
        encoded.flags |= span.context.is_sampled
        for link, encoded_link in zip(span.links, encoded.links, strict=True):
            encoded_link.flags |= link.context.is_sampled
        if not span.failure:
            encoded.ClearField("status")
    return request


def _request(spans: list[SpanData]) -> bytes:
    [expected] = encode_spans([_of_the_sdk(spans[0])]).resource_spans
    return encoded_request(
        [encoded_span(span) for span in spans],
        resource=expected.resource.SerializeToString(),
        scope=expected.scope_spans[0].scope.SerializeToString(),
    )


def test_a_request_is_the_sdks_byte_by_byte() -> None:
    spans = [*send_spans(parent_span_id=0x99, failure="FLUSH_SLAVE_TIMEOUT"), *slave_spans(), *delivery_spans()]
    assert _request(spans) == _expected(spans).SerializeToString()


@given(span=_SPANS)
def test_any_span_is_the_sdks(span: SpanData) -> None:
    assert ExportTraceServiceRequest.FromString(_request([span])) == _expected([span])


@given(span=_SPANS)
def test_any_span_has_the_bytes_that_protobuf_would_write(span: SpanData) -> None:
    encoded = encoded_span(span)
    [read] = ScopeSpans.FromString(encoded).spans
    assert ScopeSpans(spans=[read]).SerializeToString() == encoded


def test_a_request_of_thousands_of_spans_has_all_of_them() -> None:
    spans = [span for number in range(1, 1_001) for span in send_spans(trace_id=number)]
    [of_resource] = ExportTraceServiceRequest.FromString(_request(spans)).resource_spans
    [of_scope] = of_resource.scope_spans
    assert [int.from_bytes(span.trace_id) for span in of_scope.spans] == [span.context.trace_id for span in spans]


def test_true_is_not_one_and_one_is_not_true() -> None:
    def read(value: float) -> str | None:
        span = SpanData("a", TraceContext(1, 2, True), 0, SpanKind.INTERNAL, 3, 4, {"key": value})
        parsed: Span = ScopeSpans.FromString(encoded_span(span)).spans[0]
        return parsed.attributes[0].value.WhichOneof("value")

    assert [read(value) for value in (1, True, 1.0, False, 0)] == [
        "int_value",
        "bool_value",
        "double_value",
        "bool_value",
        "int_value",
    ]


def test_an_empty_request_is_one() -> None:
    read = ExportTraceServiceRequest.FromString(encoded_request([], resource=b"", scope=b""))
    assert read == ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=Resource(), scope_spans=[ScopeSpans(scope=InstrumentationScope())])]
    )
