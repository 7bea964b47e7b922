"""What `failoverAuthority` may say."""

from __future__ import annotations

import pytest

from tandemmq.broker.failover.authority import check_authority, open_authority


@pytest.mark.parametrize(
    "text",
    [
        "file:/var/lib/tandemmq/groups",
        "etcd:127.0.0.1:2379",
        "etcd:etcd-0.etcd:2379,etcd-1.etcd:2379,[fd00::5]:2379",
        "etcd:10.0.0.5:2379/mq/production",
        "kubernetes:mq-broker-a",
        "kubernetes:mq.broker-a",
    ],
)
def test_authority_is_understood(text: str) -> None:
    assert check_authority(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "use `file:FOLDER`, `etcd:"),
        ("zookeeper:127.0.0.1:2181", "there is no such authority; use"),
        ("file:", "absolute path"),
        ("file:groups", "absolute path"),
        ("etcd:", "'' is no HOST:PORT"),
        ("etcd:10.0.0.5", "'10.0.0.5' is no HOST:PORT"),
        ("etcd:10.0.0.5:2379,", "'' is no HOST:PORT"),
        ("etcd:http://10.0.0.5:2379", "is no HOST:PORT"),
        ("etcd:10.0.0.5:0", "is no HOST:PORT"),
        ("etcd:10.0.0.5:70000", "is no HOST:PORT"),
        ("etcd:10.0.0.5:2379/", "'' is no prefix"),
        ("etcd:10.0.0.5:2379//a", "is no prefix"),
        ("kubernetes:", "is no Lease's name"),
        ("kubernetes:Broker_A", "is no Lease's name"),
        ("kubernetes:mq/broker-a", "is no Lease's name"),
    ],
)
def test_mistake_is_named_with_the_remedy(text: str, problem: str) -> None:
    said = check_authority(text)
    assert said.startswith(f"failoverAuthority={text}: ")
    assert problem in said
    with pytest.raises(ValueError, match="failoverAuthority="):
        open_authority(text, cluster="c", broker_name="b")
