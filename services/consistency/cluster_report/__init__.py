"""Tells the cluster of a run: Events on StatefulSets, a ConfigMap for the admin service, a Pushgateway."""

from consistency.cluster_report.announcement import announce

__all__ = ["announce"]
