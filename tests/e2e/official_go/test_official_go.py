"""The client API's conformance scenarios with the official Go client."""

from __future__ import annotations

from e2e.client_conformance import ClientConformance


class TestOfficialGo(ClientConformance):
    language = "go"
    closes_connections = False  # its telemetry streams and connections stay
