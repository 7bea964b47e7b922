"""What strangers may have of a broker's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.broker.client_api import plane
from tandemmq.broker.settings import BrokerSettings
from tandemmq.service.settings import load_settings


@pytest.mark.parametrize("gibibytes", [1, 2, 4, 16, 256])
@pytest.mark.parametrize("ports", [1, 2])
def test_what_strangers_begin_and_do_not_end_fits_into_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gibibytes: int, ports: int
) -> None:
    """A container that takes more is killed."""
    monkeypatch.setattr(plane, "memory_bytes", lambda: gibibytes << 30)
    overrides = [f"storePathRootDir={tmp_path}"]
    if ports == 2:
        overrides += ["externalListenPort=9999", "externalAdvertisedHost=mq.example"]
    limits = plane._limits(load_settings(BrokerSettings, environ={}, overrides=overrides))
    kept = 2 * ports * (limits.server_buffer_bytes + limits.server_streams * 2_500)
    assert kept <= 0.75 * (gibibytes << 30) or gibibytes == 1
    assert kept <= ports * 4 << 30
    assert limits.server_buffer_bytes > limits.message_bytes
