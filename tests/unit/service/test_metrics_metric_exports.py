"""Which ways out settings ask for, and how many series there may be."""

from __future__ import annotations

import pytest

from tandemmq.service.metrics import ExporterType, SeriesLimit, parse_exporter_types


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("DISABLE", set()),
        ("PROM", {ExporterType.PROM}),
        ("PROM; OTLP_GRPC", {ExporterType.PROM, ExporterType.OTLP_GRPC}),
    ],
)
def test_exporter_types_are_separated_by_semicolons(text: str, types: set[ExporterType]) -> None:
    assert parse_exporter_types(text) == types


@pytest.mark.parametrize("text", ["", "prometheus", "PROM,OTLP_GRPC", "DISABLE;PROM"])
def test_what_is_no_way_out_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="write DISABLE, or PROM and OTLP_GRPC"):
        parse_exporter_types(text)


def test_the_first_keys_keep_series_of_their_own() -> None:
    limit: SeriesLimit[str] = SeriesLimit(2)
    assert [limit.admits(key) for key in ("a", "b", "c", "a", "c")] == [True, True, False, True, False]
