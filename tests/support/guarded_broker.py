"""A broker process that asks who calls, its seeds, and changes of its users."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.cluster_processes import ProcessCluster, ServiceProcess
from tandemmq.admin.rpc import BrokerAccessCalls, Channels
from tandemmq.proto.admin.v1 import broker_access_service_pb2 as pb


def guarded_settings(
    folder: Path, users: Mapping[str, str], *, super_users: Sequence[str] = (), acls: Sequence[Any] = ()
) -> dict[str, str]:
    """Settings of brokers that ask, all of them with these users (name to secret) and policies; files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    keys, seeds = folder / "auth.key", folder / "seeds.json"
    keys.write_text(base64.b64encode(b"k" * 32).decode())
    seeds.write_text(
        json.dumps(
            {
                "users": [
                    {"username": name, "password": secret, "userType": "Super" if name in super_users else "Normal"}
                    for name, secret in users.items()
                ],
                "acls": list(acls),
            }
        )
    )
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authKeyPath": str(keys),
        "authSeedPath": str(seeds),
    }


@contextmanager
def guarded_broker(folder: Path, users: Mapping[str, str], **options: Any) -> Iterator[ServiceProcess]:
    """A lone master, and a NameServer."""
    with ProcessCluster(folder) as cluster:
        cluster.add_name_server()
        settings = guarded_settings(folder / "auth", users, **options)
        more = {"brokerRole": "ASYNC_MASTER", "totalReplicas": "1", "consumeFromEarliest": "true"}
        yield cluster.add_broker(settings=settings | more)


async def put_user(broker: ServiceProcess, username: str, *, password: str) -> None:
    """Gives a user a new secret, or makes it, on one master."""
    channels = Channels()
    try:
        calls = BrokerAccessCalls(channels, f"127.0.0.1:{broker.ports['listenPort']}")
        await calls.put_user(pb.PutUserRequest(username=username, password=password))
    finally:
        await channels.close()
