"""This process as a pod of a cluster whose API server is one of ours."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from tandemmq.service import kubernetes_api

TOKEN = "token-of-the-pod"


@contextmanager
def pod_of(folder: Path, port: int, *, namespace: str) -> Iterator[None]:
    """While the context lasts. The API server speaks HTTP; `folder` is the ServiceAccount's."""
    (folder / "namespace").write_text(f"{namespace}\n")
    (folder / "token").write_text(f"{TOKEN}\n")

    def dial(host: str, port: int, *, connect_limit_s: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(host, port, timeout=connect_limit_s)
        connection.connect()
        return connection

    variables = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.object(kubernetes_api, "_SERVICE_ACCOUNT", folder),
        mock.patch.object(kubernetes_api, "_dial", dial),
    ):
        yield
