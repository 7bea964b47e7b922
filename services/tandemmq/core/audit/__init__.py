"""Proving that replicas are equal, and naming what is not. No I/O: files are given, findings returned."""
