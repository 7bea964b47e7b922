"""Tells the cluster of a run: Events on StatefulSets, a ConfigMap for the admin service, a Pushgateway."""
