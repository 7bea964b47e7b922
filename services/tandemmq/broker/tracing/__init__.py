"""Traces of what a broker does: of sends on a master and its slaves, and of receives."""
