"""An open group becomes a closed one by three rolling restarts under load, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.acknowledged_sends import AcknowledgedSender
from support.certificates import ADMIN, GROUP, NAME_SERVER, TestCertificates, broker
from support.cluster_processes import ProcessCluster, ServiceProcess, commit_log_bytes, wait_until
from support.topic_admin import broker_status, create_topic
from tandemmq.core.access.identity import AdminLevel
from tandemmq.service.certificates import CertificateFolder
from tandemmq.service.event_loop import SystemClock
from tandemmq.service.service_channels import ServiceTls, use_service_tls

LIMIT_S = 120.0
STEPS = (
    {"serviceTlsMode": "permissive"},
    {"serviceTlsMode": "permissive", "serviceTlsCall": "true"},
    {"serviceTlsMode": "enforcing"},
)


def test_a_group_is_closed_step_by_step_under_load(tmp_path: Path) -> None:
    certificates = TestCertificates(tmp_path / "certificates")
    admin = ServiceTls(
        CertificateFolder(certificates.issue(ADMIN[AdminLevel.OPERATOR]), clock=SystemClock()),
    )
    with ProcessCluster(tmp_path) as cluster:
        name_server = cluster.add_name_server()
        master, slave = cluster.add_broker(GROUP, broker_id=0), cluster.add_broker(GROUP, broker_id=1)
        folders = {
            name_server.name: certificates.issue(NAME_SERVER),
            master.name: certificates.issue(broker(0)),
            slave.name: certificates.issue(broker(1)),
        }
        asyncio.run(create_topic(master, "orders", queues=2))
        _wait_until_in_sync(master, None)
        with AcknowledgedSender(master, "orders", inflight=2, pause_s=0.02) as sender:
            for step in STEPS:
                for process in (name_server, slave, master):
                    process.stop()
                    process.settings |= {**step, "serviceTlsPath": str(folders[process.name])}
                    process.start()
                    tls = admin if master.settings.get("serviceTlsMode", "") == "enforcing" else None
                    _wait_until_in_sync(master, tls)
                before = len(sender.acknowledged)
                wait_until(lambda: len(sender.acknowledged) > before + 20, limit_s=LIMIT_S, what=f"sends go on: {step}")  # noqa: B023
        slave.stop()
        master.stop()
        for key in (master.name, slave.name):
            log = b"".join(commit_log_bytes(cluster.store_folder(key)).values())
            lost = [message_id for message_id in sender.acknowledged if message_id.encode() not in log]
            assert lost == [], key


def _wait_until_in_sync(master: ServiceProcess, tls: ServiceTls | None) -> None:
    async def ask() -> bool:
        return any(each.verified and each.in_sync for each in (await broker_status(master)).slaves)

    def is_so() -> bool:
        with use_service_tls(tls):
            return asyncio.run(ask())

    wait_until(is_so, limit_s=LIMIT_S, what="the slave is in sync")
