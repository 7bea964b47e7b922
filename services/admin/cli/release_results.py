"""What the consistency job of a release in Kubernetes has found, read through the API server."""

from __future__ import annotations

from collections.abc import Sequence

from admin.cli.contexts import KubernetesPlace
from admin.cli.failure import EXIT_REFUSED, CommandError
from admin.cli.release_option import connect, find_release
from admin.consistency_results import ConfigMapResults
from admin.kubernetes_cluster import KubernetesUnavailable
from mqcore.audit.run_summary import RunSummary

__all__ = ["runs_of_release"]


async def runs_of_release(place: KubernetesPlace, config_map: str = "") -> Sequence[RunSummary]:
    """The newest runs in a ConfigMap, newest first; without a name in the one the chart gives the release.

    CommandError when it cannot be read.
    """
    kubernetes = await connect(place)
    name = config_map or f"{await find_release(kubernetes, place.release or None)}-consistency"
    try:
        data = await kubernetes.config_map(name)
    except KubernetesUnavailable as error:
        raise CommandError(
            f"ConfigMap {name} cannot be read",
            cause=str(error),
            remedy="does the release have consistency.enabled? Name another with --results, and see your rights",
            exit_code=EXIT_REFUSED,
        ) from error
    return ConfigMapResults(name, namespace=kubernetes.namespace, read_data=lambda: data).read()
