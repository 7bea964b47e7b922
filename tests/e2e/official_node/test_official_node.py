"""The client API's conformance scenarios with the official Node.js client."""

from __future__ import annotations

from e2e.client_conformance import ClientConformance


class TestOfficialNode(ClientConformance):
    language = "node"
    tells_codes_of_routes = False  # it says that there is none
