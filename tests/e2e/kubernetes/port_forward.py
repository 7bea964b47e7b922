"""The admin service by `kubectl port-forward`, as an operator reaches it."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.kubernetes.cluster import until
from e2e.kubernetes.installation import RELEASE, Installation
from e2e.programs import free_port


@contextmanager
def admin_port(installation: Installation) -> Iterator[int]:
    """A port of this machine that leads to the admin service while the block runs."""
    port = free_port()
    forwarded = installation.cluster.start(
        "kubectl", "port-forward", "-n", installation.namespace, f"svc/{RELEASE}-admin", f"{port}:8080"
    )
    try:
        until(lambda: _unreachable(port), 60, "the admin service by port-forward")
        yield port
    finally:
        forwarded.terminate()
        try:
            forwarded.wait(10)
        except subprocess.TimeoutExpired:
            forwarded.kill()


def fetched(port: int, path: str) -> str:
    """The text of a page or document. OSError when it is refused or nobody answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def answer_of(port: int, method: str, path: str, body: str = "") -> int:
    """The status of an answer, whichever it is."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=body.encode() or None,
        headers={"content-type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def _unreachable(port: int) -> str:
    try:
        fetched(port, "/readyz")
    except OSError as error:
        return str(error)
    return ""
