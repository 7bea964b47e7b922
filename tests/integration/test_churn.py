"""Names and clients that come and go: what was answered is so, and a ledger that would tell if it were not."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.churn import KINDS, MESSAGE_TYPES, Churn, group_of, topic_of
from support.cluster_processes import ProcessCluster, ServiceProcess, wait_until
from support.guarded_broker import guarded_settings
from support.running_time import PATIENCE_S
from support.topic_admin import create_group, create_topic


def test_what_came_and_went_on_a_master_is_as_it_was_answered(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        keys = guarded_settings(tmp_path / "auth", {})["authKeyPath"]
        lone = {"brokerRole": "ASYNC_MASTER", "totalReplicas": "1", "authKeyPath": keys}
        broker = cluster.add_broker(settings=lone)
        for message_type in MESSAGE_TYPES:
            asyncio.run(create_topic(broker, topic_of(message_type), queues=1, message_type=message_type))
            asyncio.run(create_group(broker, group_of(message_type), ordered=message_type == "FIFO"))
        with Churn([broker], workers=3, seed=1) as churn:
            wait_until(lambda: _is_enough(churn), limit_s=PATIENCE_S, what="all kinds of names came and went")
        assert not [call for call in churn.clients if "UNAVAILABLE" in call or "INTERNAL" in call]
        assert churn.wrong(broker) == []
        broker.kill()
        broker.start()
        assert churn.wrong(broker) == []
        assert broker.stop() == 0
        assert not _has_traceback(broker)


def _is_enough(churn: Churn) -> bool:
    ledger = dict(churn.ledger)
    gone = {kind for (kind, _), value in ledger.items() if value is None}
    held = {kind for (kind, _), value in ledger.items() if value is not None}
    return gone == held == set(KINDS) and sum(churn.clients.values()) > 300


def _has_traceback(broker: ServiceProcess) -> bool:
    return "Traceback" in broker.log_path.read_text(errors="replace")


def test_a_name_that_was_lost_contradicts_the_ledger(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        cluster.add_name_server()
        broker = cluster.add_broker(settings={"brokerRole": "ASYNC_MASTER", "totalReplicas": "1"})
        asyncio.run(create_topic(broker, "churn-more", queues=2))
        churn = Churn([broker], workers=1, seed=1)
        churn.ledger.update({("topic", "churn-more"): 2, ("group", "churn-gone"): None})
        assert churn.wrong(broker) == []
        churn.ledger.update({("topic", "churn-more"): None, ("topic", "churn-lost"): 3, ("group", "churn-lost"): 1})
        assert len(churn.wrong(broker)) == 3
