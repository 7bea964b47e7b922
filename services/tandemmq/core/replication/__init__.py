"""Replication and sync double write as state machines without I/O."""
