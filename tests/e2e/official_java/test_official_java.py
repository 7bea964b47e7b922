"""The client API's conformance scenarios with the official Java client."""

from __future__ import annotations

from e2e.client_conformance import ClientConformance


class TestOfficialJava(ClientConformance):
    language = "java"
