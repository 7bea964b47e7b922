"""What traces and metrics have in common on their way out by OTLP. Imported only where something is exported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk import resources

from mqcore.tracing.span_data import AttributeValue
from mqservice.version import VERSION

__all__ = ["EXPORTER_LINES", "SCOPE", "ExporterLines", "encoded_resource", "endpoint_of", "fill_attributes"]

SCOPE: Final = InstrumentationScope(name="tandemmq", version=VERSION)


class ExporterLines(logging.Filter):
    """Keeps the exporter's own lines out of the log, one for each attempt, and gives them to who asked it to send."""

    def __init__(self) -> None:
        super().__init__()
        self._caught = threading.local()

    @contextmanager
    def of_this_thread(self) -> Iterator[list[str]]:
        """Catches what the exporter says on this thread inside the block; the list gets the causes of failures."""
        causes: list[str] = []
        self._caught.causes = causes
        try:
            yield causes
        finally:
            self._caught.causes = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line goes on into the log."""
        causes: list[str] | None = getattr(self._caught, "causes", None)
        if causes is None:
            return True
        if record.levelno >= logging.ERROR and isinstance(record.args, tuple) and len(record.args) == 4:
            # "Failed to export %s to %s, error code: %s, error details: %s"
            _, _, code, details = record.args
            causes.append(f"{getattr(code, 'name', code)}: {details}")
        return False


EXPORTER_LINES: Final = ExporterLines()
# Before the library's own filter, which lets no line through twice in 20 s.
logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").filters.insert(0, EXPORTER_LINES)


def endpoint_of(target: str) -> str:
    """The exporters' URL of a receiver, which settings name as host:port (without TLS) or as an URL."""
    return target if "://" in target else f"http://{target}"


def encoded_resource(attributes: Mapping[str, str | int]) -> Resource:
    """`attributes`, what OTEL_RESOURCE_ATTRIBUTES says, and the SDK's own."""
    encoded = Resource()
    known = resources.Resource.create(dict(attributes)).attributes
    fill_attributes(
        encoded.attributes, {key: value for key, value in known.items() if isinstance(value, str | int | float)}
    )
    return encoded


def fill_attributes(into: Any, attributes: Mapping[str, AttributeValue]) -> None:
    """Adds key-value pairs to a repeated field."""
    for key, value in attributes.items():
        pair: KeyValue = into.add()
        pair.key = key
        if isinstance(value, str):
            pair.value.string_value = value
        elif isinstance(value, bool):
            # Before int: a bool is one.
            pair.value.bool_value = value
        elif isinstance(value, int):
            pair.value.int_value = value
        elif isinstance(value, float):
            pair.value.double_value = value
        else:
            values = pair.value.array_value.values
            for item in value:
                values.add().string_value = item
