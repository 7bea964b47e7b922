"""Consumers far behind are served by the master with what its slave holds, and without a slave from its own disk."""

from __future__ import annotations

from pathlib import Path

from support.lone_slave import LoneSlave, Reader
from support.scraped_metrics import scrape

TOTAL = 300
SETTINGS = {
    "slaveReadEnable": "true",
    # All of the log is far behind.
    "accessMessageInMemoryMaxRatio": "0",
    "metricsExporterType": "PROM",
    "metricsPromExporterPort": "0",
}


def test_a_slave_gives_what_is_far_behind_and_the_master_goes_on_without_it(tmp_path: Path) -> None:
    with LoneSlave(tmp_path, "fixed roles", settings=SETTINGS) as group:
        reader = Reader(group)
        group.send(range(TOTAL))
        group.wait_equal()
        reader.receive(TOTAL // 3, lease_ms=20_000)
        reader.acknowledge(TOTAL // 3)
        metrics = scrape(group.master)
        assert metrics.value("rocketmq_store_far_read_bytes_total", source="slave") > 0
        assert metrics.value("rocketmq_store_far_read_bytes_total", source="disk") == 0

        group.slave.kill()
        reader.receive_all(TOTAL)
        assert reader.acknowledged == set(range(TOTAL))
