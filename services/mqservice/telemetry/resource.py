"""Who a process is, to those who read its traces and metrics."""

from __future__ import annotations

from collections.abc import Mapping

from mqservice.version import VERSION

__all__ = ["resource_attributes"]


def resource_attributes(
    *, service: str, instance_id: str, attributes: Mapping[str, str | int] | None = None
) -> dict[str, str | int]:
    """Resource attributes by OpenTelemetry's names, with `attributes` of our own.

    `service` is broker, nameserver and so on; `instance_id` is one of its kind for ever, for example
    `DefaultCluster/broker-a/0`: a restarted process goes on under it.
    """
    return {
        "service.namespace": "tandemmq",
        "service.name": f"tandemmq-{service}",
        "service.instance.id": instance_id,
        "service.version": VERSION,
        **(attributes or {}),
    }
