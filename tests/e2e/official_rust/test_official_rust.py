"""The client API's conformance scenarios with the official Rust client."""

from __future__ import annotations

from e2e.client_conformance import ClientConformance


class TestOfficialRust(ClientConformance):
    language = "rust"
